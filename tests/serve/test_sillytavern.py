"""What SillyTavern sends to a "Custom (OpenAI-compatible)" endpoint, and what it does with answers.

The bodies in sillytavern/*.json are our own; their shapes are those that its browser side makes
(public/scripts/openai.js: `createGenerationParameters`, `setOpenAIMessages`, `populateChatHistory`;
PromptManager's `sanitizeName`) and its server side forwards (src/endpoints/backends/
chat-completions.js, source `custom`: a fixed list of fields, `undefined` ones absent, over them the
user's `custom_include_body`, without the keys of `custom_exclude_body`; src/prompt-converters.js:
`mergeMessages`). By default a group's characters write `Name: text`, the person does not; with names
"in completion" each message has a `name` without blanks; and the last message of a group chat is a
system message that says whose turn it is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from personae.models.keys import Key
from personae.serve.app import create_app
from tests.serve.scripted import ScriptedEngine, Served, ask, served, settings
from tests.serve.upstreams import opened, write_three
from tests.serve.vllm_stub import RunningVllm, start_vllm

FOLDER = Path(__file__).parent / "sillytavern"
CAST = ("Sherlock Holmes", "Alice", "Ada Lovelace")
REFUSED = {"image", "several_swipes", "included_body_unsupported"}
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def body(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return found


@pytest.fixture
async def here() -> AsyncIterator[Served]:
    async with served(ScriptedEngine(CAST)) as running:
        yield running


async def generate(here: Served, sent: dict[str, Any], key: str = "") -> tuple[int, bytes]:
    """As its server does it: `Bearer ` and the key, where there is none nothing behind it."""
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {key}",
        "User-Agent": "node-fetch",
        "Accept": "*/*",
        "Accept-Encoding": "gzip, deflate, br",
        "Connection": "close",
    }
    raw = json.dumps(sent, ensure_ascii=False, separators=(",", ":")).encode()
    async with (
        aiohttp.ClientSession(skip_auto_headers=["User-Agent"]) as client,
        client.post(f"{here.url}/chat/completions", data=raw, headers=headers) as response,
    ):
        return response.status, await response.read()


def streamed(raw: bytes) -> str:
    """The reply as its `EventSourceStream` and `getStreamingReply` put it together."""
    text = ""
    for block in raw.decode("utf-8").replace("\r\n", "\n").split("\n\n"):
        data = "\n".join(
            line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")
        )
        if not data:
            continue
        if data == "[DONE]":
            return text
        piece = json.loads(data)
        assert not piece.get("error"), piece
        for choice in piece.get("choices") or []:
            text += choice.get("delta", {}).get("content") or ""
    raise AssertionError("the stream has no [DONE]")


async def test_the_status_check_reads_the_list_of_models(here: Served) -> None:
    # POST /status of its server becomes a GET of the custom URL with /models behind it.
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"{here.url}/models", headers={"Authorization": "Bearer "}) as response,
    ):
        assert response.status == 200
        models = (await response.json())["data"]
    # It lists what has an `id`, sorted; `auto` serves a group under one connection.
    assert sorted(m["id"] for m in models) == ["Ada Lovelace", "Alice", "Sherlock Holmes", "auto"]


async def test_a_wrong_key_fails_the_status_check_and_the_right_one_passes() -> None:
    async with served(ScriptedEngine(CAST), token=Key("tea-at-six-o-clock", "T")) as here:
        async with aiohttp.ClientSession() as client:
            for key, status in (("", 401), ("wrong", 401), ("tea-at-six-o-clock", 200)):
                headers = {"Authorization": f"Bearer {key}"}
                async with client.get(f"{here.url}/models", headers=headers) as response:
                    assert response.status == status
        assert (await generate(here, body("single_chat"), "wrong"))[0] == 401
        assert (await generate(here, body("single_chat"), "tea-at-six-o-clock"))[0] == 200


@pytest.mark.parametrize("name", [n for n in NAMES if n not in REFUSED])
async def test_each_of_its_requests_is_answered(name: str) -> None:
    sent = body(name)
    told = await ask(
        create_app(ScriptedEngine(CAST), settings()), "POST", "/v1/chat/completions", sent
    )
    assert told.status == 200, told.body
    words = [w for w in sent["messages"][-1]["content"].split() if not w.startswith("[")]
    expected = "".join(f"{word} " for word in words)
    if sent["stream"]:
        assert streamed(told.body) == expected
    else:
        answer = told.json
        assert answer["choices"][0]["message"]["content"] == expected
        assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("image", "messages[4].content"),
        ("several_swipes", "n"),
        ("included_body_unsupported", "repetition_penalty"),
    ],
)
async def test_what_cannot_be_done_is_an_error_that_it_can_show(name: str, parameter: str) -> None:
    engine = ScriptedEngine(CAST)
    told = await ask(create_app(engine, settings()), "POST", "/v1/chat/completions", body(name))
    assert told.status == 400
    assert told.error["param"] == parameter
    assert told.error["message"]  # shown by `tryParseStreamingError`
    assert not engine.heard


async def test_the_whole_of_a_chat_reaches_the_engine_as_it_was_sent(here: Served) -> None:
    sent = body("group_chat")
    status, raw = await generate(here, sent)
    assert (status, streamed(raw)) == (200, "the next reply only as Alice.] ")
    (heard,) = here.engine.heard
    assert [(m.role, m.content) for m in heard.messages] == [
        (m["role"], m["content"]) for m in sent["messages"]
    ]
    assert (heard.model, heard.temperature, heard.top_p, heard.max_tokens) == ("Alice", 1, 1, 300)
    assert (heard.stop, heard.seed, heard.logprobs) == ((), None, None)


async def test_names_as_fields_reach_the_engine(here: Served) -> None:
    await generate(here, body("group_names_as_fields"))
    (heard,) = here.engine.heard
    assert [m.name for m in heard.messages if m.name] == [
        "Sherlock_Holmes",
        "Ann",
        "Alice",
        "Ada_Lovelace",
    ]


async def test_its_stop_strings_and_seed_reach_the_engine(here: Served) -> None:
    await generate(here, body("stops_and_seed"))
    (heard,) = here.engine.heard
    assert heard.stop == ("\nAnn:", "\nSherlock Holmes:", "***", "<|im_end|>")
    assert heard.seed == 42


async def test_what_a_user_includes_in_the_body_carries_our_secrets(here: Served) -> None:
    await generate(here, body("included_body"))
    (heard,) = here.engine.heard
    assert [(s.fact, s.known_by) for s in heard.secrets] == [
        ("The Hatter's watch is two days wrong.", ("Alice",))
    ]


async def test_token_probabilities_come_in_the_shape_that_it_reads(here: Served) -> None:
    _, raw = await generate(here, body("token_probabilities"))
    content = json.loads(raw)["choices"][0]["logprobs"]["content"]
    assert content
    for token in content:  # `parseOpenAIChatLogprobs`
        assert isinstance(token["token"], str)
        assert all(isinstance(one["logprob"], float) for one in token["top_logprobs"])


async def test_a_stopped_generation_leaves_nothing_behind(here: Served) -> None:
    # Its server aborts the fetch as soon as the browser's connection is closed.
    sent = body("single_chat")
    sent["messages"][-1]["content"] = "one [hold] two"
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{here.url}/chat/completions", json=sent) as response,
    ):
        assert response.status == 200
        await response.content.readuntil(b"one ")
        assert here.engine.busy() == 1
        response.close()
    async with asyncio.timeout(20):
        while here.engine.busy():
            await asyncio.sleep(0.01)


# Through to who speaks ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vllm() -> Iterator[RunningVllm]:
    with start_vllm(adapters=list(CAST)) as running:
        yield running


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_three(tmp_path_factory.mktemp("cast"))


async def asked(cast: Path, vllm: RunningVllm, sent: dict[str, Any]) -> dict[str, Any]:
    """What upstream is asked where SillyTavern sends this, without the system message."""
    before = len(vllm.bodies())
    async with opened(cast, vllm) as engine:
        app = create_app(engine, settings())
        told = await ask(app, "POST", "/v1/chat/completions", sent)
    assert told.status == 200, told.body
    (made,) = vllm.bodies()[before:]
    assert streamed(told.body) == f"I am {made['model']}. Good evening."
    assert [m["role"] for m in made["messages"]].count("system") == 1
    made["said"] = [(m["role"], m["content"]) for m in made["messages"][1:]]
    found: dict[str, Any] = made
    return found


NUDGE = "[Write the next reply only as Alice.]"
GROUP = [
    (
        "user",
        "Sherlock Holmes: The ash on that cup is from Trichinopoly.\n\nWho has been here before us?",
    ),
    ("assistant", "The Hatter, I think, and he left without his tea."),
    ("user", f"Ada Lovelace: Then let us count the cups, and know.\n\nPlease do.\n\n{NUDGE}"),
]


@pytest.mark.parametrize("name", ["group_chat", "group_chat_auto", "merged"])
async def test_in_a_group_others_are_heard_by_name_and_own_lines_are_its_own(
    cast: Path, vllm: RunningVllm, name: str
) -> None:
    found = await asked(cast, vllm, body(name))
    assert (found["model"], found["said"]) == ("Alice", GROUP)


async def test_names_without_blanks_are_those_of_the_cast(cast: Path, vllm: RunningVllm) -> None:
    found = await asked(cast, vllm, body("group_names_as_fields"))
    assert found["said"] == [
        (
            "user",
            "Sherlock Holmes: The ash on that cup is from Trichinopoly.\n\n"
            "Ann: Who has been here before us?",
        ),
        ("assistant", "The Hatter, I think, and he left without his tea."),
        ("user", f"Ada Lovelace: Then let us count the cups, and know.\n\n{NUDGE}"),
    ]


@pytest.mark.parametrize(("model", "heard"), [("Alice", False), ("Ada Lovelace", True)])
async def test_a_whisper_in_its_group_reaches_those_alone_whom_it_is_for(
    cast: Path, vllm: RunningVllm, model: str, heard: bool
) -> None:
    found = await asked(cast, vllm, {**body("group_perceived"), "model": model})
    assert ("poisoned" in json.dumps(found)) == heard


async def test_each_turn_of_a_group_under_auto_is_whose_the_last_message_says(
    cast: Path, vllm: RunningVllm
) -> None:
    sent = body("group_chat_auto")
    for name in CAST:
        sent["messages"][-1]["content"] = f"[Write the next reply only as {name}.]"
        assert (await asked(cast, vllm, sent))["model"] == name


async def test_secrets_in_the_included_body_reach_who_knows_them(
    cast: Path, vllm: RunningVllm
) -> None:
    sent = body("included_body")
    for model, heard in (("Alice", True), ("Ada Lovelace", False)):
        found = await asked(cast, vllm, {**sent, "model": model})
        assert ("two days wrong" in found["messages"][0]["content"]) == heard
        assert "personae" not in found
