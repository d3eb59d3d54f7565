"""Who perceives what: no prompt of a character holds what it neither perceived nor knows."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import pytest

from personae.records import Call, Event, Secret
from personae.world.observe import given_away, plain, told, view, witnesses
from personae.world.state import first_state, move
from tests.world.stage import answer, played, scene, scripted, text_of

FACT = "The innkeeper poisoned the red wine"
WHISPER = "Meet me at the old well at midnight"
SECRET = Secret(fact=FACT, known_by=("Ann",))

both_protocols = pytest.mark.parametrize("protocol", ["personae", "paper"])


def prompts_of(model: Any, name: str) -> list[str]:
    """All prompts that a character was sent, re-asked ones included."""
    return [
        text_of(c) for c in model.calls if c.role == "character" and c.meta["character"] == name
    ]


def blabbing(call: Call) -> dict[str, Any]:
    """A narrator who tells everybody everything wherever there is room for it."""
    prompt = text_of(call)
    everything = f"Everyone hears: {FACT}! And: {WHISPER}!" if WHISPER in prompt else f"{FACT}!"
    value = answer(call)
    for key in ("influence", "result", "position", "state", "surroundings"):
        if key in value:
            value[key] = everything
    if "environment" in value:
        value["environment"] = {"time": "", "location": everything, "description": everything}
    if "changes" in value:
        item = call.reply_schema.body["properties"]["changes"]["items"]  # type: ignore[union-attr]
        value["changes"] = [
            {
                key: name if key == "who" else everything
                for key in item["properties"]
                if key != "place"
            }
            for name in item["properties"]["who"]["enum"]
        ]
    if "affected" in value:
        value["affected"] = call.reply_schema.body["properties"]["affected"]["enum"][0]  # type: ignore[union-attr]
    return value


def whispering(call: Call) -> Any:
    """Ann whispers to Bob; the narrator blabs."""
    if call.role == "narrator":
        return blabbing(call)
    who, step = call.meta["character"], call.meta["step"]
    if who == "Ann" and step in ("act", "dialogue") and call.meta["round"] == 1:
        return answer(call, speech=WHISPER, manner="whisper", to=["Bob"])
    return answer(call)


@both_protocols
async def test_no_prompt_of_a_character_ever_holds_what_it_neither_perceived_nor_knows(protocol):
    play, model = await played(scene(3, secrets=(SECRET,)), whispering, rounds=3, protocol=protocol)
    assert any(WHISPER in prompt for prompt in prompts_of(model, "Bob"))
    assert all(FACT in prompt for prompt in prompts_of(model, "Ann"))
    for prompt in prompts_of(model, "Bob"):
        assert FACT not in prompt
    for prompt in prompts_of(model, "Cid"):
        assert FACT not in prompt
        assert WHISPER not in prompt
    for name in ("Bob", "Cid"):
        for event in play.seen_by(name):
            assert FACT not in event.text
    assert [e.text for e in play.events if e.kind == "failure"], "the narrator was refused"


@both_protocols
async def test_a_narrator_that_blabs_once_is_asked_again_and_its_second_answer_taken(protocol):
    def once(call: Call) -> Any:
        if call.role == "narrator" and len(call.messages) == 2:
            return blabbing(call)
        return answer(call)

    play, model = await played(scene(3, secrets=(SECRET,)), once, rounds=1, protocol=protocol)
    again = [c for c in model.calls if len(c.messages) > 2]
    assert again
    assert all("gives away" in c.messages[-1].content for c in again)
    assert not [e for e in play.events if e.kind == "failure"]


@both_protocols
async def test_a_goal_is_nobody_elses_whatever_the_narrator_tells(protocol):
    base = scene(3)
    ann = base.characters[0].model_copy(update={"goal": FACT})
    shy = base.model_copy(update={"characters": (ann, *base.characters[1:])})
    play, model = await played(shy, whispering, rounds=2, protocol=protocol)
    assert any(FACT in text_of(c) for c in model.calls if c.role == "narrator")
    assert all(FACT in prompt for prompt in prompts_of(model, "Ann"))
    for name in ("Bob", "Cid"):
        assert not any(FACT in prompt for prompt in prompts_of(model, name))
    assert [e for e in play.events if e.kind == "failure"], "the narrator was refused"


async def test_a_whisper_is_perceived_by_its_parties_alone_whatever_the_narrator_says():
    def touched(call: Call) -> dict[str, Any]:
        return {"affected": "Bob"} if call.meta["character"] == "Ann" else {}

    def act(call: Call) -> dict[str, Any] | None:
        if call.meta["character"] != "Ann":
            return None
        return {"speech": WHISPER, "manner": "whisper", "to": ["Bob"]}

    play, model = await played(
        scene(3),
        scripted(act=act, influence=lambda c: {**touched(c), "influence": "a breath at the ear"}),
        rounds=1,
    )
    turn = [e for e in play.events if e.round == 1 and e.turn == 0]
    assert [e.kind for e in turn] == [
        "action", "speech", "influence", "reaction", "speech", "result",
    ]  # fmt: skip
    assert all("Cid" not in e.perceived_by for e in turn)
    assert {e.manner for e in turn if e.kind != "influence"} == {"whisper"}
    asked = next(c for c in model.calls if c.meta["step"] == "influence")
    assert asked.reply_schema is not None
    assert asked.reply_schema.body["properties"]["affected"]["enum"] == ["Bob", "Ann"]
    assert "perceived_by" not in asked.reply_schema.body["properties"]
    result = next(c for c in model.calls if c.meta["step"] == "result")
    assert result.reply_schema is not None
    assert "environment" not in result.reply_schema.body["properties"]
    change = result.reply_schema.body["properties"]["changes"]["items"]["properties"]
    assert set(change) == {"who", "state"}
    assert change["who"]["enum"] == ["Ann", "Bob"]


async def test_what_is_muttered_to_nobody_is_perceived_by_nobody_else():
    def act(call: Call) -> dict[str, Any] | None:
        if call.meta["character"] != "Ann":
            return None
        return {"speech": WHISPER, "manner": "whisper", "to": []}

    play, model = await played(scene(2), scripted(act=act), rounds=2)
    assert {e.perceived_by for e in play.events if e.manner == "whisper"} == {("Ann",)}
    assert not [p for p in prompts_of(model, "Bob") if WHISPER in p]
    told_narrator = [text_of(c) for c in model.calls if c.role == "narrator"]
    assert "Ann, unnoticed by all: action of Ann act 1" in told_narrator[0]
    asked = next(c for c in model.calls if c.meta["step"] == "influence")
    assert asked.reply_schema is not None
    assert set(asked.reply_schema.body["properties"]) == {"changes", "concluded"}


async def test_a_whispered_reaction_to_an_open_act_is_heard_by_its_parties_alone():
    def react(call: Call) -> dict[str, Any]:
        return {"speech": WHISPER, "manner": "whisper", "to": ["Cid"]}

    def influence(call: Call) -> dict[str, Any]:
        if call.meta["character"] != "Ann":
            return {}
        return {"affected": "Bob", "influence": "a look"}

    play, model = await played(scene(3), scripted(reaction=react, influence=influence), rounds=2)
    reaction = [e for e in play.events if e.manner == "whisper"]
    assert {e.perceived_by for e in reaction} == {("Bob", "Cid")}
    assert all(WHISPER not in prompt for prompt in prompts_of(model, "Ann"))
    assert any(WHISPER in prompt for prompt in prompts_of(model, "Cid"))


@both_protocols
async def test_what_happens_elsewhere_is_in_nobodys_prompt_here(protocol):
    apart = scene(4, places={"Ann": "cellar", "Bob": "attic", "Cid": "cellar", "Dee": "attic"})
    places = {c.name: c.place for c in apart.characters}
    stay = scripted(update=lambda c: {"place": places[str(c.meta["whom"])]})
    _, model = await played(apart, stay, rounds=3, protocol=protocol)
    for name, elsewhere in (("Ann", ("Bob", "Dee")), ("Bob", ("Ann", "Cid"))):
        for prompt in prompts_of(model, name):
            assert not [other for other in elsewhere if other in prompt]


class Busy:
    """All roles at random: whispers, moves, few witnesses; no text is ever the same.

    A text that others may perceive begins with T, one that is its owner's alone with P.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.numbers = itertools.count()
        self.private: dict[str, str] = {}

    def text(self, kind: str, owner: str = "") -> str:
        word = f"{kind}{next(self.numbers)}x"
        if kind == "P":
            self.private[word] = owner
        return word

    def some(self, names: list[str]) -> list[str]:
        return [name for name in names if self.chance.random() < 0.5]

    def reply(self, call: Call) -> dict[str, Any]:
        assert call.reply_schema is not None
        who, value = str(call.meta["character"]), answer(call)
        for name, part in call.reply_schema.body["properties"].items():
            if name in ("action", "speech", "influence", "result"):
                value[name] = self.text("T")
            elif name in ("plan", "belief", "desire", "intention") or (
                name == "environment" and part["type"] == "string"
            ):
                value[name] = self.text("P", who)
            elif name in ("to", "perceived_by"):
                value[name] = self.some(part["items"]["enum"])
            elif name in ("manner", "affected", "place"):
                value[name] = self.chance.choice(part["enum"])
            elif name == "state":
                value[name] = self.text("P", str(call.meta["whom"]))
            elif name == "changes":
                value[name] = [
                    self.change(one, part["items"]["properties"])
                    for one in self.some(part["items"]["properties"]["who"]["enum"])
                ]
        return value

    def change(self, who: str, fields: dict[str, Any]) -> dict[str, str]:
        change = {"who": who, "position": "", "state": self.text("P", who)}
        if "place" in fields:
            change["place"] = self.chance.choice(fields["place"]["enum"])
        return {name: text for name, text in change.items() if name in fields}


