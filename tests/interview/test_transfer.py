"""Transfer dialogues change the character, always, and are the same for the same seed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.errors import InputError
from personae.interview.names import alike
from personae.interview.people import Interviewee, interviewee, read_interviewees
from personae.interview.questions import TOPICS, question_script, read_scripts
from personae.interview.transfer import TURNS, transfer_scripts
from personae.records import Character, InterviewScript, ScriptTurn


def people(*names: str) -> tuple[Interviewee, ...]:
    return tuple(interviewee(Character(name=n, description=f"{n}, a person."), "en") for n in names)


def questions(name: str, count: int, **more: Any) -> list[InterviewScript]:
    return [question_script(name, f"Question {n} to {name}?", **more) for n in range(count)]


def replayed(name: str, number: int, turns: int = 5, **more: Any) -> InterviewScript:
    return InterviewScript(
        id=f"{name}/{number}",
        kind="multi",
        topic=f"Topic {number} of {name}",
        turns=tuple(
            ScriptTurn(character=name, asked=f"Dialogue {number}, turn {n} to {name}?")
            for n in range(turns)
        ),
        **more,
    )


THREE = people("Ada", "Ben", "Cem")
SINGLE = [s for person in THREE for s in questions(person.name, 8)]
MULTI = [replayed(person.name, n) for person in THREE for n in range(4)]


def asked(script: InterviewScript) -> list[str | None]:
    return [turn.asked for turn in script.turns]


@pytest.mark.parametrize("material", [SINGLE, MULTI, SINGLE + MULTI])
def test_every_dialogue_has_two_characters_and_asks_nothing_twice(
    material: Sequence[InterviewScript],
) -> None:
    made = transfer_scripts(material, THREE, 30, seed=3)
    assert len(made) == 30
    assert len({script.id for script in made}) == 30
    for script in made:
        assert (script.kind, script.mode) == ("transfer", "replayed")
        assert len(script.turns) == TURNS
        assert len(script.characters) >= 2
        assert len(set(asked(script))) == TURNS


def test_every_question_is_to_the_character_whom_it_was_put_to() -> None:
    for script in transfer_scripts(SINGLE + MULTI, THREE, 30):
        for turn in script.turns:
            assert turn.asked is not None
            assert turn.asked.endswith(f"to {turn.character}?")


def test_the_same_seed_gives_the_same_and_another_seed_others() -> None:
    made = transfer_scripts(MULTI, THREE, 20, seed=1)
    assert made == transfer_scripts(list(MULTI), THREE, 20, seed=1)
    assert made != transfer_scripts(MULTI, THREE, 20, seed=2)


def test_fewer_are_the_first_of_more() -> None:
    many = transfer_scripts(MULTI, THREE, 20, seed=5)
    assert transfer_scripts(MULTI, THREE, 7, seed=5) == many[:7]


def test_each_character_is_given_way_from_equally_often() -> None:
    made = transfer_scripts(MULTI, THREE, 30)
    begun = Counter(script.topic.rpartition(" of ")[2] for script in made)
    assert begun == {"Ada": 10, "Ben": 10, "Cem": 10}
    for script in made:
        assert script.topic.rpartition(" of ")[2] in script.characters


def test_rounds_that_stay_keep_their_place_in_the_dialogue() -> None:
    for script in transfer_scripts(MULTI, THREE, 30):
        base = script.topic.rpartition(" of ")[2]
        for number, turn in enumerate(script.turns):
            if turn.character == base:
                assert turn.asked is not None
                assert f"turn {number} " in turn.asked


def test_where_each_round_is_from_is_kept() -> None:
    by_id = {script.id: script for script in MULTI}
    for script in transfer_scripts(MULTI, THREE, 5):
        for turn, (source, number) in zip(script.turns, script.extra["rounds"], strict=True):
            assert by_id[source].turns[number] == turn


def test_location_and_status_are_those_of_the_dialogue_that_it_begins_as() -> None:
    material = [
        replayed(person.name, 0, location=f"{person.name}'s house", status=f"{person.name}, busy")
        for person in THREE
    ]
    for script in transfer_scripts(material, THREE, 6):
        base = script.topic.rpartition(" of ")[2]
        assert (script.location, script.status) == (f"{base}'s house", f"{base}, busy")


def test_a_dialogue_with_a_tempting_question_is_tempting() -> None:
    material = [
        *questions("Ada", 8, topic_id="topic-4"),
        *questions("Ben", 8, topic_id="topic-1"),
        *questions("Cem", 8, topic_id="topic-1"),
    ]
    for script in transfer_scripts(material, THREE, 20):
        assert script.tempting == ("Ada" in script.characters)


def test_the_same_words_to_two_characters_are_asked_once() -> None:
    material = [
        question_script(person.name, words)
        for person in THREE
        for words in ("Who are you?", "who are you", "Why?", "Where?")
    ]
    made = transfer_scripts(material, THREE, 6, turns=3)
    for script in made:
        said = [str(words).lower().strip("?") for words in asked(script)]
        assert len(set(said)) == 3


def test_with_few_questions_to_a_character_more_of_its_rounds_give_way() -> None:
    material = [*questions("Ada", 1), *questions("Ben", 8)]
    made = transfer_scripts(material, THREE[:2], 8)
    for script in made[::2]:
        assert [turn.character for turn in script.turns].count("Ada") == 1


def test_two_cards_of_one_character_are_not_two_characters() -> None:
    several = people("Julius Caesar", "Caesar", "Cleopatra")
    material = [s for person in several for s in questions(person.name, 9)]
    for live in (False, True):
        for script in transfer_scripts(material, several, 30, live=live):
            assert any(
                not alike(one, other) for one, other in itertools.pairwise(script.characters)
            )
    with pytest.raises(InputError, match="fewer than two characters"):
        transfer_scripts(material[:18], several[:2], 1)


def test_questions_under_a_short_name_are_to_the_character() -> None:
    several = people("Julius Caesar", "Isaac Newton")
    material = [*questions("Caesar", 9), *questions("Newton", 9)]
    for script in transfer_scripts(material, several, 10):
        assert set(script.characters) == {"Julius Caesar", "Isaac Newton"}


def test_a_live_dialogue_leaves_the_words_to_the_interviewer() -> None:
    made = transfer_scripts(SINGLE, THREE, 30, turns=4, live=True)
    for script in made:
        assert (script.mode, asked(script)) == ("live", [None] * 4)
        names = [turn.character for turn in script.turns]
        assert all(one != other for one, other in itertools.pairwise(names))
        assert script.topic.endswith(f"to {names[0]}?")
    assert transfer_scripts(SINGLE, THREE, 30, turns=4, live=True) == made


def test_a_live_dialogue_without_material_is_about_a_plain_topic() -> None:
    (script,) = transfer_scripts([], THREE, 1, live=True)
    plain = {topic.names["en"] for topic in TOPICS if not topic.tempting}
    assert script.topic in plain
    assert not script.tempting


def test_transfer_dialogues_that_are_given_stand_as_they_are() -> None:
    given_ones = transfer_scripts(SINGLE, THREE, 3, seed=9)
    assert transfer_scripts(given_ones, THREE, 10) == given_ones
    assert transfer_scripts(given_ones, THREE, 2) == given_ones[:2]
    made = transfer_scripts([*given_ones, *SINGLE], THREE, 10, seed=1)
    assert made[:3] == given_ones
    assert len({script.id for script in made}) == 10


def test_too_little_material_is_an_error_that_says_how_far_it_went() -> None:
    material = [*questions("Ada", 1), *questions("Ben", 1)]
    with pytest.raises(InputError, match=r"give 0 different transfer dialogues of 5 turns, not 1"):
        transfer_scripts(material, THREE[:2], 1)
    assert len(transfer_scripts(material, THREE[:2], 2, turns=2)) == 2
    with pytest.raises(InputError, match=r"give \d+ different transfer dialogues of 2 turns"):
        transfer_scripts(material, THREE[:2], 5, turns=2)


def test_one_character_is_too_few() -> None:
    with pytest.raises(InputError, match="needs two characters"):
        transfer_scripts(SINGLE, THREE[:1], 1)
    with pytest.raises(InputError, match="questions to fewer than two characters"):
        transfer_scripts(questions("Ada", 9), THREE, 1)


def test_a_question_to_a_stranger_is_an_error_with_its_place() -> None:
    stranger = question_script("Dan", "Who?", source="q.json, entry 4")
    with pytest.raises(InputError, match=r"q\.json, entry 4: a question to Dan"):
        transfer_scripts([*SINGLE, stranger], THREE, 1)


def test_a_dialogue_of_one_turn_cannot_change_its_character() -> None:
    with pytest.raises(ValueError, match="two turns"):
        transfer_scripts(SINGLE, THREE, 1, turns=1)


@given(
    st.integers(0, 2**32),
    st.integers(2, 6),
    st.lists(st.integers(1, 6), min_size=2, max_size=4),
)
def test_whatever_the_material_a_dialogue_is_sound_or_there_is_an_error(
    seed: int, turns: int, counts: list[int]
) -> None:
    several = people(*"ABCD"[: len(counts)])
    material = [
        script for person, n in zip(several, counts, strict=True) for script in questions(person.name, n)
    ]  # fmt: skip
    try:
        made = transfer_scripts(material, several, 3, turns=turns, seed=seed)
    except InputError:
        return
    for script in made:
        assert len(script.turns) == turns == len(set(asked(script)))
        assert len(script.characters) >= 2


def test_of_the_published_questions_each_character_gets_ten_dialogues(
    shared_data: Callable[..., Path],
) -> None:
    neeko = shared_data("neeko", "questions").parent
    cast = read_interviewees([neeko / "profiles"], "en")
    scripts = read_scripts(sorted((neeko / "gen_results").rglob("*_multi.jsonl")), cast)
    assert len(scripts) == 600
    made = transfer_scripts(scripts, cast, 60, seed=23)
    assert len({script.id for script in made}) == 60
    assert all(len(script.characters) >= 2 for script in made)
    assert {name for script in made for name in script.characters} == {p.name for p in cast}
