"""The client: what is asked once is not asked again, what fails is recorded, caps stop cleanly."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from personae.errors import (
    AuthenticationError,
    BadRequestError,
    RateLimitError,
    RefusedConnectionError,
    ReplayMissError,
    ServerError,
    StoppedEarlyError,
    UsageError,
)
from personae.journal.client import Caps, Client, Event, Plan
from personae.journal.store import Journal
from personae.models import DryBackend, ScriptedModel
from personae.prompts.schemas import verdict_schema
from personae.records import Call, Message, Price, Reply, Usage
from personae.records.tokens import estimate_tokens
from personae.session import repair_messages

GOOD = {"justification": "because", "score": 4}


def ask_for(text: str = "hello", *, structured: bool = False, **more) -> Call:
    return Call(
        role="judge",
        model="m",
        messages=(Message(role="user", content=text),),
        reply_schema=verdict_schema() if structured else None,
        **more,
    )


class Script:
    """Counts the requests and answers them with a function of (request number, call)."""

    def __init__(self, reply):
        self.requests = 0
        self._reply = reply

    def __call__(self, call: dict[str, Any]):
        self.requests += 1
        return self._reply(self.requests, call)


def client(path: Path, script, **more) -> Client:
    return Client(
        Journal(path / "j.sqlite"),
        lambda _id: ScriptedModel(script),
        repair=repair_messages("en"),
        jitter=random.Random(0),
        first_delay=0.001,
        **more,
    )


async def finish(c: Client) -> None:
    await c.close()
    assert c.journal is not None
    c.journal.close()


async def test_an_answered_call_is_answered_from_the_journal(tmp_path: Path):
    script = Script(lambda n, _call: f"answer {n}")
    c = client(tmp_path, script)
    first, second = await c.ask(ask_for()), await c.ask(ask_for())
    assert (first.text, first.reused, second.text, second.reused) == (
        "answer 1", False, "answer 1", True,
    )  # fmt: skip
    assert script.requests == 1
    await finish(c)
    later = client(tmp_path, script)
    assert (await later.ask(ask_for())).text == "answer 1"
    assert script.requests == 1
    await finish(later)


async def test_identical_calls_in_flight_are_one_call(tmp_path: Path):
    gate = asyncio.Event()

    async def slow(_call):
        script.requests += 1
        await gate.wait()
        return "one"

    script = Script(None)
    c = client(tmp_path, slow)
    waiting = [asyncio.create_task(c.ask(ask_for())) for _ in range(5)]
    await asyncio.sleep(0)
    gate.set()
    assert [r.text for r in await asyncio.gather(*waiting)] == ["one"] * 5
    assert script.requests == 1
    assert c.journal is not None
    assert (c.journal.counters.made, c.journal.counters.reused) == (1, 4)
    await finish(c)


async def test_the_cost_so_far_holds_the_exchange_that_was_repaired_too(tmp_path: Path):
    heard: list[Event] = []
    c = Client(
        Journal(tmp_path / "j.sqlite"),
        lambda _id: ScriptedModel(Script(lambda n, _call: "no" if n == 1 else GOOD)),
        repair=repair_messages("en"),
        prices=lambda _m: Price(1e6, 0.0),  # a dollar a token in
        observe=heard.append,
    )
    reply = await c.ask(ask_for(structured=True))
    assert c.journal is not None
    (line,) = c.journal.usage()
    assert heard[-1].spent_usd == line.tokens_in
    assert (reply.usage.tokens_in or 0) < line.tokens_in
    await finish(c)


async def test_a_repeat_number_makes_another_call(tmp_path: Path):
    script = Script(lambda n, _call: str(n))
    c = client(tmp_path, script)
    assert (await c.ask(ask_for())).text == "1"
    assert (await c.ask(ask_for(repeat=1))).text == "2"
    assert (await c.ask(ask_for(meta={"question": "q1"}))).text == "1", "meta is not content"
    await finish(c)


async def test_what_is_worth_retrying_is_retried_and_each_cause_is_kept(tmp_path: Path):
    def flaky(n, _call):
        if n == 1:
            raise RateLimitError("slow down", retry_after=0.001)
        if n == 2:
            raise ServerError("cut short")
        return "at last"

    c = client(tmp_path, Script(flaky))
    reply = await c.ask(ask_for())
    assert (reply.text, reply.retries) == ("at last", ("rate_limit", "server"))
    await finish(c)
    with Journal(tmp_path / "j.sqlite", read_only=True) as journal:
        assert journal.totals().retries == {"rate_limit": 1, "server": 1}


async def test_retries_end_in_a_recorded_failure_that_a_later_process_asks_again(tmp_path: Path):
    def down(_n, _call):
        raise ServerError("down")

    c = client(tmp_path, Script(down))
    reply = await c.ask(ask_for())
    assert reply.failure is not None
    assert reply.failure.cause == "server"
    assert (await c.ask(ask_for())).ok is False, "not asked a third time in this process"
    await finish(c)
    later = client(tmp_path, Script(lambda _n, _call: "up"))
    assert (await later.ask(ask_for())).text == "up"
    await finish(later)


async def test_a_model_that_rejects_whatever_a_role_asks_is_an_error_at_the_end(tmp_path: Path):
    def knows_no_judge(_n, call):
        if call["role"] == "judge" and call["repeat"] < 2:
            raise BadRequestError("no model of that name")
        return "an answer"

    c = client(tmp_path, Script(knows_no_judge))
    for repeat in range(2):
        assert (await c.ask(ask_for(repeat=repeat))).failure is not None
    assert (await c.ask(ask_for().model_copy(update={"role": "character"}))).ok
    with pytest.raises(BadRequestError, match=r"every call of m as judge .* no model of that name"):
        c.check_heard()
    assert (await c.ask(ask_for(repeat=2))).ok
    c.check_heard()
    await finish(c)


async def test_a_wrong_key_stops_the_run_at_once(tmp_path: Path):
    def wrong(_n, _call):
        raise AuthenticationError("wrong key")

    script = Script(wrong)
    c = client(tmp_path, script)
    with pytest.raises(AuthenticationError):
        await c.ask(ask_for())
    assert script.requests == 1
    await finish(c)


async def test_nobody_at_the_address_stops_the_run_after_a_few_attempts(tmp_path: Path):
    def nobody(_n, _call):
        raise RefusedConnectionError("nobody there")

    script = Script(nobody)
    c = client(tmp_path, script)
    with pytest.raises(RefusedConnectionError):
        await c.ask(ask_for())
    assert script.requests == 4
    await finish(c)


async def test_a_structured_reply_is_parsed(tmp_path: Path):
    c = client(tmp_path, Script(lambda _n, _call: GOOD))
    assert (await c.ask(ask_for(structured=True))).value == GOOD
    assert (await c.ask(ask_for(structured=True))).value == GOOD, "from the journal as well"
    await finish(c)


async def test_a_malformed_reply_gets_one_repair_exchange(tmp_path: Path):
    seen = []

    def script(n, call):
        seen.append(call["messages"])
        return "I would say 4" if n == 1 else GOOD

    c = client(tmp_path, Script(script))
    reply = await c.ask(ask_for(structured=True))
    assert reply.value == GOOD
    assert seen[1][: len(seen[0])] == seen[0]
    assert seen[1][-2] == {"role": "assistant", "content": "I would say 4"}
    assert "not JSON" in seen[1][-1]["content"]
    await finish(c)


async def test_a_score_outside_its_scale_is_a_failure_not_a_clamp(tmp_path: Path):
    script = Script(lambda _n, _call: {"justification": "superb", "score": 10})
    c = client(tmp_path, script)
    reply = await c.ask(ask_for(structured=True))
    assert reply.failure is not None
    assert reply.failure.cause == "malformed"
    assert reply.value is None
    assert script.requests == 2
    await finish(c)


async def test_a_judge_that_answers_nonsense_for_ever_is_asked_again_on_resume_only(tmp_path: Path):
    script = Script(lambda _n, _call: "bla")
    for process in (1, 2):
        c = client(tmp_path, script)
        for _ in range(3):
            reply = await c.ask(ask_for(structured=True))
            assert reply.failure is not None
        assert script.requests == 2 * process
        await finish(c)


async def test_replay_gives_the_same_replies_and_failures_and_sends_nothing(tmp_path: Path):
    def script(_n, call):
        return GOOD if call["messages"][0]["content"] == "good" else "bla"

    c = client(tmp_path, Script(script))
    before = [await c.ask(ask_for(t, structured=True)) for t in ("good", "bad")]
    await finish(c)
    silent = Script(None)
    again = client(tmp_path, silent, replay=True)
    after = [await again.ask(ask_for(t, structured=True)) for t in ("good", "bad")]
    for old, new in zip(before, after, strict=True):
        assert (old.text, old.value, old.failure) == (new.text, new.value, new.failure)
    with pytest.raises(ReplayMissError, match="does not hold"):
        await again.ask(ask_for("never asked"))
    assert silent.requests == 0
    await finish(again)


async def test_a_cap_on_calls_stops_before_the_next_request_and_a_later_process_goes_on(
    tmp_path: Path,
):
    script = Script(lambda n, _call: str(n))
    c = client(tmp_path, script, caps=Caps(calls=2))
    assert (await c.ask(ask_for("a"))).ok
    assert (await c.ask(ask_for("b"))).ok
    with pytest.raises(StoppedEarlyError, match="--max-calls 2"):
        await c.ask(ask_for("c"))
    assert (await c.ask(ask_for("a"))).reused, "what is known costs nothing"
    await finish(c)
    assert script.requests == 2
    later = client(tmp_path, script)
    assert [(await later.ask(ask_for(t))).text for t in "abc"] == ["1", "2", "3"]
    await finish(later)


class Metered:
    """A backend whose replies cost 1,000 tokens in and 100 out."""

    endpoint = "metered"
    capabilities = DryBackend.capabilities

    async def complete(self, call: Call) -> Reply:
        return Reply(text="x", usage=Usage(tokens_in=1000, tokens_out=100))

    async def close(self) -> None: ...


def test_the_price_of_a_reply_by_hand():
    price = Price(2.0, 10.0, cached=1.0)
    # 600 fresh x 2 + 400 cached x 1 + 100 x 10 = 1200 + 400 + 1000 = 2600 per million
    assert price.of(Usage(tokens_in=1000, tokens_out=100, cached=400)) == pytest.approx(0.0026)
    assert price.of(Usage()) is None, "unknown usage has an unknown price, not 0"


async def test_a_cap_on_cost_stops_before_it_is_passed_and_counts_earlier_processes(
    tmp_path: Path,
):
    def metered(cap: float) -> Client:
        return Client(
            Journal(tmp_path / "j.sqlite"),
            lambda _id: Metered(),
            repair=repair_messages("en"),
            prices=lambda _m: Price(1.0, 1.0),
            caps=Caps(usd=cap),
        )

    c = metered(0.0030)  # a reply costs 0.0011; the guess for the next is about 0.0003
    for n in range(2):
        assert (await c.ask(ask_for(str(n)))).ok
    assert c.spent_usd == pytest.approx(0.0022)
    await finish(c)
    later = metered(0.0023)
    with pytest.raises(StoppedEarlyError, match="--max-cost"):
        await later.ask(ask_for("next"))
    await finish(later)


async def test_a_cap_on_cost_needs_a_known_price(tmp_path: Path):
    c = client(tmp_path, Script(lambda _n, _call: "x"), caps=Caps(usd=1.0))
    with pytest.raises(UsageError, match="price of 'm' is unknown"):
        await c.ask(ask_for())
    await finish(c)


async def test_a_dry_run_counts_and_sends_and_writes_nothing():
    plan = Plan()
    c = Client(None, lambda _id: DryBackend(), repair=repair_messages("en"), plan=plan)
    reply = await c.ask(ask_for("four letters a token", structured=True))
    assert reply.value is not None
    assert plan.calls == {("judge", "m"): 1}
    assert plan.tokens_in["judge", "m"] == estimate_tokens('["four letters a token"]')
    await c.close()


async def test_a_dry_run_counts_a_call_once_as_a_run_would_find_it_in_its_journal():
    plan = Plan()
    c = Client(None, lambda _id: DryBackend(), repair=repair_messages("en"), plan=plan)
    first = await c.ask(ask_for("a", meta={"unit": "one"}))
    assert await c.ask(ask_for("a", meta={"unit": "two"})) == first
    await c.ask(ask_for("a", repeat=1))
    assert plan.calls == {("judge", "m"): 2}


async def test_a_stopped_client_sends_nothing_more(tmp_path: Path):
    script = Script(lambda _n, _call: "x")
    c = client(tmp_path, script)
    c.stop("interrupted")
    with pytest.raises(StoppedEarlyError):
        await c.ask(ask_for())
    assert script.requests == 0
    await finish(c)


async def test_a_stop_does_not_wait_for_the_end_of_a_back_off(tmp_path: Path):
    """One call waits for its next attempt, the other for the end of the endpoint's pause."""

    def busy(_number, _call):
        raise RateLimitError("come back tomorrow", retry_after=86_400)

    c = client(tmp_path, Script(busy), concurrency=1)
    waiting = [asyncio.create_task(c.ask(ask_for(text))) for text in ("one", "two")]
    while c.journal is not None and not c.journal.counters.retries:
        await asyncio.sleep(0)
    c.stop("interrupted")
    async with asyncio.timeout(10):
        found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(f) for f in found] == [StoppedEarlyError, StoppedEarlyError]
    assert c.sent == 1
    await finish(c)


async def test_the_limit_of_an_endpoint_holds_for_all_models_behind_it(tmp_path: Path):
    now = most = 0

    async def watch(_call):
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(3):
            await asyncio.sleep(0)
        now -= 1
        return "x"

    shared = ScriptedModel(watch)
    c = Client(
        Journal(tmp_path / "j.sqlite"),
        lambda _id: shared,
        repair=repair_messages("en"),
        concurrency=3,
    )
    calls = [
        ask_for(str(n)).model_copy(update={"model": model}) for n in range(10) for model in "ab"
    ]
    await asyncio.gather(*(c.ask(call) for call in calls))
    assert most == 3
    await finish(c)
