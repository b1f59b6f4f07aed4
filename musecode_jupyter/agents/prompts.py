"""What prompts begin with that are no role's; no clock and no counter in it, as in those of `roles`."""

from __future__ import annotations

ASK = """\
You answer questions of a user who works in a Jupyter notebook. Be brief and concrete. If you do not know, say so.
"""
