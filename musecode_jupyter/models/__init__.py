"""Talking to models: the catalogue, the clients for each API, the embedded local model, recorded answers."""
