"""A cast on torch behind a server: one batch for all, nothing unseen, nobody left behind."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from personae.cast.add import add_character
from personae.cast.dialogue import Dialogue, chat_prompt, unspaced
from personae.cast.expand import with_slot
from personae.cast.generate import Wanted
from personae.cast.layout import layout_of
from personae.cast.store import Cast, read_cast, write_cast
from personae.errors import BadRequestError, ContextLengthError, InputError, ServerError, UsageError
from personae.records import Character
from personae.records.cast import Block, CastCharacter, CastTurn, How, Mode
from personae.serve.app import create_app
from personae.serve.cast_engine import CastEngine
from personae.serve.engine import AUTO, ChatMessage, ChatWanted, Engine, Finished
from personae.serve.voices import Voices
from tests.cast.adding import starters_cast
from tests.cast.serving import small_cast
from tests.serve.scripted import ask as post
from tests.serve.scripted import settings as served_as
from tests.serve.test_voices import ADA, ALICE, HOLMES, NAMES, chats, said

MODES: list[Mode] = ["full", "speaker"]
DRAWN: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "seed": 1, "max_tokens": 12}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def casts(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path) -> dict[str, Cast]:
    folder = tmp_path_factory.mktemp("casts")
    return {mode: starters_cast(folder / mode, tiny_base, mode=mode) for mode in MODES}


async def opened(path: Path, **options: Any) -> CastEngine:
    return await CastEngine.open(path, dtype="float32", device="cpu", **options)


@pytest.fixture(scope="module")
def engines(casts: dict[str, Cast]) -> Iterator[dict[Mode, CastEngine]]:
    """One of each mode, which tests leave as they found it."""
    torch.set_num_threads(1)
    made = {mode: asyncio.run(opened(casts[mode].path)) for mode in MODES}
    yield made
    for engine in made.values():
        asyncio.run(engine.close())


@pytest.fixture
def engine(engines: dict[Mode, CastEngine]) -> CastEngine:
    engines["full"].generator.forget()
    return engines["full"]


@pytest.fixture
def scene(engines: dict[Mode, CastEngine]) -> CastEngine:
    engines["speaker"].generator.forget()
    return engines["speaker"]


@pytest.fixture
async def own(casts: dict[str, Cast], tmp_path: Path) -> AsyncIterator[CastEngine]:
    """An engine whose cast's directory a test may write to."""
    folder = tmp_path / "cast"
    shutil.copytree(casts["full"].path, folder)
    made = await opened(folder)
    yield made
    await made.close()


def wanted(model: str, *messages: ChatMessage | str, **fields: Any) -> ChatWanted:
    chat = tuple(said(m) if isinstance(m, str) else m for m in messages)
    return ChatWanted(model, chat, **{**DRAWN, **fields})


async def ask(engine: CastEngine, asked: ChatWanted) -> Finished:
    async with await engine.speak(asked) as speech:
        return await speech.done()


async def lasting(engine: CastEngine, who: str, tokens: int) -> tuple[ChatWanted, Finished]:
    """A request whose answer does not end before its tokens are used up, and the answer."""
    for seed in range(50):
        asked = wanted(who, "Good evening to you.", max_tokens=tokens, seed=seed)
        found = await ask(engine, asked)
        if found.finish == "length":
            return asked, found
    raise AssertionError(who)


async def settled(engine: CastEngine) -> None:
    """Until nobody is in the batch; what has been left leaves before the next step."""
    async with asyncio.timeout(30):
        while engine.busy():
            await asyncio.wrap_future(engine.generator.between_steps(lambda: None))


@contextmanager
def passes(engine: CastEngine) -> Iterator[list[torch.Tensor]]:
    """The ids of every forward pass, `[rows, tokens]`."""
    seen: list[torch.Tensor] = []
    hook = engine.generator.base.model.register_forward_pre_hook(
        lambda _m, _a, k: seen.append(k["input_ids"].cpu().clone()), with_kwargs=True
    )
    yield seen
    hook.remove()


