"""An interview is held as its script says, or says at which turn it ended and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from personae.errors import BadRequestError, StoppedEarlyError, UsageError
from personae.interview.evaluate import ANSWER_SAMPLING
from personae.interview.hold import (
    CHARACTER_SAMPLING,
    INTERVIEWER_SAMPLING,
    hold,
    interview_id,
    speaker_id,
)
from personae.interview.methods import setting
from personae.interview.people import Interviewee, interviewee
from personae.journal.client import Caps, Client
from personae.journal.flow import each
from personae.journal.store import Journal
from personae.models.scripted import ReplyFunction, ScriptedModel
from personae.prompts import LANGUAGES
from personae.records import Call, Character, Interview, InterviewScript, Language, Reply, Sampling
from personae.session import repair_messages
from tests.scripts.interview import reply as sensible

both = pytest.mark.parametrize("language", LANGUAGES)


class Room:
    """A client whose models are one function; `calls` are those that were asked."""

    def __init__(self, reply: ReplyFunction, journal: Journal, **more: Any) -> None:
        backend = ScriptedModel(reply)
        self._client = Client(
            journal, lambda _id: backend, repair=repair_messages("en"), first_delay=0, **more
        )
        self.calls: list[Call] = []

    async def ask(self, call: Call) -> Reply:
        self.calls.append(call)
        return await self._client.ask(call)

    async def refuse(self, calls: Any, failure: Any) -> None:
        await self._client.refuse(calls, failure)

    def roles(self) -> list[str]:
        return [c.role for c in self.calls]


RoomBy = Callable[..., Room]


@pytest.fixture
def room_by(tmp_path: Path) -> Iterator[RoomBy]:
    with Journal(tmp_path / "journal.sqlite") as journal:
        yield lambda reply=sensible, **more: Room(reply, journal, **more)


def person(name: str, description: str = "") -> Interviewee:
    told = description or f"{name} is sixty.\n\nA storm took {name}'s boat.\n\n{name} reads Homer."
    return interviewee(Character(name=name, description=told), "en")


PEOPLE = {name: person(name) for name in ("Ann", "Bob")}


def script(*asked: tuple[str, str | None], **fields: Any) -> InterviewScript:
    several = len({name for name, _ in asked}) > 1
    kind = "transfer" if several else "multi" if len(asked) > 1 else "single"
    return InterviewScript.from_dict(
        {
            "id": "s1",
            "kind": kind,
            "topic": "the storm",
            "turns": [{"character": name, "asked": words} for name, words in asked],
            **fields,
        }
    )


SINGLE = script(("Ann", "Who are you?"))
REPLAYED = script(("Ann", "Q1"), ("Ann", "Q2"), ("Ann", "Q3"))
LIVE = script(("Ann", None), ("Ann", None), ("Ann", None))
TRANSFER = script(("Ann", "Q1"), ("Bob", "Q2"), ("Ann", "Q3"))


def causes(held: Interview) -> list[str | None]:
    return [None if one.failure is None else one.failure.cause for one in held.exchanges]


# What an interview is ----------------------------------------------------------------------------


@both
async def test_a_single_question_is_asked_once_and_answered(
    room_by: RoomBy, language: Language
) -> None:
    room = room_by(lambda call: " I am the keeper. \n")
    asked = SINGLE.model_copy(
        update={"language": language, "topic_id": "topic-4", "tempting": True, "location": "A ship"}
    )
    held = await hold(room, asked, PEOPLE, model_id="m", method="prompt")
    assert [(e.character, e.asked, e.answer, e.failure) for e in held.exchanges] == [
        ("Ann", "Who are you?", "I am the keeper.", None)
    ]
    assert (held.id, held.script_id, held.model, held.method) == (
        "s1@m#prompt",
        "s1",
        "m",
        "prompt",
    )
    assert (held.kind, held.mode, held.language) == ("single", "single", language)
    assert (held.topic, held.topic_id, held.tempting) == ("the storm", "topic-4", True)
    assert (held.location, held.status) == ("A ship", setting(language).status)
    assert held.interviewer is None
    assert held.failure is None
    (call,) = room.calls
    assert (call.role, call.model, call.sampling) == ("character", "m", CHARACTER_SAMPLING)
    assert call.messages[-1].content == "Who are you?"


async def test_the_interviews_of_two_methods_have_ids_of_their_own(room_by: RoomBy) -> None:
    room = room_by()
    ids = {
        (await hold(room, SINGLE, PEOPLE, model_id=m, method=how)).id
        for m in ("m", "n")
        for how in ("prompt", "rag")
    }
    assert len(ids) == 4
    assert interview_id(SINGLE, "m", "rag") in ids
    given = await hold(room, SINGLE, PEOPLE, id="mine", model_id="m", method="prompt")
    assert given.id == "mine"


async def test_a_replayed_interview_asks_the_scripts_words_in_order(room_by: RoomBy) -> None:
    room = room_by(lambda call: f"to {call['messages'][-1]['content']}")
    held = await hold(
        room, REPLAYED, PEOPLE, model_id="m", method="prompt", interviewer="nobody needs it"
    )
    assert room.roles() == ["character"] * 3
    assert [(e.asked, e.answer) for e in held.exchanges] == [
        ("Q1", "to Q1"), ("Q2", "to Q2"), ("Q3", "to Q3"),
    ]  # fmt: skip
    assert [m.content for m in room.calls[2].messages[1:]] == ["Q1", "to Q1", "Q2", "to Q2", "Q3"]
    assert held.mode == "replayed"
    assert held.interviewer is None


@both
async def test_a_live_interview_lets_both_models_hear_each_other(
    room_by: RoomBy, language: Language
) -> None:
    def reply(call: dict[str, Any]) -> str:
        turn = call["meta"]["turn"]
        if call["role"] == "interviewer":
            return f'Interviewer: "Question {turn}?"'
        return f"Answer {turn}."

    room = room_by(reply)
    held = await hold(
        room,
        LIVE.model_copy(update={"language": language}),
        PEOPLE,
        model_id="m",
        method="prompt",
        interviewer="i",
    )
    assert room.roles() == ["interviewer", "character"] * 3
    assert [c.model for c in room.calls] == ["i", "m"] * 3
    assert [(e.asked, e.answer) for e in held.exchanges] == [
        (f"Question {n}?", f"Answer {n}.") for n in (1, 2, 3)
    ]
    assert (held.mode, held.interviewer) == ("live", "i")
    assert room.calls[0].sampling == INTERVIEWER_SAMPLING
    last_asked, last_answered = room.calls[4].messages, room.calls[5].messages
    assert [m.content for m in last_asked if m.role == "assistant"] == [
        "Question 1?",
        "Question 2?",
    ]
    assert "Answer 2." in last_asked[-1].content
    assert [m.content for m in last_answered[1:]] == [
        "Question 1?", "Answer 1.", "Question 2?", "Answer 2.", "Question 3?",
    ]  # fmt: skip


async def test_a_script_may_fix_some_turns_and_leave_others_to_the_interviewer(
    room_by: RoomBy,
) -> None:
    room = room_by()
    mixed = script(("Ann", "Q1"), ("Ann", None))
    held = await hold(room, mixed, PEOPLE, model_id="m", method="prompt", interviewer="i")
    assert room.roles() == ["character", "interviewer", "character"]
    assert held.exchanges[0].asked == "Q1"
    assert [m.content for m in room.calls[1].messages if m.role == "assistant"] == ["Q1"]
    assert held.mode == "live"


async def test_in_a_transfer_dialogue_every_turn_is_asked_of_its_own_character(
    room_by: RoomBy,
) -> None:
    room = room_by(lambda call: f"{call['meta']['character']}'s answer {call['meta']['turn']}")
    held = await hold(
        room,
        TRANSFER,
        PEOPLE,
        model_id="cast:c",
        method="cast",
        speaks={"Ann": "cast:c#Ann", "Bob": "cast:c#Robert"},
    )
    assert [c.model for c in room.calls] == ["cast:c#Ann", "cast:c#Robert", "cast:c#Ann"]
    assert [e.character for e in held.exchanges] == ["Ann", "Bob", "Ann"]
    assert held.model == "cast:c"
    assert held.kind == "transfer"
    assert ["You are Ann" in c.messages[0].content for c in room.calls] == [True, False, True]
    last = room.calls[2].messages
    assert [m.role for m in last] == ["system", "user", "assistant", "user"]
    assert last[2].content == "Ann's answer 1"
    assert "Bob: Bob's answer 2" in last[3].content
    assert last[3].content.endswith("Q3")


async def test_retrieval_is_of_the_question_at_hand_and_is_kept_in_the_exchange(
    room_by: RoomBy,
) -> None:
    room = room_by()
    asked = script(("Ann", "Did a storm come?"), ("Ann", "Have you Homer at home?"))
    held = await hold(room, asked, PEOPLE, model_id="m", method="rag")
    assert [e.passages[0] for e in held.exchanges] == [
        "A storm took Ann's boat.",
        "Ann reads Homer.",
    ]
    for call, exchange in zip(room.calls, held.exchanges, strict=True):
        for passage in exchange.passages:
            assert passage in call.messages[-1].content
    assert [m.content for m in room.calls[1].messages[1:2]] == ["Did a storm come?"]
    for method in ("prompt", "cast"):
        other = await hold(room, asked, PEOPLE, model_id="cast:c", method=method)
        assert all(e.passages == () for e in other.exchanges)


async def test_interviews_are_the_same_however_many_are_held_at_once(room_by: RoomBy) -> None:
    scripts = [LIVE.model_copy(update={"id": f"s{n}", "topic": f"storm {n}"}) for n in range(20)]

    async def one(room: Room, asked: InterviewScript) -> Interview:
        return await hold(room, asked, PEOPLE, model_id="m", method="rag", interviewer="i")

    room = room_by()
    together = await each(scripts, lambda asked: one(room, asked))
    count = len(room.calls)
    assert count == 20 * 6
    one_by_one = [await one(room, asked) for asked in scripts]
    assert one_by_one == together
    assert len({e.asked for held in together for e in held.exchanges}) > 20


async def test_the_sampling_is_the_callers(room_by: RoomBy) -> None:
    room = room_by()
    mine, other = Sampling(temperature=0, seed=3), Sampling(temperature=1, seed=4)
    await hold(
        room, LIVE, PEOPLE, model_id="m", method="prompt", interviewer="i",
        sampling=mine, interviewer_sampling=other,
    )  # fmt: skip
    assert [c.sampling for c in room.calls] == [other, mine] * 3


def test_answers_are_as_long_as_in_neekos_code_and_drawn_more_evenly_than_for_personagym() -> None:
    assert CHARACTER_SAMPLING.max_tokens == 512
    assert CHARACTER_SAMPLING.temperature is not None
    assert ANSWER_SAMPLING.temperature is not None
    assert CHARACTER_SAMPLING.temperature < ANSWER_SAMPLING.temperature


# Failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [REPLAYED, LIVE, TRANSFER], ids=["replayed", "live", "transfer"])
@pytest.mark.parametrize("fails", [1, 2, 3])
async def test_a_turn_that_cannot_be_had_ends_the_interview(
    room_by: RoomBy, asked: InterviewScript, fails: int
) -> None:
    def reply(call: dict[str, Any]) -> Any:
        if call["role"] == "character" and call["meta"]["turn"] == fails:
            raise BadRequestError("no")
        return sensible(call)

    room = room_by(reply)
    held = await hold(room, asked, PEOPLE, model_id="m", method="prompt", interviewer="i")
    assert causes(held) == [None] * (fails - 1) + ["bad_request"] + ["not_reached"] * (3 - fails)
    assert [e.answer is None for e in held.exchanges] == [n >= fails for n in (1, 2, 3)]
    assert held.failure is not None
    assert held.failure.cause == "bad_request"
    assert room.roles().count("character") == fails
    assert held.exchanges[fails - 1].asked is not None
    for one, turn in zip(held.exchanges[fails:], asked.turns[fails:], strict=True):
        assert one.asked == turn.asked
        assert one.failure is not None
        assert f"turn {fails} " in one.failure.detail


@pytest.mark.parametrize("fails", [1, 2])
async def test_an_interviewer_that_fails_is_said_to_be_the_one(room_by: RoomBy, fails: int) -> None:
    def reply(call: dict[str, Any]) -> Any:
        if call["role"] == "interviewer" and call["meta"]["turn"] == fails:
            raise BadRequestError("no")
        return sensible(call)

    room = room_by(reply)
    held = await hold(room, LIVE, PEOPLE, model_id="m", method="prompt", interviewer="i")
    assert causes(held) == (
        [None] * (fails - 1) + ["interviewer: bad_request"] + ["not_reached"] * (3 - fails)
    )
    assert [e.asked is None for e in held.exchanges] == [n >= fails for n in (1, 2, 3)]
    assert room.roles().count("character") == fails - 1


@pytest.mark.parametrize(
    ("answer", "role", "cause"),
    [
        ("  \n ", "character", "empty"),
        ("", "interviewer", "interviewer: empty"),
        ('Interviewer: ""', "interviewer", "interviewer: empty"),
    ],
)
async def test_nothing_is_no_answer_and_no_question(
    room_by: RoomBy, answer: str, role: str, cause: str
) -> None:
    room = room_by(lambda call: answer if call["role"] == role else sensible(call))
    held = await hold(room, LIVE, PEOPLE, model_id="m", method="prompt", interviewer="i")
    assert causes(held) == [cause, "not_reached", "not_reached"]
    assert all(e.answer is None for e in held.exchanges)


async def test_a_question_of_which_nothing_is_left_is_asked_for_again_on_resume(
    room_by: RoomBy,
) -> None:
    replies = iter(["Interviewer:", "Who are you?"])
    first = room_by(lambda call: next(replies) if call["role"] == "interviewer" else "Ann.")
    live = script(("Ann", None), ("Ann", "Q2"))
    held = await hold(first, live, PEOPLE, model_id="m", method="prompt", interviewer="i")
    assert causes(held) == ["interviewer: empty", "not_reached"]
    again = room_by(lambda call: next(replies) if call["role"] == "interviewer" else "Ann.")
    held = await hold(again, live, PEOPLE, model_id="m", method="prompt", interviewer="i")
    assert causes(held) == [None, None]
    assert held.exchanges[0].asked == "Who are you?"


async def test_a_cap_stops_the_interview_and_is_no_failure_of_it(room_by: RoomBy) -> None:
    room = room_by(caps=Caps(calls=2))
    with pytest.raises(StoppedEarlyError):
        await hold(room, REPLAYED, PEOPLE, model_id="m", method="prompt")
    resumed = room_by()
    held = await hold(resumed, REPLAYED, PEOPLE, model_id="m", method="prompt")
    assert causes(held) == [None] * 3
    assert [m.content for m in resumed.calls[0].messages] == [
        m.content for m in room.calls[0].messages
    ]


async def test_cancelling_cancels_the_interview(room_by: RoomBy) -> None:
    started = asyncio.Event()

    async def reply(_call: dict[str, Any]) -> str:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody ends the wait")

    held = asyncio.create_task(hold(room_by(reply), SINGLE, PEOPLE, model_id="m", method="prompt"))
    await started.wait()
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held


async def test_what_cannot_be_held_is_refused_before_anybody_is_asked(room_by: RoomBy) -> None:
    room = room_by()
    with pytest.raises(UsageError, match="asks Zoe, who is not among the characters"):
        await hold(room, script(("Zoe", "Who?")), PEOPLE, model_id="m", method="prompt")
    with pytest.raises(UsageError, match="--interviewer"):
        await hold(room, LIVE, PEOPLE, model_id="m", method="prompt")
    with pytest.raises(UsageError, match="imported"):
        await hold(room, SINGLE, PEOPLE, model_id="m", method="imported")
    with pytest.raises(UsageError, match="is no cast"):
        await hold(room, SINGLE, PEOPLE, model_id="m", method="cast")
    assert room.calls == []


# Who is really asked -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "method", "asked"),
    [
        ("local", "prompt", "local"),
        ("openai/gpt#4", "rag", "openai/gpt#4"),
        ("cast:out/holmes", "prompt", "cast:out/holmes#base"),
        ("cast:out/holmes", "rag", "cast:out/holmes#base"),
        ("cast:out/holmes", "cast", "cast:out/holmes#Ann"),
        ("cast:out/holmes#Sherlock", "cast", "cast:out/holmes#Sherlock"),
        ("cast:out/holmes#Sherlock", "prompt", "cast:out/holmes#base"),
        ("cast:out/holmes#base", "rag", "cast:out/holmes#base"),
    ],
)
def test_a_cast_is_asked_without_its_blocks_unless_the_method_is_cast(
    model: str, method: Any, asked: str
) -> None:
    assert speaker_id(model, method, "Ann") == asked


def test_who_is_no_cast_cannot_answer_as_one() -> None:
    for model, words in (("local", "is no cast"), ("cast:c#base", "base alone")):
        with pytest.raises(UsageError, match=words):
            speaker_id(model, "cast", "Ann")


def test_the_ids_are_those_that_casts_understand() -> None:
    from personae.cast.backend import parse_cast_id

    assert parse_cast_id(speaker_id("cast:a/b", "rag", "Ann")).base
    assert parse_cast_id(speaker_id("cast:a/b", "cast", "Ann")).name == "Ann"
    assert parse_cast_id(speaker_id("cast:a/b", "cast", "Ann")).path == Path("a/b")
