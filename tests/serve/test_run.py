"""The server as clients meet it: the openai package against uvicorn."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.serve.scripted import NAMES, served


async def test_the_sync_client_gets_an_answer_a_stream_and_the_list() -> None:
    async with served() as here:

        def talk() -> None:
            with OpenAI(base_url=here.url, api_key="none", max_retries=0) as client:
                assert [m.id for m in client.models.list()] == [*NAMES, "auto"]
                assert client.models.retrieve("Ada Byron").id == "Ada Byron"
                whole = client.chat.completions.create(
                    model="Ada Byron", messages=[{"role": "user", "content": "good evening"}]
                )
                assert whole.choices[0].message.content == "good evening "
                assert whole.choices[0].message.role == "assistant"
                assert whole.choices[0].finish_reason == "stop"
                assert whole.model == "Ada Byron"
                assert whole.usage is not None
                assert whole.usage.total_tokens == 4
                stream = client.chat.completions.create(
                    model="auto",
                    messages=[{"role": "user", "content": "one two [length]"}],
                    stream=True,
                    stream_options={"include_usage": True},
                )
                chunks = list(stream)
                assert chunks[0].choices[0].delta.role == "assistant"
                said = [c.choices[0].delta.content for c in chunks if c.choices]
                assert "".join(t or "" for t in said) == "one two "
                assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
                assert chunks[-1].usage is not None
                assert chunks[-1].usage.completion_tokens == 2
                assert {c.model for c in chunks} == {"Ada Byron"}

        await asyncio.to_thread(talk)


async def test_the_async_client_gets_an_answer_and_a_stream() -> None:
    async with served() as here, AsyncOpenAI(base_url=here.url, api_key="none") as client:
        whole = await client.chat.completions.create(
            model="武松", messages=[{"role": "user", "content": "你 是 谁"}]
        )
        assert whole.choices[0].message.content == "你 是 谁 "
        stream = await client.chat.completions.create(
            model="武松", messages=[{"role": "user", "content": "你 是 谁"}], stream=True
        )
        said = [c.choices[0].delta.content or "" async for c in stream]
        assert said == ["", "你 ", "是 ", "谁 ", ""]


async def test_a_model_that_nobody_knows_is_the_clients_not_found() -> None:
    async with served() as here, AsyncOpenAI(base_url=here.url, api_key="none") as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(
                model="Nemo", messages=[{"role": "user", "content": "hello"}]
            )
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
