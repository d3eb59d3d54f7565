"""A play as a script: what happened, who perceived it, and what changed."""

from __future__ import annotations

from personae.records import Beliefs, Event
from personae.reports.scenes.script import Change, Line, Script, script_of
from tests.judging.plays import a_play

from .sample import an_eventful_play


def lines(script: Script, number: int, turn: int) -> tuple[Line, ...]:
    return script.rounds[number - 1].turns[turn].lines


def test_a_script_has_the_rounds_and_the_turns_of_the_play() -> None:
    script = script_of(an_eventful_play())
    assert [[t.actor for t in r.turns] for r in script.rounds] == [
        ["Ada", "Bede", "Cleo", None],
        ["Ada", "Bede", None],
    ]
    assert [(line.kind, line.actor) for line in lines(script, 1, 0)] == [
        ("action", "Ada"), ("speech", "Ada"), ("influence", None), ("reaction", "Bede"),
        ("result", None),
    ]  # fmt: skip


def test_a_turn_says_where_it_happened_only_where_characters_are_apart() -> None:
    script = script_of(an_eventful_play())
    first, later = script.rounds[0].turns[0], script.rounds[1].turns[0]
    assert (first.place, first.present) == ("pier", ("Ada", "Bede"))
    assert (later.place, later.present) == (None, ())


def test_who_perceived_is_said_where_not_all_did_who_were_there() -> None:
    script = script_of(an_eventful_play())
    assert lines(script, 1, 0)[0].perceived is None  # both at the pier; Cleo is elsewhere
    assert lines(script, 2, 0)[0].perceived == ("Ada", "Cleo")
    assert lines(script, 2, 1)[0].perceived is None


def test_a_whisper_always_says_who_heard_it() -> None:
    (whisper,) = lines(script_of(an_eventful_play()), 1, 1)
    assert (whisper.whisper, whisper.to, whisper.perceived) == (True, ("Ada",), ("Ada", "Bede"))


def test_another_model_than_the_characters_own_is_named() -> None:
    script = script_of(an_eventful_play())
    assert lines(script, 1, 1)[0].model == "test:other"
    assert lines(script, 1, 0)[0].model is None


def test_the_state_beside_a_turn_is_that_at_its_end_and_what_changed_is_told() -> None:
    script = script_of(an_eventful_play())
    turn = script.rounds[0].turns[0]
    assert turn.changes == (Change("position", "at the rail", "at the gate", who="Ada"),)
    assert turn.changed == {("Ada", None, "position")}
    assert turn.state is not None
    assert turn.state.characters["Ada"].position == "at the gate"
    assert script.opening is not None
    assert script.opening.characters["Ada"].position == "at the rail"


def test_a_turn_that_changed_nothing_has_no_state_beside_it() -> None:
    assert script_of(an_eventful_play()).rounds[0].turns[1].state is None


def test_going_to_another_place_is_a_line_and_a_change() -> None:
    end = script_of(an_eventful_play()).rounds[0].turns[3]
    assert [(line.kind, line.actor, line.text) for line in end.lines] == [
        ("arrival", "Cleo", "pier")
    ]
    assert end.changes == (Change("place", "quay", "pier", who="Cleo"),)


def test_a_missing_reply_is_a_line_with_its_step_and_cause() -> None:
    (line,) = lines(script_of(an_eventful_play()), 1, 2)
    assert (line.kind, line.actor, line.step, line.cause) == ("failure", "Cleo", "act", "timeout")


def test_what_was_recalled_stands_once_with_the_last_line_of_an_act() -> None:
    action, speech, *_ = lines(script_of(an_eventful_play()), 1, 0)
    assert action.recalled == ()
    assert [m.text for m in speech.recalled] == ["The bell rang twice"]


def test_beliefs_are_no_lines_but_stand_at_the_end_of_their_round() -> None:
    first, second = script_of(an_eventful_play()).rounds
    assert [(b.name, b.beliefs.belief, b.beliefs.desire) for b in first.beliefs] == [
        ("Ada", "Bede knows", "to cross")
    ]
    assert second.beliefs == ()
    assert all(line.kind != "belief" for r in (first, second) for t in r.turns for line in t.lines)


def test_beliefs_that_were_asked_for_one_by_one_are_one_entry() -> None:
    play = a_play(rounds=1)

    def belief(**fields: str) -> Event:
        return Event(round=1, turn=-1, kind="belief", actor="Ada", beliefs=Beliefs(**fields))

    events = (*play.events, belief(belief="It is late"), belief(environment="Fog rises"))
    (found,) = script_of(play.model_copy(update={"events": events})).rounds[0].beliefs
    assert (found.beliefs.belief, found.beliefs.environment) == ("It is late", "Fog rises")


def test_the_scenes_own_event_is_not_told_twice() -> None:
    assert script_of(an_eventful_play()).told == ()
    assert [line.text for line in script_of(a_play()).told] == ["The lamp is lit."]
