"""Memory at play: what leaves the prompt is remembered, recalled, and changes the next prompt."""

from __future__ import annotations

from typing import Any

import pytest

from personae.records import Beliefs, Call, Event, SceneCharacter
from personae.world.agents import ADDRESSED, AFFECTED, OWN, SEED, WITNESSED, Agent, read_act
from personae.world.engine import PERSONAE_SAMPLING
from personae.world.memory import MemoryStream
from personae.world.observe import View, told, view
from personae.world.state import RefusedError, first_state
from tests.world.stage import Lockstep, answer, played, scene, scripted, text_of

FACT = "Ann buries the brass key under the third flagstone"


def agent(**fields: Any) -> Agent:
    return Agent(
        scene_id="test",
        event="A storm comes up.",
        character=SceneCharacter(name="Bob"),
        language="en",
        sampling=PERSONAE_SAMPLING["character"],
        model_in=lambda _now: "a model",
        **{"memory": MemoryStream("en"), **fields},
    )


def seen(text: str, *, now: int = 1, **fields: Any) -> Event:
    return Event(
        **{
            "round": now,
            "turn": 0,
            "kind": "action",
            "actor": "Ann",
            "text": text,
            "perceived_by": ("Ann", "Bob"),
            **fields,
        }
    )


SIGHT = view(scene(2), first_state(scene(2)), "Bob")


async def prompt(bob: Agent, now: int) -> str:
    """Bob's prompt for an act in a round, as it would be sent."""
    model = Lockstep(answer)
    await bob.act(model, SIGHT, now)
    return text_of(model.calls[0])


async def test_what_was_recalled_changes_the_next_prompt():
    """Two plays that differ in one early act differ in a late prompt through memory alone."""

    def play(early: str):
        def act(call: Call) -> dict[str, Any] | None:
            if call.meta["character"] != "Ann":
                return None
            said = {1: early, 4: "Ann asks who has seen the brass key"}
            return (
                {"action": said[int(call.meta["round"])], "speech": ""}
                if call.meta["round"] in said
                else None
            )

        return played(scene(2), scripted(act=act), rounds=4)

    (with_fact, one), (without, two) = await play(FACT), await play("Ann yawns")
    last = [
        next(
            c
            for c in model.calls
            if c.meta["step"] == "act" and (c.meta["character"], c.meta["round"]) == ("Bob", 4)
        )
        for model in (one, two)
    ]
    assert FACT in text_of(last[0])
    assert FACT not in text_of(last[1])
    parts = [text_of(c).split("</memories>") for c in last]
    assert parts[0][0] != parts[1][0]
    assert parts[0][1] == parts[1][1], "the recent events are the same; only memory differs"
    event = [e for e in with_fact.events if e.kind == "action" and e.actor == "Bob"][-1]
    recalled = [m for m in event.recalled if FACT in m.text]
    assert len(recalled) == 1
    assert recalled[0].round == 1
    assert recalled[0].relevance == 1.0
    assert recalled[0].score > 0
    assert not [m for e in without.events for m in e.recalled if FACT in m.text]


async def test_nothing_stands_in_a_prompt_twice_and_nothing_is_lost_between_prompt_and_memory():
    bob = agent()
    lines = []
    for now in (1, 2, 3, 4):
        event = seen(f"Ann does thing {now}", now=now)
        bob.perceive(event)
        lines.append(told(event, "en"))
        text = await prompt(bob, now)
        assert bob.memory is not None
        kept = [m.text for m in bob.memory.memories]  # type: ignore[attr-defined]  # it is a stream
        for line in lines:
            assert text.count(line) == 1
            assert (line in text.split("<happened>")[-1]) != (line in kept)
    assert kept == lines[:3]


async def test_without_a_memory_the_recent_events_still_stand_in_the_prompt():
    bob = agent(memory=None)
    bob.perceive(seen(FACT))
    assert FACT in await prompt(bob, 1)


def test_what_was_not_perceived_cannot_be_taken_in():
    with pytest.raises(ValueError, match="did not perceive"):
        agent().perceive(seen("secretly", perceived_by=("Ann",)))


@pytest.mark.parametrize(
    ("event", "kind", "importance"),
    [
        (seen("Ann sits down"), "observation", WITNESSED),
        (seen("Hello", kind="speech", to=("Bob",)), "observation", ADDRESSED),
        (seen("a blow", kind="influence", actor=None, affected="Bob"), "observation", AFFECTED),
        (seen("Bob stands up", actor="Bob"), "action", OWN),
        (seen("I stand", kind="speech", actor="Bob"), "speech", OWN),
        (seen("Bob starts", kind="reaction", actor="Bob"), "reaction", OWN),
    ],
)
async def test_importance_goes_by_what_an_event_is_to_the_character(event, kind, importance):
    bob = agent()
    bob.perceive(event)
    await prompt(bob, 1)
    await prompt(bob, 2)
    assert isinstance(bob.memory, MemoryStream)
    (memory,) = bob.memory.memories
    assert (memory.kind, memory.importance, memory.step) == (kind, importance, 1)
    assert event.text in memory.text


async def test_how_it_was_at_the_start_is_remembered_once_it_has_changed():
    bob = agent()
    await prompt(bob, 1)
    assert isinstance(bob.memory, MemoryStream)
    assert len(bob.memory) == 0
    hurt = View(**{**vars(SIGHT), "state": "hurt"})
    await bob.act(Lockstep(answer), hurt, 2)
    (memory,) = bob.memory.memories
    assert (memory.text, memory.kind, memory.importance, memory.step) == (
        "Bob: Bob sits Bob is well",
        "seed",
        SEED,
        0,
    )


async def test_beliefs_that_were_replaced_are_remembered():
    bob = agent()
    await bob.believe(Lockstep(answer), SIGHT, 1)
    assert isinstance(bob.memory, MemoryStream)
    assert len(bob.memory) == 0
    assert bob.beliefs == Beliefs(
        **{k: f"{k} of Bob belief 1" for k in ("belief", "desire", "intention", "environment")}
    )
    await bob.believe(Lockstep(answer), SIGHT, 2)
    (memory,) = bob.memory.memories
    assert (memory.kind, memory.step) == ("belief", 1)
    assert "desire of Bob belief 1" in memory.text


def test_an_act_is_read_as_it_is_given():
    value = {"action": " stands ", "speech": "", "manner": "whisper", "to": ["Ann"], "plan": "p"}
    act = read_act(value, SIGHT)
    assert (act.action, act.speech, act.manner, act.to, act.plan) == (
        "stands",
        "",
        "whisper",
        ("Ann",),
        "p",
    )


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"action": "", "speech": "\n"}, "nothing is done"),
        ({"action": "", "speech": "", "manner": "whisper", "to": ["Ann"]}, "nothing is done"),
    ],
)
def test_an_act_that_cannot_stand_is_refused_with_the_reason(value, why):
    with pytest.raises(RefusedError, match=why):
        read_act(value, SIGHT)
