"""A cast whose characters answer through a vLLM server; that server is `vllm_stub`, a process."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.cast.store import BLOCKS, read_cast
from personae.errors import (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    InputError,
    PersonaeError,
    RateLimitError,
    RefusedConnectionError,
    ServerError,
    TimeoutExceededError,
    UnsupportedError,
    UsageError,
)
from personae.records import Secret
from personae.serve.engine import AUTO, ChatMessage, ChatWanted, Finished
from personae.serve.upstream import UpstreamEngine, events
from tests.cast.adding import OLD
from tests.serve.upstreams import opened, over, write_three
from tests.serve.vllm_stub import BASE, RunningVllm, start_vllm

ALICE, HOLMES, ADA = "Alice", "Sherlock Holmes", "Ada Lovelace"
TOKEN = "tea-at-six-o-clock-sharp"


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without its blocks, so that nobody can read them."""
    path = write_three(tmp_path_factory.mktemp("cast"))
    (path / BLOCKS).unlink()
    return path


@pytest.fixture(scope="module")
def process() -> Iterator[RunningVllm]:
    with start_vllm() as running:
        yield running


@pytest.fixture
def vllm(process: RunningVllm) -> RunningVllm:
    process.reset(adapters=list(OLD))
    return process


@pytest.fixture
async def engine(cast: Path, vllm: RunningVllm) -> AsyncIterator[UpstreamEngine]:
    async with opened(cast, vllm) as made:
        yield made


def wanted(*said: str | ChatMessage, model: str = ALICE, **more: Any) -> ChatWanted:
    messages = tuple(m if isinstance(m, ChatMessage) else ChatMessage("user", m) for m in said)
    return ChatWanted(model=model, messages=messages, **more)


async def answer(engine: UpstreamEngine, asked: ChatWanted) -> tuple[list[str], Finished]:
    async with await engine.speak(asked) as speech:
        pieces = [piece async for piece in speech]
        return pieces, await speech.done()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(true):
            await asyncio.sleep(0.01)


# The cast and whom upstream serves ----------------------------------------------------------------


def test_no_weights_library_is_loaded_for_an_upstream() -> None:
    code = (
        "import personae.serve.upstream, sys; "
        "print([m for m in ('torch', 'transformers', 'peft') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_the_characters_are_those_of_the_cast_with_what_is_known_of_them(
    engine: UpstreamEngine,
) -> None:
    assert [one.name for one in engine.characters()] == list(OLD)
    assert engine.characters()[0].about["how"] == "trained"
    assert engine.missing == ()


async def test_who_has_no_adapter_upstream_is_not_served_and_the_log_says_how_to_mend_it(
    cast: Path, vllm: RunningVllm, caplog: pytest.LogCaptureFixture
) -> None:
    vllm.configure(adapters=[ALICE, HOLMES])
    with caplog.at_level(logging.WARNING):
        async with opened(cast, vllm) as engine:
            assert [one.name for one in engine.characters()] == [HOLMES, ALICE]
            assert engine.missing == (ADA,)
            with pytest.raises(UnsupportedError, match="Ada Lovelace is of the cast"):
                await engine.speak(wanted("Good evening.", model=ADA))
    (record,) = [r for r in caplog.records if r.name == "personae.serve"]
    assert "Ada Lovelace is of the cast, and upstream has no adapter" in record.getMessage()
    assert f"personae cast export {cast} --to vllm" in record.getMessage()


async def test_an_upstream_that_serves_none_of_the_characters_is_refused(
    cast: Path, vllm: RunningVllm
) -> None:
    vllm.configure(adapters=["Somebody"])
    with pytest.raises(InputError, match=r"serves none of its characters.*--to vllm"):
        await UpstreamEngine.open(cast, vllm.url)


async def test_a_cast_of_mode_speaker_has_no_upstream(tmp_path: Path, vllm: RunningVllm) -> None:
    write_three(tmp_path, mode="speaker")
    with pytest.raises(UsageError, match="mode speaker, and vLLM applies an adapter to every"):
        await UpstreamEngine.open(tmp_path, vllm.url)


