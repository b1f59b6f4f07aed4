"""What the user asks for as a whole: `%goal`, a state machine over events."""
