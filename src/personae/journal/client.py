"""The `Model` that pipelines see: memory, retries, limits, budgets and structured replies.

`Client.ask` answers a call from the journal if it is there; otherwise it sends it under the
endpoint's limit, tries again what is worth trying again, keeps the reply, and returns it once it is
committed. Identical calls in flight are one call. A structured reply that does not meet its schema
gets one repair exchange, which is a call of its own in the journal; then it is a recorded failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from personae.errors import (
    BadRequestError,
    ReplayMissError,
    StoppedEarlyError,
    TransportError,
    UsageError,
)
from personae.journal.limits import Limit
from personae.journal.store import Journal
from personae.records import Backend, Call, Failure, Message, Price, Prices, Reply, prompt_text
from personae.records.call import Interruptible
from personae.records.structured import MalformedReplyError, parse_structured
from personae.records.tokens import estimate_tokens

DEFAULT_CONCURRENCY = 64
MOST_ATTEMPTS = 5
MOST_RATE_LIMITED = 30
MOST_REFUSED = 4
FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
TYPICAL_REPLY_TOKENS = 300


@dataclass(frozen=True)
class Event:
    """One call came to its end; what observers of a run receive.

    `spent_usd` is what all exchanges so far have cost, repaired and malformed ones included; None
    once one of them had no known price.
    """

    call: Call
    reply: Reply
    spent_usd: float | None


@dataclass
class Caps:
    """Where to stop: `calls` counts requests sent in this process, `usd` what the run has cost."""

    calls: int | None = None
    usd: float | None = None


@dataclass
class Plan:
    """What a dry run counted: calls by role and model, and estimated tokens."""

    calls: dict[tuple[str, str], int] = field(default_factory=dict)
    tokens_in: dict[tuple[str, str], int] = field(default_factory=dict)
    tokens_out: dict[tuple[str, str], int] = field(default_factory=dict)
    reused: int = 0


def need_price(model: str, prices: Prices) -> Price:
    """The price that a cap on cost cannot do without.

    Raises:
        UsageError: it is not known.
    """
    price = prices(model)
    if price is None:
        raise UsageError(
            f"the price of {model!r} is unknown, so --max-cost cannot be kept: "
            "add it to your price file (docs/running.md, Prices) or use --max-calls"
        )
    return price


class Client:
    """The journal-backed model.

    Args:
        journal: the run's journal; None in a dry run without one.
        backend_for: finds the backend of a model id (`personae.models.backend_for`).
        repair: builds the messages of the repair exchange from a call and the reason.
        prices: the price table.
        caps: where to stop.
        concurrency: the ceiling of calls in flight at one endpoint.
        replay: answer from the journal alone.
        gaps: in a replay, what the journal lacks is a failure `not_asked` instead of an error.
        observe: receives an `Event` for every call that comes to its end.
        jitter: source of random delays.
    """

    def __init__(
        self,
        journal: Journal | None,
        backend_for: Callable[[str], Backend],
        *,
        repair: Callable[[Call, str, str], tuple[Message, ...]],
        prices: Prices = lambda _model: None,
        caps: Caps | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        replay: bool = False,
        gaps: bool = False,
        observe: Callable[[Event], None] | None = None,
        plan: Plan | None = None,
        jitter: random.Random | None = None,
        first_delay: float = FIRST_DELAY,
    ) -> None:
        if concurrency < 1:
            raise UsageError(f"--concurrency is {concurrency}, it must be at least 1")
        self.journal = journal
        # Neither a replay nor a dry run adds to what the journal holds or counts.
        self._writes = None if replay or plan is not None else journal
        self.spent_usd: float = 0.0
        self._unpriced = False
        self.sent = 0
        self._backend_for = backend_for
        self._repair = repair
        self._prices = prices
        self._caps = caps or Caps()
        self._concurrency = concurrency
        self._replay = replay
        self._gaps = gaps
        self._observe = observe
        self._plan = plan
        self._jitter = jitter or random.Random()  # noqa: S311  (delays, not secrets)
        self._first_delay = first_delay
        self._backends: dict[str, Backend] = {}
        self._limits: dict[str, Limit] = {}
        self._running: dict[bytes, asyncio.Future[Reply]] = {}
        self._tried: set[bytes] = set()
        self._rejected: dict[tuple[str, str], Failure] = {}
        self._heard_of: set[tuple[str, str]] = set()
        self._dry: dict[bytes, Reply] = {}  # a call that a run would find in its journal
        self._reserved_usd = 0.0
        self._stop: str | None = None
        self._stopping = asyncio.Event()
        if journal is not None and self._caps.usd is not None:
            self.spent_usd = self._spent_before(journal)

    def _spent_before(self, journal: Journal) -> float:
        total = 0.0
        for line in journal.usage():
            price = self._prices(line.model)
            if price is not None:
                total += price.of_tokens(line.tokens_in, line.tokens_out, line.cached)
        return total

    def stop(self, reason: str) -> None:
        """Send nothing more; calls in flight come to their end and are kept.

        Those that wait, for a slot, for another attempt or for a person, wait no longer.
        """
        self._stop = reason
        self._stopping.set()
        for limit in self._limits.values():
            limit.end_pause()
        for backend in self._backends.values():
            if isinstance(backend, Interruptible):
                backend.interrupt(reason)

    @property
    def stopped(self) -> str | None:
        """Why nothing is sent any more; None while calls are sent."""
        return self._stop

    def backend(self, model: str) -> Backend:
        """The backend of a model id, made on first use.

        Raises:
            UsageError: no such scheme, a key that is missing, a cap on cost without a price.
        """
        found = self._backends.get(model)
        if found is None:
            if self._caps.usd is not None:
                need_price(model, self._prices)
            found = self._backends[model] = self._backend_for(model)
        return found

    async def ask(self, call: Call) -> Reply:
        """Have one call answered.

        Returns:
            The reply, or a recorded failure with its cause.

        Raises:
            StoppedEarlyError: a cap is reached or the user stopped the run.
            TransportError: no later call could fare better (wrong key, nobody there).
            ReplayMissError: replaying, and the journal does not hold the call.
            JournalError: the journal cannot be written.
        """
        key = call.key()
        running = self._running.get(key)
        if running is not None:
            reply = await asyncio.shield(running)
            if self._writes is not None:
                self._writes.counters.reused += 1  # as if it had been asked a moment later
            return reply.model_copy(update={"reused": True})
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._running[key] = future
        try:
            reply = await self._ask(key, call)
        except BaseException as error:
            if not future.cancelled():
                future.set_exception(
                    error if isinstance(error, Exception) else StoppedEarlyError("stopped")
                )
                future.exception()  # heard here; whoever shares the call hears it too
            raise
        else:
            future.set_result(reply)
        finally:
            del self._running[key]
        self._tell(call, reply)
        return reply

    def check_heard(self) -> None:
        """Refuse to call it done when an endpoint rejected all that a role asked of a model.

        Raises:
            BadRequestError: there is such a model; a name that its endpoint does not know, mostly.
        """
        for (role, model), failure in self._rejected.items():
            if (role, model) not in self._heard_of:
                raise BadRequestError(
                    f"every call of {model} as {role} was rejected: {failure.detail}. Check the "
                    "model's name; once its endpoint takes the calls, `personae resume` asks them "
                    "again, and only them"
                )

    async def refuse(self, calls: Sequence[Call], failure: Failure) -> None:
        """Record the replies to these calls as failed: resuming asks them again."""
        if self._writes is not None:
            self._writes.counters.failed += 1
            await self._writes.mark_failed(tuple(call.key() for call in calls), failure)

    def _tell(self, call: Call, reply: Reply) -> None:
        if reply.failure is not None and reply.failure.cause == BadRequestError.cause:
            self._rejected.setdefault((call.role, call.model), reply.failure)
        else:
            self._heard_of.add((call.role, call.model))
        if self._writes is not None:
            counters = self._writes.counters
            counters.reused += reply.reused
            counters.failed += not reply.ok
        if self._observe is not None:
            self._observe(Event(call, reply, None if self._unpriced else self.spent_usd))

    async def _ask(self, key: bytes, call: Call) -> Reply:
        reply = await self._exchange(key, call)
        if call.reply_schema is None or not reply.ok:
            return reply
        try:
            return reply.model_copy(
                update={"value": parse_structured(reply.text or "", call.reply_schema)}
            )
        except MalformedReplyError as error:
            first = str(error)
        again = call.model_copy(update={"messages": self._repair(call, reply.text or "", first)})
        again_key = again.key()
        second = await self._exchange(again_key, again)
        if second.ok:
            try:
                value = parse_structured(second.text or "", call.reply_schema)
            except MalformedReplyError as error:
                failure = Failure(
                    cause="malformed", detail=f"{first}; after the repair exchange: {error}"
                )
            else:
                return second.model_copy(
                    update={
                        "value": value,
                        "reused": reply.reused and second.reused,
                        "notes": (*second.notes, f"repaired: {first}"),
                    }
                )
        else:
            assert second.failure is not None
            failure = Failure(
                cause="malformed",
                detail=f"{first}; the repair exchange failed: {second.failure.cause}",
            )
        # In the journal both stay failed, so that resuming asks again instead of reading back.
        if self._writes is not None:
            await self._writes.mark_failed((key, again_key), failure)
        return reply.model_copy(update={"failure": failure, "reused": False})

    async def _exchange(self, key: bytes, call: Call) -> Reply:
        """One exchange, out of the journal or over the wire."""
        kept = None if self.journal is None else self.journal.get(key)
        # What the journal holds as failed is asked again, once a process.
        if kept is not None and (kept.ok or self._replay or key in self._tried):
            if self._plan is not None:
                self._plan.reused += 1
            return kept.model_copy(update={"reused": kept.ok or self._replay})
        if self._gaps:
            return Reply(failure=Failure(cause="not_asked", detail="the run stopped before"))
        if self._replay:
            raise ReplayMissError(
                f"the journal does not hold this {call.role} call to {call.model} "
                f"({_describe(call)}): the run is not finished, or something it was made from has "
                "changed; run it without --replay"
            )
        if self._plan is not None:
            planned = self._dry.get(key)
            if planned is None:
                planned = self._dry[key] = await self._planned(call, self._plan)
            return planned
        reply = await self._send(call)
        self._tried.add(key)
        assert self._writes is not None, "only a dry run goes without a journal"
        self._writes.counters.made += 1
        return await self._writes.put(key, call, reply)

    async def _planned(self, call: Call, plan: Plan) -> Reply:
        line = (call.role, call.model)
        plan.calls[line] = plan.calls.get(line, 0) + 1
        tokens = estimate_tokens(prompt_text(call))
        plan.tokens_in[line] = plan.tokens_in.get(line, 0) + tokens
        expected = min(call.sampling.max_tokens or TYPICAL_REPLY_TOKENS, TYPICAL_REPLY_TOKENS)
        plan.tokens_out[line] = plan.tokens_out.get(line, 0) + (
            0 if call.kind == "score" else expected
        )
        return await self.backend(call.model).complete(call)

    def _limit(self, endpoint: str) -> Limit:
        limit = self._limits.get(endpoint)
        if limit is None:
            limit = self._limits[endpoint] = Limit(self._concurrency)
        return limit

    def _permit(self, call: Call) -> float:
        """Whether one more request may be sent; reserves what it will cost at a guess."""
        if self._stop is not None:
            raise StoppedEarlyError(self._stop)
        caps = self._caps
        if caps.calls is not None and self.sent >= caps.calls:
            self.stop(reason := f"--max-calls {caps.calls} is reached")
            raise StoppedEarlyError(reason)
        guess = 0.0
        if caps.usd is not None:
            price = need_price(call.model, self._prices)
            tokens_out = call.sampling.max_tokens or TYPICAL_REPLY_TOKENS
            guess = price.of_tokens(estimate_tokens(prompt_text(call)), tokens_out)
            if self.spent_usd + self._reserved_usd + guess > caps.usd:
                reason = f"--max-cost {caps.usd:g} USD is reached ({self.spent_usd:.4f} spent)"
                self.stop(reason)
                raise StoppedEarlyError(reason)
            self._reserved_usd += guess
        self.sent += 1
        return guess

    async def _send(self, call: Call) -> Reply:
        backend = self.backend(call.model)
        limit = self._limit(backend.endpoint)
        causes: list[str] = []
        while True:
            await limit.acquire()
            try:
                guess = self._permit(call)
                try:
                    reply = await backend.complete(call)
                except StoppedEarlyError as stop:  # a person pauses: so does all else
                    self.stop(str(stop))
                    raise
                finally:
                    self._reserved_usd -= guess
            except TransportError as error:
                delay = self._delay(error, causes)
                if self._stop is None:  # after that a pause would only hold up the end
                    limit.congested(error.cause, getattr(error, "retry_after", None))
                if delay is None:
                    if error.fatal:
                        raise
                    return Reply(
                        failure=Failure(cause=error.cause, detail=str(error)[:2000]),
                        retries=tuple(causes),
                    )
                causes.append(error.cause)
            else:
                limit.succeeded()
                price = self._prices(call.model)
                usd = price.of(reply.usage) if price else None
                self.spent_usd += usd or 0.0
                self._unpriced = self._unpriced or usd is None
                return reply.model_copy(update={"retries": tuple(causes)}) if causes else reply
            finally:
                limit.release()
            with contextlib.suppress(TimeoutError):  # the slot is free meanwhile
                await asyncio.wait_for(self._stopping.wait(), delay)

    def _delay(self, error: TransportError, causes: list[str]) -> float | None:
        """Seconds before the next attempt (exponential with full jitter), or None to give up."""
        if self.journal is not None:
            retries = self.journal.counters.retries
            retries[error.cause] = retries.get(error.cause, 0) + 1
        if not error.retryable or self._stop is not None:
            return None
        most = {"rate_limit": MOST_RATE_LIMITED, "connection_refused": MOST_REFUSED}
        if len(causes) + 1 >= most.get(error.cause, MOST_ATTEMPTS):
            return None
        ceiling = min(LONGEST_DELAY, self._first_delay * 2 ** causes.count(error.cause))
        wish = getattr(error, "retry_after", None) or 0.0
        return float(wish) + self._jitter.uniform(0, ceiling)

    async def close(self) -> None:
        """Release all backends (the journal belongs to the caller)."""
        for backend in self._backends.values():
            await backend.close()
        self._backends.clear()


def _describe(call: Call) -> str:
    return ", ".join(f"{k} {v}" for k, v in call.meta.items()) or "no ids given"
