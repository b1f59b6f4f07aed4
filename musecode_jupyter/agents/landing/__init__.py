"""Landing: how verified work gets onto the user's branch, one merge at a time, and how it is taken back."""
