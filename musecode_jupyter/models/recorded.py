"""A model whose answers come from a record, for replay and tests: the request bytes must be the same."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from musecode_jupyter.models.types import Final, Message, ModelClient, ModelRequest, StreamPart, TextDelta
from musecode_jupyter.runtime.errors import ModelError


def body_digest(body: bytes) -> str:
    """BLAKE2b-128 of request bytes, in hexadecimal digits."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


@dataclass(frozen=True)
class Recorded:
    """One recorded answer: who asked (`api`, `origin`), the digest of the request's bytes, and what came of it."""

    api: str
    origin: str
    digest: str
    answer: Final | ModelError


class RecordedClient:
    """`ModelClient` that forms requests as they were formed when recorded and sends none of them.

    Parameters
    ----------
    encode
        The client that forms request bytes for an API and an origin.
    answers
        In the order of the requests. Each has its own origin: keys, endpoints and APIs may change in a session.
    """

    def __init__(self, encode: Callable[[str, str], ModelClient], answers: Sequence[Recorded]) -> None:
        self._encode = encode
        self._answers = tuple(answers)
        self._next = 0

    @property
    def origin(self) -> str:
        """The origin of the caller of the next recorded request, or of the last."""
        return self._client.origin

    @property
    def remaining(self) -> int:
        """How many recorded answers have not been asked for."""
        return len(self._answers) - self._next

    @property
    def _client(self) -> ModelClient:
        if not self._answers:
            return self._encode("chat", "")
        recorded = self._answers[min(self._next, len(self._answers) - 1)]
        return self._encode(recorded.api, recorded.origin)

    def without_reasoning(self) -> RecordedClient:
        """This client: each recorded answer has the origin of its own request."""
        return self

    def body(self, request: ModelRequest) -> bytes:
        """The bytes that the next recorded caller forms."""
        return self._client.body(request)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Yield the recorded answer: each message as one delta, then the `Final`.

        Raises
        ------
        ModelError
            As recorded; or of kind `replay_mismatch` if the bytes differ from the recorded request's, and
            `replay_exhausted` if no answer is left.
        """
        index = self._next
        if index >= len(self._answers):
            raise ModelError(
                f"the record has {len(self._answers)} model answers, but request {index} was made: the run "
                "goes further than what was recorded",
                kind="replay_exhausted",
            )
        expected, answer = self._answers[index].digest, self._answers[index].answer
        found = body_digest(self.body(request))
        if found != expected:
            raise ModelError(
                f"model request {index} differs from the recorded one (digest {found}, recorded {expected}): "
                "compare its bytes with those of the recorded request",
                kind="replay_mismatch",
            )
        self._next += 1
        if isinstance(answer, ModelError):
            # A new object each time: a raised exception collects tracebacks.
            raise ModelError(
                str(answer),
                kind=answer.kind,
                status=answer.status,
                retryable=answer.retryable,
                retry_after=answer.retry_after,
                may_cost=answer.may_cost,
            )
        for item in answer.items:
            if isinstance(item, Message):
                yield TextDelta(item.text)
        yield answer
