"""Git mechanics: running git, worktrees, merge checks and ref moves. The floor above writes the events."""
