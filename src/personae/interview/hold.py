"""Holding an interview: one script, one model, one method (Neeko, sections 4 and 5).

The turns depend on each other and are asked in order; interviews do not, and are held at once
(`personae.journal.flow.each`). A turn that cannot be had ends its interview: what a character would
say after a silence is not what the others are compared by.
"""

from __future__ import annotations

from collections.abc import Mapping

from personae.errors import UsageError
from personae.interview.methods import (
    character_messages,
    interviewer_messages,
    looked_up,
    own_words,
    place_of,
)
from personae.interview.people import Interviewee
from personae.records import (
    Call,
    Exchange,
    Failure,
    Interview,
    InterviewScript,
    Model,
    Sampling,
    ScriptTurn,
)
from personae.records.call import Refusing
from personae.records.interview import Method

# The temperature and top_p of the embedded model, under which people meet its characters.
# PersonaGym's 0.9 (`interview.evaluate`) belongs to another benchmark, and Neeko's code decodes by
# beam search, which most endpoints do not offer. 512 tokens are Neeko's.
CHARACTER_SAMPLING = Sampling(temperature=0.7, top_p=0.95, max_tokens=512)
# One to three sentences; what runs on is cut off.
INTERVIEWER_SAMPLING = Sampling(temperature=0.7, top_p=0.95, max_tokens=256)

_CAST = "cast:"
_BASE = "base"


def interview_id(script: InterviewScript, model_id: str, method: Method) -> str:
    """The id of an interview, shared by its judges, metrics and people's ratings."""
    return f"{script.id}@{model_id}#{method}"


def speaker_id(model_id: str, method: Method, character: str) -> str:
    """The model id that is really asked.

    Of a cast that is the base alone under `prompt` and `rag`, and the character under `cast`; a
    character that the id itself names (`cast:DIR#NAME`) stays. Aliases are not looked up here: see
    `personae.cast.backend.pinned`.

    Raises:
        UsageError: `cast` and no cast, or its base alone.
    """
    if not model_id.startswith(_CAST):
        if method == "cast":
            raise UsageError(f"{model_id} is no cast: --method cast needs a --model cast:DIR")
        return model_id
    folder, mark, name = model_id.rpartition("#")
    if not mark:
        folder, name = model_id, ""
    if method != "cast":
        return f"{folder}#{_BASE}"
    if name == _BASE:
        raise UsageError(f"{model_id} is the base alone: ask it under prompt or rag")
    return model_id if name else f"{folder}#{character}"


async def hold(
    model: Model,
    script: InterviewScript,
    people: Mapping[str, Interviewee],
    *,
    model_id: str,
    method: Method,
    id: str | None = None,  # noqa: A002  (as the record has it)
    speaks: Mapping[str, str] | None = None,
    interviewer: str | None = None,
    sampling: Sampling = CHARACTER_SAMPLING,
    interviewer_sampling: Sampling = INTERVIEWER_SAMPLING,
) -> Interview:
    """Hold one interview.

    A turn that fails has the cause in its exchange (`interviewer: CAUSE` where the question could
    not be had), those after it have `not_reached`.

    Args:
        people: by name; all whom the script asks.
        model_id: who plays, as the user wrote it.
        id: default: `interview_id`.
        speaks: the model ids that are really asked, by character; default: `speaker_id`.
        interviewer: the model that finds the words where the script has none.

    Raises:
        UsageError: the script asks somebody who is not of the people, leaves words to an
            interviewer and there is none, or the method is `imported`.
        StoppedEarlyError: from the model: a cap, or the user.
    """
    _check(script, people, method, interviewer)
    if speaks is None:
        speaks = {name: speaker_id(model_id, method, name) for name in script.characters}
    held: list[Exchange] = []
    for number, turn in enumerate(script.turns, 1):
        if held and held[-1].failure is not None:
            held.append(_not_reached(turn, held))
            continue
        asked, failure = turn.asked, None
        if asked is None:
            asked, failure = await _asked(
                model, script, people, held, str(interviewer), number, interviewer_sampling
            )
        if asked is None:
            held.append(
                Exchange(character=turn.character, asked=None, answer=None, failure=failure)
            )
            continue
        person = people[turn.character]
        passages = looked_up(person, asked, held) if method == "rag" else ()
        call = Call(
            role="character",
            model=speaks[turn.character],
            messages=character_messages(method, script, person, held, asked, passages),
            sampling=sampling,
            meta={**_meta(script, turn, number), "method": method},
        )
        answer, failure = await _said(model, call)
        held.append(
            Exchange(
                character=turn.character,
                asked=asked,
                answer=answer,
                failure=failure,
                passages=passages,
            )
        )
    location, status = place_of(script)
    return Interview(
        id=id or interview_id(script, model_id, method),
        script_id=script.id,
        kind=script.kind,
        mode=script.mode,
        method=method,
        model=model_id,
        interviewer=interviewer if script.mode == "live" else None,
        language=script.language,
        topic=script.topic,
        topic_id=script.topic_id,
        tempting=script.tempting,
        location=location,
        status=status,
        exchanges=tuple(held),
    )


def _check(
    script: InterviewScript,
    people: Mapping[str, Interviewee],
    method: Method,
    interviewer: str | None,
) -> None:
    if method == "imported":
        raise UsageError("an imported interview is not held again: choose prompt, rag or cast")
    for name in script.characters:
        if name not in people:
            raise UsageError(
                f"script {script.id} asks {name}, who is not among the characters "
                f"({', '.join(people)})"
            )
    if script.mode == "live" and interviewer is None:
        raise UsageError(f"script {script.id} needs an interviewer: give --interviewer MODEL")


def _not_reached(turn: ScriptTurn, held: list[Exchange]) -> Exchange:
    number = next(n for n, one in enumerate(held, 1) if one.failure is not None)
    failure = Failure(cause="not_reached", detail=f"turn {number} could not be had")
    return Exchange(character=turn.character, asked=turn.asked, answer=None, failure=failure)


def _meta(script: InterviewScript, turn: ScriptTurn, number: int) -> dict[str, str | int]:
    return {"script": script.id, "character": turn.character, "turn": number}


async def _asked(
    model: Model,
    script: InterviewScript,
    people: Mapping[str, Interviewee],
    held: list[Exchange],
    interviewer: str,
    number: int,
    sampling: Sampling,
) -> tuple[str | None, Failure | None]:
    """The live interviewer's next question, or why there is none."""
    call = Call(
        role="interviewer",
        model=interviewer,
        messages=interviewer_messages(script, people, held),
        sampling=sampling,
        meta=_meta(script, script.turns[number - 1], number),
    )
    text, failure = await _said(model, call)
    asked = own_words(text or "", script.characters)
    if failure is None and not asked:
        failure = Failure(cause="empty", detail="nothing but a label or quotation marks")
        if isinstance(model, Refusing):  # what is recorded as failed, resuming asks again
            await model.refuse([call], failure)
    if failure is not None:
        return None, Failure(cause=f"interviewer: {failure.cause}", detail=failure.detail)
    return asked, None


async def _said(model: Model, call: Call) -> tuple[str | None, Failure | None]:
    reply = await model.ask(call)
    if not reply.ok:
        return None, reply.failure
    text = (reply.text or "").strip()
    if not text:
        return None, Failure(cause="empty", detail="the reply holds no text")
    return text, None
