"""Thinking: the loop, what goes into a prompt, and the two ways (driver, guided) to form the next tool call."""
