"""What of a dialogue is learnt, by whom, and what does not fit."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.cast.encode import Encoded, encode, encode_all
from personae.cast.layout import Layout, layout_of, messages_for, scene_system_text, system_text
from personae.errors import UsageError
from personae.records.cast import CastRow, CastTurn, Mode

MODES: tuple[Mode, ...] = ("full", "speaker")


@pytest.fixture(scope="session")
def tokenizer(tiny_base: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_base)


@pytest.fixture(scope="session")
def layout(tokenizer: Any) -> Layout:
    return layout_of(tokenizer)


def row_of(*turns: tuple[str | None, str], **more: Any) -> CastRow:
    names = tuple(dict.fromkeys(name for name, _ in turns if name))
    return CastRow(
        **{
            "characters": names,
            "turns": [CastTurn(speaker=n, text=t) for n, t in turns],
            "source": "talk.jsonl, line 1",
            **more,
        }
    )


def learnt(layout: Layout, row: Any) -> str:
    return str(
        layout.tokenizer.decode([n for n, s in zip(row.ids, row.supervised, strict=True) if s])
    )


TALK = row_of((None, "Good evening."), ("Al", "Hello."), ("Bob", "Hm."), ("Al", "Sit down."))


def test_full_mode_makes_a_row_of_each_character_and_learns_its_words_alone(
    layout: Layout,
) -> None:
    al, bob = encode(TALK, layout, "full", 2000)
    assert (al.character, bob.character) == ("Al", "Bob")
    assert learnt(layout, al) == "Hello.<|im_end|>Sit down.<|im_end|>"
    assert learnt(layout, bob) == "Hm.<|im_end|>"
    assert set(al.speaker) == {"Al", None}
    assert al.row == "talk.jsonl, line 1"
    assert al.cut == 0  # Bob's row ends with Bob's words: what comes after teaches nothing
    assert bob.cut == 0


def test_the_end_of_every_turn_is_learnt(layout: Layout) -> None:
    for mode in MODES:
        for row in encode(TALK, layout, mode, 2000):
            ends = [s for n, s in zip(row.ids, row.supervised, strict=True) if s and n == 2]
            assert len(ends) == (3 if mode == "speaker" else 2 if row.character == "Al" else 1)


def test_in_full_mode_before_an_answer_stands_what_generation_is_fed(layout: Layout) -> None:
    (al, _) = encode(TALK, layout, "full", 2000)
    system = system_text("Al", "en")
    for said in (1, 3):  # Al's turns
        prompt = layout.prompt_ids(messages_for(TALK.turns[:said], "Al", system, "full"))
        answer = layout.tokenizer(TALK.turns[said].text, add_special_tokens=False)["input_ids"]
        whole = [*prompt, *answer, *layout.end_ids]
        assert list(al.ids[: len(whole)]) == whole


def test_in_speaker_mode_before_an_answer_stands_what_generation_is_fed(layout: Layout) -> None:
    (row,) = encode(TALK, layout, "speaker", 2000)
    for said, name in ((1, "Al"), (2, "Bob"), (3, "Al")):
        prompt = layout.scene(scene_system_text("en"), TALK.turns[:said]).and_then(
            layout.header(TALK.turns[said - 1], name)
        )
        assert row.ids[: len(prompt.ids)] == prompt.ids
        assert row.speaker[: len(prompt.ids)] == prompt.speaker
    assert row.character is None
    assert learnt(layout, row) == " Hello.<|im_end|> Hm.<|im_end|> Sit down.<|im_end|>"


def test_a_row_keeps_its_own_system_message_in_full_mode(layout: Layout) -> None:
    row = TALK.model_copy(update={"system": "It is late."})
    for made in encode(row, layout, "full", 2000, profiles={"Al": "A smith."}):
        text = layout.tokenizer.decode(made.ids)
        assert text.startswith("<|im_start|>system\nIt is late.<|im_end|>")
    (scene,) = encode(row, layout, "speaker", 2000)
    assert "It is late." not in layout.tokenizer.decode(scene.ids)


def test_a_profile_stands_in_the_system_message_of_its_character(layout: Layout) -> None:
    al, bob = encode(TALK, layout, "full", 2000, profiles={"Al": "A smith."})
    assert "A smith." in layout.tokenizer.decode(al.ids)
    assert "A smith." not in layout.tokenizer.decode(bob.ids)


def test_a_chinese_row_gets_the_chinese_system_message(layout: Layout) -> None:
    row = row_of((None, "你好。"), ("文君", "请坐。"), language="zh")
    (made,) = encode(row, layout, "full", 2000)
    assert "你是文君" in layout.tokenizer.decode(made.ids)


def test_who_is_no_character_of_the_row_is_heard_and_not_learnt(layout: Layout) -> None:
    row = TALK.model_copy(update={"characters": ("Al",)})
    (made,) = encode(row, layout, "speaker", 2000)
    assert "Bob: Hm." in layout.tokenizer.decode(made.ids)
    assert "Hm." not in learnt(layout, made)
    assert set(made.speaker) == {"Al", "Bob", None}  # Bob may have a block that is not learnt here
    assert list(encode_all([row], layout, "speaker", 2000)[0]) == ["Al"]
    (full,) = encode(row, layout, "full", 2000)
    assert full.character == "Al"


@pytest.mark.parametrize("mode", MODES)
@given(
    texts=st.lists(st.text(min_size=1, max_size=60).filter(str.strip), min_size=1, max_size=9),
    room=st.integers(1, 400),
)
def test_a_long_dialogue_loses_whole_turns_from_its_front(
    mode: Mode, layout: Layout, texts: list[str], room: int
) -> None:
    row = row_of(*((None if n % 2 else "Al", text) for n, text in enumerate(texts)))
    limit = 260 + room

    def stretch(start: int, end: int) -> Encoded:
        turns = row.turns[start:end]
        (made,) = encode(row.model_copy(update={"turns": turns}), layout, mode, 100_000)
        return made

    ends = range(len(texts) if len(texts) % 2 else len(texts) - 1, 0, -2)  # of Al's turns
    fitting = [
        made
        for end in ends
        for start in range(end)
        if len((made := stretch(start, end)).ids) <= limit
    ]
    found = encode(row, layout, mode, limit)
    assert [one.ids for one in found] == [one.ids for one in fitting[:1]]
    for one in found:
        assert one.learnt > 0
        assert not one.supervised[0]


def test_what_is_cut_is_counted(layout: Layout) -> None:
    turns = [(None, "ask " * 20), ("Al", "say " * 20)] * 4
    (whole,) = encode(row_of(*turns), layout, "full", 10_000)
    short, report = encode_all(
        [row_of(*turns), row_of((None, "x"), ("Al", "y"))], layout, "full", len(whole.ids) - 1
    )
    assert [one.cut for one in short["Al"]] == [1, 0]
    assert (report.shortened, report.turns, report.too_long) == (1, 1, ())


def test_a_last_line_that_is_too_long_leaves_the_lines_before_it(layout: Layout) -> None:
    row = row_of((None, "a"), ("Al", "short"), (None, "b"), ("Al", "long " * 100))
    (made,) = encode(row, layout, "full", 300)
    assert learnt(layout, made) == "short<|im_end|>"
    assert made.cut == 2


@pytest.mark.parametrize("mode", MODES)
@given(
    texts=st.lists(st.text(min_size=1, max_size=40).filter(str.strip), min_size=1, max_size=9),
    room=st.integers(1, 300),
)
def test_in_windows_every_line_that_fits_is_learnt_once(
    mode: Mode, layout: Layout, texts: list[str], room: int
) -> None:
    row = row_of(*((None if n % 2 else "Al", f"{n} {text}") for n, text in enumerate(texts)))
    limit = 260 + room
    alone = [
        learnt(layout, made)
        for turn in row.turns
        if turn.speaker
        for made in encode(row.model_copy(update={"turns": (turn,)}), layout, mode, limit)
    ]
    rows = encode(row, layout, mode, limit, windows=True)
    assert "".join(learnt(layout, one) for one in rows) == "".join(alone)
    assert all(len(one.ids) <= limit for one in rows)
    assert all(one.cut == 0 for one in rows[:-1])


def test_windows_stand_in_the_order_of_the_dialogue_and_count_what_is_in_none(
    layout: Layout,
) -> None:
    turns = [(None, "a"), ("Al", "one " * 40), (None, "b"), ("Al", "x " * 200), ("Al", "two " * 40)]
    rows = encode(row_of(*turns), layout, "full", 400, windows=True)
    assert [learnt(layout, one)[:3] for one in rows] == ["one", "two"]
    assert [one.cut for one in rows] == [0, 2]  # "b" and the long one
    found, report = encode_all([row_of(*turns)], layout, "full", 400, windows=True)
    assert [len(found["Al"]), report.turns, report.shortened] == [2, 2, 1]


def test_a_dialogue_of_which_nothing_fits_is_named(layout: Layout) -> None:
    rows, report = encode_all([row_of((None, "a"), ("Al", "long " * 100))], layout, "full", 300)
    assert rows == {}
    assert report.too_long == ("talk.jsonl, line 1",)


def test_in_speaker_mode_characters_share_one_row(layout: Layout) -> None:
    rows, _ = encode_all([TALK], layout, "speaker", 2000)
    assert rows["Al"][0] is rows["Bob"][0]


def test_a_tokenizer_serves_as_well_as_a_layout(tokenizer: Any, layout: Layout) -> None:
    for mode in MODES:
        assert encode(TALK, tokenizer, mode, 2000) == encode(TALK, layout, mode, 2000)


def test_a_row_of_no_tokens_is_an_error(layout: Layout) -> None:
    with pytest.raises(UsageError, match="at least 2 tokens"):
        encode(TALK, layout, "full", 1)