@contextmanager
def held(engine: CastEngine) -> Iterator[None]:
    """Meanwhile no step is made; who comes waits."""
    import threading

    go = threading.Event()
    engine.generator.between_steps(lambda: go.wait(60))
    try:
        yield
    finally:
        go.set()


# Answers -----------------------------------------------------------------------------------------


async def test_an_answer_comes_through_the_characters_own_blocks(engine: CastEngine) -> None:
    found = [await ask(engine, wanted(who, "Good evening.")) for who in NAMES]
    assert len({one.text for one in found}) == 3
    for who, one in zip(NAMES, found, strict=True):
        messages = Voices(engine.generator.cast).told(wanted(who, "Good evening.")).messages
        layout = layout_of(engine.generator.base.tokenizer)
        laid = chat_prompt(layout, "full", messages, who)
        (alone,) = engine.generator.run([Wanted(laid, who, **DRAWN)])
        assert one.text == alone.text
        assert (one.finish, one.tokens_in) == (alone.finish, len(laid.ids))
        assert one.tokens_out == alone.tokens_out


async def test_the_pieces_of_an_answer_are_the_answer(engine: CastEngine) -> None:
    asked = wanted(ALICE, "Good evening.", max_tokens=40)
    async with await engine.speak(asked) as speech:
        assert speech.character == ALICE
        heard = [piece async for piece in speech]
        found = await speech.done()
    assert len(heard) > 1
    assert "".join(heard) == found.text == (await ask(engine, asked)).text


async def test_auto_tells_who_answers(engine: CastEngine) -> None:
    asked = wanted(AUTO, "Good evening, Alice. How are you?")
    async with await engine.speak(asked) as speech:
        assert speech.character == ALICE
        found = await speech.done()
    assert found.text == (await ask(engine, replace(asked, model="alice"))).text


async def test_asking_again_brings_another_answer_and_a_seed_the_same(engine: CastEngine) -> None:
    free = wanted(ALICE, "Good evening.", seed=None, max_tokens=30)
    fixed = replace(free, seed=3)
    found = await asyncio.gather(*(ask(engine, one) for one in (free, free, fixed, fixed)))
    assert found[0].text != found[1].text
    assert found[2].text == found[3].text


async def test_stop_logprobs_and_length_are_carried_out(engine: CastEngine) -> None:
    whole = await ask(engine, wanted(ALICE, "Good evening.", max_tokens=40, logprobs=2))
    assert whole.finish == "length"
    assert whole.logprobs is not None
    assert len(whole.logprobs) == 40
    assert all(len(one.top) == 2 for one in whole.logprobs)
    stop = next(c for c in whole.text[5:] if c.isprintable() and not c.isspace())
    cut = await ask(engine, wanted(ALICE, "Good evening.", max_tokens=40, stop=(stop,)))
    assert (cut.text, cut.finish) == (whole.text[: whole.text.index(stop)], "stop")
    assert cut.logprobs is None
    plain = await ask(engine, wanted(ALICE, "Good evening.", max_tokens=3, logprobs=0))
    assert plain.logprobs is not None
    assert [one.top for one in plain.logprobs] == [(), (), ()]
    assert plain.logprobs[0].logprob == whole.logprobs[0].logprob


async def test_in_mode_speaker_the_space_behind_the_name_is_no_part_of_the_answer(
    scene: CastEngine,
) -> None:
    (space,) = scene.generator.base.tokenizer(" ", add_special_tokens=False)["input_ids"]

    def begin_with_a_space(_model: Any, _args: Any, given: Any, found: Any) -> None:
        if given["input_ids"].shape[1] > 1:  # a prompt, and so the first word
            found.logits[..., space] += 1e4

    model = scene.generator.base.model
    hook = model.register_forward_hook(begin_with_a_space, with_kwargs=True)
    asked = wanted(ALICE, "Good evening.")
    told = Voices(scene.generator.cast).told(asked)
    laid = Dialogue(scene.generator, system=told.system)
    laid.say("Good evening.")
    (alone,) = scene.generator.run([Wanted(laid.prompt(ALICE), ALICE, **DRAWN)])
    scene.generator.forget()
    async with await scene.speak(asked) as speech:
        pieces = [piece async for piece in speech]
        found = await speech.done()
    hook.remove()
    assert alone.text[0] == " " != alone.text[1]
    assert found.text == alone.text[1:] == "".join(pieces)
    assert all(pieces)


