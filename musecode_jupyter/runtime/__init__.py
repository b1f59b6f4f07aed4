"""The ground floor: the loop thread, the effects protocol, processes and their guardian, errors."""
