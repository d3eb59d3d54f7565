"""A stub of an OpenAI-compatible endpoint, in a process of its own, for measuring clients.

It answers after a fixed latency, has a number of slots and a 429 for whoever comes beyond them, and
can misbehave in given shares: a 500, a hang that holds its slot, a body cut short, a reply that does
not parse. What happens to a request follows from its content and from how often it was seen, so a
run can be repeated, and a retry does not meet the same fault for ever. A client that goes away frees
its slot, as vLLM aborts what nobody waits for.

Replies follow from a hash of the request: where a JSON Schema is asked for, a value that meets it
(a verdict's score is 1 to 5), else prose. `GET /stats` counts, `POST /config` changes the settings
(`{"reset": true}` forgets the counts).

    python benchmarks/stub_server.py --latency 0.05 --slots 64
    with start_stub(latency=0.05, slots=64) as stub: stub.url, stub.stats(), stub.configure(...)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

FILLER = " ".join(
    f"{subject} {verb} {thing}{end}"
    for subject in ("I", "The old smith", "My sister", "A stranger from the north", "Nobody here")
    for verb in ("remembers", "would rather lose", "never speaks of", "still carries", "has sold")
    for thing in ("the winter road", "two silver coins", "that promise", "a song about the sea")
    for end in (".", ", and it shows.", " for a reason.", ", they say.")
)
ANSWER_CHARS, JUSTIFICATION_CHARS, EXEMPLAR_CHARS, SHORT_CHARS = 700, 300, 800, 120


@dataclass
class Config:
    """How the endpoint behaves; shares are of all requests that got a slot."""

    latency: float = 0.05
    slots: int = 64
    retry_after: float | None = None
    share_500: float = 0.0
    share_hang: float = 0.0
    hang_s: float = 10.0
    share_cut: float = 0.0
    share_malformed: float = 0.0


class Stub:
    """The endpoint's state, shared by its connections."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.reset()

    def reset(self) -> None:
        self.received = self.rejected = self.aborted = self.connections = 0
        self.busy = getattr(self, "busy", 0)
        self.peak = self.busy
        self.served: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.attempts: Counter[bytes] = Counter()
        self.first: float | None = None
        self.last: float | None = None
        self.cpu = time.process_time()

    def stats(self) -> dict[str, Any]:
        span = self.last - self.first if self.first is not None and self.last is not None else None
        return {
            "received": self.received,
            "served": dict(self.served),
            "served_total": sum(self.served.values()),
            "rejected_429": self.rejected,
            "faults": dict(self.faults),
            "aborted": self.aborted,
            "busy": self.busy,
            "peak_busy": self.peak,
            "connections": self.connections,
            "distinct": len(self.attempts),
            "span_s": span,
            "cpu_s": time.process_time() - self.cpu,
            "config": asdict(self.config),
        }

    def configure(self, changes: dict[str, Any]) -> None:
        if changes.pop("reset", False):
            self.reset()
        known = {f.name for f in fields(Config)}
        if unknown := set(changes) - known:
            raise ValueError(f"unknown settings: {', '.join(sorted(unknown))}")
        for name, value in changes.items():
            setattr(self.config, name, value)

    def fault(self, digest: bytes) -> str | None:
        """Which fault this attempt at this request meets."""
        attempt = self.attempts[digest]
        draw = int.from_bytes(hashlib.sha256(digest + bytes([attempt & 255])).digest()[:8]) / 2**64
        config = self.config
        for name in ("500", "hang", "cut", "malformed"):
            share: float = getattr(config, f"share_{name}")
            if draw < share:
                return name
            draw -= share
        return None


class Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time."""

    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        self.buffer = bytearray()
        self.transport: asyncio.Transport
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self.stub.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
            self.stub.busy -= 1
            self.stub.aborted += 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while self.timer is None:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.buffer[:end]).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            method, path, _ = bytes(self.buffer[:end]).split(b" ", 2)
            body = bytes(self.buffer[end + 4 : end + 4 + length])
            del self.buffer[: end + 4 + length]
            self.handle(method, path, body)

    def handle(self, method: bytes, path: bytes, body: bytes) -> None:
        if path == b"/stats":
            self.send(200, self.stub.stats())
        elif path == b"/config" and method == b"POST":
            try:
                self.stub.configure(json.loads(body))
            except (ValueError, TypeError) as error:
                self.send(400, {"error": {"message": str(error)}})
            else:
                self.send(200, self.stub.stats())
        elif path.endswith(b"/models"):
            self.send(200, {"object": "list", "data": [{"id": "stub", "object": "model"}]})
        elif path.endswith(b"/chat/completions") and method == b"POST":
            self.complete(body)
        else:
            self.send(404, {"error": {"message": f"no {path.decode('latin-1')} here"}})

    def complete(self, body: bytes) -> None:
        stub, config = self.stub, self.stub.config
        now = time.perf_counter()
        stub.received += 1
        stub.first = stub.first or now
        if stub.busy >= config.slots:
            stub.rejected += 1
            stub.last = now
            extra = b""
            if config.retry_after is not None:
                extra = f"Retry-After: {config.retry_after:g}\r\n".encode()
            self.send(429, {"error": {"message": "all slots are taken"}}, extra)
            return
        stub.busy += 1
        stub.peak = max(stub.peak, stub.busy)
        digest = hashlib.sha256(body).digest()
        fault = stub.fault(digest)
        stub.attempts[digest] += 1
        delay = config.hang_s if fault == "hang" else config.latency
        loop = asyncio.get_running_loop()
        self.timer = loop.call_later(delay, self.reply, body, digest, fault)

    def reply(self, body: bytes, digest: bytes, fault: str | None) -> None:
        stub = self.stub
        self.timer = None
        stub.busy -= 1
        stub.last = time.perf_counter()
        if fault is not None:
            stub.faults[fault] += 1
        if fault == "500":
            self.send(500, {"error": {"message": "a fault that was asked for"}})
        else:
            try:
                kind, answer = completion(body, digest, malformed=fault == "malformed")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self.send(400, {"error": {"message": f"not a chat completion: {error!r}"}})
            else:
                if fault == "cut":
                    self.send(200, answer, cut=True)
                else:
                    stub.served[kind] += 1
                    self.send(200, answer)
        if self.buffer:
            self.data_received(b"")

    def send(self, status: int, answer: Any, extra: bytes = b"", *, cut: bool = False) -> None:
        body = json.dumps(answer, separators=(",", ":")).encode()
        self.transport.write(
            b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b"
            % (status, len(body), extra, body[: len(body) // 2] if cut else body)
        )
        if cut:
            self.transport.close()


def completion(body: bytes, digest: bytes, *, malformed: bool) -> tuple[str, dict[str, Any]]:
    """The kind of a call and its chat completion."""
    call = json.loads(body)
    seed = int.from_bytes(digest[:8])
    model = str(call.get("model", ""))
    spec = (call.get("response_format") or {}).get("json_schema")
    if spec is not None:
        kind = str(spec["name"])
        content = json.dumps(instance(spec["schema"], seed, kind), ensure_ascii=False)
    elif "judge" in model:
        kind = "verdict"
        verdict = {"justification": prose(seed, JUSTIFICATION_CHARS), "score": 1 + seed % 5}
        content = json.dumps(verdict)
    elif "exemplar" in model:
        kind = "exemplars"
        content = json.dumps({str(s): prose(seed + s, EXEMPLAR_CHARS) for s in range(1, 6)})
    else:
        kind, content = "answer", prose(seed, ANSWER_CHARS)
    if malformed:
        kind, content = "malformed", content[: len(content) // 2].replace("{", "Well: ")
    tokens_in, tokens_out = len(body) // 4, len(content) // 4
    return kind, {
        "id": f"stub-{digest[:6].hex()}",
        "object": "chat.completion",
        "created": 0,
        "model": model or "stub",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        },
    }


def instance(schema: dict[str, Any], seed: int, name: str) -> Any:
    """A value that meets the schema, as far as our own schemas go.

    In a play acts are open, seven of ten affect somebody else, and no story is concluded.
    """
    if name == "affected":
        *others, actor = schema["enum"]
        return others[seed % len(others)] if others and seed % 10 < 7 else actor
    if name == "manner":
        return "open"
    if name == "concluded":
        return False
    if "enum" in schema:
        return schema["enum"][seed % len(schema["enum"])]
    kind = schema.get("type")
    if kind == "object":
        return {
            key: instance(part, seed + place * 7919, name if key.isdigit() else key)
            for place, (key, part) in enumerate(schema.get("properties", {}).items())
        }
    if kind == "array":
        items, count = schema["items"], max(1, schema.get("minItems", 1))
        if "enum" in items and schema.get("uniqueItems"):
            pool = items["enum"]
            count = min(schema.get("maxItems", count), len(pool))
            return [pool[(seed + i) % len(pool)] for i in range(count)]
        return [instance(items, seed + i * 104729, name) for i in range(count)]
    if kind == "integer":
        low = schema.get("minimum", 0)
        return low + seed % (schema.get("maximum", low + 9) - low + 1)
    if kind == "number":
        return (seed % 1000) / 1000
    if kind == "boolean":
        return bool(seed % 2)
    length = {"justification": JUSTIFICATION_CHARS, "exemplars": EXEMPLAR_CHARS}.get(
        name, SHORT_CHARS
    )
    return prose(seed, min(length, schema.get("maxLength", length)))


def prose(seed: int, length: int) -> str:
    """Text that differs from seed to seed."""
    start = FILLER.index(" ", seed % (len(FILLER) - 200)) + 1
    return f"{seed % 1_000_003}: {(FILLER[start:] + ' ' + FILLER)}"[:length].rstrip()


async def serve(config: Config, port: int) -> None:
    """Listen until killed; say where on stdout."""
    loop, stub = asyncio.get_running_loop(), Stub(config)
    server = await loop.create_server(lambda: Connection(stub), "127.0.0.1", port, backlog=4096)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


@dataclass(frozen=True)
class RunningStub:
    """A stub in another process: `url` ends in /v1."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def stats(self) -> dict[str, Any]:
        return self._ask("/stats", None)

    def configure(self, **changes: Any) -> dict[str, Any]:
        """Change settings; `reset=True` forgets the counts first."""
        return self._ask("/config", changes)

    def _ask(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            method="GET" if body is None else "POST",
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            result: dict[str, Any] = json.load(answer)
            return result


@contextlib.contextmanager
def start_stub(**config: Any) -> Iterator[RunningStub]:
    """Run a stub in a process of its own for as long as the block lasts.

    Args:
        config: the fields of `Config`.

    """
    arguments = [sys.executable, str(Path(__file__).resolve()), "--config", json.dumps(config)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the stub did not start (exit code {process.wait()})")
        yield RunningStub(json.loads(line)["port"], process.pid)
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--config", type=json.loads, default={}, help="settings as JSON")
    for setting in fields(Config):
        kind = int if setting.name == "slots" else float
        parser.add_argument(f"--{setting.name.replace('_', '-')}", type=kind, default=None)
    given = vars(parser.parse_args())
    port, config = given.pop("port"), given.pop("config")
    config |= {name: value for name, value in given.items() if value is not None}
    run = asyncio.run
    with contextlib.suppress(ImportError):
        import uvloop

        run = uvloop.run
    with contextlib.suppress(KeyboardInterrupt):
        run(serve(Config(**config), port))


if __name__ == "__main__":
    main()
