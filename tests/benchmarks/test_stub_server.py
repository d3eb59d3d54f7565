"""The stub that the figures of A6 are measured against must itself be right."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from personae.errors import RateLimitError, ServerError, TimeoutExceededError
from personae.models.providers import backend_for_endpoint
from personae.prompts.schemas import (
    environments_schema,
    exemplars_schema,
    personas_schema,
    questions_schema,
    verdict_schema,
)
from personae.prompts.world_schemas import (
    act_schema,
    belief_schema,
    influence_schema,
    result_schema,
)
from personae.records import Call, Message, ReplySchema
from personae.records.structured import parse_structured
from personae.world.state import Bounds

PATH = Path(__file__).parents[2] / "benchmarks" / "stub_server.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("stub_server", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["stub_server"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with load().start_stub(latency=0.01, slots=4, retry_after=0.25) as stub:
        yield stub


@pytest.fixture
def stub(running: Any) -> Iterator[Any]:
    running.configure(reset=True)
    yield running
    running.configure(
        latency=0.01, slots=4, share_500=0, share_hang=0, share_cut=0, share_malformed=0
    )


def call(text: str, schema: ReplySchema | None = None, model: str = "m") -> Call:
    return Call(
        role="judge",
        model=model,
        messages=(Message(role="user", content=text),),
        reply_schema=schema,
    )


SCHEMAS = [
    verdict_schema(),
    exemplars_schema(),
    environments_schema([f"place {i}" for i in range(20)], 5),
    questions_schema(3, ["here", "there"]),
    personas_schema(4),
    act_schema(["Ann", "Bob"], plan=True),
    influence_schema("Ann", ["Bob"], ["Bob"], Bounds(("Ann", "Bob")), concludes=True),
    result_schema(["Bob"], Bounds(("Ann", "Bob"), places=("here", "there")), concludes=True),
    belief_schema("belief", "desire", "intention", "environment"),
]


async def test_replies_meet_the_schema_they_are_asked_for(stub: Any) -> None:
    backend = backend_for_endpoint(f"{stub.url}#m")
    for schema in SCHEMAS:
        reply = await backend.complete(call("who?", schema))
        assert reply.text is not None
        parse_structured(reply.text, schema)
    await backend.close()
    assert stub.stats()["served"] == {s.name: 1 for s in SCHEMAS}


async def test_the_same_request_gets_the_same_reply_and_others_differ(stub: Any) -> None:
    backend = backend_for_endpoint(f"{stub.url}#m")
    a, b, other = [(await backend.complete(call(t))).text for t in ("x", "x", "y")]
    await backend.close()
    assert a == b != other
    stats = stub.stats()
    assert (stats["served_total"], stats["distinct"]) == (3, 2)


async def test_verdicts_use_the_whole_scale(stub: Any) -> None:
    stub.configure(latency=0.0, slots=100)
    backend = backend_for_endpoint(f"{stub.url}#m")
    replies = await asyncio.gather(
        *(backend.complete(call(str(i), verdict_schema())) for i in range(60))
    )
    await backend.close()
    assert {json.loads(r.text or "")["score"] for r in replies} == {1, 2, 3, 4, 5}


async def test_in_a_play_acts_are_open_and_seven_of_ten_affect_somebody(stub: Any) -> None:
    stub.configure(latency=0.0, slots=400)
    backend = backend_for_endpoint(f"{stub.url}#m")
    schema = influence_schema("Ann", ["Bob"], ["Bob"], None, concludes=True)
    replies = await asyncio.gather(*(backend.complete(call(str(i), schema)) for i in range(300)))
    act = json.loads((await backend.complete(call("x", act_schema(["Bob"])))).text or "")
    await backend.close()
    values = [json.loads(r.text or "") for r in replies]
    assert 0.6 < sum(v["affected"] == "Bob" for v in values) / 300 < 0.8
    assert not any(v["concluded"] for v in values)
    assert act["manner"] == "open"


async def test_whoever_comes_beyond_the_slots_gets_a_429_and_a_time(stub: Any) -> None:
    stub.configure(latency=0.2)
    backend = backend_for_endpoint(f"{stub.url}#m")
    results = await asyncio.gather(
        *(backend.complete(call(str(i))) for i in range(6)), return_exceptions=True
    )
    await backend.close()
    limited = [r for r in results if isinstance(r, RateLimitError)]
    assert [r.retry_after for r in limited] == [0.25, 0.25]
    stats = stub.stats()
    assert (stats["served_total"], stats["rejected_429"], stats["peak_busy"]) == (4, 2, 4)


async def test_a_client_that_goes_away_frees_its_slot(stub: Any) -> None:
    stub.configure(slots=1, share_hang=1.0, hang_s=60)
    impatient = backend_for_endpoint(f"{stub.url}#m", timeout=0.05)
    with pytest.raises(TimeoutExceededError):
        await impatient.complete(call("x"))
    await impatient.close()
    stub.configure(share_hang=0.0)
    backend = backend_for_endpoint(f"{stub.url}#m")
    assert (await backend.complete(call("y"))).ok
    await backend.close()
    stats = stub.stats()
    assert (stats["aborted"], stats["busy"]) == (1, 0)


async def test_faults_come_in_their_shares_and_not_for_ever(stub: Any) -> None:
    stub.configure(latency=0.0, slots=1000, share_500=0.2, share_cut=0.2, share_malformed=0.2)
    backend = backend_for_endpoint(f"{stub.url}#m")

    async def ask(text: str) -> int:
        for attempt in range(50):
            try:
                reply = await backend.complete(call(text, verdict_schema()))
                parse_structured(reply.text or "", verdict_schema())
            except (ServerError, ValueError):
                continue
            return attempt
        raise AssertionError(f"{text} never went through")

    retries = sum(await asyncio.gather(*(ask(str(i)) for i in range(100))))
    await backend.close()
    stats = stub.stats()
    faults = stats["faults"]
    assert sum(faults.values()) == retries
    for kind in ("500", "cut", "malformed"):
        # Binomial with share 0.2: within five standard deviations.
        expected = 0.2 * stats["received"]
        assert abs(faults[kind] - expected) < 5 * (expected * 0.8) ** 0.5


async def test_settings_that_do_not_exist_are_refused(stub: Any) -> None:
    with pytest.raises(OSError, match="400"):
        stub.configure(latencyy=3)
