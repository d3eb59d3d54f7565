"""Persona lift of what a cast says: answers to held-out questions, weighed by the base alone.

The one figure of the evaluation that looks at generated text. The answer is greedy, so that nothing
is drawn; its lift is that of `judging.lift` (nats a token by which the persona's own profile makes
it likelier than a generic assistant and other characters do), under the cast's base without blocks.

This module imports torch; import it inside functions (DESIGN rule 7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from personae.cast.dialogue import chat_prompt, with_system
from personae.cast.encode import Encoded
from personae.cast.evaluate import score_rows
from personae.cast.forgetting import profile_text
from personae.cast.generate import CastGenerator, Speech, Wanted
from personae.cast.heldout import asked_before
from personae.cast.layout import Layout
from personae.errors import ContextLengthError, UsageError
from personae.judging.lift import contexts_of, lift_of
from personae.records import Character, Failure, Message, Persona
from personae.records.cast_scores import LiftScore, MethodName

if TYPE_CHECKING:
    from personae.cast.base import LoadedBase
    from personae.cast.heldout import Unit
    from personae.cast.stacked import StackedLoRA
    from personae.cast.store import Cast

ANSWER_TOKENS = 96


@dataclass(frozen=True)
class _Answered:
    """A held-out question, and what was answered; the failure where there is no answer."""

    unit: Unit
    question: str
    answer: str | None
    failure: Failure | None = None


def lift_lines(
    base: LoadedBase,
    stack: StackedLoRA,
    cast: Cast,
    units: Sequence[Unit],
    layout: Layout,
    *,
    most: int = ANSWER_TOKENS,
    batch_tokens: int = 2048,
) -> tuple[LiftScore, ...]:
    """The lift of the cast's answers, and of its base's to the same prompts without blocks.

    Asked is what was said before a character's first line in each dialogue; a dialogue that the
    character opens asks nothing.

    Args:
        stack: the cast's blocks, attached to `base.model`.
        most: tokens of an answer.
    """
    asked = [(unit, asked_before(unit.row, unit.character)) for unit in units if not unit.failure]
    asked = [(unit, question) for unit, question in asked if question.strip()]
    answered: list[tuple[MethodName, _Answered]] = []
    ways: tuple[MethodName, ...] = ("cast", "base")
    generator = CastGenerator(base, stack, cast)
    try:
        for method in ways:
            found = _answers(generator, layout, asked, blocks=method == "cast", most=most)
            answered += [(method, one) for one in found]
    finally:
        generator.close()
    return _lifts(base, layout, cast.cards, answered, batch_tokens)


def _answers(
    generator: CastGenerator,
    layout: Layout,
    asked: Sequence[tuple[Unit, str]],
    *,
    blocks: bool,
    most: int,
) -> list[_Answered]:
    cast = generator.cast
    speeches: list[Speech | Failure] = []
    for unit, question in asked:
        told = with_system(cast, unit.character, [Message(role="user", content=question)])
        who = unit.character if blocks else None
        try:
            prompt = chat_prompt(layout, cast.manifest.mode, told, who)
            wanted = Wanted(prompt, who, max_tokens=most, temperature=0.0)
            speeches.append(generator.submit(wanted))
        except ContextLengthError as error:
            speeches.append(Failure(cause=error.cause, detail=str(error)))
    made = []
    for (unit, question), speech in zip(asked, speeches, strict=True):
        if isinstance(speech, Failure):
            made.append(_Answered(unit, question, None, speech))
            continue
        text = speech.future.result().text.strip()
        failure = None if text else Failure(cause="empty", detail="the answer is empty")
        made.append(_Answered(unit, question, text or None, failure))
    return made


def _lifts(
    base: LoadedBase,
    layout: Layout,
    cards: Mapping[str, Character],
    answered: Sequence[tuple[MethodName, _Answered]],
    batch_tokens: int,
) -> tuple[LiftScore, ...]:
    """Each answer after each context, all in one go."""
    people = {n: Persona(id=n, description=profile_text(card)) for n, card in cards.items()}
    cast = tuple(people.values())
    rows: list[Encoded] = []
    places: list[range] = []
    failures: list[Failure | None] = []
    for _, one in answered:
        start = len(rows)
        failure = one.failure
        if failure is None and one.unit.character not in people:
            detail = f"{one.unit.character} has no card, so there is no profile"
            failure = Failure(cause="no_card", detail=detail)
        if failure is None and one.answer is not None:
            persona = people[one.unit.character]
            told = contexts_of(persona, cast, one.question, one.unit.row.language)
            rows += [_scored_answer(layout, c, one.answer, one.unit.row.source) for c in told]
        failures.append(failure)
        places.append(range(start, len(rows)))
    longest = getattr(base.model.config, "max_position_embeddings", None)
    for n, place in enumerate(places):
        if longest and any(len(rows[k].ids) > longest for k in place):
            failures[n] = Failure(cause="context_length", detail=f"more than {longest:,} tokens")
    kept = [k for n, place in enumerate(places) if failures[n] is None for k in place]
    scored = score_rows(
        base, None, [rows[k] for k in kept], [{}] * len(kept), batch_tokens=batch_tokens
    )
    means = {k: -one.per_token for k, one in zip(kept, scored, strict=True)}
    lines = []
    for n, (method, one) in enumerate(answered):
        failure = failures[n]
        lines.append(
            LiftScore(
                method=method,
                row=one.unit.number,
                source=one.unit.row.source,
                language=one.unit.row.language,
                character=one.unit.character,
                question=one.question,
                answer=one.answer,
                lift=None if failure else lift_of([means[k] for k in places[n]]),
                failure=failure,
            )
        )
    return tuple(lines)


def _scored_answer(layout: Layout, context: Sequence[Message], answer: str, source: str) -> Encoded:
    """A context and an answer, of which the answer's own tokens are to be predicted."""
    answering = Message(role="assistant", content=answer)
    pieces = layout.prompt_segments([*context, answering])[:-2]  # without the end of its turn
    made = layout.tokens(pieces)
    if not any(made.supervised):
        raise UsageError(f"the answer to {source} has no token")
    return Encoded(made.ids, made.supervised, made.speaker, "", source)
