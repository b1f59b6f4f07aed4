"""Makes a model of one tiny layer with the tokenizer, chat template and context of another: a server's counts, fast.

Which tokens of a prompt a server takes from its cache depends on the tokens and on the server, not on the weights. So
the embedded model's server gives the same counts with this file, in a small part of the time; what it says is noise.

Run: python tests/bench/tiny_model.py. It makes the file from that of the embedded model and checks that both serve the
same token ids and the same counts of cached tokens. The model file must be there (`make model`); MUSECODE_HOME says
where, else it is .data.
"""

from __future__ import annotations

import array
import asyncio
import json
import mmap
import os
import random
import struct
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from musecode_jupyter.models.local import CONTEXT, PROMPT_CACHE_MIB, LocalModel
from musecode_jupyter.models.model_file import OVERRIDE, LocalModelFile

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(os.environ.get("MUSECODE_HOME", str(ROOT / ".data")))

# The layout is described in docs/gguf.md of ggml-org/ggml: types of metadata values by number, with their sizes.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_U32, _STRING, _ARRAY = 4, 8, 9
_F32, _ALIGNMENT = 0, 32

WIDTH, HEADS, FORWARD = 112, 7, 64
_BYTES = 2
_BLOCK = 9_973


@dataclass
class Metadata:
    """What stands before the tensors of a GGUF file: each value as its bytes, type included, and some of them read."""

    raw: dict[str, bytes] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def own(self, name: str) -> int:
        """A number of the architecture."""
        return self.numbers[f"{self.architecture}.{name}"]

    @property
    def architecture(self) -> str:
        return self.raw["general.architecture"][12:].decode()

    @property
    def bytes_per_token(self) -> int:
        """Of the keys and values that a server keeps of a token, as 16-bit numbers."""
        head = self.own("embedding_length") // self.own("attention.head_count")
        return 2 * _BYTES * self.own("block_count") * self.own("attention.head_count_kv") * head


