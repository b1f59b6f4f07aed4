"""Acting on the world: the registry of tools, their carrying out with events, and the file and command tools."""
