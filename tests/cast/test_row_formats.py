"""Each published shape of a dialogue, read for what it says."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.cast.row_formats import (
    Draft,
    NotReadableError,
    Reading,
    Said,
    drafts,
    neighbours_joined,
    of_play,
)
from personae.records import CastRow, Environment, Event, Failure, Play, Scene, SceneCharacter
from tests.records.strategies import json_value


def one(row: dict[str, Any], **how: Any) -> Draft:
    found = drafts(row, Reading(**how))
    assert found is not None
    assert len(found) == 1
    return found[0]


# Messages


def test_messages_name_their_character_in_the_message_or_in_the_row() -> None:
    messages = [
        {"role": "system", "content": "It is late."},
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": "Quite.", "name": "Ada"},
    ]
    draft = one({"messages": messages, "licence": "MIT"})
    assert draft.lines == (Said(None, "Well?"), Said("Ada", "Quite."))
    assert draft.characters == ("Ada",)
    assert draft.system == "It is late."
    assert draft.licence == "MIT"
    del messages[2]["name"]
    assert one({"messages": messages, "character": " Ada  King "}).characters == ("Ada King",)
    assert one({"messages": messages}, character="Bob").characters == ("Bob",)
    with pytest.raises(NotReadableError, match="no character is named"):
        drafts({"messages": messages}, Reading())


def test_sharegpt_says_from_and_value_and_its_system_stands_beside() -> None:
    draft = one(
        {
            "system": "Be brief.",
            "character": "Ada",
            "license": "CC-BY-4.0",
            "conversations": [{"from": "human", "value": "Well?"}, {"from": "gpt", "value": "Yes"}],
        }
    )
    assert draft.lines == (Said(None, "Well?"), Said("Ada", "Yes"))
    assert (draft.system, draft.licence) == ("Be brief.", "CC-BY-4.0")


def test_a_named_user_is_told_apart_and_not_learnt() -> None:
    draft = one(
        {
            "messages": [
                {"role": "user", "name": "Bob", "content": "Hm."},
                {"role": "user", "name": "user", "content": "Well?"},
                {"role": "assistant", "speaker": "Ada", "content": "Quite."},
            ]
        }
    )
    assert draft.lines == (Said("Bob", "Hm."), Said(None, "Well?"), Said("Ada", "Quite."))
    assert draft.characters == ("Ada",)


def test_many_characters_may_speak_in_one_dialogue() -> None:
    messages = [{"speaker": n, "content": f"I am {n}."} for n in ("Ada", "Bob", "Ada")]
    assert one({"messages": messages}).characters == ("Ada", "Bob")


def test_text_parts_are_text_and_a_picture_is_not() -> None:
    parts = [{"type": "text", "text": "Well"}, {"type": "text", "text": "then"}]
    messages = [{"role": "assistant", "name": "Ada", "content": parts}]
    assert one({"messages": messages}).lines == (Said("Ada", "Well\nthen"),)
    messages[0]["content"] = [{"type": "image_url", "image_url": "x"}]
    with pytest.raises(NotReadableError, match="no text"):
        drafts({"messages": messages}, Reading())


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "no list of messages"),
        ("Hi", "no list of messages"),
        (["Hi"], "message 1 is no object"),
        ([{"role": "tool", "content": "x"}], "the role 'tool' is nobody's"),
        ([{"role": "user", "content": 7}], "message 1 holds no text"),
        (
            [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Obey."}],
            "a system message after the first turn",
        ),
    ],
)
def test_broken_messages_are_refused_with_the_reason(messages: Any, why: str) -> None:
    with pytest.raises(NotReadableError, match=why):
        drafts({"messages": messages}, Reading(character="Ada"))


# Character-LLM

PROMPTED = {
    "prompt": "I want you to act like Ada Lovelace. I want you to respond as her.\n\nIt is 1843.",
    "output": "Babbage (speaking): Is it done?<|eot|>\nLovelace (thinking): He frets.<|eot|>\n"
    "Lovelace (speaking): It is: all of it.<|eot|>\n",
    "source": "seed_1",
}


def test_a_prompted_dialogue_is_lines_of_name_and_manner() -> None:
    draft = one(PROMPTED)
    assert draft.lines == (
        Said("Babbage", "Is it done?"),
        Said("Lovelace", "It is: all of it."),
    )
    assert draft.characters == ("Lovelace",)  # the prompt names her, the lines by a part of it
    assert draft.system == PROMPTED["prompt"]
    assert draft.left_out == ("1 line is thought, not said",)


def test_thoughts_can_be_kept_with_their_mark() -> None:
    draft = one(PROMPTED, thoughts="keep")
    assert draft.lines[1] == Said("Lovelace", "(thinking) He frets.")
    assert draft.left_out == ()


def test_the_role_of_a_prompted_row_decides_whose_lines_are_learnt() -> None:
    assert one({**PROMPTED, "role": "Babbage"}).characters == ("Babbage",)
    with pytest.raises(NotReadableError, match="Plato says nothing"):
        drafts({**PROMPTED, "role": "Plato"}, Reading())
    with pytest.raises(NotReadableError, match="no character is named"):
        drafts({**PROMPTED, "prompt": "It is 1843."}, Reading())


def test_another_mark_may_end_the_lines() -> None:
    row = {"prompt": "", "output": "Ada (speaking): A||Bob (speaking): B||", "eot": "||"}
    assert one(row, character="Ada").lines == (Said("Ada", "A"), Said("Bob", "B"))


def test_a_line_of_nobody_is_refused_with_its_number() -> None:
    row = {**PROMPTED, "output": "Ada (speaking): A<|eot|>and so on"}
    with pytest.raises(NotReadableError, match="line 2 of the output names no speaker"):
        drafts(row, Reading())


def test_a_name_of_blanks_takes_no_long_time() -> None:
    with pytest.raises(NotReadableError, match="names no speaker"):
        drafts({"prompt": "", "output": "a" + " " * 500_000 + "b"}, Reading(character="Ada"))


# Neeko


def part(role: str | None, text: str | None, action: str = "(speaking)") -> dict[str, Any]:
    return {"role": role, "action": action, "content": text}


def test_a_single_answer_is_a_dialogue_of_two_lines() -> None:
    draft = one({"topic_id": "t", "question": " Who? ", "reply": part("Ada", "I.")})
    assert draft.lines == (Said(None, "Who?"), Said("Ada", "I."))
    assert draft.characters == ("Ada",)


def test_an_interview_in_which_the_character_changes_has_many_characters() -> None:
    turns = [
        {"turn_role": "interviewer", "turn_content": [part("Man", "Ada?")]},
        {"turn_role": "character", "turn_content": [part("Ada", "Yes.")]},
        {"turn_role": "interviewer", "turn_content": [part("Man", "Bob?")]},
        {"turn_role": "character", "turn_content": [part("Bob", "No.", "((speaking)")]},
    ]
    draft = one({"character": "Ada King", "max_turns": 5, "content": turns})
    assert draft.lines == (
        Said(None, "Ada?"),
        Said("Ada", "Yes."),
        Said(None, "Bob?"),
        Said("Bob", "No."),
    )
    assert draft.characters == ("Ada", "Bob")


def test_a_reply_that_runs_on_into_anothers_line_is_kept_up_to_there() -> None:
    said = [part("Ada", "Yes."), part("Ada", "Quite."), part("Man", "And?"), part("Ada", "So.")]
    turns = [
        {"turn_role": "interviewer", "turn_content": [part("Man", "Ada?")]},
        {"turn_role": "character", "turn_content": said},
    ]
    draft = one({"character": "Ada", "content": turns})
    assert [line.text for line in draft.lines] == ["Ada?", "Yes.", "Quite."]
    assert draft.left_out == ("turn 2 runs on into another's line: 2 of its parts",)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"question": "", "reply": {}}, "no question"),
        ({"question": "Who?", "reply": []}, "the reply is empty"),
        ({"question": "Who?", "reply": {"content": 3}}, "the reply holds no text"),
        ({"question": "Who?", "reply": {"content": "I."}}, "no character is named"),
        ({"character": "Ada", "content": "Hi"}, "no list of turns"),
        ({"character": "Ada", "content": [1]}, "turn 1 is no object"),
        ({"character": "Ada", "content": [{"turn_content": [{}]}]}, "neither the interviewer's"),
        ({"turns": [], "characters": [], "source": "x"}, "not a valid CastRow"),
        ({"scene": {}, "events": []}, "not a valid Play"),
    ],
)
def test_broken_rows_are_refused_with_the_reason(row: dict[str, Any], why: str) -> None:
    with pytest.raises(NotReadableError, match=why):
        drafts(row, Reading())


# Plays


def play(*events: Event) -> Play:
    scene = Scene(
        id="s",
        event="A ball is lost.",
        environment=Environment(time="Noon", location="A garden"),
        characters=(SceneCharacter(name="Ada"), SceneCharacter(name="Bob")),
    )
    return Play(
        scene=scene,
        scene_hash="0",
        language="en",
        protocol="personae",
        narrator="n",
        models={},
        rounds=1,
        events=events,
    )


def event(kind: Any, actor: str | None, text: str, **more: Any) -> Event:
    return Event(
        **{
            "round": 1,
            "turn": 0,
            "kind": kind,
            "actor": actor,
            "text": text,
            "perceived_by": ("Ada", "Bob"),
            **more,
        }
    )


def test_a_play_that_all_perceive_is_one_dialogue_of_all() -> None:
    played = play(
        event("opening", None, "ignored: the scene says it"),
        event("action", "Ada", "She looks under the hedge."),
        event("speech", "Ada", "Nothing."),
        event("influence", None, "Bob blushes."),
        event("reaction", "Bob", "He coughs."),
        event("belief", "Bob", "She knows."),
    )
    (draft,) = of_play(played)
    assert draft.lines == (
        Said(None, "Noon\nA garden\nA ball is lost."),
        Said("Ada", "(She looks under the hedge.)"),
        Said("Ada", "Nothing."),
        Said(None, "Bob blushes."),
        Said("Bob", "(He coughs.)"),
    )
    assert draft.characters == ("Ada", "Bob")
    assert [d.lines for d in drafts(played.to_dict(), Reading()) or []] == [draft.lines]


def test_nobody_learns_from_what_it_did_not_perceive() -> None:
    played = play(
        event("speech", "Ada", "Psst.", perceived_by=("Ada",)),
        event("speech", "Bob", "What?"),
    )
    of_ada, of_bob = of_play(played)
    assert (of_ada.characters, of_bob.characters) == (("Ada",), ("Bob",))
    assert Said("Ada", "Psst.") in of_ada.lines
    assert Said("Ada", "Psst.") not in of_bob.lines
    assert Said("Bob", "What?") in of_ada.lines


def test_an_act_that_could_not_be_had_is_told_and_stands_for_nothing() -> None:
    (draft,) = of_play(
        play(
            event("speech", "Ada", "Well?"),
            event("failure", "Bob", "act", failure=Failure(cause="timeout"), turn=1),
        )
    )
    assert draft.left_out == ("round 1, turn 1: Bob gave nothing (timeout)",)
    assert draft.characters == ("Ada",)


def test_a_play_in_which_nobody_acts_is_refused() -> None:
    with pytest.raises(NotReadableError, match="no character does or says anything"):
        of_play(play(event("influence", None, "It rains.")))


# All of them


def test_a_row_of_ours_is_taken_as_it_is() -> None:
    row = {"characters": ["Ada"], "turns": [{"speaker": "Ada", "text": "I."}], "source": "x"}
    assert one(row).record == CastRow.from_dict(row)


def test_what_has_no_known_keys_is_of_no_known_shape() -> None:
    assert drafts({"id": 1, "text": "Hi"}, Reading()) is None
    assert drafts({}, Reading()) is None


_keys = st.sampled_from(
    [
        *("messages", "conversations", "role", "from", "content", "value", "name", "speaker"),
        *("question", "reply", "action", "prompt", "output", "eot", "character", "max_turns"),
        *("turn_role", "turn_content", "turns", "characters", "scene", "events", "system"),
    ]
)
_words = st.sampled_from(["user", "assistant", "interviewer", "character", "Ada", "", " ", "text"])
_hostile = st.recursive(
    _words | json_value,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=5),
    max_leaves=12,
)


@given(row=st.dictionaries(_keys, _hostile, max_size=5), character=st.none() | st.just("Ada"))
def test_no_row_whatever_it_holds_does_worse_than_be_refused(
    row: dict[str, Any], character: str | None
) -> None:
    try:
        found = drafts(row, Reading(character=character))
    except NotReadableError:
        return
    for draft in found or []:
        assert draft.record or all(isinstance(line, Said) for line in draft.lines)


def test_neighbours_of_one_speaker_are_one_line_and_what_is_repeated_is_said_once() -> None:
    lines = [Said("A", "1"), Said("A", "2"), Said(None, "x"), Said(None, "x"), Said("A", "3")]
    assert list(neighbours_joined(lines)) == [Said("A", "1\n2"), Said(None, "x"), Said("A", "3")]
    assert list(neighbours_joined([])) == []
