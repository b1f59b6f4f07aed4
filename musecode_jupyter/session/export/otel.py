"""Export as OTLP/JSON traces with OpenTelemetry's semantic conventions for generative AI."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, BinaryIO

from musecode_jupyter._version import __version__
from musecode_jupyter.log.events import Event, canonical
from musecode_jupyter.session.export.clock import RisingClock
from musecode_jupyter.session.export.source import EventSource
from musecode_jupyter.session.export.spans import Span, Spans

_INTERNAL, _CLIENT = 1, 3
_ERROR = 2
_FAILED = frozenset({"failed", "cut off", "cancelled", "unknown"})


def write(source: EventSource, out: BinaryIO) -> None:
    """One `ExportTraceServiceRequest` as JSON, which a collector's file receiver and its OTLP/HTTP endpoint take.

    A span for the session, one per agent (`invoke_agent`), and below it one per model call (`chat`) and tool run
    (`execute_tool`). Texts of prompts, answers, arguments and outputs are no part of it, as the conventions advise.
    """
    trace = _Trace(source.name, out)
    for event in source.events():
        trace.take(event)
    trace.finish(source)


class _Trace:
    def __init__(self, session: str, out: BinaryIO) -> None:
        self._out = out
        self._session = session
        self._trace = blake2b(session.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        self._clock = RisingClock()
        self._spans = Spans()
        self._lives: dict[str, tuple[int, int]] = {}
        self._model: dict[str, str] = {}
        self._first = True
        self._began: int | None = None
        self._now = 0
        resource = {"service.name": "musecode_jupyter", "service.version": __version__}
        scope = canonical({"name": "musecode_jupyter", "version": __version__})
        attributes = canonical({"attributes": _attributes(resource)})
        head = f'{{"resourceSpans":[{{"resource":{attributes},"scopeSpans":[{{"scope":{scope},"spans":['
        out.write(head.encode("ascii"))

    def take(self, event: Event) -> None:
        self._now = at = self._clock.at(event)
        if self._began is None:
            self._began = at
        name = event.agent or "harness"
        self._lives[name] = (self._lives.get(name, (at, at))[0], at)
        if event.kind == "agent.created":
            self._model[event.agent] = str(event.data["model"])
        for span in self._spans.take(event, at):
            self._put(span)

    def finish(self, source: EventSource) -> None:
        for span in self._spans.finish(self._now + 1):
            self._put(span)
        for name, (begin, end) in self._lives.items():
            attributes = {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": name,
                "gen_ai.conversation.id": self._session,
                "gen_ai.request.model": self._model.get(name),
            }
            self._write(f"agent:{name}", "session", f"invoke_agent {name}", _INTERNAL, begin, end, attributes)
        notes = {"musecode.events": source.count, "musecode.notes": " ".join(source.notes)}
        self._write("session", None, f"session {self._session}", _INTERNAL, self._began or 0, self._now, notes)
        self._out.write(b"\n]}]}]}\n")

    def _put(self, span: Span) -> None:
        if span.sort not in {"model", "tool"}:
            return
        both: dict[str, Any] = {**span.opened, **span.closed}
        attributes: dict[str, Any] = {"gen_ai.conversation.id": self._session, "musecode.seq": span.seq}
        attributes["gen_ai.agent.name"] = span.agent or "harness"
        if span.sort == "model":
            usage = both.get("usage") or {}
            attributes |= {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": both.get("api"),
                "gen_ai.request.model": both.get("model"),
                "gen_ai.response.model": both.get("served_model"),
                "gen_ai.response.id": both.get("response_id"),
                "gen_ai.request.max_tokens": both.get("max_output_tokens"),
                "gen_ai.request.temperature": both.get("temperature"),
                "gen_ai.request.seed": both.get("seed"),
                "gen_ai.usage.input_tokens": usage.get("input"),
                "gen_ai.usage.output_tokens": usage.get("output"),
                "gen_ai.usage.cache_read.input_tokens": usage.get("cached"),
                "musecode.cost_microusd": both.get("cost_microusd"),
                "musecode.estimated": both.get("estimated"),
                "musecode.time_to_first_token_s": both.get("ttft_s"),
            }
            name, kind = f"chat {span.name}", _CLIENT
        else:
            attributes |= {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": span.name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": both.get("call_id"),
                "musecode.exit": both.get("exit"),
            }
            name, kind = f"execute_tool {span.name}", _INTERNAL
        failed = span.state in _FAILED
        if failed:
            attributes["error.type"] = both.get("error_kind") or span.state
        assert span.end is not None
        parent = f"agent:{span.agent or 'harness'}"
        self._write(f"span:{span.seq}", parent, name, kind, span.begun, span.end, attributes, failed=failed)

    def _write(
        self,
        own: str,
        parent: str | None,
        name: str,
        kind: int,
        begin: int,
        end: int,
        attributes: Mapping[str, Any],
        *,
        failed: bool = False,
    ) -> None:
        span: dict[str, Any] = {"traceId": self._trace, "spanId": self._id(own)}
        if parent is not None:
            span["parentSpanId"] = self._id(parent)
        span |= {"name": name, "kind": kind}
        span |= {"startTimeUnixNano": str(begin * 1000), "endTimeUnixNano": str(end * 1000)}
        span |= {"attributes": _attributes(attributes), "status": {"code": _ERROR} if failed else {}}
        self._out.write((b"\n" if self._first else b",\n") + canonical(span).encode("ascii"))
        self._first = False

    def _id(self, own: str) -> str:
        text = f"{self._session} {own}"
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None and value != ""]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}