@pytest.mark.parametrize(
    ("pieces", "left"),
    [
        ([" Good", " evening"], ["Good", " evening"]),
        ([" ", " a"], [" a"]),
        (["a"], ["a"]),
        ([], []),
    ],
)
async def test_only_the_first_space_goes(pieces: list[str], left: list[str]) -> None:
    async def said_so() -> AsyncIterator[str]:
        for piece in pieces:
            yield piece

    assert [piece async for piece in unspaced(said_so())] == left


# One batch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_all_characters_at_once_take_no_more_steps_than_one(
    casts: dict[str, Cast], mode: Mode
) -> None:
    engine = await opened(casts[mode].path, kept_bytes=0, prefill_tokens=8192)
    asked = [(await lasting(engine, who, 12))[0] for who in NAMES] * 2
    alone, steps = [], []
    for one in asked:
        with passes(engine) as seen:
            alone.append(await ask(engine, one))
        steps.append([ids for ids in seen if ids.shape[1] == 1])
    with passes(engine) as seen:
        with held(engine):
            speeches = [await engine.speak(one) for one in asked]
            for speech in speeches:
                await speech.__aenter__()
            assert engine.busy() == len(asked)
        together = [await speech.done() for speech in speeches]
    assert [one.text for one in together] == [one.text for one in alone]
    shared = [ids for ids in seen if ids.shape[1] == 1]
    assert len(shared) == max(map(len, steps)) == 11
    assert {ids.shape[0] for ids in shared} == {len(asked)}
    await engine.close()


async def test_what_was_read_for_an_answer_is_not_read_again(engine: CastEngine) -> None:
    first = await ask(engine, wanted(ALICE, "Good evening. Sit down, and tell me who you are."))
    chat = (
        "Good evening. Sit down, and tell me who you are.",
        said("I hardly know, sir.", "assistant"),
        "Explain yourself!",
    )
    second = await ask(engine, wanted(ALICE, *chat))
    assert (first.cached, second.cached) == (0, first.tokens_in)


async def test_in_a_scene_the_next_character_reads_only_its_name(
    tmp_path: Path, tiny_base: Path
) -> None:
    engine = await opened(small_cast(tmp_path, tiny_base, mode="speaker").path)
    ada, wu = engine.generator.characters
    chat = (
        "Good evening. Who was it that came in first?",
        said("It was I.", "assistant", name=ada),
        said("It was not.", "assistant", name=wu),
    )
    first = await ask(engine, wanted(ada, *chat))
    second = await ask(engine, wanted(wu, *chat))
    assert first.tokens_in is not None
    layout = layout_of(engine.generator.base.tokenizer)
    header = layout.header(CastTurn(speaker=wu, text="It was not."), ada)  # under her own blocks
    assert second.cached == first.tokens_in - len(header.ids)
    told = await ask(engine, wanted(ada, said("[to Wu Song] Flee!", "system"), *chat))
    assert told.cached == first.tokens_in - 1  # she has heard nothing else
    await engine.close()


