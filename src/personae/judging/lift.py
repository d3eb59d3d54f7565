"""Persona lift: a judge without a judge.

The mean log-probability, in nats a token, that a model gives to an answer when told the persona and
the question, minus the mean of the same over contexts without that persona: a generic assistant,
and other characters of the same benchmark. Above 0: the answer is likelier from this persona. It
measures voice and persona, not contradiction (measured: research/models.md, section 5), so it has a
column of its own and never enters PersonaScore.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

from personae.errors import UsageError
from personae.prompts import render
from personae.records import Call, Failure, Language, Message, Model, Persona, Question

PREFIX = "lift:"
MOST_OTHERS = 3


def is_lift(judge: str) -> bool:
    """Whether a judge id asks for persona lift."""
    return judge.startswith(PREFIX)


def model_behind(judge: str) -> str:
    """The id of the model that a judge id asks: MODEL for `lift:MODEL`, else the id itself."""
    return judge.removeprefix(PREFIX)


def check_judges(judges: Sequence[str]) -> None:
    """Refuse a judge `lift:` that names no model.

    Raises:
        UsageError: there is one.
    """
    if PREFIX in judges:
        raise UsageError("lift:MODEL needs a model, for instance lift:local")


def check_words(judges: Sequence[str]) -> None:
    """Refuse lift where trajectories or interviews are judged.

    Raises:
        UsageError: a judge is `lift:MODEL`.
    """
    for judge in filter(is_lift, judges):
        raise UsageError(
            f"{judge} measures the answers of a benchmark; trajectories and interviews need a "
            "judge of words: give it without lift:, or another one"
        )


def others(persona: Persona, cast: Sequence[Persona]) -> list[Persona]:
    """At most three other characters, the same ones every time, spread over the cast."""
    rest = [p for p in cast if p.id != persona.id]
    rest.sort(key=lambda p: hashlib.sha256(f"{persona.id}\0{p.id}".encode()).digest())
    return rest[:MOST_OTHERS]


def contexts_of(
    persona: Persona, cast: Sequence[Persona], question: str, language: Language
) -> list[tuple[Message, ...]]:
    """What an answer is scored after: the persona, then what it is held against.

    The latter are a generic assistant and other characters (`others`).
    """
    contexts = [render("answer", language, persona=persona.description, question=question)]
    generic = render("generic_system", language)
    user = next(m for m in contexts[0] if m.role == "user")
    contexts.append((*generic, user))
    contexts += [
        render("answer", language, persona=other.description, question=question)
        for other in others(persona, cast)
    ]
    return contexts


def lift_of(means: Sequence[float]) -> float:
    """The lift from the mean log-probabilities after each of `contexts_of`, in nats a token."""
    own, *baselines = means
    return own - sum(baselines) / len(baselines)


async def persona_lift(
    model: Model,
    judge: str,
    persona: Persona,
    cast: Sequence[Persona],
    question: Question,
    answer: str,
    *,
    language: Language,
    unit: str,
) -> tuple[float | None, Failure | None]:
    """The lift of one answer in nats a token, or why there is none.

    Args:
        judge: `lift:MODEL`; MODEL must return the log-probabilities of given text.
        cast: the characters of the benchmark, this one included.
    """
    contexts = contexts_of(persona, cast, question.text, language)

    async def score(index: int, context: tuple[Message, ...]) -> tuple[float | None, str]:
        reply = await model.ask(
            Call(
                role="lift",
                kind="score",
                model=model_behind(judge),
                messages=(*context, Message(role="assistant", content=answer)),
                meta={"unit": unit, "question": question.id, "context": index},
            )
        )
        if not reply.ok:
            assert reply.failure is not None
            return None, reply.failure.cause
        if not reply.logprobs:
            return None, "no_tokens"
        return sum(t.logprob for t in reply.logprobs) / len(reply.logprobs), ""

    scored = await asyncio.gather(*(score(i, c) for i, c in enumerate(contexts)))
    for mean, cause in scored:
        if mean is None:
            return None, Failure(cause=cause, detail="the log-probabilities could not be had")
    return lift_of([mean for mean, _ in scored if mean is not None]), None
