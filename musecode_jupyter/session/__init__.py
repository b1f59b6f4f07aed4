"""Wires the floors below into a session: open, resume, close, verify; and the facade that any thread may use."""

from musecode_jupyter.session.api import GoalHandle, Session, open_session
from musecode_jupyter.session.goal_result import GoalResult
from musecode_jupyter.session.preflight import GoalSpec
from musecode_jupyter.session.settings import Settings

__all__ = ["GoalHandle", "GoalResult", "GoalSpec", "Session", "Settings", "open_session"]
