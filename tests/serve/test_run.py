"""The server as clients meet it: uvicorn here and in a process of its own, the openai package."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from prometheus_client.parser import text_string_to_metric_families

from personae.errors import UsageError
from personae.serve.run import bind, serve
from personae.serve.settings import ServeSettings
from tests.conftest import ROOT
from tests.serve.scripted import NAMES, chat, served

LIMIT = 60.0
"""Seconds after which a test that waits for a process gives up."""


def client_of(url: str, token: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key=token, max_retries=0)


def says(text: str, model: str = NAMES[0]) -> Any:
    return {"model": model, "messages": [{"role": "user", "content": text}]}


# In the test's own loop ------------------------------------------------------------------------


async def test_the_sync_client_gets_an_answer_a_stream_and_the_list() -> None:
    async with served() as here:

        def talk() -> None:
            with OpenAI(base_url=here.url, api_key="none", max_retries=0) as client:
                assert [m.id for m in client.models.list()] == [*NAMES, "auto"]
                assert client.models.retrieve("Ada Byron").id == "Ada Byron"
                whole = client.chat.completions.create(**says("good evening"))
                assert whole.choices[0].message.content == "good evening "
                assert whole.choices[0].message.role == "assistant"
                assert whole.choices[0].finish_reason == "stop"
                assert whole.model == "Ada Byron"
                assert whole.usage.total_tokens == 4
                stream = client.chat.completions.create(
                    **says("one two [length]", "auto"),
                    stream=True,
                    stream_options={"include_usage": True},
                )
                chunks = list(stream)
                assert chunks[0].choices[0].delta.role == "assistant"
                said = [c.choices[0].delta.content for c in chunks if c.choices]
                assert "".join(t or "" for t in said) == "one two "
                assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
                assert chunks[-1].usage.completion_tokens == 2
                assert {c.model for c in chunks} == {"Ada Byron"}

        await asyncio.to_thread(talk)


async def test_the_async_client_gets_an_answer_and_a_stream() -> None:
    async with served() as here, client_of(here.url) as client:
        whole = await client.chat.completions.create(**says("你 是 谁", "武松"))
        assert whole.choices[0].message.content == "你 是 谁 "
        stream = await client.chat.completions.create(**says("你 是 谁", "武松"), stream=True)
        said = [c.choices[0].delta.content or "" async for c in stream]
        assert said == ["", "你 ", "是 ", "谁 ", ""]


async def test_answers_are_counted_as_they_ended() -> None:
    async with served() as here, aiohttp.ClientSession() as session:
        for stream in (False, True):
            for text in ("one", "one", "one [length]", "[fail:server]", "one [fail:server]"):
                body = chat(text, stream=stream)
                async with session.post(f"{here.url}/chat/completions", json=body) as answer:
                    await answer.read()
        async with session.get(f"{here.root}/metrics") as answer:
            page = await answer.text()
    counted = {
        s.labels["outcome"]: s.value for f in text_string_to_metric_families(page)
        for s in f.samples if s.name == "personae_answers_total"
    }  # fmt: skip
    assert counted == {"stop": 4, "length": 2, "failed": 4}


async def test_what_our_extensions_say_passes_through_the_client() -> None:
    async with served() as here, client_of(here.url) as client:
        message: Any = {
            "role": "user", "content": "psst", "name": "Wu Song", "perceived_by": ["Ada Byron"],
        }  # fmt: skip
        secrets = [{"fact": "The wine is drugged.", "known_by": ["Ada Byron"]}]
        await client.chat.completions.create(
            model="Ada Byron", messages=[message], extra_body={"personae": {"secrets": secrets}}
        )
        [heard] = here.engine.heard
    assert heard.messages[0].perceived_by == frozenset({"Wu Song", "Ada Byron"})
    assert heard.secrets[0].known_by == ("Ada Byron",)


@pytest.mark.parametrize(
    ("wrong", "kind", "code"),
    [
        ({"model": "Nemo"}, openai.NotFoundError, "model_not_found"),
        ({"n": 2}, openai.BadRequestError, "unsupported_parameter"),
        ({"max_tokens": 10**6}, openai.BadRequestError, "invalid_value"),
        ({"messages": [{"role": "user", "content": "[refuse:context]"}]},
         openai.BadRequestError, "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "[refuse:server]"}]},
         openai.InternalServerError, "engine_unavailable"),
        ({"messages": [{"role": "user", "content": "[refuse:rate]"}]},
         openai.RateLimitError, "rate_limit_exceeded"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]},
         openai.APIStatusError, "request_too_large"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_knows_each_error_by_its_own_class(
    wrong: dict[str, Any], kind: type[openai.APIStatusError], code: str, stream: bool
) -> None:
    async with served(max_body=4096) as here, client_of(here.url) as client:
        with pytest.raises(kind) as caught:
            await client.chat.completions.create(**{**says("x"), **wrong}, stream=stream)
    assert caught.value.code == code


async def test_the_client_raises_when_a_stream_breaks_and_keeps_what_came() -> None:
    async with served() as here, client_of(here.url) as client:
        stream = await client.chat.completions.create(**says("one [fail:server]"), stream=True)
        first, second = await anext(stream), await anext(stream)
        with pytest.raises(openai.APIError, match="cannot answer now"):
            await anext(stream)
    assert (first.choices[0].delta.content, second.choices[0].delta.content) == ("", "one ")
    assert first.choices[0].finish_reason is second.choices[0].finish_reason is None


async def test_a_body_that_is_said_to_be_small_and_is_not_is_refused_while_it_comes() -> None:
    async with served(max_body=4096) as here, aiohttp.ClientSession() as session:

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(200):
                yield b" " * 1000

        async with session.post(f"{here.url}/chat/completions", data=endless()) as answer:
            assert answer.status == 413
            assert (await answer.json())["error"]["code"] == "request_too_large"
        assert not here.engine.heard


async def test_an_address_in_use_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with contextlib.closing(bind("127.0.0.1", 0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port} cannot be bound"):
            await serve(ServeSettings(tmp_path / "no cast", port=port), lambda *_: None)


async def test_the_address_answers_nobody_before_it_is_ready() -> None:
    with contextlib.closing(bind("127.0.0.1", 0)) as bound, pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*bound.getsockname())


# In a process of its own -----------------------------------------------------------------------


@dataclass
class Apart:
    """A server in a process of its own."""

    url: str
    process: Process

    async def gauge(self, session: aiohttp.ClientSession, name: str) -> float:
        async with session.get(self.url.removesuffix("/v1") + "/metrics") as answer:
            page = await answer.text()
        return next(
            s.value for f in text_string_to_metric_families(page) for s in f.samples
            if s.name == name
        )  # fmt: skip

    async def until(self, session: aiohttp.ClientSession, name: str, value: float) -> None:
        """Ask until a gauge has a value; the time limit ends what never comes."""
        async with asyncio.timeout(LIMIT):
            while await self.gauge(session, name) != value:
                pass

    async def until_closing(self, session: aiohttp.ClientSession) -> Any:
        """Ask for the health until it is not well any more; what it says then."""
        async with asyncio.timeout(LIMIT):
            while True:
                async with session.get(self.url.removesuffix("/v1") + "/health") as health:
                    if health.status == 503:
                        return await health.json()

    async def end(self, sent: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Send a signal; the exit code, what was printed, what was logged."""
        self.process.send_signal(sent)
        return await self.ended()

    async def ended(self) -> tuple[int, str, str]:
        async with asyncio.timeout(LIMIT):
            out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def apart(environ: Mapping[str, str] | None = None, **changed: Any) -> AsyncIterator[Apart]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", "tests.serve.scripted_server", json.dumps(changed),
        stdout=PIPE, stderr=PIPE, cwd=ROOT, env={**os.environ, **(environ or {})},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(LIMIT):
            url = (await process.stdout.readline()).decode().strip()
        assert url, (await process.communicate())[1].decode()
        yield Apart(url, process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_two_hundred_streams_at_once_are_all_answered() -> None:
    async with apart(max_concurrency=200) as here, client_of(here.url) as client:

        async def one(number: int) -> str:
            text = f"I am {number} [together:200] of two hundred"
            stream = await client.chat.completions.create(
                **says(text, NAMES[number % 3]), stream=True
            )
            said, ends = "", []
            async for chunk in stream:
                said += chunk.choices[0].delta.content or ""
                ends.append(chunk.choices[0].finish_reason)
            assert ends[-1] == "stop"
            return said

        said = await asyncio.gather(*(one(n) for n in range(200)))
        assert said == [f"I am {n} of two hundred " for n in range(200)]
        code, out, log = await here.end()
    assert (code, out) == (0, "busy 0\n")
    assert log.count("POST /v1/chat/completions 200") == 200
    assert "ERROR" not in log
    assert "WARNING" not in log


async def test_two_hundred_streams_over_few_places_wait_for_each_other() -> None:
    async with apart(max_concurrency=8, max_queue=192) as here, client_of(here.url) as client:

        async def one(number: int) -> str:
            stream = await client.chat.completions.create(**says(f"I am {number}"), stream=True)
            return "".join([c.choices[0].delta.content or "" async for c in stream])

        said = await asyncio.gather(*(one(n) for n in range(200)))
        assert said == [f"I am {n} " for n in range(200)]


async def test_fifty_clients_that_vanish_in_the_middle_leave_no_work_behind() -> None:
    async with apart(max_concurrency=40) as here, aiohttp.ClientSession() as session:
        writers = []
        host, port = here.url.removesuffix("/v1").removeprefix("http://").split(":")
        for number in range(50):
            _, writer = await asyncio.open_connection(host, int(port))
            script = "one [endless]" if number % 5 == 0 else "one [hold] two"
            body = json.dumps(chat(script, stream=True)).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\n"
            head += f"Content-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            writers.append(writer)
        await here.until(session, "personae_first_piece_seconds_count", 40)
        assert await here.gauge(session, "personae_engine_busy") == 40
        await here.until(session, "personae_answers_waiting", 10)
        for number, writer in enumerate(writers):
            # Half of them say goodbye (FIN), half are torn away (RST).
            if number % 2:
                connection = writer.get_extra_info("socket")
                connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
                )  # fmt: skip
            writer.transport.abort() if number % 2 else writer.close()
        await here.until(session, "personae_engine_busy", 0)
        assert await here.gauge(session, "personae_answers_under_way") == 0
        assert await here.gauge(session, "personae_answers_waiting") == 0
        async with session.post(f"{here.url}/chat/completions", json=chat("still here")) as answer:
            assert (await answer.json())["choices"][0]["message"]["content"] == "still here "
        code, out, log = await here.end()
    assert (code, out) == (0, "busy 0\n")
    assert log.count("POST /v1/chat/completions") == 51
    assert "ERROR" not in log
    assert "Traceback" not in log


