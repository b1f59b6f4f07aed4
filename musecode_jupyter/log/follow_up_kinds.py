"""What the event holds by which an agent sets its own next step; as `kinds`, of which it is a part."""

from __future__ import annotations

from pydantic import Field

from musecode_jupyter.log.payload import Payload


class FollowUpSet(Payload):
    """The envelope's `agent` wants to look again; the seq of this event is the number of the step."""

    what: str = Field(description="what it will look at then, and why")
    paths: list[str] = Field(description="files or patterns: it comes due with the first landing that touches one")


FOLLOW_UP_KINDS: dict[str, type[Payload]] = {"follow_up.set": FollowUpSet}
