"""The play loop: what is asked of whom, in which order, what overlaps, what is recorded."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from personae.errors import StoppedEarlyError
from personae.records import Call, Failure, Play
from personae.world.engine import PERSONAE_SAMPLING, PlayPlan, play_scene
from personae.world.observe import acts_missing
from tests.world.stage import NAMES, Lockstep, answer, played, scene, scripted, steps, text_of

both_protocols = pytest.mark.parametrize("protocol", ["personae", "paper"])


def touches(whom: str, by: str | None = None):
    """A narrator who finds that acts (of one character) touch that one."""

    def influence(call: Call) -> dict[str, Any] | None:
        if call.meta["character"] == whom or by not in (None, call.meta["character"]):
            return None
        return {"affected": whom, "influence": f"{whom} is touched"}

    return influence


def told(play: Play) -> list[tuple[int, int, str, str | None]]:
    return [(e.round, e.turn, e.kind, e.actor) for e in play.events]


# What is asked ---------------------------------------------------------------------------------


async def test_a_plain_turn_takes_two_calls_and_an_interaction_four():
    _, plain = await played(scene(2), rounds=1)
    assert steps(plain) == ["act", "influence"] * 2
    _, touched = await played(scene(2), scripted(influence=touches("Bob")), rounds=1)
    assert steps(touched) == ["act", "influence", "reaction", "result", "act", "influence"]


async def test_the_paper_asks_for_every_step_of_algorithm_1_one_by_one():
    _, model = await played(
        scene(2), scripted(influence=touches("Bob")), rounds=2, protocol="paper"
    )
    own = ["plan", "action", "dialogue", "influence"]
    interaction = [*own, "reaction", "result", "update", "update", "environment"]
    plain = [*own, "update", "environment"]
    assert steps(model)[: len(interaction) + len(plain) + 1] == [*interaction, *plain, "concluded"]
    beliefs = steps(model)[len(interaction) + len(plain) + 1 :][:4]
    assert sorted(beliefs) == ["env_belief", "env_belief", "self_belief", "self_belief"]
    assert steps(model)[len(interaction) + len(plain) + 5 :] == [*interaction, *plain]


@both_protocols
async def test_nothing_is_asked_after_the_last_round_since_nobody_would_read_it(protocol):
    _, one = await played(scene(3), rounds=1, protocol=protocol)
    assert not {"belief", "self_belief", "env_belief", "concluded"} & set(steps(one))
    _, two = await played(scene(3), rounds=2, protocol=protocol)
    assert {call.meta["round"] for call in two.calls if "belief" in str(call.meta["step"])} == {1}


@both_protocols
@pytest.mark.parametrize("count", [1, 2, 3])
async def test_every_reply_is_read_by_a_later_prompt_or_stands_in_the_play(protocol, count):
    """Each text of each reply is unique here, and is looked for after it came."""
    play, model = await played(
        scene(count), scripted(influence=touches("Bob")), rounds=3, protocol=protocol
    )
    kept = play.to_json()
    for place, (call, reply) in enumerate(zip(model.calls, model.replies, strict=True)):
        later = kept + "".join(text_of(c) for c in model.calls[place + 1 :])
        texts = {
            key: text
            for key, text in reply.value.items()
            if isinstance(text, str) and text and key not in ("affected", "manner", "place")
        }
        for key, text in texts.items():
            if key == "plan" and call.meta["round"] == play.rounds:
                continue  # the reply that holds it is read for its action
            assert text in later, (call.meta, key)


@both_protocols
async def test_a_character_that_reacted_keeps_its_own_turn(protocol):
    play, model = await played(
        scene(3), scripted(influence=touches("Bob", by="Ann")), rounds=2, protocol=protocol
    )
    for now in (1, 2):
        turns = [e.actor for e in play.events if e.kind == "action" and e.round == now]
        assert turns == ["Ann", "Bob", "Cid"]
        assert [e.actor for e in play.events if e.kind == "reaction" and e.round == now] == ["Bob"]
    assert steps(model).count("reaction") == 2


async def test_a_character_alone_acts_and_is_narrated():
    play, model = await played(scene(1), rounds=2)
    assert steps(model) == ["act", "influence", "belief", "act", "influence"]
    assert "to" not in model.calls[0].reply_schema.body["properties"]
    assert play.complete
    _, paper = await played(scene(1), rounds=1, protocol="paper")
    assert "influence" not in steps(paper)


# What overlaps ---------------------------------------------------------------------------------


async def test_turns_at_one_place_wait_for_each_other():
    _, model = await played(scene(4), rounds=1)
    assert model.peak == 1


async def test_groups_that_cannot_perceive_each_other_play_at_once():
    apart = scene(4, places={"Ann": "cellar", "Bob": "attic", "Cid": "cellar", "Dee": "attic"})
    play, model = await played(apart, rounds=1)
    assert model.peak == 2
    assert len(model.ticks) == 4  # of eight calls
    for tick in model.ticks:
        assert len({NAMES.index(str(c.meta["character"])) % 2 for c in tick}) == len(tick)
    assert [e.turn for e in play.events[1:]] == sorted(e.turn for e in play.events[1:])


async def test_beliefs_of_all_characters_are_asked_for_at_once():
    _, model = await played(scene(4), rounds=2)
    assert [len(t) for t in model.ticks if t[0].meta["step"] == "belief"] == [4]


@both_protocols
async def test_no_character_acts_on_a_stale_scene(protocol):
    """What was changed by a turn stands in the very next act's prompt at the same place."""

    def moved(call: Call) -> dict[str, Any]:
        who = call.meta["character"]
        where = f"{who} stood up in round {call.meta['round']}"
        if protocol == "paper":
            return {"position": where}
        return {"changes": [{"who": who, "position": where, "state": ""}]}

    step = "update" if protocol == "paper" else "influence"
    _, model = await played(scene(3), scripted(**{step: moved}), rounds=2, protocol=protocol)
    acts = [c for c in model.calls if c.meta["step"] in ("act", "action")]
    for before, after in itertools.pairwise(acts):
        line = f"{before.meta['character']} stood up in round {before.meta['round']}"
        assert line in text_of(after)


