"""`cast:DIR` as a model: who answers, through which blocks, and what is refused."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from personae.cast.backend import (
    Casts,
    adapter_files,
    fingerprint,
    parse_cast_id,
    pinned,
)
from personae.cast.store import Cast, write_cast
from personae.errors import BadRequestError, InputError, UsageError
from personae.models.local import LocalModel
from personae.records import Call, Message, ReplySchema, Sampling
from tests.cast.serving import NAMES, cast_over_local, cast_with_a_profile, small_cast

ADA, WU = NAMES
GREEDY = Sampling(temperature=0, max_tokens=12)


def call(model: str, *said: str, system: str | None = None, **more: Any) -> Call:
    told = [Message(role="system", content=system)] if system else []
    roles = ("user", "assistant")
    messages = [Message(role=roles[n % 2], content=text) for n, text in enumerate(said)]
    chosen = {"sampling": GREEDY, **more}
    return Call(role="character", model=model, messages=(*told, *messages), **chosen)


def ask(model: str, *calls: Call, casts: Casts | None = None) -> list[Any]:
    async def all_of() -> list[Any]:
        backend = (casts or Casts()).backend(model)
        try:
            return await asyncio.gather(*map(backend.complete, calls))
        finally:
            await backend.close()

    return asyncio.run(all_of())


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path) -> Cast:
    return small_cast(tmp_path_factory.mktemp("casts") / "two", tiny_base, seed=2)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path) -> Cast:
    folder = tmp_path_factory.mktemp("casts") / "scene"
    return small_cast(folder, tiny_base, mode="speaker", seed=2)


def test_an_id_names_a_directory_and_who_answers() -> None:
    found = [parse_cast_id(f"cast:runs/x{end}") for end in ("", "#Wu Song", "#base")]
    assert [(str(one.path), one.name, one.base) for one in found] == [
        ("runs/x", None, False),
        ("runs/x", "Wu Song", False),
        ("runs/x", None, True),
    ]


@pytest.mark.parametrize("wrong", ["cast:", "cast:#Ada", "cast:runs/x#"])
def test_an_id_without_a_directory_or_a_name_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="cast:DIR#NAME"):
        parse_cast_id(wrong)


def test_a_stranger_is_refused_before_anything_is_loaded(cast: Cast) -> None:
    with pytest.raises(UsageError, match="Ada Byron, Wu Song"):
        Casts().check(f"cast:{cast.path}#Lu Zhishen")
    with pytest.raises(InputError, match="no cast"):
        Casts().check(f"cast:{cast.path.parent}")


def test_the_character_of_the_id_answers_through_its_own_blocks(cast: Cast) -> None:
    replies = {
        who: ask(f"cast:{cast.path}#{who}", call("m", "Good evening."))[0]
        for who in (ADA, WU, "base")
    }
    assert len({reply.text for reply in replies.values()}) == 3
    assert [r.served_model for r in replies.values()] == [f"two#{w}" for w in (ADA, WU, "base")]


def test_the_system_message_says_who_answers(cast: Cast) -> None:
    model = f"cast:{cast.path}"
    asked = call(model, "Good evening, Wu Song.", system="You are Ada Byron, the countess.")
    (routed,) = ask(model, asked)
    (fixed,) = ask(f"{model}#{ADA}", asked)
    assert routed.served_model == f"two#{ADA}"
    assert routed.text == fixed.text
    assert any("found by name" in note for note in routed.notes)


def test_without_a_system_message_the_last_user_message_says_it(cast: Cast) -> None:
    model = f"cast:{cast.path}"
    asked = call(model, "Ada Byron, who are you?", "I am I.", "Now I want to talk to Wu Song.")
    (reply,) = ask(model, asked)
    assert reply.served_model == f"two#{WU}"


def test_who_is_not_of_the_cast_is_a_failure_that_says_what_can_be_done(cast: Cast) -> None:
    model = f"cast:{cast.path}"
    with pytest.raises(BadRequestError, match="personae cast add"):
        ask(model, call(model, "Hello", system="You are Napoleon Bonaparte."))


def test_a_character_gets_its_own_system_message_where_there_is_none(cast: Cast) -> None:
    model = f"cast:{cast.path}#{ADA}"
    from personae.cast.layout import system_text

    bare, told = ask(
        model, call("m", "Good evening."), call("m", "Good evening.", system=system_text(ADA, "en"))
    )
    assert bare.text == told.text
    assert any("own system message" in note for note in bare.notes)
    assert not told.notes


def test_a_call_gets_the_same_reply_whoever_is_asked_beside_it(cast: Cast) -> None:
    model = f"cast:{cast.path}#{ADA}"
    warm = Sampling(temperature=1.0, max_tokens=12)
    calls = [call(model, f"Question {n}", sampling=warm) for n in range(6)]
    together = [reply.text for reply in ask(model, *calls)]
    assert together == [ask(model, one)[0].text for one in calls]
    again = call(model, "Question 0", sampling=warm, repeat=1)
    assert ask(model, again)[0].text != together[0]


def test_ids_of_one_directory_share_one_engine_until_the_last_has_left(cast: Cast) -> None:
    async def visit() -> None:
        casts = Casts()
        ada, wu = (casts.backend(f"cast:{cast.path}#{who}") for who in NAMES)
        await asyncio.gather(*(one.complete(call("m", "Good evening.")) for one in (ada, wu)))
        assert ada._house is wu._house
        await ada.close()
        await ada.close()  # twice is once
        assert (await wu.complete(call("m", "Still there?"))).ok
        house = wu._house
        await wu.close()
        assert house._engine is None
        later = casts.backend(f"cast:{cast.path}#{ADA}")
        assert (await later.complete(call("m", "And again."))).ok
        await later.close()

    asyncio.run(visit())


def test_usage_and_log_probabilities_are_those_of_the_reply(cast: Cast) -> None:
    model = f"cast:{cast.path}#{WU}"
    (reply,) = ask(model, call(model, "Hi", sampling=GREEDY.model_copy(update={"logprobs": 2})))
    assert reply.usage.tokens_out == len(reply.logprobs) == 12
    assert reply.usage.tokens_in > len("Hi")
    assert reply.finish == "length"


def test_given_text_is_scored_through_the_characters_blocks(cast: Cast) -> None:
    asked = call("m", "Who are you?", "I am nobody.", kind="score")
    ada, wu = (ask(f"cast:{cast.path}#{who}", asked)[0] for who in NAMES)
    assert "".join(t.token for t in ada.logprobs) == "I am nobody."
    assert len(ada.logprobs) == len(wu.logprobs)
    assert [t.logprob for t in ada.logprobs] != [t.logprob for t in wu.logprobs]


def test_who_says_nothing_is_a_recorded_failure(cast: Cast) -> None:
    model = f"cast:{cast.path}#{ADA}"
    whole = ask(model, call(model, "Good evening."))[0].text
    nothing = GREEDY.model_copy(update={"stop": (whole[0],)})
    said, scored = ask(
        model,
        call(model, "Good evening.", sampling=nothing),
        call(model, "Good evening.", " ", kind="score"),
    )
    assert [reply.failure.cause for reply in (said, scored)] == ["empty", "empty"]
    assert said.usage.tokens_out > 0


def test_a_scene_cast_answers_without_its_name_before_the_words(scene: Cast) -> None:
    for who in (ADA, WU):
        (reply,) = ask(f"cast:{scene.path}#{who}", call("m", "Hi", "I am I.", "And what else?"))
        assert reply.ok
        assert not reply.text.startswith(who)


@pytest.mark.parametrize("mode", ["full", "speaker"])
def test_the_pieces_of_a_streamed_reply_are_the_reply(cast: Cast, scene: Cast, mode: str) -> None:
    model = f"cast:{(cast if mode == 'full' else scene).path}#{WU}"
    asked = call(model, "Good evening.")
    pieces: list[str] = []

    async def listen() -> Any:
        backend = Casts().backend(model)
        try:
            return await backend.stream(asked, pieces.append)
        finally:
            await backend.close()

    streamed = asyncio.run(listen())
    assert "".join(pieces) == streamed.text == ask(model, asked)[0].text


def test_a_scene_cast_refuses_an_empty_message(scene: Cast) -> None:
    with pytest.raises(BadRequestError, match="empty"):
        ask(f"cast:{scene.path}#{ADA}", call("m", " "))


def test_a_cast_that_changed_since_the_run_began_is_refused(
    tmp_path: Path, tiny_base: Path
) -> None:
    model = f"cast:{small_cast(tmp_path / 'c', tiny_base).path}"

    async def late() -> None:
        backend = Casts().backend(f"{model}#{ADA}")
        before = fingerprint(model)
        small_cast(tmp_path / "c", tiny_base, seed=9)
        assert fingerprint(model) != before
        with pytest.raises(InputError, match="changed since"):
            await backend.complete(call("m", "Hi"))
        await backend.close()

    asyncio.run(late())


def test_names_are_pinned_by_name_by_alias_and_whatever_their_case(
    tmp_path: Path, tiny_base: Path
) -> None:
    whole = small_cast(tmp_path / "c", tiny_base)
    named = [
        c.model_copy(update={"aliases": ("the countess",)}) if c.name == ADA else c
        for c in whole.manifest.characters
    ]
    again = write_cast(
        tmp_path / "d",
        base=whole.manifest.base,
        rank=4,
        alpha=8.0,
        blocks=whole.manifest.blocks,
        characters=named,
        tensors=whole.tensors,
    )
    found = pinned(f"cast:{again.path}", ["The Countess", "wu song", ADA])
    assert list(found.values()) == [f"cast:{again.path}#{who}" for who in (ADA, WU, ADA)]
    with pytest.raises(UsageError, match="personae cast add"):
        pinned(f"cast:{again.path}", ["Lu Zhishen"])


def test_a_name_that_several_of_a_cast_go_by_is_pinned_to_none(
    tmp_path: Path, tiny_base: Path
) -> None:
    whole = small_cast(tmp_path / "c", tiny_base)
    alike = [c.model_copy(update={"aliases": ("Captain",)}) for c in whole.manifest.characters]
    again = write_cast(
        tmp_path / "d",
        base=whole.manifest.base,
        rank=4,
        alpha=8.0,
        blocks=whole.manifest.blocks,
        characters=alike,
        tensors=whole.tensors,
    )
    with pytest.raises(UsageError, match=f"may be {ADA} or {WU}"):
        pinned(f"cast:{again.path}", ["captain"])


def test_a_profile_stands_before_the_system_message_of_who_has_nothing_else(
    tmp_path: Path, tiny_base: Path
) -> None:
    from personae.cast.dialogue import with_system

    cast = cast_with_a_profile(tmp_path, tiny_base)
    asked = call("m", "Who are you?", system="Answer in ten words.").messages
    told = with_system(cast, "Lin Chong", asked)
    assert "arms instructor" in told[0].content
    assert told[0].content.endswith("Answer in ten words.")
    assert with_system(cast, ADA, asked) == asked


# On the embedded engine --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local_cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    return cast_over_local(tmp_path_factory.mktemp("casts") / "local")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own that has the weights."""
    from personae.models.local.weights import cache_dir

    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "weights").symlink_to(cache_dir() / "weights")
    monkeypatch.setenv("PERSONAE_CACHE", str(folder))
    return folder