async def test_who_speaks_through_no_block_is_the_base_told_its_profile(
    tmp_path: Path, vllm: RunningVllm
) -> None:
    write_three(tmp_path)
    file = tmp_path / "cast.json"
    manifest = json.loads(file.read_text("utf-8"))
    for one in manifest["characters"]:
        if one["name"] == ADA:
            one |= {"how": "profile", "weights": {}}
    file.write_text(json.dumps(manifest), "utf-8")
    vllm.configure(adapters=[ALICE, HOLMES])
    async with opened(tmp_path, vllm) as engine:
        assert engine.missing == ()
        async with await engine.speak(wanted("Good evening.", model=ADA)) as speech:
            await speech.done()
            assert speech.character == ADA
    (body,) = vllm.bodies()
    assert body["model"] == BASE
    assert "Analytical Engine" in body["messages"][0]["content"]


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1/v1", "127.0.0.1:8000", "http://", "http://127.0.0.1:8000/v1?key=1"]
)
async def test_what_is_no_address_is_refused(cast: Path, url: str) -> None:
    with pytest.raises(UsageError, match="--upstream"):
        await UpstreamEngine.open(cast, url)


async def test_a_password_in_the_address_is_refused_and_not_repeated(cast: Path) -> None:
    with pytest.raises(UsageError) as caught:
        await UpstreamEngine.open(cast, "http://me:hunter22@127.0.0.1:8000/v1")
    assert "hunter22" not in str(caught.value)


async def test_nobody_there_is_said_with_the_address(cast: Path, unused_port: int) -> None:
    with pytest.raises(RefusedConnectionError, match=f"127.0.0.1:{unused_port}"):
        await UpstreamEngine.open(cast, f"http://127.0.0.1:{unused_port}")


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


# An answer ----------------------------------------------------------------------------------------


