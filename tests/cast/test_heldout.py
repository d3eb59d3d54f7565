"""Held-out dialogues become the token rows that a reader would write down by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from personae.cast.encode import Encoded
from personae.cast.heldout import Blocks, Prompted, Unit, UnscoredError, Way, units_of
from personae.cast.layout import Layout, layout_of
from personae.records import Character, PersonaeExtension
from personae.records.cast import CastCharacter, CastRow, CastTurn

ADA, BOB = "Ada Byron", "Bob"
CAST = (
    CastCharacter(name=ADA, aliases=("Countess",), weights={"shared": 1.0, ADA: 1.0}),
    CastCharacter(name=BOB, weights={"shared": 1.0, BOB: 1.0}),
)
WEIGHTS = {one.name: one.weights for one in CAST}


@pytest.fixture(scope="module")
def layout(tiny_base: Path) -> Layout:
    return layout_of(AutoTokenizer.from_pretrained(tiny_base))


def row(*said: tuple[str | None, str], names: Sequence[str] = (), **more: Any) -> CastRow:
    speakers = tuple(dict.fromkeys(who for who, _ in said if who is not None))
    return CastRow(
        characters=tuple(names) or speakers,
        turns=tuple(CastTurn(speaker=who, text=text) for who, text in said),
        source="held-out, line 1",
        **more,
    )


def text_of(layout: Layout, encoded: Encoded) -> str:
    return str(layout.tokenizer.decode(encoded.ids))


def asked_for(layout: Layout, encoded: Encoded) -> str:
    ids = [i for i, s in zip(encoded.ids, encoded.supervised, strict=True) if s]
    return str(layout.tokenizer.decode(ids))


def blocks(layout: Layout, mode: Any = "full", **more: Any) -> Blocks:
    return Blocks(layout, mode, 2048, WEIGHTS, {}, **more)


def one_unit(layout: Layout, given: CastRow, **more: Any) -> Unit:
    units, _ = units_of([given], CAST, layout, "full", more.pop("max_tokens", 1024), **more)
    (unit,) = units
    return unit


def test_each_character_of_the_cast_has_a_unit_in_each_dialogue_that_it_speaks_in(
    layout: Layout,
) -> None:
    rows = [
        row((None, "Hello."), (ADA, "Good day.")),
        row((ADA, "Bob?"), (BOB, "Yes."), ("Zoe", "And I?")),
        row(("Zoe", "Nobody of them.")),
    ]
    units, _ = units_of(rows, CAST, layout, "full", 1024)
    assert [(u.number, u.character) for u in units] == [(1, ADA), (2, ADA), (2, BOB)]
    assert all(u.failure is None and u.cut == 0 for u in units)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Good day.", False),
        ("I am ada.", True),
        ("The Countess is here.", True),
        ("Canada is adamant.", False),
        ("BYRON!", True),
    ],
)
def test_a_dialogue_in_which_a_name_is_said_is_marked(
    layout: Layout, text: str, named: bool
) -> None:
    assert one_unit(layout, row((None, "Who?"), (ADA, text))).named is named
    assert one_unit(layout, row((None, text), (ADA, "Yes."))).named is named


def test_a_chinese_name_is_found_inside_a_sentence(layout: Layout) -> None:
    cast = [CastCharacter(name="孙悟空", weights={"shared": 1.0})]
    rows = [row((None, "你是孙悟空吗？"), ("孙悟空", "正是。"), language="zh")]
    (unit,), _ = units_of(rows, cast, layout, "full", 1024)
    assert unit.named


def test_the_own_prompt_names_the_character_and_the_nameless_one_does_not(layout: Layout) -> None:
    unit = one_unit(layout, row((None, "Who are you?"), (ADA, "A mathematician.")))
    ((own, through),) = blocks(layout).own(unit)
    assert ADA in text_of(layout, own)
    assert through == WEIGHTS[ADA]
    (mine, others) = (blocks(layout).fit(unit, name)[0] for name in (ADA, BOB))
    assert mine[0] == others[0]  # one and the same row, whoever's blocks are tried
    assert "Ada" not in text_of(layout, mine[0])
    assert others[1] == WEIGHTS[BOB]
    for encoded in (own, mine[0]):
        assert asked_for(layout, encoded) == "A mathematician.<|im_end|>"


def test_in_speaker_mode_the_nameless_row_calls_everybody_by_a_letter(layout: Layout) -> None:
    given = row((None, "Begin."), (ADA, "One."), (BOB, "Two."), (ADA, "Three."))
    units, _ = units_of([given], CAST, layout, "speaker", 1024)
    assert [u.character for u in units] == [ADA, BOB]
    way = blocks(layout, "speaker")
    ((own, voices),) = way.own(units[0])
    assert "Ada Byron: One." in text_of(layout, own)
    assert asked_for(layout, own) == " One.<|im_end|> Three.<|im_end|>"
    assert voices == WEIGHTS
    ((fit, voices),) = way.fit(units[0], BOB)
    assert "A: One." in text_of(layout, fit)
    assert "B: Two." in text_of(layout, fit)
    assert "Ada" not in text_of(layout, fit)
    assert voices == {"A": WEIGHTS[BOB], "B": WEIGHTS[BOB]}
    assert asked_for(layout, fit) == asked_for(layout, own)


def test_a_long_dialogue_loses_the_same_turns_under_every_method(layout: Layout) -> None:
    said = [(None, "q" * 60), (ADA, "first " * 10), (None, "r" * 60), (ADA, "second " * 10)]
    whole = one_unit(layout, row(*said))
    assert whole.cut == 0
    short = one_unit(layout, row(*said), max_tokens=330)
    assert short.cut in (1, 2)
    assert short.row.turns[-1].text == "second " * 10
    cards = {ADA: Character(name=ADA, description="She counts. " * 40)}
    ways: list[Way] = [
        blocks(layout),
        Prompted(layout, 2048, cards),
        Prompted(layout, 2048, cards, True),
    ]
    told = {"".join(asked_for(layout, e) for e, _ in way.own(short)) for way in ways}
    assert told == {asked_for(layout, ways[0].own(short)[0][0])}
    assert "first" not in told.pop()


def test_a_line_that_fits_nowhere_is_a_failure_with_its_cause(layout: Layout) -> None:
    unit = one_unit(layout, row((None, "q"), (ADA, "word " * 300)), max_tokens=400)
    assert unit.failure is not None
    assert unit.failure.cause == "context_length"


def test_a_switch_is_a_first_line_after_another_character_of_the_cast(layout: Layout) -> None:
    given = row(
        (None, "Ada, then Bob."),
        (ADA, "One."),
        (ADA, "Two."),
        (None, "Bob?"),
        (BOB, "Three."),
        ("Zoe", "I am nobody."),
        (ADA, "Four."),
    )
    _, switches = units_of([given], CAST, layout, "full", 1024)
    assert [(s.turn, s.previous, s.character) for s in switches] == [(5, ADA, BOB)]
    (switch,) = switches
    ((there, _),) = blocks(layout).switch(switch)
    ((without, through),) = blocks(layout).switch(switch, without=True)
    ((_, previous),) = blocks(layout).switch(switch, previous=True)
    assert asked_for(layout, there) == asked_for(layout, without) == "Three.<|im_end|>"
    assert "Two." in text_of(layout, there)
    assert "Two." not in text_of(layout, without)
    assert "Bob?" in text_of(layout, without)
    assert (through, previous) == (WEIGHTS[BOB], WEIGHTS[ADA])


def test_only_the_line_after_the_switch_is_asked_for_not_earlier_ones(layout: Layout) -> None:
    given = row((BOB, "Zero."), (ADA, "One."), (None, "Bob?"), (BOB, "Two."))
    _, switches = units_of([given], CAST, layout, "full", 1024)
    assert [s.turn for s in switches] == [2, 4]
    ((there, _),) = blocks(layout).switch(switches[1])
    assert "Zero." in text_of(layout, there)
    assert asked_for(layout, there) == "Two.<|im_end|>"


def test_a_character_without_training_rows_is_missing_not_the_base(layout: Layout) -> None:
    way = Blocks(layout, "full", 2048, {ADA: WEIGHTS[ADA]}, {})
    units, _ = units_of([row((None, "q"), (BOB, "Yes."))], CAST, layout, "full", 1024)
    with pytest.raises(UnscoredError) as error:
        way.own(units[0])
    assert error.value.failure.cause == "not_trained"
    assert (way.knows(ADA), way.knows(BOB)) == (True, False)


CARD = Character(
    name=ADA,
    description="Her engine weaves algebra. Her father was a poet. She keeps three dogs.",
    extensions={"personae": PersonaeExtension(language="en").to_dict()},
)


def test_the_whole_profile_or_the_pieces_that_fit_the_question_stand_in_the_prompt(
    layout: Layout,
) -> None:
    unit = one_unit(
        layout,
        row(
            (None, "What does the engine do?"), (ADA, "It weaves."),
            (None, "Have you a dog?"), (ADA, "I have."),
        ),
    )  # fmt: skip
    cards = {ADA: CARD}
    ((whole, through),) = Prompted(layout, 2048, cards).own(unit)
    assert through == {}
    assert "father was a poet" in text_of(layout, whole)
    assert asked_for(layout, whole) == "It weaves.<|im_end|>I have.<|im_end|>"
    first, second = (e for e, _ in Prompted(layout, 2048, cards, True).own(unit))
    assert "engine weaves algebra" in text_of(layout, first)
    assert "three dogs" not in text_of(layout, first)
    assert "three dogs" in text_of(layout, second)
    assert "poet" not in text_of(layout, first) + text_of(layout, second)
    assert asked_for(layout, first) == "It weaves.<|im_end|>"
    assert asked_for(layout, second) == "I have.<|im_end|>"


def test_who_has_no_card_is_missing_under_the_methods_of_prompts(layout: Layout) -> None:
    unit = one_unit(layout, row((None, "q"), (BOB, "Yes.")))
    with pytest.raises(UnscoredError) as error:
        Prompted(layout, 2048, {ADA: CARD}).own(unit)
    assert error.value.failure.cause == "no_card"


def test_a_character_by_profile_is_told_it_even_where_the_row_brings_a_prompt(
    layout: Layout,
) -> None:
    given = row((None, "q"), (ADA, "Yes."), system="You are somebody.")
    unit = one_unit(layout, given)
    ((plain, _),) = blocks(layout).own(unit)
    assert "You are somebody." in text_of(layout, plain)
    told = Blocks(layout, "full", 2048, WEIGHTS, {ADA: "She keeps three dogs."})
    ((own, _),) = told.own(unit)
    assert "three dogs" in text_of(layout, own)
    ((fit, _),) = told.fit(unit, ADA)
    assert "three dogs" in text_of(layout, fit)
    assert "Byron" not in text_of(layout, fit)