async def test_whoever_goes_elsewhere_is_there_from_the_next_round_on():
    apart = scene(3, places={"Ann": "cellar", "Bob": "attic", "Cid": "cellar"})

    def go(call: Call) -> dict[str, Any] | None:
        if call.meta["character"] != "Ann" or call.meta["round"] != 1:
            return None
        return {"changes": [{"who": "Ann", "position": "", "state": "", "place": "attic"}]}

    play, model = await played(apart, scripted(influence=go), rounds=2)
    heard = [e for e in play.events if e.kind == "action" and e.actor == "Ann"]
    assert heard[0].perceived_by == ("Ann", "Cid")  # still on the way
    assert heard[1].perceived_by == ("Ann", "Bob")
    (arrival,) = [e for e in play.events if e.kind == "update" and e.turn == -1]
    assert (arrival.actor, arrival.text) == ("Ann", "attic")
    assert arrival.state is not None
    assert arrival.state.characters["Ann"].place == "attic"
    assert [e.kind for e in play.events].count("update") == 2
    second = next(c for c in model.calls if c.meta["step"] == "act" and c.meta["round"] == 2)
    assert "Bob" in text_of(second)
    assert "Ann → attic" in text_of(second)


async def test_what_groups_change_at_once_is_all_in_the_state():
    apart = scene(2, places={"Ann": "cellar", "Bob": "attic"})

    def change(call: Call) -> dict[str, Any]:
        who = str(call.meta["character"])
        return {
            "changes": [{"who": who, "position": f"{who} hides", "state": "", "place": "cellar"}],
            "surroundings": f"dark around {who}",
        }

    play, _ = await played(apart, scripted(influence=change), rounds=1)
    last = [e for e in play.events if e.kind == "update" and e.turn >= 0][-1].state
    assert last is not None
    assert {n: c.position for n, c in last.characters.items()} == {
        "Ann": "Ann hides",
        "Bob": "Bob hides",
    }
    assert last.places == {"cellar": "dark around Ann", "attic": "dark around Bob"}
    assert last.environment == apart.environment


@both_protocols
async def test_what_was_said_of_a_place_can_change_once_all_have_come_together_there(protocol):
    apart = scene(2, places={"Ann": "cellar", "Bob": "attic"})

    def change(call: Call) -> dict[str, Any]:
        now = call.meta["round"]
        if call.meta["step"] == "update":
            return {"place": "cellar"}
        changes = [{"who": call.meta["character"], "position": "", "state": "", "place": "cellar"}]
        seen = f"lit in round {now}" if call.meta["character"] == "Ann" else ""
        return {"surroundings": seen, **({} if protocol == "paper" else {"changes": changes})}

    by_step = (
        {"update": change, "environment": change} if protocol == "paper" else {"influence": change}
    )
    play, model = await played(apart, scripted(**by_step), rounds=2, protocol=protocol)
    assert [e for e in play.events if e.kind == "failure"] == []
    asked = [c for c in model.calls if c.meta["step"] in ("influence", "environment")]
    keys = {
        c.meta["round"]: {"environment", "surroundings"} & set(c.reply_schema.body["properties"])
        for c in asked
        if c.reply_schema is not None and "surroundings" in c.reply_schema.body["properties"]
    }
    assert keys == {1: {"surroundings"}, 2: {"environment", "surroundings"}}
    last = [e.state for e in play.events if e.state is not None][-1]
    assert last is not None
    assert last.places == {"cellar": "lit in round 2"}