async def test_an_answer_comes_piece_by_piece_from_the_adapter(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    pieces, found = await answer(engine, wanted("Good evening. Who are you?"))
    assert pieces == ["I am", " Ali", "ce. ", "Good", " eve", "ning", "."]
    assert found.text == "I am Alice. Good evening."
    assert (found.finish, found.logprobs) == ("stop", None)
    (body,) = vllm.bodies()
    assert body["model"] == ALICE
    assert body["stream"] is True
    assert body["messages"][-1] == {"role": "user", "content": "Good evening. Who are you?"}
    prompt = sum(len(m["content"].split()) + 1 for m in body["messages"])  # as the stub counts
    assert (found.tokens_in, found.tokens_out, found.cached) == (prompt, 7, prompt // 2)


async def test_an_answer_that_is_wanted_whole_is_streamed_all_the_same(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    async with await engine.speak(wanted("Good evening.")) as speech:
        assert (await speech.done()).text == "I am Alice. Good evening."
    assert vllm.bodies()[0]["stream"] is True


async def test_what_a_request_leaves_open_is_as_in_the_other_engines(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    await answer(engine, wanted("Hello"))
    (body,) = vllm.bodies()
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.7, 0.95, 512)
    assert not {"seed", "stop", "logprobs", "top_logprobs", "personae"} & set(body)


async def test_sampling_is_passed_on(engine: UpstreamEngine, vllm: RunningVllm) -> None:
    asked = wanted(
        "Hello", max_tokens=3, temperature=0.0, top_p=1.0, seed=7, stop=(" eve",), logprobs=2
    )
    pieces, found = await answer(engine, asked)
    (body,) = vllm.bodies()
    assert {k: body[k] for k in ("max_tokens", "temperature", "top_p", "seed", "stop")} == {
        "max_tokens": 3, "temperature": 0.0, "top_p": 1.0, "seed": 7, "stop": [" eve"],
    }  # fmt: skip
    assert (body["logprobs"], body["top_logprobs"]) == (True, 2)
    assert found.finish == "length"
    assert found.logprobs is not None
    assert [t.token for t in found.logprobs] == pieces == ["I am", " Ali", "ce. "]
    assert found.logprobs[0].top == (("other0", -2.0), ("other1", -3.0))


async def test_log_probabilities_without_alternatives_are_asked_for(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    _, found = await answer(engine, wanted("Hello", logprobs=0))
    assert vllm.bodies()[0]["logprobs"] is True
    assert found.logprobs is not None
    assert {t.top for t in found.logprobs} == {()}


async def test_auto_is_routed_here_and_asked_under_the_adapters_name(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    async with await engine.speak(wanted("I want to talk to Sherlock Holmes.", model=AUTO)) as s:
        assert s.character == HOLMES
        await s.done()
    assert vllm.bodies()[0]["model"] == HOLMES


async def test_nobody_meant_is_said_and_upstream_is_not_asked(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    with pytest.raises(BadRequestError, match="nobody of the cast"):
        await engine.speak(wanted("Qwrt zxcv.", model=AUTO))
    assert vllm.bodies() == []


async def test_others_lines_are_the_users_with_their_names_and_own_ones_the_assistants(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    await answer(
        engine,
        wanted(
            ChatMessage("system", "A tea party."),
            ChatMessage("assistant", "Sherlock Holmes: The ash is from Trichinopoly."),
            "Who was here?",
            ChatMessage("assistant", "The Hatter.", name=ALICE),
            ChatMessage("assistant", "Let us count the cups.", name=ADA),
            "Please do.",
        ),
    )
    (body,) = vllm.bodies()
    system, *others = body["messages"]
    assert system["role"] == "system"
    assert system["content"].startswith("A tea party.\n")
    assert others == [
        {
            "role": "user",
            "content": "Sherlock Holmes: The ash is from Trichinopoly.\n\nWho was here?",
        },
        {"role": "assistant", "content": "The Hatter."},
        {"role": "user", "content": "Ada Lovelace: Let us count the cups.\n\nPlease do."},
    ]


@pytest.mark.parametrize(("model", "heard"), [(ALICE, False), (HOLMES, True), (ADA, True)])
async def test_what_a_character_did_not_perceive_never_goes_upstream(
    engine: UpstreamEngine, vllm: RunningVllm, model: str, heard: bool
) -> None:
    asked = wanted(
        "[to Sherlock Holmes, Ada Lovelace] The cup is poisoned.",
        ChatMessage("user", "Say nothing of arsenic.", perceived_by=frozenset({HOLMES, ADA})),
        "Would anybody like some tea?",
        model=model,
        secrets=(Secret(fact="The butler is a spy.", known_by=(HOLMES, ADA)),),
    )
    await answer(engine, asked)
    (one,) = vllm.seen("/v1/chat/completions")
    sent = json.dumps(one, ensure_ascii=False)
    assert "some tea" in sent
    for told in ("poisoned", "arsenic", "butler"):
        assert (told in sent) == heard


async def test_the_secrets_of_a_card_go_upstream_for_who_knows_them_alone(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    for model in (ALICE, HOLMES):
        await answer(engine, wanted("Good evening.", model=model))
    of_alice, of_holmes = (json.dumps(body) for body in vllm.bodies())
    assert "who cracked the blue drawing-room vase" in of_alice
    assert "vase" not in of_holmes


async def test_two_speeches_share_a_connection_one_after_the_other(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    for _ in range(3):
        await answer(engine, wanted("Hello"))
    await until(lambda: vllm.state()["finished"] == 3)
    assert vllm.state()["aborted"] == 0


# Streams as they come -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [{"bytewise": True}, {"comments": True}, {"carriage": True}, {"piece": 1}, {"piece": 1000}],
    ids=str,
)
async def test_however_a_stream_is_cut_the_text_is_whole(
    engine: UpstreamEngine, vllm: RunningVllm, how: dict[str, Any]
) -> None:
    said = "你好 — ich heiße {model}. 👩‍🔬 Ça va?\n\nGood."
    vllm.configure(reply=said, **how)
    pieces, found = await answer(engine, wanted("你好"))
    assert found.text == "".join(pieces) == said.replace("{model}", ALICE)
    assert all(pieces)


async def test_a_character_in_two_escapes_in_two_pieces_is_one_character(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    def piece(text: str, finish: str = "null") -> str:
        return (
            'data: {"choices": [{"index": 0, "delta": {"content": "'
            + text
            + '"}, "finish_reason": '
            + finish
            + "}]}\n\n"
        )

    raw = piece("a \\ud83d") + piece("\\ude00 b", '"stop"') + "data: [DONE]\n\n"
    vllm.configure(raw=raw)
    assert await answer(engine, wanted("x")) == (
        ["a ", "\N{GRINNING FACE} b"],
        Finished("a \N{GRINNING FACE} b", "stop"),
    )


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"end_after": 2}, "ended the answer before its end"),
        ({"cut_after": 2}, "the connection to the upstream server broke"),
        ({"malformed_after": 2}, "JSON cut short or malformed in mid-stream"),
        ({"error_after": 2}, "EngineCore died"),
        ({"finish": "abort"}, "broke the answer off (abort)"),
        ({"raw": 'data: {"object": "chunk"}\n\n'}, "malformed piece"),
        ({"raw": 'data: {"choices": [{"index": 0}]}\n\n'}, "malformed piece"),
        ({"raw": 'data: {"choices": [{"delta": {"content": 7}}]}\n\n'}, "malformed piece"),
        ({"raw": "data: [1]\n\n"}, "other JSON"),
        ({"raw": "data: [DONE]\n\n"}, "before its end"),
        ({"raw": ""}, "before its end"),
        ({"raw": "<html>"}, "before its end"),
    ],
    ids=lambda x: str(x)[:30],
)
async def test_a_stream_that_breaks_is_an_error_and_no_short_answer(
    engine: UpstreamEngine, vllm: RunningVllm, how: dict[str, Any], said: str
) -> None:
    vllm.configure(**how)
    async with await engine.speak(wanted("Hello")) as speech:
        with pytest.raises(ServerError) as caught:
            async for _ in speech:
                pass
        assert said in str(caught.value)
        with pytest.raises(ServerError):
            await speech.done()
    assert engine.busy() == 0


async def test_a_stream_without_an_end_is_cut_off(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    vllm.configure(raw="data: " + "x" * 5_000_000)
    with pytest.raises(ServerError, match="an event without an end"):
        await answer(engine, wanted("Hello"))


async def test_silence_in_mid_stream_is_a_timeout(cast: Path, vllm: RunningVllm) -> None:
    async with opened(cast, vllm, timeout=0.3) as engine:
        vllm.configure(delay=20.0)
        with pytest.raises(TimeoutExceededError, match=r"within 0\.3 s"):
            await answer(engine, wanted("Hello"))
        assert engine.busy() == 0


@given(st.lists(st.integers(0, 60), max_size=6))
def test_events_are_the_same_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    raw = 'data: {"a": "é你"}\n\n: hum\r\n\r\nevent: x\ndata:1\ndata: 2\r\n\ndata: [DONE]\n\n'.encode()

    async def parts() -> AsyncIterator[bytes]:
        places = [0, *sorted(cuts), len(raw)]
        for start, end in pairwise(places):
            yield raw[start:end]

    async def read() -> list[str]:
        return [data.decode() async for data in events(parts())]

    assert asyncio.run(read()) == ['{"a": "é你"}', "1\n2", "[DONE]"]


# What upstream refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ({"status": 429, "message": "too many", "retry_after": 7}, RateLimitError, "too many"),
        ({"status": 503, "retry_after": 3}, RateLimitError, "overloaded"),
        ({"status": 503}, ServerError, "overloaded"),
        ({"status": 500, "message": "EngineDeadError"}, ServerError, "EngineDeadError"),
        ({"context": 10}, ContextLengthError, "maximum context length is 10 tokens"),
        (
            {"status": 400, "message": "Conversation roles must alternate user/assistant/..."},
            BadRequestError,
            "roles must alternate",
        ),
        ({"adapters": [HOLMES]}, ServerError, "does not answer for Alice (404)"),
        ({"token": "another"}, AuthenticationError, "Unauthorized"),
        ({"status": 405}, ServerError, "does not answer for Alice (405)"),
    ],
    ids=lambda x: str(x)[:40],
)
async def test_a_refusal_means_the_same_here(
    engine: UpstreamEngine,
    vllm: RunningVllm,
    how: dict[str, Any],
    kind: type[PersonaeError],
    said: str,
) -> None:
    vllm.configure(**how)
    speech = await engine.speak(wanted("Hello"))
    with pytest.raises(kind) as caught:
        await speech.__aenter__()
    assert said in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)
    assert engine.busy() == 0


async def test_a_refusal_that_shows_the_input_or_places_of_its_machine_is_told_without_them(
    engine: UpstreamEngine, vllm: RunningVllm, caplog: pytest.LogCaptureFixture
) -> None:
    told = "[{'type': 'value_error', 'msg': 'stop is wrong', 'input': {'messages': 'my diary'}}]"
    vllm.configure(status=400, message=told)
    with pytest.raises(BadRequestError, match="stop is wrong") as caught:
        await answer(engine, wanted("Hello"))
    assert "diary" not in str(caught.value) + caplog.text
    vllm.configure(status=400, message="/srv/models/a is not at http://10.0.0.7:80/x and/or so")
    with pytest.raises(BadRequestError, match=r"400: \.\.\. is not at \.\.\. and/or so") as caught:
        await answer(engine, wanted("Hello"))
    assert "/srv/models/a" in caplog.text


async def test_the_wish_to_be_left_alone_is_passed_on(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    vllm.configure(status=429, retry_after=7)
    with pytest.raises(RateLimitError) as caught:
        await answer(engine, wanted("Hello"))
    assert caught.value.retry_after == 7


async def test_a_redirect_is_not_followed_with_the_token(cast: Path, vllm: RunningVllm) -> None:
    async with opened(cast, vllm, token=TOKEN) as engine:
        vllm.configure(redirect=f"{vllm.root}/v1/models")
        with pytest.raises(ServerError) as caught:
            await answer(engine, wanted("Hello"))
    assert "/v1/models" not in str(caught.value)
    assert [one["path"] for one in vllm.seen()] == ["/v1/models", "/v1/chat/completions"]


async def test_the_token_is_shown_to_upstream_and_to_nobody_else(
    cast: Path, vllm: RunningVllm, caplog: pytest.LogCaptureFixture
) -> None:
    vllm.configure(token=TOKEN)
    with caplog.at_level(logging.DEBUG):
        async with opened(cast, vllm, token=TOKEN) as engine:
            assert (await answer(engine, wanted("Hello")))[1].finish == "stop"
            assert TOKEN not in repr(vars(engine))
            vllm.configure(status=400, echo=True, message="I was shown")
            with pytest.raises(BadRequestError) as caught:
                await answer(engine, wanted("Hello"))
            vllm.configure(status=None, reply=f"It is {TOKEN}.", piece=1000)
            _, found = await answer(engine, wanted("Hello"))
    assert {one["headers"]["Authorization"] for one in vllm.seen()} == {f"Bearer {TOKEN}"}
    assert "I was shown" in str(caught.value)
    assert TOKEN not in str(caught.value) + caplog.text
    assert found.text == "It is [key]."


async def test_a_wrong_token_is_said_at_the_start(cast: Path, vllm: RunningVllm) -> None:
    vllm.configure(token=TOKEN)
    with pytest.raises(AuthenticationError) as caught:
        await UpstreamEngine.open(cast, vllm.url, token="not-that-one-at-all")
    assert "not-that-one-at-all" not in str(caught.value)


# Leaving ------------------------------------------------------------------------------------------


async def test_leaving_in_the_middle_ends_it_upstream(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    vllm.configure(delay=0.05, reply="word " * 2000)
    async with await engine.speak(wanted("Hello", max_tokens=2000)) as speech:
        async for piece in speech:
            assert piece
            assert engine.busy() == 1
            break
    assert engine.busy() == 0
    await until(lambda: vllm.state()["open"] == 0)
    assert (vllm.state()["aborted"], vllm.state()["finished"]) == (1, 0)


async def test_cancelling_who_waits_ends_it_upstream(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    vllm.configure(first=60.0)
    task = asyncio.create_task(answer(engine, wanted("Hello")))
    await until(lambda: vllm.state()["open"] == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: vllm.state()["open"] == 0)
    assert (engine.busy(), vllm.state()["aborted"]) == (0, 1)


async def test_closing_the_engine_fails_what_is_under_way(cast: Path, vllm: RunningVllm) -> None:
    vllm.configure(delay=0.05, reply="word " * 2000)
    async with opened(cast, vllm) as engine:
        async with await engine.speak(wanted("Hello", max_tokens=2000)) as speech:
            pieces = aiter(speech)
            await anext(pieces)
            await engine.close()
            with pytest.raises(ServerError):
                async for _ in pieces:
                    pass
        with pytest.raises(ServerError, match="shutting down"):
            await answer(engine, wanted("Hello"))
    await until(lambda: vllm.state()["open"] == 0)


async def test_fifty_clients_that_vanish_leave_no_request_upstream(
    engine: UpstreamEngine, vllm: RunningVllm
) -> None:
    vllm.configure(delay=0.05, reply="word " * 2000)
    body = {
        "model": ALICE,
        "messages": [{"role": "user", "content": "Tell me all."}],
        "stream": True,
        "max_tokens": 2000,
    }
    async with over(engine) as url:

        async def vanish(client: aiohttp.ClientSession) -> None:
            async with client.post(f"{url}/chat/completions", json=body) as response:
                assert response.status == 200
                await response.content.readuntil(b"word")
                response.close()

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
            await asyncio.gather(*[vanish(client) for _ in range(50)])
        await until(lambda: vllm.state()["open"] == 0)
        await until(lambda: engine.busy() == 0)
    state = vllm.state()
    assert (state["aborted"], state["finished"]) == (50, 0)
    assert state["peak"] > 1


# Health and new characters ------------------------------------------------------------------------


async def test_it_is_as_healthy_as_upstream(engine: UpstreamEngine, vllm: RunningVllm) -> None:
    assert await engine.healthy() is None
    assert vllm.seen()[-1]["path"] == "/health"
    vllm.configure(healthy=False)
    assert await engine.healthy() == "the upstream server answered 503 to GET /health"


async def test_an_upstream_that_has_gone_is_not_healthy(cast: Path) -> None:
    with start_vllm(adapters=list(OLD)) as vllm:
        engine = await UpstreamEngine.open(cast, vllm.url)
    try:
        assert (
            await engine.healthy() == "the upstream server cannot be reached (connection_refused)"
        )
        with pytest.raises(RefusedConnectionError):
            await answer(engine, wanted("Hello"))
    finally:
        await engine.close()


@pytest.fixture
def growing(tmp_path: Path) -> Callable[[], Path]:
    """A cast of Holmes and Alice; called again, Ada is of it as well."""
    sizes = [2, 3]
    return lambda: write_three(tmp_path / "cast", names=OLD[: sizes.pop(0)])


async def test_a_new_character_that_upstream_has_is_taken_in(
    growing: Callable[[], Path], vllm: RunningVllm
) -> None:
    async with opened(growing(), vllm) as engine:
        assert await engine.refresh() == ()
        growing()
        assert await engine.refresh() == (ADA,)
        assert [one.name for one in engine.characters()] == list(OLD)
        _, found = await answer(engine, wanted("Hello", model=ADA))
        assert found.text == "I am Ada Lovelace. Good evening."


async def test_a_new_character_that_upstream_lacks_is_told_until_it_is_there(
    growing: Callable[[], Path], vllm: RunningVllm
) -> None:
    vllm.configure(adapters=[HOLMES, ALICE])
    async with opened(growing(), vllm) as engine:
        growing()
        for _ in range(2):
            with pytest.raises(InputError, match="Ada Lovelace cannot be asked for yet") as caught:
                await engine.refresh()
        assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in str(caught.value)
        assert (await answer(engine, wanted("Hello")))[1].finish == "stop"
        vllm.configure(adapters=list(OLD))
        assert await engine.refresh() == (ADA,)


async def test_a_new_character_is_exported_and_loaded_upstream(
    growing: Callable[[], Path], vllm: RunningVllm, tmp_path: Path
) -> None:
    vllm.configure(adapters=[HOLMES, ALICE], runtime_lora=True)
    adapters = tmp_path / "adapters"
    async with opened(growing(), vllm, adapters=adapters) as engine:
        path = growing()
        assert await engine.refresh() == (ADA,)
        assert (await answer(engine, wanted("Hello", model=ADA)))[1].finish == "stop"
        assert await engine.refresh() == ()
    (asked,) = vllm.seen("/v1/load_lora_adapter")
    assert asked["body"]["lora_name"] == ADA
    folder = Path(asked["body"]["lora_path"])
    assert folder.is_relative_to(adapters)
    assert json.loads((folder / "adapter_config.json").read_text("utf-8"))["r"] == 8
    assert (folder / "adapter_model.safetensors").is_file()
    assert not list(folder.glob("*.bin"))
    assert read_cast(path).names == OLD


async def test_adapters_that_upstream_lacks_at_the_start_are_loaded_too(
    growing: Callable[[], Path], vllm: RunningVllm, tmp_path: Path
) -> None:
    vllm.configure(adapters=[HOLMES], runtime_lora=True)
    path = growing()
    for _ in range(2):  # the second time they are exported already
        async with opened(path, vllm, adapters=tmp_path / "adapters") as engine:
            assert [one.name for one in engine.characters()] == [HOLMES, ALICE]
        vllm.configure(adapters=[HOLMES])


async def test_an_upstream_that_loads_no_adapters_is_said_to_need_leave(
    growing: Callable[[], Path], vllm: RunningVllm, tmp_path: Path
) -> None:
    vllm.configure(adapters=[HOLMES, ALICE])
    async with opened(growing(), vllm, adapters=tmp_path / "adapters") as engine:
        growing()
        with pytest.raises(InputError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"):
            await engine.refresh()


async def test_a_cast_that_has_changed_otherwise_is_not_taken_in(
    growing: Callable[[], Path], vllm: RunningVllm
) -> None:
    path = growing()
    async with opened(path, vllm) as engine:
        file = path / "cast.json"
        manifest = json.loads(file.read_text("utf-8"))
        manifest["characters"][0]["weights"] = {"shared": 0.5}
        file.write_text(json.dumps(manifest), "utf-8")
        with pytest.raises(InputError, match="Start the server anew"):
            await engine.refresh()
        assert (await answer(engine, wanted("Hello")))[1].finish == "stop"
