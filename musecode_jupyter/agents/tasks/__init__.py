"""Tasks: what is to be done, what stands in whose way, how each one stands."""
