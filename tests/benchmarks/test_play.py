"""What a play costs is counted right, and stays within the goals of issue B6."""

from __future__ import annotations

import asyncio
import statistics

import pytest

from personae.records import Call, Message
from tests.benchmarks.loading import load

lockstep, _, play = load("lockstep"), load("stub_server"), load("play")


def call(text: str) -> Call:
    return Call(role="x", model="m", messages=(Message(role="user", content=text),))


async def test_a_tick_answers_all_that_wait_and_ticks_are_the_longest_chain():
    model = lockstep.Lockstep(lambda c: f"re {c.messages[0].content}")

    async def chain(name: str, length: int) -> None:
        for n in range(length):
            await model.ask(call(f"{name}{n}"))

    await asyncio.gather(chain("a", 3), chain("b", 1), chain("c", 2))
    assert [len(tick) for tick in model.ticks] == [3, 2, 1]
    assert (len(model.calls), model.peak) == (6, 3)


@pytest.mark.parametrize("count", [2, 3, 4])
async def test_a_play_has_at_least_thirty_percent_fewer_calls_and_fewer_dependent_steps(count: int):
    """Than the released code: its calls, and the least depth that it could have (B5)."""
    runs = [await play.one(count, "personae", seed) for seed in range(5)]
    calls, _, depth = play.UPSTREAM[count]
    rate = sum(r["interactions"] for r in runs) / sum(r["turns"] for r in runs)
    assert rate == pytest.approx(0.7, abs=0.02)
    assert statistics.mean(r["calls"] for r in runs) <= 0.7 * calls
    assert statistics.mean(r["depth"] for r in runs) < depth


async def test_the_chain_of_the_benchmark_is_the_one_that_ticks_show():
    run = await play.one(3, "personae", 1)
    asked = run["steps"]
    assert run["depth"] == sum(asked.values()) - asked["belief"] + play.ROUNDS - 1


def test_a_shared_beginning_is_counted_once_and_in_tokens():
    assert play.shared(["a" * 400, "a" * 200 + "b" * 200]) == pytest.approx(50 / 200)
    assert play.shared(["a" * 40, "b" * 40]) == 0.0