async def test_others_lines_are_read_under_their_own_blocks(scene: CastEngine) -> None:
    chat = (
        "Good evening.",
        said("And to you.", "assistant", name=HOLMES),
        said("Sit down.", "assistant"),
        said("Hm.", "assistant", name="Mycroft"),
        "Who came first?",
    )
    asked = wanted(ADA, *chat)
    told = Voices(scene.generator.cast).told(asked)
    dialogue = Dialogue(scene.generator, system=told.system)
    for turn in told.turns:
        dialogue.say(turn.text, turn.speaker)
    assert [turn.speaker for turn in told.turns] == [None, HOLMES, ADA, "Mycroft", None]
    prompt = dialogue.prompt(ADA)
    assert set(prompt.speakers) == {None, HOLMES, ADA}
    (alone,) = scene.generator.run([Wanted(prompt, ADA, **DRAWN)])
    assert (await ask(scene, asked)).text == alone.text


# Nothing unseen ----------------------------------------------------------------------------------


def everything(seen: Sequence[torch.Tensor], engine: CastEngine) -> str:
    """All that went through the model, as text."""
    decode = engine.generator.base.tokenizer.decode
    return "\n".join(decode(row) for ids in seen for row in ids)


@pytest.mark.parametrize("mode", MODES)
async def test_what_a_character_did_not_perceive_never_reaches_the_model(
    casts: dict[str, Cast], mode: Mode
) -> None:
    engine = await opened(casts[mode].path, kept_bytes=0, prefill_tokens=8192)
    chat = (
        said("[to Holmes] SYSTEM-MARK", "system"),
        said("Good evening.", name="Tom"),
        "Tom: [to Holmes, Ada] WHISPER-MARK",
        said("FIELD-MARK", "assistant", name=ADA, by=["Tom"]),
        said("Sherlock Holmes: [to Tom] ANSWER-MARK", "assistant"),
        said("OPEN-MARK", "assistant", name=HOLMES),
    )
    marks = {
        HOLMES: {"SYSTEM", "WHISPER", "ANSWER", "OPEN"},
        ADA: {"WHISPER", "FIELD", "OPEN"},
        ALICE: {"OPEN"},
    }
    for who, perceived in marks.items():
        with passes(engine) as seen:
            await ask(engine, wanted(who, *chat, max_tokens=1))
        text = everything(seen, engine)
        found = {m for m in ("SYSTEM", "WHISPER", "FIELD", "ANSWER", "OPEN") if f"{m}-MARK" in text}
        assert found == perceived
    await engine.close()


@pytest.fixture(scope="module")
def forgetful(casts: dict[str, Cast]) -> Iterator[dict[Mode, CastEngine]]:
    """Engines that keep no cache and read each prompt in one pass."""
    whole: dict[str, Any] = {"kept_bytes": 0, "prefill_tokens": 8192}
    made = {mode: asyncio.run(opened(casts[mode].path, **whole)) for mode in MODES}
    yield made
    for engine in made.values():
        asyncio.run(engine.close())


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chat=chats(), who=st.sampled_from(NAMES), mode=st.sampled_from(MODES))
def test_of_any_chat_the_model_reads_what_was_perceived_and_nothing_else(
    forgetful: dict[Mode, CastEngine],
    chat: tuple[list[ChatMessage], list[frozenset[str] | None]],
    who: str,
    mode: Mode,
) -> None:
    messages, perceiving = chat
    engine = forgetful[mode]
    with passes(engine) as seen:
        asyncio.run(ask(engine, wanted(who, *messages, max_tokens=1)))
    text = everything(seen, engine)
    for n, by in enumerate(perceiving):
        assert (f"MARK{n}X" in text) == (by is None or who in by)


# What cannot be answered -------------------------------------------------------------------------


async def test_a_chat_that_does_not_fit_is_refused_before_it_is_begun(engine: CastEngine) -> None:
    with pytest.raises(ContextLengthError, match="the model reads 2048"):
        await engine.speak(wanted(ALICE, "Long. " * 400))
    assert engine.busy() == 0


