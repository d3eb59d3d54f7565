"""A dialogue goes on where it stood: what was computed once is not computed again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from personae.cast.dialogue import Dialogue, chat_prompt
from personae.cast.encode import encode
from personae.cast.generate import CastGenerator, Generated, Wanted
from personae.cast.layout import layout_of, messages_for, system_text
from personae.cast.store import Cast
from personae.errors import BadRequestError, UsageError
from personae.records import Message
from personae.records.cast import CastRow, CastTurn, Mode
from tests.cast.serving import NAMES, cast_with_a_profile, generator_of, small_cast

ADA, WU = NAMES
MODES: list[Mode] = ["full", "speaker"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def casts(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path) -> dict[str, Cast]:
    folder = tmp_path_factory.mktemp("casts")
    return {
        "full": small_cast(folder / "full", tiny_base, mode="full", seed=2),
        "speaker": small_cast(folder / "speaker", tiny_base, mode="speaker", seed=2),
    }


@pytest.fixture(params=MODES)
def generator(
    request: pytest.FixtureRequest, casts: dict[str, Cast], tiny_base: Path
) -> Iterator[CastGenerator]:
    made = generator_of(casts[request.param], tiny_base)
    yield made
    made.close()


@contextmanager
def counted(generator: CastGenerator) -> Iterator[list[int]]:
    """Tokens of every forward pass."""
    seen: list[int] = []
    hook = generator.base.model.register_forward_pre_hook(
        lambda _m, _a, k: seen.append(k["input_ids"].numel()), with_kwargs=True
    )
    yield seen
    hook.remove()


def speak(dialogue: Dialogue, who: str, **more: Any) -> Generated:
    chosen: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12, **more}
    return asyncio.run(dialogue.reply(who, **chosen))


def talk(dialogue: Dialogue) -> list[Generated]:
    """Two characters in turn, with a word of the person between."""
    found = []
    dialogue.say("Good evening to both of you. Who was it that came in first?")
    found.append(speak(dialogue, ADA))
    found.append(speak(dialogue, WU))
    dialogue.say("And what then?")
    found.append(speak(dialogue, WU))
    found.append(speak(dialogue, ADA))
    return found


def test_a_reply_with_the_kept_cache_is_the_reply_from_scratch(
    generator: CastGenerator, casts: dict[str, Cast], tiny_base: Path
) -> None:
    kept = talk(Dialogue(generator))
    forgetful = generator_of(casts[generator.cast.manifest.mode], tiny_base, kept_bytes=0)
    try:
        anew = talk(Dialogue(forgetful))
    finally:
        forgetful.close()
    assert [one.ids for one in kept] == [one.ids for one in anew]
    assert [one.cached for one in anew] == [0, 0, 0, 0]
    assert all(one.cached > 0 for one in kept[2:])


def test_who_has_spoken_computes_only_what_was_said_since(generator: CastGenerator) -> None:
    dialogue = Dialogue(generator)
    dialogue.say("Good evening.")
    first = speak(dialogue, ADA)
    fed = first.tokens_in + first.tokens_out - 1  # the last one drawn has not been fed
    dialogue.say("Go on.")
    with counted(generator) as passes:
        second = speak(dialogue, ADA)
    assert second.cached == fed
    assert passes[0] == second.tokens_in - fed
    assert passes[1:] == [1] * (second.tokens_out - 1)


def test_after_a_switch_only_the_new_tokens_of_a_scene_are_computed(
    casts: dict[str, Cast], tiny_base: Path
) -> None:
    generator = generator_of(casts["speaker"], tiny_base)
    dialogue = Dialogue(generator)
    dialogue.say("Tell me everything that happened on the way, from the start. " * 12)
    first = speak(dialogue, ADA)
    layout = layout_of(generator.base.tokenizer)
    with counted(generator) as passes:
        second = speak(dialogue, WU)
    # the last token drawn, the end of the turn and the header of the other one's
    header = layout.header(dialogue.turns[-2], WU)
    assert passes[0] == 1 + len(layout.end_ids) + len(header.ids)
    assert second.cached == first.tokens_in + first.tokens_out - 1 > 500
    generator.close()


def test_after_a_switch_another_characters_blocks_read_all_of_it_in_mode_full(
    casts: dict[str, Cast], tiny_base: Path
) -> None:
    generator = generator_of(casts["full"], tiny_base)
    dialogue = Dialogue(generator)
    dialogue.say("Good evening.")
    speak(dialogue, ADA)
    assert speak(dialogue, WU).cached == 0
    assert speak(dialogue, ADA).cached > 0  # its own cache is still there
    generator.close()


def test_what_a_character_is_fed_is_the_layout_of_training(generator: CastGenerator) -> None:
    layout = layout_of(generator.base.tokenizer)
    dialogue = Dialogue(generator)
    turns = (
        CastTurn(text="Good evening."),
        CastTurn(speaker=WU, text="And to you."),
        CastTurn(speaker=ADA, text="Sit down."),
        CastTurn(speaker=ADA, text="Or stand."),
        CastTurn(text="I will stand."),
    )
    for turn in turns:
        dialogue.say(turn.text, turn.speaker)
    found = dialogue.prompt(ADA)
    if generator.cast.manifest.mode == "full":
        messages = messages_for(turns, ADA, system_text(ADA, "en"), "full")
        assert found.ids == layout.prompt_ids(messages)
        assert set(found.speakers) == {ADA}
    else:
        from personae.cast.layout import scene_system_text

        whole = layout.scene(scene_system_text("en"), turns)
        assert found.ids[: len(whole.ids)] == whole.ids
        assert found.speakers[: len(whole.ids)] == whole.speaker
        assert set(found.speakers) == {ADA, WU, None}


def test_a_reply_is_asked_for_with_the_tokens_that_stood_before_it_in_training(
    generator: CastGenerator,
) -> None:
    mode = generator.cast.manifest.mode
    turns = (
        CastTurn(text="Good evening."),
        CastTurn(speaker=WU, text="And to you. 晚上好。"),
        CastTurn(text="Who came first?"),
        CastTurn(speaker=ADA, text="I did."),
    )
    row = CastRow(characters=NAMES, turns=turns, source="a test")
    learnt = encode(row, generator.base.tokenizer, mode, 2000)[0 if mode == "full" else -1]
    dialogue = Dialogue(generator)
    for turn in turns[:-1]:
        dialogue.say(turn.text, turn.speaker)
    asked = dialogue.prompt(ADA)
    assert learnt.ids[: len(asked.ids)] == asked.ids
    words = learnt.ids[len(asked.ids) :]
    assert generator.base.tokenizer.decode(words, skip_special_tokens=True).strip() == "I did."
    assert all(learnt.supervised[len(asked.ids) :])
    if mode == "speaker":
        assert learnt.speaker[: len(asked.ids)] == asked.speakers


def test_in_a_scene_nothing_but_the_header_depends_on_who_speaks_next(
    casts: dict[str, Cast], tiny_base: Path
) -> None:
    generator = generator_of(casts["speaker"], tiny_base)
    dialogue = Dialogue(generator)
    dialogue.say("Good evening.")
    speak(dialogue, ADA)
    one, other = dialogue.prompt(ADA), dialogue.prompt(WU)
    layout = layout_of(generator.base.tokenizer)
    common = len(one.ids) - len(layout.header(dialogue.turns[-1], ADA).ids)
    assert one.ids[:common] == other.ids[:common]
    assert one.speakers[:common] == other.speakers[:common]
    generator.close()


@pytest.mark.parametrize("mode", MODES)
def test_who_lives_by_its_profile_is_told_it_whatever_else_is_told(
    tmp_path: Path, tiny_base: Path, mode: Mode
) -> None:
    cast = cast_with_a_profile(tmp_path, tiny_base, mode=mode)
    generator = generator_of(cast, tiny_base)
    for system in (None, "It is dark."):
        dialogue = Dialogue(generator, system=system)
        dialogue.say("Good evening.")
        text = generator.base.tokenizer.decode(dialogue.prompt("Lin Chong").ids)
        assert "arms instructor" in text
        assert ("It is dark." in text) == (system is not None)
        assert "arms instructor" not in generator.base.tokenizer.decode(dialogue.prompt(ADA).ids)
    generator.close()


def test_drawn_tokens_are_fed_again_as_they_were_drawn(generator: CastGenerator) -> None:
    dialogue = Dialogue(generator)
    dialogue.say("Good evening.")
    found = speak(dialogue, ADA)
    ids = dialogue.prompt(ADA).ids
    assert any(ids[n : n + len(found.ids)] == found.ids for n in range(len(ids)))


def test_a_reply_that_was_cut_at_a_stop_string_is_fed_as_it_is_read(
    generator: CastGenerator,
) -> None:
    dialogue = Dialogue(generator)
    dialogue.say("Good evening.")
    whole = speak(Dialogue(generator), ADA, max_tokens=40)
    stop = next(c for c in whole.text[8:] if c.strip() and c.isprintable())
    found = speak(dialogue, ADA, max_tokens=40, stop=(stop,))
    assert stop not in found.text
    if found.text.strip():
        text = generator.base.tokenizer.decode(dialogue.prompt(ADA).ids)
        assert found.text.strip() in text


def test_a_cancelled_reply_leaves_the_dialogue_as_it_was(generator: CastGenerator) -> None:
    dialogue = Dialogue(generator)
    dialogue.say("Good evening.")

    async def leave() -> None:
        async for _piece in (pieces := dialogue.stream(ADA, max_tokens=1500, temperature=1.0)):
            break
        await pieces.aclose()  # type: ignore[attr-defined]  # an async generator

    asyncio.run(leave())
    assert dialogue.turns == (CastTurn(text="Good evening."),)
    assert speak(dialogue, WU).ids
    assert generator.busy == 0


def test_pieces_are_the_reply(generator: CastGenerator) -> None:
    dialogue = Dialogue(generator)
    dialogue.say("Good evening.")

    async def listen() -> str:
        return "".join([p async for p in dialogue.stream(ADA, max_tokens=20, temperature=0.0)])

    heard = asyncio.run(listen())
    assert heard.strip() == dialogue.turns[-1].text
    assert dialogue.turns[-1].speaker == ADA


def test_a_stranger_cannot_speak(generator: CastGenerator) -> None:
    with pytest.raises(UsageError, match="Lu Zhishen"):
        Dialogue(generator).prompt("Lu Zhishen")


def test_nobody_says_nothing(generator: CastGenerator) -> None:
    with pytest.raises(UsageError, match="says something"):
        Dialogue(generator).say("  ")


def test_a_chat_and_a_dialogue_lie_alike(generator: CastGenerator) -> None:
    mode = generator.cast.manifest.mode
    dialogue = Dialogue(generator, system="It is dark.")
    dialogue.say("Good evening.")
    dialogue.say("And to you.", ADA)
    dialogue.say("Go on.")
    chat = [
        Message(role="system", content="It is dark."),
        Message(role="user", content="Good evening."),
        Message(role="assistant", content="And to you."),
        Message(role="user", content="Go on."),
    ]
    made = chat_prompt(layout_of(generator.base.tokenizer), mode, chat, ADA)
    assert made == dialogue.prompt(ADA)


def test_a_second_system_message_is_refused(generator: CastGenerator) -> None:
    chat = [
        Message(role="user", content="Hi"),
        Message(role="system", content="It is dark."),
    ]
    layout = layout_of(generator.base.tokenizer)
    with pytest.raises(BadRequestError, match="first"):
        chat_prompt(layout, generator.cast.manifest.mode, chat, ADA)


def test_dialogues_side_by_side_do_not_hear_each_other(generator: CastGenerator) -> None:
    async def both() -> list[tuple[int, ...]]:
        one, other = Dialogue(generator), Dialogue(generator)
        one.say("Good evening.")
        other.say("Good morning to you, and a long one.")
        found = await asyncio.gather(
            one.reply(ADA, temperature=0.0, max_tokens=9),
            other.reply(WU, temperature=0.0, max_tokens=9),
        )
        return [one.ids for one in found]

    together = asyncio.run(both())
    for text, who, ids in (
        ("Good evening.", ADA, together[0]),
        ("Good morning to you, and a long one.", WU, together[1]),
    ):
        alone = Dialogue(generator)
        alone.say(text)
        wanted = Wanted(alone.prompt(who), who, max_tokens=9, temperature=0.0)
        assert generator.run([wanted])[0].ids == ids
