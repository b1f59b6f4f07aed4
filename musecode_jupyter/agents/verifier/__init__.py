"""The verifier: runs what the work is to pass beside the work itself, and tells what turned red or green."""
