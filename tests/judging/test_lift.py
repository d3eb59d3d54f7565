"""Persona lift, by hand."""

import pytest

from personae.judging.lift import MOST_OTHERS, others, persona_lift
from personae.records import Call, Failure, Persona, Question, Reply, Task, TokenLogprob

CAST = tuple(Persona(id=f"p{n}", description=f"Person {n}") for n in range(6))
QUESTION = Question(id="q", persona_id="p0", task=Task.EXPECTED_ACTION, text="What now?")


class Scorer:
    """Gives -1 nats a token under the own persona, -2 as an assistant, -4 under any other."""

    def __init__(self, broken: str = "") -> None:
        self.calls: list[Call] = []
        self.broken = broken

    async def ask(self, call: Call) -> Reply:
        self.calls.append(call)
        told = call.messages[0].content
        if self.broken and self.broken in told:
            return Reply(failure=Failure(cause="unsupported"))
        value = -1.0 if "Person 0" in told else -2.0 if "assistant" in told else -4.0
        return Reply(
            logprobs=(
                TokenLogprob(token="a", logprob=value - 0.5),
                TokenLogprob(token="b", logprob=value + 0.5),
            )
        )


async def lift(model: Scorer, cast=CAST):
    return await persona_lift(
        model, "lift:m", CAST[0], cast, QUESTION, "the answer", language="en", unit="u"
    )


async def test_lift_is_own_minus_the_mean_of_assistant_and_others():
    model = Scorer()
    value, failure = await lift(model)
    # own -1; baselines: assistant -2 and three others -4 each: (-2 - 12) / 4 = -3.5
    assert value == pytest.approx(-1 - -3.5)
    assert failure is None
    assert len(model.calls) == 1 + 1 + MOST_OTHERS
    assert {c.kind for c in model.calls} == {"score"}
    assert {c.messages[-1].content for c in model.calls} == {"the answer"}
    assert {c.model for c in model.calls} == {"m"}


async def test_alone_in_a_benchmark_the_assistant_is_the_only_baseline():
    value, _ = await lift(Scorer(), CAST[:1])
    assert value == pytest.approx(1.0)


async def test_one_context_that_cannot_be_scored_leaves_no_lift():
    value, failure = await lift(Scorer(broken="assistant"))
    assert value is None
    assert failure is not None
    assert failure.cause == "unsupported"


def test_the_others_are_the_same_every_time_and_never_oneself():
    first = others(CAST[0], CAST)
    assert first == others(CAST[0], tuple(reversed(CAST)))
    assert CAST[0] not in first
    assert len(first) == MOST_OTHERS
