"""The narrator: what it is shown, what it may answer, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from personae.records import Call, Event, Failure
from personae.world.narrator import MOST_TOLD, _last
from tests.world.stage import answer, played, scene, scripted, text_of


def numbered(count: int) -> tuple[Event, ...]:
    return tuple(Event(round=1, turn=0, kind="result", text=str(n)) for n in range(count))


def test_a_long_story_is_told_from_a_point_that_stays_the_same_for_many_events():
    """So that a prompt's beginning does not change with every event."""
    starts = []
    for count in range(1, 400):
        told = _last(numbered(count))
        assert told == numbered(count)[-len(told) :]
        assert min(count, MOST_TOLD // 2) <= len(told) <= MOST_TOLD
        starts.append(count - len(told))
    assert starts == sorted(starts)
    assert len(set(starts)) <= 400 // (MOST_TOLD // 2)


async def test_an_effect_on_somebody_that_is_not_told_is_asked_for_again():
    def influence(call: Call) -> dict[str, Any]:
        if call.meta["character"] == "Ann":
            return {"affected": "Bob", "influence": "" if len(call.messages) == 2 else "a shove"}
        return {}

    play, model = await played(scene(2), scripted(influence=influence), rounds=1)
    again = next(c for c in model.calls if len(c.messages) > 2)
    assert "say how the act touches 'Bob'" in again.messages[-1].content
    assert [e.text for e in play.events if e.kind == "influence"] == ["a shove"]
    assert not [e for e in play.events if e.kind == "failure"]


@pytest.mark.parametrize("value", [{"result": " "}, {"result": ""}])
async def test_a_blank_result_is_no_result(value):
    def influence(call: Call) -> dict[str, Any]:
        return (
            {"affected": "Bob", "influence": "a shove"} if call.meta["character"] == "Ann" else {}
        )

    play, _ = await played(
        scene(2), scripted(influence=influence, result=lambda _: value), rounds=1
    )
    assert not [e for e in play.events if e.kind == "result"]
    (failure,) = [e for e in play.events if e.kind == "failure"]
    assert failure.text == "result"
    assert failure.failure is not None
    assert failure.failure.cause == ("refused" if value["result"] else "malformed")


@pytest.mark.parametrize("protocol", ["personae", "paper"])
async def test_the_narrator_knows_all_and_sees_the_group_it_narrates(protocol):
    base = scene(3, places={"Ann": "cellar", "Bob": "attic", "Cid": "cellar"})
    ann, *rest = base.characters
    wants = base.model_copy(
        update={"characters": (ann.model_copy(update={"goal": "GOAL of Ann"}), *rest)}
    )
    places = {c.name: c.place for c in base.characters}
    _, model = await played(
        wants,
        scripted(update=lambda c: {"place": places[str(c.meta["whom"])]}),
        rounds=2,
        protocol=protocol,
    )
    asked = [c for c in model.calls if c.role == "narrator" and c.meta["step"] != "concluded"]
    for call in asked:
        text = text_of(call)
        assert "GOAL of Ann" in text
        if call.meta["character"] == "Bob":
            assert "Ann: elsewhere, at cellar" in text
            assert "action of Ann" not in text
            assert "Ann sits" not in text
        else:
            assert "Ann sits" in text
            assert "action of Bob" not in text
    seconds = [c for c in asked if (c.meta["character"], c.meta["round"]) == ("Ann", 2)]
    assert all(f"action of Cid {'action' if protocol == 'paper' else 'act'} 1" in text_of(c) for c in seconds)  # fmt: skip


@pytest.mark.parametrize("protocol", ["personae", "paper"])
async def test_a_narrator_is_told_at_which_place_each_of_those_it_sees_is(protocol):
    """It has to name the place where a character stays, also when all have come together."""
    apart = scene(3, places={"Ann": "cellar", "Bob": "attic", "Cid": "cellar"})

    def go(call: Call) -> dict[str, Any]:
        if protocol == "paper":
            return {"place": "attic"}
        changes = [{"who": call.meta["character"], "position": "", "state": "", "place": "attic"}]
        return {"changes": changes}

    step = "update" if protocol == "paper" else "influence"
    _, model = await played(apart, scripted(**{step: go}), rounds=2, protocol=protocol)
    for call in model.calls:
        if call.role == "narrator":
            text, together = (
                text_of(call),
                call.meta["round"] == 2 or call.meta["step"] == "concluded",
            )
            assert ("- Bob [place: attic]" in text) == (together or call.meta["character"] == "Bob")
            where = "attic" if together else "cellar"
            assert (f"- Ann [place: {where}]" in text) == (
                together or call.meta["character"] != "Bob"
            )
    _, model = await played(scene(2), rounds=1, protocol=protocol)
    assert not [c for c in model.calls if "[place: " in text_of(c)]


async def test_a_narrator_may_change_anybody_at_the_place_and_nobody_else():
    apart = scene(3, places={"Ann": "cellar", "Bob": "attic", "Cid": "cellar"})
    _, model = await played(apart, rounds=1)
    for call in model.calls:
        if call.meta["step"] == "influence":
            assert call.reply_schema is not None
            body = call.reply_schema.body["properties"]
            change = body["changes"]["items"]["properties"]
            here = ["Bob"] if call.meta["character"] == "Bob" else ["Ann", "Cid"]
            assert change["who"]["enum"] == here
            assert change["place"]["enum"] == ["cellar", "attic"]
            assert "surroundings" in body
            assert "environment" not in body


async def test_a_patch_of_an_endpoint_that_keeps_to_no_schema_is_a_failure_and_changes_nothing():
    def stranger(call: Call) -> Any:
        if call.meta["step"] != "influence":
            return answer(call)
        value = answer(call)
        value["changes"] = [{"who": "Moriarty", "position": "everywhere", "state": ""}]
        return value

    play, _ = await played(scene(2), stranger, rounds=1)
    failures = [e.failure for e in play.events if e.kind == "failure"]
    assert [f.cause for f in failures if isinstance(f, Failure)] == ["malformed"] * 2
    assert not [e for e in play.events if e.kind == "update"]
