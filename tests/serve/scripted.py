"""An engine that answers from the question's own words, a server over it, and a caller of apps.

The last message is the script. Each of its words is said as a piece with a space behind it, except

    [hold]          waits until `released` is set
    [together:N]    waits until N answers are under way
    [endless]       never stops saying `on`
    [fail:CAUSE]    raises, in the middle of the answer
    [refuse:CAUSE]  raises before it (`speak`)
    [slow]          `speak` waits for `released`
    [length]        the answer ends because it is too long
    [uncounted]     tokens are not counted
    [cached:N]      so many tokens were there already; else 1
    [late]          raises once it is left
    [stay]          is left only once `released` is set
    [bug]           raises what no engine may
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from personae.errors import (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    InputError,
    PersonaeError,
    RateLimitError,
    ServerError,
    TimeoutExceededError,
)
from personae.records import TokenLogprob
from personae.serve.engine import AUTO, ChatWanted, Finished, ServedCharacter
from personae.serve.run import Server, base_url, bind
from personae.serve.settings import ServeSettings

NAMES = ("Ada Byron", "Wu Song", "武松")
ERRORS: dict[str, PersonaeError] = {
    "bad": BadRequestError("nobody is certain to be meant"),
    "context": ContextLengthError("5000 tokens do not fit into 4096"),
    "server": ServerError("http://10.0.0.7:8000 broke off"),
    "rate": RateLimitError("later", retry_after=6.2),
    "timeout": TimeoutExceededError("no answer"),
    "key": AuthenticationError("wrong key for http://10.0.0.7:8000"),
}


class ScriptedEngine:
    """An `Engine` whose answers are told by the questions.

    Attributes:
        released: lets those go on that hold.
        heard: all that was asked.
        newcomers: who joins at the next refresh.
        ill: what `healthy` says.
    """

    def __init__(self, names: Sequence[str] = NAMES) -> None:
        self.names = list(names)
        self.released = asyncio.Event()
        self.heard: list[ChatWanted] = []
        self.newcomers: list[str] = []
        self.ill: str | None = None
        self.damaged = False
        self.closed = False
        self.under_way = 0
        self.most = 0
        self.probed = 0
        self._changed = asyncio.Condition()

    def characters(self) -> Sequence[ServedCharacter]:
        return [
            ServedCharacter(name, {"aliases": ["The Countess"] if name == NAMES[0] else []})
            for name in self.names
        ]

    async def speak(self, wanted: ChatWanted) -> ScriptedSpeech:
        self.heard.append(wanted)
        words = wanted.messages[-1].content.split()
        self.under_way += 1
        try:
            if "[slow]" in words:
                await self.released.wait()
            for word in words:
                if word.startswith("[refuse:"):
                    raise ERRORS[word[8:-1]]
        finally:
            self.under_way -= 1
        character = self.names[0] if wanted.model == AUTO else wanted.model
        return ScriptedSpeech(self, wanted, character, words)

    async def refresh(self) -> tuple[str, ...]:
        added, self.newcomers = self.newcomers, []
        self.names += added
        if self.damaged:
            raise InputError("is not a manifest", path="/srv/secret/cast/cast.json")
        return tuple(added)

    def busy(self) -> int:
        return self.under_way

    async def healthy(self) -> str | None:
        self.probed += 1
        return self.ill

    async def close(self) -> None:
        self.closed = True

    async def count(self, by: int) -> None:
        async with self._changed:
            self.under_way += by
            self.most = max(self.most, self.under_way)
            self._changed.notify_all()

    async def together(self, count: int) -> None:
        """Wait until that many have been under way at once."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.most >= count)


