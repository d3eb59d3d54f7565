"""An endpoint on loopback that answers what a test tells it to, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One HTTP answer; `cut` ends the connection after so many bytes of the body."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    hang: bool = False


@dataclass(frozen=True)
class Request:
    """What arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


Script = Callable[[Request], Answer]


class StubEndpoint:
    """Plays answers in order (the last one again and again), or asks a function."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self._script: Script = lambda _request: completion("Hello.")
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def root(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def model_id(self) -> str:
        return f"{self.root}/v1#tiny"

    @property
    def last(self) -> dict[str, Any]:
        return self.requests[-1].body

    def play(self, *answers: Answer) -> None:
        queue = list(answers)
        self._script = lambda _request: queue.pop(0) if len(queue) > 1 else queue[0]

    def ask(self, script: Script) -> None:
        self._script = script

    async def start(self, host: str = "127.0.0.1") -> None:
        self._server = await asyncio.start_server(self._accept, host, 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._serve(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first = await reader.readexactly(1)
        if first == b"\x16":  # TLS, which this is not
            return False
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Request(head[0].split(" ")[1], headers, json.loads(raw or b"{}"))
        self.requests.append(request)
        answer = self._script(request)
        if answer.hang:
            await reader.read()  # until the client gives up
            return False
        body = (
            answer.body
            if isinstance(answer.body, bytes)
            else json.dumps(answer.body, ensure_ascii=True).encode()
        )
        lines = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        lines |= answer.headers
        writer.write(
            f"HTTP/1.1 {answer.status} X\r\n".encode()
            + "".join(f"{k}: {v}\r\n" for k, v in lines.items()).encode()
            + b"\r\n"
            + (body if answer.cut is None else body[: answer.cut])
        )
        await writer.drain()
        return answer.cut is None


def completion(
    content: Any, *, finish: str = "stop", usage: dict[str, Any] | None = None, **message: Any
) -> Answer:
    """A chat completion."""
    return Answer(
        {
            "id": "x",
            "object": "chat.completion",
            "model": "tiny-2026",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": content, **message},
                    "finish_reason": finish,
                }
            ],
            "usage": usage or {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
        }
    )


def rejection(message: str, *, param: str | None = None, status: int = 400, **more: Any) -> Answer:
    """An error as OpenAI words it."""
    return Answer(
        {
            "error": {
                "message": message,
                "type": "invalid_request_error",
                "param": param,
                "code": None,
            }
            | more
        },
        status=status,
    )


class PromptScorer:
    """Vllm's `prompt_logprobs` over a toy tokenizer and chat template.

    The template is `<|role|>content<|end|>`, its last message left open on request; `tokenize`
    cuts a text into tokens; the log-probability of a token is minus its place divided by ten.
    """

    def __init__(
        self,
        tokenize: Callable[[str], list[str]],
        *,
        before_answer: str = "",
        decoded: Callable[[list[str]], list[str]] = list,
        ids: bool = True,
    ) -> None:
        self._tokenize, self._before, self._decoded = tokenize, before_answer, decoded
        self._ids = ids

    def __call__(self, request: Request) -> Answer:
        body = request.body
        assert body["continue_final_message"] is True
        assert body["add_generation_prompt"] is False
        tokens: list[str] = []
        for message in body["messages"]:
            tokens.append(f"<|{message['role']}|>")
            if message is body["messages"][-1]:
                tokens += self._tokenize(self._before) if self._before else []
            tokens += self._tokenize(message["content"])
            tokens.append("<|end|>")
        tokens.pop()
        shown = self._decoded(tokens)
        entries: list[Any] = [None]
        for place in range(1, len(tokens)):
            own = {"logprob": -place / 10, "rank": 2, "decoded_token": shown[place]}
            best = {"logprob": -0.01, "rank": 1, "decoded_token": "likely"}
            entries.append({str(1000 + place): own, "7": best})
        answer = completion("x", finish="length").body
        answer["prompt_logprobs"] = entries
        if self._ids:
            answer["prompt_token_ids"] = [1000 + p for p in range(len(tokens))]
        return Answer(answer)


def words(text: str) -> list[str]:
    """Tokens that are words with the blank before them."""
    tokens: list[str] = []
    for char in text:
        if char == " " or not tokens:
            tokens.append(char)
        else:
            tokens[-1] += char
    return tokens


def pieces(text: str) -> list[str]:
    """Tokens that are characters."""
    return list(text)


def fragments(chars: Iterable[str], splits: str, *, style: str) -> list[str]:
    """How a server shows tokens when those in `splits` are cut into two fragments each."""
    shown: list[str] = []
    for char in chars:
        if char in splits:
            shown += ["", char] if style == "vllm" else ["\ufffd", "\ufffd"]
        else:
            shown.append(char)
    return shown