@both_protocols
@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_whispered_and_wherever_they_go_prompts_hold_what_was_perceived_alone(
    protocol, seed
):
    busy = Busy(seed)
    places = {"Ann": "cellar", "Bob": "attic", "Cid": "cellar", "Dee": "attic"}
    play, model = await played(
        scene(4, places=places if seed % 2 else None), busy.reply, rounds=4, protocol=protocol
    )
    looked_at = 0
    for call, reply in zip(model.calls, model.replies, strict=True):
        if call.role != "character":
            continue
        me = str(call.meta["character"])
        perceived = {e.text for e in play.seen_by(me)}
        if call.meta["step"] == "dialogue":  # it is told what it does meanwhile
            perceived |= {
                str(r.value["action"])
                for c, r in zip(model.calls, model.replies, strict=True)
                if c.meta == {**call.meta, "step": "action"}
            }
        for word in re.findall(r"[PT]\d+x", text_of(call)):
            looked_at += 1
            if word[0] == "P":
                assert busy.private[word] == me, call.meta
            else:
                assert word in perceived, call.meta
        assert reply.ok
    assert looked_at > 100
    whispers = [e for e in play.events if e.manner == "whisper" and e.actor is not None]
    assert whispers
    for event in whispers:
        assert set(event.perceived_by) <= {event.actor, *event.to}
    where = {c.name: c.place for c in play.scene.characters}
    for event in play.events:
        if event.turn >= 0:
            assert len({where[name] for name in event.perceived_by}) <= 1
        elif event.kind == "update":
            assert event.state is not None
            where = {name: one.place for name, one in event.state.characters.items()}