def metadata(path: Path) -> Metadata:
    """Read what stands before the tensors of `path`; raises ValueError if it is no GGUF file of version 2 or 3."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        magic, version, _, count = struct.unpack_from("<4sIQQ", data)
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"{path} is no GGUF file of version 2 or 3")
        found, at = Metadata(), 24
        for _ in range(count):
            name, begin = _string(data, at)
            (kind,) = struct.unpack_from("<I", data, begin)
            at = _after(data, begin + 4, kind)
            found.raw[name] = data[begin:at]
            if kind == _U32:
                (found.numbers[name],) = struct.unpack_from("<I", data, begin + 4)
            elif kind == _ARRAY:
                (found.counts[name],) = struct.unpack_from("<Q", data, begin + 8)
        return found


def _string(data: mmap.mmap, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<Q", data, at)
    return data[at + 8 : at + 8 + size].decode(), at + 8 + size


def _after(data: mmap.mmap, at: int, kind: int) -> int:
    """Where the value of type `kind` that begins at `at` ends."""
    if kind == _STRING:
        (size,) = struct.unpack_from("<Q", data, at)
        return at + 8 + int(size)
    if kind != _ARRAY:
        return at + _SIZES[kind]
    of, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if of in _SIZES:
        return at + _SIZES[of] * int(count)
    for _ in range(count):
        at = _after(data, at, of)
    return at


def make_tiny(real: Path, into: Path, context: int | None = None) -> Path:
    """Write a model of one layer with the metadata of `real` to `into`, of another context if given; returns `into`."""
    known = metadata(real)
    arch = known.architecture
    changed = {
        "block_count": 1,
        "embedding_length": WIDTH,
        "feed_forward_length": FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
    }
    if context is not None:
        changed["context_length"] = context
    raw = {**known.raw, "general.file_type": struct.pack("<II", _U32, 0)}
    raw |= {f"{arch}.{name}": struct.pack("<II", _U32, value) for name, value in changed.items()}
    shapes = _shapes(known.counts["tokenizer.ggml.tokens"])
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(raw))
    head += b"".join(_packed(name) + value for name, value in raw.items())
    offset = 0
    for name, shape in shapes.items():
        head += _packed(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, _F32, offset)
        offset += _padded(4 * _count(shape))
    rng = random.Random(1)
    block = array.array("f", (rng.gauss(0.0, 0.05) for _ in range(_BLOCK))).tobytes()
    with into.open("wb") as file:
        file.write(head.ljust(_padded(len(head)), b"\0"))
        for name, shape in shapes.items():
            size = 4 * _count(shape)
            ones = array.array("f", [1.0]).tobytes() * _count(shape) if name.endswith("norm.weight") else b""
            weights = ones or (block * (size // len(block) + 1))[:size]
            file.write(weights.ljust(_padded(size), b"\0"))
    return into


def _shapes(words: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a model like Qwen2 with one layer whose input and output embeddings are the same."""
    square = {f"blk.0.attn_{name}.weight": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
    return {
        "token_embd.weight": (WIDTH, words),
        "output_norm.weight": (WIDTH,),
        "blk.0.attn_norm.weight": (WIDTH,),
        **square,
        **{f"blk.0.attn_{name}.bias": (WIDTH,) for name in "qkv"},
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.ffn_gate.weight": (WIDTH, FORWARD),
        "blk.0.ffn_up.weight": (WIDTH, FORWARD),
        "blk.0.ffn_down.weight": (FORWARD, WIDTH),
    }


def _packed(name: str) -> bytes:
    return struct.pack("<Q", len(name.encode())) + name.encode()


def _count(shape: Sequence[int]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Server(threading.Thread):
    """The embedded model's server on a loop of its own, until `end`; with `tiny`, on a tiny model made from its file.

    What the server puts aside of other conversations is bounded, to `aside` MiB; the tiny model's bound is as much
    smaller as keys and values of its tokens are, so that it puts aside as many tokens (3% fewer: positions are kept
    too).
    """

    def __init__(self, *, tiny: bool, aside: int = PROMPT_CACHE_MIB, context: int | None = None) -> None:
        super().__init__(daemon=True)
        real, environ = LocalModelFile(HOME).require(), None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if tiny:
            self._folder = tempfile.TemporaryDirectory()
            made = make_tiny(real, Path(self._folder.name) / "tiny.gguf", context)
            environ = {OVERRIDE: str(made)}
            aside, left = divmod(aside * metadata(made).bytes_per_token, metadata(real).bytes_per_token)
            assert not left, "the bound is counted in whole MiB"
        threads = int(os.environ.get("MUSECODE_BENCH_THREADS", "0")) or None
        self.model = LocalModel(
            LocalModelFile(HOME, environ=environ), threads=threads, prompt_cache=aside, context=context or CONTEXT
        )
        self.loop = asyncio.new_event_loop()
        self.url = self.key = ""
        self.start()

    def run(self) -> None:
        self.loop.run_forever()

    def begin(self) -> tuple[str, str]:
        """Start the server: its URL and its key."""
        self.url, self.key = asyncio.run_coroutine_threadsafe(self.model.start(), self.loop).result(180)
        return self.url, self.key

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(self.model.aclose(), self.loop).result(60)
        self.loop.call_soon_threadsafe(self.loop.stop)
        if self._folder is not None:
            self._folder.cleanup()

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        """What the server answers to `body`, sent to `path` below its URL."""
        return post(f"{self.url}{path}", self.key, body)


def post(url: str, key: str, body: dict[str, Any]) -> Any:
    """The JSON that `url` answers to `body`."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with opener.open(request, timeout=900) as answer:
        return json.loads(answer.read())


@contextmanager
def serving(*, tiny: bool, aside: int = PROMPT_CACHE_MIB, context: int | None = None) -> Iterator[Server]:
    """A server that has begun, ended at the end."""
    server = Server(tiny=tiny, aside=aside, context=context)
    try:
        server.begin()
        yield server
    finally:
        server.end()


def counted(server: Server, messages: Sequence[dict[str, Any]]) -> tuple[int, int, dict[str, float]]:
    """Tokens of a prompt, those of them that were cached, and the server's timings."""
    body = {"messages": list(messages), "max_tokens": 1, "temperature": 0.0, "cache_prompt": True}
    answer = server.ask("/chat/completions", body)
    usage = answer["usage"]
    return (
        usage["prompt_tokens"],
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        answer["timings"],
    )


def talks() -> list[list[dict[str, Any]]]:
    """Prompts of two conversations that take turns: extended, and once with another word in the middle."""
    one = [{"role": "system", "content": "You are the lead of a crew. " * 20}]
    other = [{"role": "system", "content": "You read files and say what is in them. " * 20}]
    found = []
    for n in range(3):
        for talk in (one, other):
            talk.append({"role": "user", "content": f"What is in module {n} of these?"})
            found.append(list(talk))
            talk.append({"role": "assistant", "content": f"It holds the part number {n}, I think."})
    changed = [dict(each) for each in one]
    changed[2]["content"] = "It holds something else."
    return [*found, changed, one]


def texts() -> list[str]:
    """A sample of texts: every eighth source of the package, and what tokenizers are known to differ in."""
    sources = sorted((ROOT / "musecode_jupyter").rglob("*.py"))[::8]
    odd = ["", " \n\n\t x", "na\u00efve \u4f60\u597d \U0001f600 e\u0301", "<|im_start|>user\n0123456789<|im_end|>\r\n"]
    return [*odd, *(path.read_text("utf-8") for path in sources)]


def main() -> None:
    ids: list[list[list[int]]] = []
    counts: list[list[tuple[int, int]]] = []
    for tiny in (True, False):
        with serving(tiny=tiny) as server:
            root = server.url.removesuffix("/v1")
            ask = {"add_special": True, "parse_special": True}
            ids.append([post(f"{root}/tokenize", server.key, {"content": text, **ask})["tokens"] for text in texts()])
            found = [counted(server, prompt) for prompt in talks()]
            counts.append([each[:2] for each in found])
            fresh = [timings for _, _, timings in found]
            rate = sum(each["prompt_n"] for each in fresh) / sum(each["prompt_ms"] for each in fresh) * 1e3
            print(f"{'tiny' if tiny else 'real'}: {rate:.1f} tokens taken in a second")
    assert ids[0] == ids[1], "the tokenizers differ"
    print(f"{len(ids[0])} texts, {sum(map(len, ids[0]))} tokens: the same ids")
    print(f"tokens and cached tokens of {len(counts[0])} prompts:\n  tiny {counts[0]}\n  real {counts[1]}")
    assert counts[0] == counts[1], "the counts differ"


if __name__ == "__main__":
    sys.exit(main())