class ScriptedSpeech:
    def __init__(
        self, engine: ScriptedEngine, wanted: ChatWanted, character: str, words: Sequence[str]
    ) -> None:
        self.character = character
        self._engine, self._wanted, self._words = engine, wanted, words
        self._said: list[str] = []
        self._pieces: AsyncIterator[str] | None = None

    async def __aenter__(self) -> ScriptedSpeech:
        await self._engine.count(1)
        return self

    async def __aexit__(self, *error: object) -> None:
        if "[stay]" in self._words:
            await self._engine.released.wait()
        await self._engine.count(-1)
        if "[late]" in self._words:
            raise ERRORS["server"]

    def __aiter__(self) -> AsyncIterator[str]:
        self._pieces = self._pieces or self._say()
        return self._pieces

    async def done(self) -> Finished:
        async for _ in self:
            pass
        counted = "[uncounted]" not in self._words
        logprobs = None
        if self._wanted.logprobs is not None:
            other = (("na\ufffd", -2.0), ("no", -3.0))[: self._wanted.logprobs]
            logprobs = tuple(TokenLogprob(token=t, logprob=-0.5, top=other) for t in self._said)
        return Finished(
            "".join(self._said),
            "length" if "[length]" in self._words else "stop",
            tokens_in=sum(len(m.content.split()) for m in self._wanted.messages)
            if counted
            else None,
            tokens_out=len(self._said) if counted else None,
            cached=self._cached() if counted else None,
            logprobs=logprobs,
        )

    def _cached(self) -> int:
        return next((int(w[8:-1]) for w in self._words if w.startswith("[cached:")), 1)

    async def _say(self) -> AsyncIterator[str]:
        for word in self._words:
            kind, _, value = word.strip("[]").partition(":")
            if not word.startswith("["):
                await asyncio.sleep(0)
                self._said.append(word + " ")
                yield word + " "
            elif kind == "hold":
                await self._engine.released.wait()
            elif kind == "endless":
                while True:
                    await asyncio.sleep(0)
                    yield "on "
            elif kind == "together":
                await self._engine.together(int(value))
            elif kind == "fail":
                raise ERRORS[value]
            elif kind == "bug":
                raise ZeroDivisionError("a bug")


# A real server ---------------------------------------------------------------------------------


@dataclass
class Served:
    url: str
    server: Server
    engine: ScriptedEngine
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")


def settings(**changed: Any) -> ServeSettings:
    return ServeSettings(**{"cast": Path("cast"), "port": 0, "grace": 5.0, **changed})


@contextlib.asynccontextmanager
async def served(engine: ScriptedEngine | None = None, **changed: Any) -> AsyncIterator[Served]:
    """uvicorn on a free port of this machine, in the test's own loop."""
    engine = engine or ScriptedEngine()
    wanted = settings(**changed)
    ready = asyncio.Event()
    with contextlib.closing(bind(wanted.host, wanted.port)) as listener:
        server = Server(engine, wanted, ready.set)
        serving = asyncio.ensure_future(server.serve([listener]))
        await ready.wait()
        try:
            yield Served(base_url(listener), server, engine)
        finally:
            engine.released.set()
            server.should_exit = True
            await serving


# An app without a server -----------------------------------------------------------------------


@dataclass
class Told:
    """What an app answered.

    Attributes:
        parts: the body as it was sent.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        assert self.json.keys() == {"error"}
        assert self.json["error"].keys() == {"message", "type", "param", "code"}
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The documents of a stream; `[DONE]` as that text, comments left out."""
        data = [
            e.removeprefix("data: ")
            for e in self.body.decode().split("\n\n")
            if e.startswith("data: ")
        ]
        return [d if d == "[DONE]" else json.loads(d) for d in data]

    @property
    def text(self) -> str:
        return "".join(
            c["delta"].get("content", "")
            for e in self.events
            if e != "[DONE]"
            for c in e.get("choices", [])
        )


async def ask(
    app: ASGIApp,
    method: str = "GET",
    path: str = "/v1/models",
    body: Any = b"",
    *,
    headers: Mapping[str, str] | None = None,
    gone: asyncio.Event | None = None,
    raises: bool = False,
    told: Told | None = None,
) -> Told:
    """Call an app as a server would.

    Args:
        body: bytes, a list of bytes (parts of a body), or what is sent as JSON.
        gone: the client leaves once it is set.
        raises: whether a fault of the app's is let through, as servers see it.
        told: is filled while the app answers.
    """
    parts = body if isinstance(body, list) else [body]
    queue = [p if isinstance(p, bytes) else json.dumps(p).encode() for p in parts]
    gone = gone or asyncio.Event()
    told = told or Told()
    heads = {"host": "127.0.0.1:8484", **(headers or {})}

    async def receive() -> dict[str, Any]:
        if queue:
            part = queue.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(queue)}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            told.status = message["status"]
            told.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            told.parts.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in heads.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8484),
    }
    with contextlib.nullcontext() if raises else contextlib.suppress(ZeroDivisionError):
        await app(scope, receive, send)
    return told


def chat(text: str, model: str = NAMES[0], **more: Any) -> dict[str, Any]:
    """The body of a request for an answer."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}