# How it ends -----------------------------------------------------------------------------------


async def test_the_story_ends_with_the_round_in_which_the_narrator_calls_it_concluded():
    play, model = await played(
        scene(2), scripted(influence=lambda c: {"concluded": c.meta["round"] == 2}), rounds=5
    )
    assert (play.rounds, play.concluded, play.complete) == (2, True, True)
    assert play.events[-1].kind == "concluded"
    assert max(int(c.meta["round"]) for c in model.calls) == 2
    assert {c.meta["round"] for c in model.calls if c.meta["step"] == "belief"} == {1}


async def test_the_narrators_last_word_of_a_round_counts_and_everyone_has_had_a_turn():
    play, _ = await played(
        scene(2),
        scripted(influence=lambda c: {"concluded": c.meta["character"] == "Ann"}),
        rounds=3,
    )
    assert (play.rounds, play.concluded) == (3, False)


async def test_a_story_at_two_places_is_concluded_when_it_is_at_both():
    apart = scene(2, places={"Ann": "cellar", "Bob": "attic"})

    def over(call: Call) -> dict[str, Any]:
        return {"concluded": call.meta["character"] == "Ann" or call.meta["round"] == 3}

    play, _ = await played(apart, scripted(influence=over), rounds=5)
    assert (play.rounds, play.concluded) == (3, True)


async def test_under_the_paper_the_narrator_is_asked_after_each_round_whether_it_is_concluded():
    play, _ = await played(
        scene(2),
        scripted(concluded=lambda c: {"concluded": c.meta["round"] == 2}),
        rounds=4,
        protocol="paper",
    )
    assert (play.rounds, play.concluded) == (2, True)


# What fails ------------------------------------------------------------------------------------


def fails(step: str, who: str):
    def reply(call: Call) -> Any:
        if (call.meta["step"], call.meta["character"]) == (step, who):
            return Failure(cause="timeout", detail="no answer")
        return scripted(influence=touches("Bob"))(call)

    return reply


@pytest.mark.parametrize(
    ("protocol", "step", "who", "actor"),
    [
        ("personae", "act", "Ann", "Ann"),
        ("personae", "reaction", "Bob", "Bob"),
        ("personae", "belief", "Ann", "Ann"),
        ("personae", "influence", "Ann", None),
        ("personae", "result", "Ann", None),
        ("paper", "plan", "Ann", "Ann"),
        ("paper", "action", "Ann", "Ann"),
        ("paper", "dialogue", "Ann", "Ann"),
        ("paper", "update", "Ann", None),
        ("paper", "environment", "Ann", None),
        ("paper", "concluded", "Ann", None),
        ("paper", "self_belief", "Ann", "Ann"),
        ("paper", "env_belief", "Ann", "Ann"),
    ],
)
async def test_a_reply_that_cannot_be_had_is_recorded_and_nothing_stands_in_its_place(
    protocol, step, who, actor
):
    play, _ = await played(scene(2), fails(step, who), rounds=2, protocol=protocol)
    failures = [e for e in play.events if e.kind == "failure"]
    assert failures
    assert {(e.text, e.actor) for e in failures} == {(step, actor)}
    assert all(e.failure is not None and e.failure.cause == "timeout" for e in failures)
    assert all(e.perceived_by == () for e in failures)
    assert play.complete
    whole, _ = await played(
        scene(2), scripted(influence=touches("Bob")), rounds=2, protocol=protocol
    )
    was = {(e.round, e.turn, e.kind, e.actor, e.text) for e in whole.events}
    now = {(e.round, e.turn, e.kind, e.actor, e.text) for e in play.events if e not in failures}
    assert now <= was


async def test_a_missing_act_is_counted_and_the_round_goes_on():
    play, model = await played(scene(2), fails("act", "Ann"), rounds=2)
    assert acts_missing(play, "Ann") == 1.0
    assert acts_missing(play, "Bob") == 0.0
    assert steps(model, "Ann").count("influence") == 0
    assert [e.actor for e in play.events if e.kind == "action"] == ["Bob", "Bob"]


