"""Takes what the user would not share out of an event, and leaves what it is an event of: `--redacted`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any

from musecode_jupyter.agents.prompts import EMPHASES, REVIEWERS
from musecode_jupyter.log.events import BlobRef, Event, canonical
from musecode_jupyter.log.kinds import KINDS
from musecode_jupyter.log.payload import Payload
from musecode_jupyter.log.record import SPILLED
from musecode_jupyter.models.catalogue import CATALOGUE
from musecode_jupyter.session.reducers import all_reducers


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words that this program itself puts into these fields; any other text in them is taken for the user's.
_DECISIONS = frozenset({"allow", "deny", "ask", "allow-workspace"})
_WORDS: dict[str, frozenset[str]] = {
    "role": frozenset({"lead", "worker", "reviewer", "explorer", "verifier", "developer", "user", "assistant"}),
    "profile": frozenset({"driver", "guided"}),
    "api": frozenset({"responses", "chat", "messages", "local"}),
    "approvals": _DECISIONS,
    "decision": _DECISIONS,
    "network": _DECISIONS,
    "sandbox": frozenset({"bubblewrap", "plain"}),
    "type": frozenset({"message", "reasoning", "tool_call", "tool_result", "picture", "location", "behaviour", "count"})
    | frozenset({"absence", "test result", "measurement", "decision"}),
    "status": frozenset({"completed", "incomplete"}),
    "state": _words("idle running waiting suspended retired budget stalled wedged blocked stopped error met paused")
    | {"interrupted"},
    "effect": frozenset({"read", "write", "process"}),
    "origin": frozenset({"model", "harness"}),
    "scope": frozenset({"once", "session", "workspace", "usd", "tokens", "calls", "steps", "hours", "goal"}),
    "form": frozenset({"exact", "prefix", "tool", "landing", "span", "command", "hunk"}),
    "severity": frozenset({"blocking", "major", "minor", "note"}),
    "side": frozenset({"new", "old"}),
    "answer": frozenset({"answered", "accepted", "rejected"}),
    "emphasis": frozenset(EMPHASES),
    "passes": frozenset({"mechanical", *EMPHASES}),
    "review": frozenset({"off", "mechanical", "full"}),
    "validator": frozenset({"review"}),
    "place": frozenset({"worktree", "checkout"}),
    "where": frozenset({"baseline", "landing"}),
    "by": frozenset({"user", "lead", "harness", "magic", "widget", "page", "command line"}),
    "purpose": _words("baseline plan check locate ask judge acceptance affected try revert"),
    "action": frozenset({"land", "run", "read", "search", "edit", "run_in_kernel", "edit_cell"}),
    "mime": frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"}),
    "effort": frozenset({"minimal", "low", "medium", "high", "xhigh", "max"}),
    "error_kind": _words(
        "connect html_from_proxy invalid_request local_server not_found protocol replay_exhausted replay_mismatch "
        "stream_cut timeout wrong_model server_error overloaded billing rate_limited context_too_long "
        "foreign_reasoning content_policy authentication"
    ),
}
_DIGESTS = _words("digest span before after base tree commit target old new expected found contained_in origin")
_PATHS = _words("path cwd workspace output_path reads writes files conflicts suspect quarantine")
# Data in data, of which the fields are known.
_PARTS = _words("checks changes pictures old new place evidence")
# Data of any form, of which nothing is known.
_FREE = frozenset({"arguments", "shown", "json_schema", "answer", "error"})
_MODELS = frozenset({"model", "served_model"})
_AGENTS = frozenset({"to", "agent"})
_USAGE = _words("input output cached reasoning written")
_ITEM = _words("type role phase call_id name text arguments output caption mime width height")
_SLICES = frozenset(reducer.name for reducer in all_reducers())
_EXTENSIONS = _words(
    ".py .pyi .ipynb .md .rst .txt .toml .cfg .ini .json .jsonl .yaml .yml .sh .c .h .cc .cpp .cu .cuh .rs .go .js "
    ".ts .tsx .css .html .sql .csv .npy .so .lock"
)

_AGENT = re.compile(
    r"(?:|user|harness|(?:lead|worker|reviewer|explorer|verifier)(?:-[0-9]{1,6})?|" + "|".join(REVIEWERS) + r")\Z"
)
_TOOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
_KIND = re.compile(r"[a-z]{2,20}\.[a-z_]{2,20}\Z")
_HEX = re.compile(r"[0-9a-f]{16,64}\Z")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,15}(?:Z|\+00:00)\Z")
_VERSION = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,6}){1,3}(?:\.?(?:a|b|rc|dev|post)[0-9]{1,4})?\Z")
_SESSION = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}\Z")
_BLOB = re.compile(r"(?:before|after|picture-?[0-9]{0,3})\Z")
_SEGMENT = re.compile(r"[0-9]{6}\.jsonl\Z")


class Mask:
    """Masks the events of one session, to be given all of them in order.

    What stays: kinds, agents, turns, causes, times, numbers and sizes, outcomes, names of tools, ids of models that the
    catalogue knows, and the words that this program itself puts into a field. Every other text becomes
    `[redacted N characters D]`; a path keeps its depth, its place (workspace, worktree) and a common extension; a
    digest stays a digest. Equal texts, path parts and digests stay equal: all are replaced by a keyed BLAKE2b.

    Parameters
    ----------
    key
        Secret, at most 64 bytes, to be thrown away afterwards: without it a guess cannot be checked against a digest.
    """

    WORKSPACE = "workspace"

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._roots: list[tuple[PurePosixPath, str]] = []
        self._tools: set[str] = set()

    def event(self, event: Event) -> Event:
        """The event as it may be shared; `h` is empty, because it would confirm a guess of what the line held."""
        data = event.data
        if event.kind == "session.opened":
            self._root(data.get("workspace"), self.WORKSPACE)
        elif event.kind == "worktree.creating":
            self._root(data.get("path"), f"worktree-{event.seq}")
        elif event.kind == "agent.seeded":
            self._tools |= {str(tool.get("name")) for tool in data.get("tools") or () if isinstance(tool, Mapping)}
        elif event.kind == "tool.requested" and data.get("origin") == "harness":
            self._tools.add(str(data.get("name")))
        known = KINDS.get(event.kind)
        if known is None:
            masked = self._free(data)
        else:
            masked = {
                name: self._field(event.kind, name, value)
                if name in known.model_fields
                else self.text(canonical(value))
                for name, value in data.items()
                if name in known.model_fields or value is not None
            }
            masked = {name if name in known.model_fields else self.text(name): value for name, value in masked.items()}
        return replace(
            event,
            ts=event.ts if _TIME.match(event.ts) else "",
            agent=self._agent(event.agent),
            kind=event.kind if known is not None or _KIND.match(event.kind) else self.text(event.kind),
            label=self.text(event.label),
            data=masked,
            blobs={self._blob(name): BlobRef(self.digest(ref.digest), ref.size) for name, ref in event.blobs.items()},
            h="",
        )

    def session(self, name: str) -> str:
        """The name of a session folder: an id as this program makes it says nothing, another name may."""
        return name if _SESSION.match(name) else f"session-{self._keyed(name, 4)}"

    def text(self, text: str) -> str:
        """What stands for a text: its length, and a digest by which equal texts are known."""
        return f"[redacted {len(text)} characters {self._keyed(text, 5)}]" if text else ""

    def digest(self, digest: str) -> str:
        """Another digest of the same length, equal for equal ones."""
        return self._keyed(digest, 32)[: len(digest)] if _HEX.match(digest) else self.text(digest)

    def path(self, path: str) -> str:
        """The path with every part masked, from the workspace or a worktree on where it lies in one."""
        if not path:
            return ""
        pure, place = PurePosixPath(path), ""
        if pure.is_absolute():
            for root, label in self._roots:
                if pure.is_relative_to(root):
                    pure, place = pure.relative_to(root), label
                    break
            else:
                pure, place = pure.relative_to(pure.anchor), "outside"
        parts = [part if part in {".", ".."} else self._keyed(part, 4) for part in pure.parts]
        if parts and pure.suffix.lower() in _EXTENSIONS:
            parts[-1] += pure.suffix.lower()
        return "/".join([place, *parts] if place else parts)

    def _field(self, kind: str, name: str, value: Any) -> Any:
        if value is None or (name not in _FREE and isinstance(value, bool | int | float)):
            return value
        if name in _FREE and not isinstance(value, str):
            return self._free(value)
        if name == "items":
            return [self._item(item) for item in value] if isinstance(value, list) else self._free(value)
        if name == "tools":
            return [self._tool_spec(tool) for tool in value] if isinstance(value, list) else self._free(value)
        if isinstance(value, list):
            return [self._field(kind, name, each) for each in value]
        if isinstance(value, Mapping):
            return self._mapping(kind, name, value)
        return self._text_field(kind, name, str(value))

    def _mapping(self, kind: str, name: str, value: Mapping[str, Any]) -> Any:
        if name == "usage":
            return {key: each for key, each in value.items() if key in _USAGE and isinstance(each, int)}
        if name == "slices":
            return {key if key in _SLICES else self.text(key): self.digest(str(each)) for key, each in value.items()}
        if name in _PARTS:
            return {key: self._field(f"{kind}.{name}", key, each) for key, each in value.items() if key in _FIELDS}
        return self._free(value)

    def _text_field(self, kind: str, name: str, value: str) -> str:
        if value in _WORDS.get(name, ()):
            return value
        if name == "name" and kind == "tool.requested":
            return self._tool(value)
        if name in _DIGESTS:
            return self.digest(value)
        if name in _PATHS:
            return self.path(value)
        if name in _MODELS:
            return value if value in CATALOGUE else self.text(value)
        if name in _AGENTS:
            return self._agent(value)
        if name == "blob":
            return self._blob(value)
        for known, shape in (("version", _VERSION), ("session", _SESSION), ("segment", _SEGMENT)):
            if name == known and shape.match(value):
                return value
        return self.text(value)

    def _item(self, item: Any) -> Any:
        if not isinstance(item, Mapping):
            return self._free(item)
        masked: dict[str, Any] = {}
        for name, value in item.items():
            if name not in _ITEM:
                continue
            text = value if isinstance(value, str) else canonical(value)
            if name == "name":
                masked[name] = self._tool(text)
            elif name in {"width", "height"} and isinstance(value, int):
                masked[name] = value
            elif value is not None:
                masked[name] = text if text in _WORDS.get(name, ()) else self.text(text)
        return masked

    def _tool_spec(self, tool: Any) -> Any:
        if not isinstance(tool, Mapping):
            return self._free(tool)
        masked: dict[str, Any] = {"name": self._tool(str(tool.get("name")))}
        masked["description"] = self.text(str(tool.get("description", "")))
        return masked | {"parameters": self._free(tool.get("parameters"))}

    def _free(self, value: Any) -> dict[str, Any]:
        """What stands for data of any form, keys included."""
        return {"redacted": self.text(canonical(value))}

    def _tool(self, name: str) -> str:
        return name if name in self._tools and _TOOL.match(name) else self.text(name)

    def _agent(self, name: str) -> str:
        return name if _AGENT.match(name) else self.text(name)

    def _blob(self, name: str) -> str:
        if name.startswith(SPILLED):
            return SPILLED + name.removeprefix(SPILLED) if name.removeprefix(SPILLED) in _FIELDS else self.text(name)
        return name if _BLOB.match(name) else self.text(name)

    def _root(self, path: Any, label: str) -> None:
        if isinstance(path, str) and PurePosixPath(path).is_absolute():
            self._roots.append((PurePosixPath(path), label))
            # The innermost root that holds a path gives it its place.
            self._roots.sort(key=lambda root: -len(root[0].parts))

    def _keyed(self, text: str, size: int) -> str:
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size, key=self._key).hexdigest()


_FIELDS = frozenset(field for part in Payload.__subclasses__() for field in part.model_fields)
