"""The face: magics, the host that holds the session of a kernel, and the views."""