@pytest.mark.parametrize("wrong", [{"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}])
async def test_sampling_that_means_nothing_is_refused(
    engine: CastEngine, wrong: dict[str, Any]
) -> None:
    with pytest.raises(BadRequestError, match="max_tokens from 1"):
        await engine.speak(wanted(ALICE, "Good evening.", **wrong))


async def test_a_stranger_is_refused_with_those_who_there_are(engine: CastEngine) -> None:
    with pytest.raises(BadRequestError, match="Sherlock Holmes, Alice, Ada Lovelace"):
        await engine.speak(wanted("Napoleon", "Good evening."))


async def test_a_directory_without_a_cast_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no cast"):
        await CastEngine.open(tmp_path)


# Leaving -----------------------------------------------------------------------------------------


async def test_who_leaves_in_the_middle_leaves_nothing_behind(engine: CastEngine) -> None:
    long = wanted(ALICE, "Good evening.", max_tokens=1500)

    async def vanishes(after: int) -> None:
        async with await engine.speak(long) as speech:
            heard = 0
            async for _piece in speech:
                heard += 1
                if heard > after:
                    break

    before = replace(engine.generator.counts)
    await asyncio.gather(*(vanishes(n % 3) for n in range(20)))
    await settled(engine)
    assert engine.generator.counts.finished == before.finished
    assert engine.generator.counts.cancelled == before.cancelled + 20
    assert (await ask(engine, wanted(ALICE, "Good evening."))).text


async def test_a_cancelled_task_leaves_nothing_behind(engine: CastEngine) -> None:
    long = wanted(ALICE, "Good evening.", max_tokens=1500)
    task = asyncio.create_task(ask(engine, long))
    async with asyncio.timeout(30):
        while not engine.busy():
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settled(engine)


async def test_an_answer_that_is_prepared_and_not_begun_is_no_work(engine: CastEngine) -> None:
    speech = await engine.speak(wanted(ALICE, "Good evening."))
    assert engine.busy() == 0
    with pytest.raises(UsageError, match="async with"):
        await speech.done()


async def test_a_closed_engine_says_so(casts: dict[str, Cast]) -> None:
    engine = await opened(casts["full"].path)
    assert await engine.healthy() is None
    prepared = await engine.speak(wanted(ALICE, "Good evening."))
    long = wanted(ALICE, "Good evening.", max_tokens=1500)
    async with await engine.speak(long) as under_way:
        pieces = aiter(under_way)
        await anext(pieces)
        await engine.close()
        with pytest.raises(ServerError, match="closed"):
            await under_way.done()
        with pytest.raises(ServerError, match="closed"):
            async for _piece in pieces:
                pass
    with pytest.raises(ServerError, match="closed"):
        await prepared.__aenter__()
    for late in (engine.speak(long), engine.refresh()):
        with pytest.raises(ServerError, match="closed"):
            await late
    assert await engine.healthy() == "the engine is closed"
    await engine.close()


async def test_a_model_that_fails_is_told_to_who_waits_and_to_nobody_later(
    engine: CastEngine,
) -> None:
    def fail(*_args: Any) -> None:
        raise RuntimeError("out of memory")

    hook = engine.generator.base.model.register_forward_pre_hook(fail)
    async with await engine.speak(wanted(ALICE, "Good evening.")) as speech:
        with pytest.raises(ServerError, match="out of memory"):
            async for _piece in speech:
                pass
    hook.remove()
    assert (await ask(engine, wanted(ALICE, "Good evening."))).text


# Hot addition ------------------------------------------------------------------------------------


def with_a_block(cast: Cast, name: str, **changes: Any) -> Cast:
    """The cast with one character more, who has a block of its own."""
    random = np.random.default_rng(9)
    slot = {
        tensor: random.normal(0, 0.1, values.shape[1:]).astype(np.float32)
        for tensor, values in cast.tensors.items()
    }
    more = CastCharacter(name=name, how="expand", weights={"shared": 1.0, name: 1.0})
    fields: dict[str, Any] = {
        "base": cast.manifest.base,
        "rank": cast.manifest.rank,
        "alpha": cast.manifest.alpha,
        "blocks": [*cast.manifest.blocks, Block(name=name)],
        "characters": [*cast.manifest.characters, more],
        "tensors": with_slot(cast.tensors, slot),
        "cards": cast.cards,
        "mode": cast.manifest.mode,
    }
    return write_cast(cast.path, **{**fields, **changes})


def folder(engine: CastEngine) -> Path:
    return engine.generator.cast.path


BRIEF = Character(name="Lin Chong", description="He was the arms instructor of the guard.")


@pytest.mark.parametrize(("how", "card"), [("profile", BRIEF), ("fuse", "starter:don-quixote")])
async def test_a_character_that_was_added_to_the_cast_answers_without_a_restart(
    own: CastEngine, how: How, card: Character | str
) -> None:
    name = add_character(folder(own), card, how).cast.names[-1]
    assert await own.refresh() == (name,)
    assert await own.refresh() == ()
    names = [one.name for one in own.characters()]
    assert names == [*NAMES, name]
    assert own.characters()[-1].about["how"] == how
    async with await own.speak(wanted(AUTO, f"Hello, {name}!")) as speech:
        assert speech.character == name
        assert (await speech.done()).text


async def test_who_speaks_during_a_refresh_says_what_it_would_have_said(own: CastEngine) -> None:
    found = [await lasting(own, who, 80) for who in NAMES]
    asked, before = [one for one, _ in found], [answer for _, answer in found]
    own.generator.forget()
    with_a_block(read_cast(folder(own)), "Lin Chong")
    async with await own.speak(asked[0]) as speech:
        pieces: list[str] = []
        others = [asyncio.create_task(ask(own, one)) for one in asked[1:]]
        async for piece in speech:
            pieces.append(piece)
            if len(pieces) == 1:
                assert await own.refresh() == ("Lin Chong",)
                assert own.busy() > 0  # the refresh came while they spoke
        during = [await speech.done(), *[await one for one in others]]
    assert [one.text for one in during] == [one.text for one in before]
    assert "".join(pieces) == before[0].text
    assert own.generator.cast.tensors == {}


async def test_a_new_character_says_what_it_says_after_a_restart(own: CastEngine) -> None:
    with_a_block(read_cast(folder(own)), "Lin Chong")
    await own.refresh()
    asked = wanted("Lin Chong", "Good evening.")
    anew = await opened(folder(own))
    assert (await ask(own, asked)).text == (await ask(anew, asked)).text
    await anew.close()


async def test_two_refreshes_at_once_take_everybody_in_once(own: CastEngine) -> None:
    with_a_block(read_cast(folder(own)), "Lin Chong")
    assert sorted(await asyncio.gather(own.refresh(), own.refresh())) == [(), ("Lin Chong",)]


async def test_a_refresh_that_nobody_waits_for_any_more_is_finished(own: CastEngine) -> None:
    with_a_block(read_cast(folder(own)), "Lin Chong")
    task = asyncio.create_task(own.refresh())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await own.refresh() == ()  # waits its turn behind the first
    assert (await ask(own, wanted("Lin Chong", "Good evening."))).text


async def half_refreshed(own: CastEngine) -> None:
    """Lin Chong and another have been added; the generator could take in Lin Chong alone."""
    with_a_block(read_cast(folder(own)), "Lin Chong")
    with_a_block(read_cast(folder(own)), "Another")
    own.generator.learn("Another", {})  # so that it cannot come in
    with pytest.raises(UsageError, match="has 'Another' already"):
        await own.refresh()
    assert [one.name for one in own.characters()] == list(NAMES)
    del own.generator._voices["Another"]


async def test_a_refresh_that_failed_half_way_is_finished_by_the_next(own: CastEngine) -> None:
    await half_refreshed(own)
    assert await own.refresh() == ("Lin Chong", "Another")
    asked = wanted("Lin Chong", "Good evening.")
    anew = await opened(folder(own))
    assert (await ask(own, asked)).text == (await ask(anew, asked)).text
    await anew.close()


async def test_who_came_in_by_half_a_refresh_and_has_changed_since_wants_a_new_start(
    own: CastEngine,
) -> None:
    await half_refreshed(own)
    cast = read_cast(folder(own))
    tensors = {name: values.copy() for name, values in cast.tensors.items()}
    next(iter(tensors.values()))[-2] += 1
    with_a_block(replace(cast, tensors=tensors), "A Third")
    with pytest.raises(InputError, match="block 'Lin Chong' is not what it was"):
        await own.refresh()


def changed_block(cast: Cast) -> None:
    tensors = {name: values.copy() for name, values in cast.tensors.items()}
    next(iter(tensors.values()))[1] += 1
    with_a_block(replace(cast, tensors=tensors), "Lin Chong")


def somebody_gone(cast: Cast) -> None:
    left = [one for one in cast.manifest.characters if one.name != ALICE]
    cards = {name: card for name, card in cast.cards.items() if name != ALICE}
    with_a_block(cast, "Lin Chong", characters=left, cards=cards)


def another_rank(cast: Cast) -> None:
    with_a_block(cast, "Lin Chong", alpha=1.0)


def damaged(cast: Cast) -> None:
    (cast.path / "blocks.safetensors").write_bytes(b"no")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (changed_block, "the block 'Sherlock Holmes' is not what it was.*Start the server anew"),
        (somebody_gone, "'Alice' is gone.*Start the server anew"),
        (another_rank, "its alpha is another one.*Start the server anew"),
        (damaged, "blocks.safetensors"),
    ],
)
async def test_a_cast_that_has_changed_otherwise_is_refused_and_the_old_goes_on(
    own: CastEngine, change: Any, told: str
) -> None:
    asked = wanted(ALICE, "Good evening.")
    before = await ask(own, asked)
    change(read_cast(folder(own)))
    with pytest.raises(InputError, match=told):
        await own.refresh()
    assert [one.name for one in own.characters()] == list(NAMES)
    assert (await ask(own, asked)).text == before.text


def test_it_is_an_engine_of_the_server(casts: dict[str, Cast]) -> None:
    engine: Engine = asyncio.run(opened(casts["full"].path))
    names = [one.name for one in engine.characters()]
    assert names == list(NAMES)
    about = {one.name: one.about for one in engine.characters()}
    assert about[HOLMES]["licences"] == ["MIT"]
    assert about[ADA]["sources_without_licence"] == 1
    asyncio.run(engine.close())


# Over HTTP ---------------------------------------------------------------------------------------


async def test_over_http_a_whisper_reaches_who_it_is_for_and_nobody_else(
    casts: dict[str, Cast],
) -> None:
    engine = await opened(casts["full"].path, kept_bytes=0, prefill_tokens=8192)
    chat = [
        {"role": "user", "content": "Good evening, all of you."},
        {"role": "user", "content": "Tom: [to Holmes] The tea is POISONED."},
        {"role": "assistant", "name": "Sherlock_Holmes", "content": "Indeed."},
        {"role": "user", "content": "Alice, some tea?"},
    ]
    secret = {"secrets": [{"fact": "The BUTLER did it.", "known_by": ["Ada Lovelace"]}]}
    told = {}
    app = create_app(engine, served_as())
    for who in (*NAMES, AUTO):
        body = {"model": who, "messages": chat, "personae": secret, "max_tokens": 2}
        heads = {"content-type": "application/json"}
        with passes(engine) as seen:
            found = await post(app, "POST", "/v1/chat/completions", body, headers=heads)
        assert found.status == 200, found.body
        text = everything(seen, engine)
        told[found.json["model"], who] = ("POISONED" in text, "BUTLER" in text)
    await engine.close()
    assert told == {
        (HOLMES, HOLMES): (True, False),
        (ALICE, ALICE): (False, False),
        (ADA, ADA): (False, True),
        (ALICE, AUTO): (False, False),
    }