async def holding(here: Apart, session: aiohttp.ClientSession) -> aiohttp.ClientResponse:
    """A stream that has said `one` and holds."""
    stream = await session.post(
        f"{here.url}/chat/completions", json=chat("one [hold] two", stream=True)
    )
    await stream.content.readuntil(b'"content":"one "')
    return stream


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_those_inside_finish_and_turns_others_away(
    sent: signal.Signals,
) -> None:
    async with apart(grace=LIMIT) as here, aiohttp.ClientSession() as session:
        stream = await holding(here, session)
        here.process.send_signal(sent)
        assert await here.until_closing(session) == {"status": "shutting_down"}
        async with session.post(f"{here.url}/chat/completions", json=chat("late")) as late:
            assert late.status == 503
            assert (await late.json())["error"]["code"] == "shutting_down"
        code, out, log = await here.end(signal.SIGUSR1)
        rest = (await stream.read()).decode()
    assert '"content":"two "' in rest
    assert rest.endswith("data: [DONE]\n\n")
    assert (code, out) == (0, "busy 0\n")
    assert "ERROR" not in log


@pytest.mark.parametrize("signals", [1, 2])
async def test_after_the_grace_or_a_second_signal_the_rest_is_cut(signals: int) -> None:
    grace = 0.1 if signals == 1 else LIMIT * 2
    async with apart(grace=grace) as here, aiohttp.ClientSession() as session:
        stream = await holding(here, session)
        for _ in range(signals - 1):
            here.process.send_signal(signal.SIGTERM)
            await here.until_closing(session)
        code, out, log = await here.end()
        rest = (await stream.read()).decode()
    assert '"code":"shutting_down"' in rest
    assert '"finish_reason":"' not in rest
    assert "[DONE]" not in rest
    assert (code, out) == (0, "busy 0\n")
    assert "ERROR" not in log


async def test_a_token_of_the_environment_is_asked_for_and_never_shown() -> None:
    secret = "a-long-and-random-token"
    async with apart({"MINE": secret}, token_env="MINE", host="0.0.0.0") as here:
        url = here.url.replace("0.0.0.0", "127.0.0.1")
        async with client_of(url, secret) as client:
            assert len((await client.models.list()).data) == len(NAMES) + 1
        async with client_of(url, "wrong") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.models.list()
        assert caught.value.code == "invalid_api_key"
        code, _, log = await here.end()
    assert code == 0
    assert secret not in log
    assert "wrong" not in log