async def test_state_goal_plan_and_beliefs_of_one_are_in_no_prompt_of_another():
    base = scene(2)
    ann, bob = base.characters
    told_apart = base.model_copy(
        update={
            "characters": (
                ann.model_copy(update={"goal": "GOAL of Ann", "state": "STATE of Ann"}),
                bob,
            ),
            "plot": "PLOT of the source",
        }
    )
    _, model = await played(told_apart, rounds=3)
    for prompt in prompts_of(model, "Bob"):
        for hidden in ("GOAL", "STATE", "PLOT", "plan of Ann", "belief of Ann", "desire of Ann"):
            assert hidden not in prompt
    assert all("GOAL of Ann" in prompt for prompt in prompts_of(model, "Ann"))
    last = prompts_of(model, "Ann")[-1]
    assert "plan of Ann act 2" in last
    assert "belief of Ann belief 2" in last


async def test_only_those_whom_the_narrator_names_and_the_addressed_perceive_an_act():
    def act(call: Call) -> dict[str, Any] | None:
        return {"to": ["Dee"]} if call.meta["character"] == "Ann" else None

    play, _ = await played(
        scene(4), scripted(act=act, influence=lambda _: {"perceived_by": ["Bob"]}), rounds=1
    )
    assert next(e for e in play.events if e.kind == "action").perceived_by == ("Ann", "Bob", "Dee")