async def test_of_an_act_whose_influence_failed_only_actor_and_addressees_know():
    play, _ = await played(
        scene(3),
        lambda c: (
            Failure(cause="timeout")
            if c.meta["step"] == "influence"
            else answer(c, **({"to": ["Cid"]} if c.meta["character"] == "Ann" else {}))
        ),
        rounds=1,
    )
    first = next(e for e in play.events if e.kind == "action")
    assert first.perceived_by == ("Ann", "Cid")


async def test_whoever_is_affected_perceives_the_act_whether_or_not_the_narrator_says_so():
    def influence(call: Call) -> dict[str, Any]:
        return {"perceived_by": [], "affected": "Bob", "influence": "a blow"}

    play, model = await played(
        scene(3), scripted(influence=lambda c: influence(c) if c.meta["character"] == "Ann" else {}),
        rounds=1,
    )  # fmt: skip
    first = next(e for e in play.events if e.kind == "action")
    assert first.perceived_by == ("Ann", "Bob")
    reaction = next(c for c in model.calls if c.meta["step"] == "reaction")
    assert first.text in text_of(reaction)


async def test_a_patch_that_says_what_already_is_is_no_event():
    def same(call: Call) -> dict[str, Any]:
        one = {"who": "Ann", "position": "Ann sits", "state": ""}
        return {
            "changes": [one],
            "environment": {"time": "dusk", "location": "", "description": ""},
        }

    play, _ = await played(scene(2), scripted(influence=same), rounds=1)
    assert not [e for e in play.events if e.kind == "update"]


async def test_a_reply_that_says_and_does_nothing_is_asked_again_with_the_reason_then_recorded():
    def mute(call: Call) -> dict[str, Any] | None:
        return {"action": " ", "speech": ""} if call.meta["character"] == "Ann" else None

    play, model = await played(scene(2), scripted(act=mute), rounds=1)
    first, second = [c for c in model.calls if c.meta["character"] == "Ann"]
    assert second.messages[: len(first.messages)] == first.messages
    assert "nothing is done and nothing is said" in second.messages[-1].content
    (failure,) = [e.failure for e in play.events if e.kind == "failure"]
    assert failure is not None
    assert failure.cause == "refused"


async def test_a_second_try_that_stands_is_taken():
    def late(call: Call) -> dict[str, Any] | None:
        return None if len(call.messages) > 2 else {"action": "", "speech": ""}

    play, _ = await played(scene(1), scripted(act=late), rounds=1)
    assert [e.kind for e in play.events] == ["opening", "action", "speech"]


async def test_a_patch_that_is_refused_twice_is_recorded_and_the_state_stays_as_it_was():
    def twice(call: Call) -> dict[str, Any]:
        one = {"who": "Bob", "position": "on the roof", "state": ""}
        return {"changes": [one, one]}

    play, model = await played(scene(2), scripted(influence=twice), rounds=1)
    asked = [c for c in model.calls if c.meta["step"] == "influence"]
    assert len(asked) == 4
    assert "'Bob' is changed twice" in asked[1].messages[-1].content
    assert [e.text for e in play.events if e.kind == "failure"] == ["influence"] * 2
    assert not [e for e in play.events if e.kind == "update"]
    assert "on the roof" not in text_of(
        next(c for c in model.calls if c.meta["character"] == "Bob")
    )


# Stopping --------------------------------------------------------------------------------------


@both_protocols
@pytest.mark.parametrize("after", [1, 2, 3, 5, 8])
async def test_a_stop_in_the_middle_of_a_scene_keeps_what_was_played(protocol, after):
    whole, _ = await played(scene(3), rounds=2, protocol=protocol)
    inner = Lockstep(answer)

    class Stopping:
        async def ask(self, call: Call):
            if len(inner.calls) >= after:
                raise StoppedEarlyError("a cap")
            return await inner.ask(call)

    plan = PlayPlan(
        characters=lambda name, _: f"model of {name}",
        narrator=lambda _: "the narrator",
        rounds=2,
        protocol=protocol,
        sampling=PERSONAE_SAMPLING,
    )
    done = await play_scene(Stopping(), scene(3), plan)
    assert done.stopped is not None
    assert not done.play.complete
    assert len(done.play.events) < len(whole.events)
    kinds = [(e.round, e.turn, e.kind, e.actor) for e in done.play.events]
    assert kinds == told(whole)[: len(kinds)]