SCRIPT = """
import asyncio, json, sys
from personae.cast.backend import Casts
from personae.records import Call

async def main():
    casts, said = Casts(), {}
    calls = [Call.from_dict(one) for one in json.loads(sys.argv[1])]
    backends = [casts.backend(one) for one in sys.argv[2:]]
    for backend in backends:
        assert backend.capabilities.structured == "schema"
        replies = await asyncio.gather(*map(backend.complete, calls))
        said[replies[0].served_model] = [reply.text for reply in replies]
    for backend in backends:
        await backend.close()
    assert "torch" not in sys.modules and "transformers" not in sys.modules
    print(json.dumps(said))

asyncio.run(main())
"""


@pytest.mark.weights
def test_a_cast_over_local_speaks_through_llama_cpp_without_torch_and_keeps_to_schemas(
    local_cast: Cast, cache: Path
) -> None:
    body = {
        "type": "object",
        "properties": {"mood": {"type": "string", "enum": ["glad", "sad"]}},
        "required": ["mood"],
        "additionalProperties": False,
    }
    asked = call("m", "Good evening.", sampling=Sampling(temperature=0, max_tokens=8))
    mood = call("m", "How are you?", schema=ReplySchema(name="mood", body=body))
    done = subprocess.run(
        [
            sys.executable, "-c", SCRIPT, json.dumps([asked.to_dict(), mood.to_dict()]),
            *(f"cast:{local_cast.path}#{who}" for who in (*NAMES, "base")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert list(said) == [f"local#{who}" for who in (*NAMES, "base")]
    assert len({words for words, _ in said.values()}) == 3
    assert all(json.loads(mood)["mood"] in {"glad", "sad"} for _, mood in said.values())
    assert said["local#base"][0] == asyncio.run(_plainly(asked))


async def _plainly(asked: Call) -> str | None:
    model = LocalModel("local")
    try:
        return (await model.complete(asked)).text
    finally:
        await model.close()


@pytest.mark.weights
def test_adapters_in_the_cache_belong_to_blocks_and_weights(local_cast: Cast, cache: Path) -> None:
    first = adapter_files(local_cast)
    assert set(first) == {*NAMES, "Lin Chong"}
    assert len(set(first.values())) == 3
    before = {file: file.stat().st_mtime_ns for file in first.values()}
    assert adapter_files(local_cast) == first
    assert {file: file.stat().st_mtime_ns for file in first.values()} == before
    assert all(file.is_relative_to(cache) for file in before)