async def test_a_secret_that_was_spoken_aloud_may_be_told_to_those_who_heard_it():
    def act(call: Call) -> dict[str, Any] | None:
        return {"speech": f"I tell you: {FACT}."} if call.meta["character"] == "Ann" else None

    def influence(call: Call) -> dict[str, Any]:
        if call.meta["character"] != "Bob":
            return {"perceived_by": ["Bob"] if call.meta["character"] == "Ann" else []}
        return {"affected": "Ann", "influence": "A shudder", "perceived_by": ["Ann"]}

    play, _ = await played(
        scene(3, secrets=(SECRET,)),
        scripted(
            act=act,
            influence=influence,
            result=lambda _: {"result": f"So it is out. {FACT}", "perceived_by": []},
        ),
        rounds=1,
    )
    (result,) = [e for e in play.events if e.kind == "result"]
    assert result.perceived_by == ("Ann", "Bob")


def test_a_view_holds_the_visible_of_those_at_the_place_and_nothing_else():
    apart = scene(3, places={"Ann": "cellar", "Bob": "attic", "Cid": "cellar"})
    seen = view(apart, first_state(apart), "Ann")
    assert [(o.name, o.position) for o in seen.others] == [("Cid", "Cid sits")]
    assert seen.state == "Ann is well"
    assert seen.place == "cellar"
    assert view(scene(2), first_state(scene(2)), "Ann").place is None


def test_whoever_is_at_one_of_several_places_is_told_which_even_when_all_have_come_there():
    apart = scene(2, places={"Ann": "cellar", "Bob": "attic"})
    gathered = move(first_state(apart), {"Bob": "cellar"})
    assert [view(apart, gathered, name).place for name in ("Ann", "Bob")] == ["cellar", "cellar"]


def test_witnesses_are_those_named_out_of_those_who_can():
    assert witnesses(("Ann", "Bob"), named=["Bob", "Zoe"], sure=["Ann"]) == ("Ann", "Bob")
    assert witnesses(("Ann", "Bob"), named=["Zoe"]) == ()


def event(text: str, by: tuple[str, ...], manner: Any = "open") -> Event:
    return Event(
        round=1, turn=0, kind="speech", actor=by[0], text=text, perceived_by=by, manner=manner
    )


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        (FACT, f"They say: “{FACT.upper()}!”"),
        (FACT, FACT.replace(" ", "\n")),
        ("紫霞藏了月光宝盒", "众人得知：紫霞，藏了“月光宝盒”。"),
    ],
)
def test_punctuation_case_and_line_breaks_hide_no_secret(fact: str, text: str):
    secrets = (Secret(fact=fact, known_by=("Ann",)),)
    assert given_away(text, ("Bob",), secrets, ()) is not None
    assert given_away(text, ("Ann",), secrets, ()) is None
    assert given_away(text, ("Bob",), secrets, (event(text, ("Ann", "Bob")),)) is None
    assert given_away(text, ("Bob",), secrets, (event(text, ("Ann", "Cid")),)) is not None


def test_a_whispered_word_that_anyone_might_say_is_no_secret():
    assert given_away("Yes.", ("Cid",), (), (event("Yes", ("Ann", "Bob"), "whisper"),)) is None
    heard = event(WHISPER, ("Ann", "Bob"), "whisper")
    assert given_away(f"{WHISPER}?", ("Cid",), (), (heard,)) is not None
    assert given_away(f"{WHISPER}?", ("Bob",), (), (heard,)) is None


def test_a_name_stands_in_a_sentence_on_one_line_and_without_tags():
    assert plain("Ann\n</you>  <system>") == "Ann ‹/you› ‹system›"


@pytest.mark.parametrize(
    ("language", "manner", "wanted"),
    [
        ("en", "open", 'Ann says to Bob: "Come."'),
        ("en", "whisper", 'Ann whispers to Bob: "Come."'),
        ("zh", "open", "Ann对Bob说：“Come.”"),
        ("zh", "whisper", "Ann对Bob低声说：“Come.”"),
    ],
)
def test_speech_is_told_in_one_line_of_the_language(language, manner, wanted):
    said = Event(
        round=1, turn=0, kind="speech", actor="Ann", to=("Bob",), text="Come.", manner=manner
    )
    assert told(said, language) == wanted
