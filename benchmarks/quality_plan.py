"""Which trainings the experiment takes, in what order, and what was chosen on development data.

`next_jobs` is a function of what is done: it gives what can run now. A search (learning rates, then
what else a method tunes) is a walk through jobs whose development loss is known; a final job is
there once its method's search has ended. So resuming is nothing special.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Part = Literal["main", "leave-one-out"]
Purpose = Literal["tune", "final"]

BASE, SHARED_TOTAL, SHARED_ACTIVE = "base", "shared-total", "shared-active"
ISOLATED, ISOLATED_ACTIVE = "isolated", "isolated-active"
OWN, TOGETHER = "shared+own", "together"
FIRST = "shared+own, first stage"
METHODS = (BASE, SHARED_TOTAL, SHARED_ACTIVE, ISOLATED, ISOLATED_ACTIVE, OWN, TOGETHER)
"""What is compared, in the order of the table."""
POOLED = (SHARED_TOTAL, SHARED_ACTIVE)
NEW, PAPER = "new role", "new role, paper"

TUNING_SEED = 100
"""Of all tuning; no final figure comes from it."""


@dataclass(frozen=True)
class Protocol:
    """What is fixed before anything runs, and stands in every result.

    Attributes:
        rank: r, of a block; alpha is twice the rank of a method's blocks.
        tokens: supervised tokens a role that every method is trained on, repeats counted.
        batch_rows: dialogues of each role in an optimiser step.
        pooled_rows: dialogues of all roles together in a step, which a block that all teach may
            take instead, where the development loss is lower.
        rates: learning rates, a factor of 2 apart; a search goes on past the edge where the best
            lies on it.
        edges: how many rates it may go past either edge.
        shares: of the budget for the shared block; the first is taken to tune the rates.
        new_rates: of a new role's block.
        development: dialogues a role that are tuned on.
        samples: lines of a new role that fusion's weights are tuned on: the first answers of so
            many of its training dialogues.
        evaluations: of the loss, at most, in that.
    """

    rank: int = 8
    tokens: int = 40_000
    batch_rows: int = 1
    pooled_rows: int = 2
    rates: tuple[float, ...] = (2.5e-4, 5e-4, 1e-3, 2e-3)
    edges: int = 2
    shares: tuple[float, ...] = (0.5, 0.25, 0.75)
    new_rates: tuple[float, ...] = (2.5e-4, 5e-4, 1e-3, 2e-3)
    warmup: float = 0.05
    schedule: Literal["constant", "cosine"] = "cosine"
    development: int = 8
    samples: int = 8
    evaluations: int = 40
    max_tokens: int = 1536
    micro_tokens: int = 4096
    precision: Literal["float32", "tf32", "bfloat16"] = "tf32"

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        made: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return made


@dataclass(frozen=True)
class Job:
    """One training with its scores.

    Attributes:
        out: the role left out; "" where none is.
        settings: learning rates and what else was chosen, by name.
    """

    part: Part
    method: str
    purpose: Purpose
    seed: int
    settings: Mapping[str, float] = field(default_factory=dict)
    out: str = ""

    @property
    def key(self) -> str:
        """Of this job and no other."""
        settings = ",".join(f"{k}={v:g}" for k, v in sorted(self.settings.items()))
        return "|".join((self.part, self.method, self.purpose, str(self.seed), settings, self.out))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "settings": dict(self.settings)}


Done = Mapping[str, Mapping[str, Any]]
"""Results by the key of their job."""


@dataclass(frozen=True)
class Found:
    """What a search has come to.

    Attributes:
        wanted: jobs that must be done before it can go on; () where it has ended.
        best: the settings of the lowest development loss; None: not known yet, or none converged.
        trials: how many trainings it has looked at.
        edge: whether the best rate is the lowest or the highest of all that were tried.
    """

    wanted: tuple[Job, ...] = ()
    best: Mapping[str, float] | None = None
    trials: int = 0
    edge: bool = False


def loss_of(result: Mapping[str, Any]) -> float | None:
    """Development loss: mean over roles of nats a token; None where training diverged."""
    loss: float | None = result["development"]
    return loss


def search_rate(
    job: Callable[[float], Job], done: Done, rates: Sequence[float], edges: int
) -> tuple[list[Job], float | None, int, bool]:
    """Jobs still wanted, the best rate, how many were tried, and whether it lies on the edge."""
    tried = sorted(rates)
    for left in range(edges, -1, -1):
        wanted = [one for rate in tried if (one := job(rate)).key not in done]
        if wanted:
            return wanted, None, len(tried), False
        losses = {rate: loss_of(done[job(rate).key]) for rate in tried}
        known = {rate: loss for rate, loss in losses.items() if loss is not None}
        if not known:
            break
        best = min(known, key=lambda rate: known[rate])
        at_edge = best in {tried[0], tried[-1]}
        if not at_edge or not left:
            return [], best, len(tried), at_edge
        tried = sorted([*tried, best / 2 if best == tried[0] else best * 2])
    return [], None, len(tried), True


def search(method: str, done: Done, p: Protocol) -> Found:
    """How far the tuning of a method has come."""
    if method == BASE:
        return Found(best={})
    if method in {OWN, FIRST}:
        return _search_two_stages(done, p, first_only=method == FIRST)

    def of(rate: float, **more: float) -> Job:
        return Job("main", method, "tune", TUNING_SEED, {"lr": rate, **more})

    wanted, rate, trials, edge = search_rate(of, done, p.rates, p.edges)
    if wanted or rate is None:
        return Found(tuple(wanted), None, trials, edge)
    if method not in POOLED:
        return Found((), {"lr": rate}, trials, edge)
    wanted, best = _smaller_steps(of, rate, done)
    return Found(tuple(wanted), best, trials + 2, edge)


def _smaller_steps(
    of: Callable[..., Job], rate: float, done: Done
) -> tuple[list[Job], Mapping[str, float] | None]:
    """Whether smaller steps and more of them are better for a block that all roles teach.

    They want a lower rate, so the search is for that.
    """
    smaller = [of(rate, pooled=1), of(rate / 2, pooled=1)]
    if wanted := [one for one in smaller if one.key not in done]:
        return wanted, None
    return [], _best([of(rate), *smaller], done)


def _search_two_stages(done: Done, p: Protocol, *, first_only: bool) -> Found:
    share = p.shares[0]

    def first(rate: float, **more: float) -> Job:
        return Job("main", FIRST, "tune", TUNING_SEED, {"shared_lr": rate, "share": share, **more})

    wanted, rate, trials, edge = search_rate(first, done, p.rates, p.edges)
    if wanted or rate is None:
        return Found(tuple(wanted), None, trials, edge)
    wanted, shared = _smaller_steps(first, rate, done)
    trials += 2
    if wanted or shared is None or first_only:
        return Found(tuple(wanted), shared, trials, edge)

    def both(rate: float, share: float) -> Job:
        settings = {**shared, "lr": rate, "share": share}
        return Job("main", OWN, "tune", TUNING_SEED, settings)

    wanted, own, more, own_edge = search_rate(
        lambda rate: both(rate, share), done, p.rates, p.edges
    )
    trials, edge = trials + more, edge or own_edge
    if wanted or own is None:
        return Found(tuple(wanted), None, trials, edge)
    split = [both(own, one) for one in p.shares]
    if wanted := [one for one in split if one.key not in done]:
        return Found(tuple(wanted), None, trials, edge)
    return Found((), _best(split, done), trials + len(p.shares) - 1, edge)


def _best(jobs: Sequence[Job], done: Done) -> Mapping[str, float] | None:
    known = [
        (loss, n) for n, job in enumerate(jobs) if (loss := loss_of(done[job.key])) is not None
    ]
    return jobs[min(known)[1]].settings if known else None


def search_new(roles: Sequence[str], done: Done, p: Protocol) -> Found:
    """How far the tuning of a new role's rate has come: the mean over roles left out."""
    cast = search(OWN, done, p)
    if cast.wanted or cast.best is None:
        return Found(cast.wanted)
    jobs = [Job("leave-one-out", NEW, "tune", TUNING_SEED, dict(cast.best), out) for out in roles]
    if wanted := [job for job in jobs if job.key not in done]:
        return Found(tuple(wanted))
    means: dict[float, float] = {}
    for rate in p.new_rates:
        losses = [done[job.key]["rates"][f"{rate:g}"] for job in jobs]
        if None not in losses:
            means[rate] = sum(losses) / len(losses)
    if not means:
        return Found(trials=len(p.new_rates))
    best = min(means, key=lambda rate: means[rate])
    edge = best in {min(p.new_rates), max(p.new_rates)}
    return Found((), {**cast.best, "new_lr": best}, len(p.new_rates), edge)


def next_jobs(
    done: Done,
    roles: Sequence[str],
    p: Protocol,
    *,
    parts: Sequence[Part] = ("main", "leave-one-out"),
    methods: Sequence[str] = METHODS,
    seeds: Sequence[int] = (0, 1, 2),
    paper: bool = True,
) -> list[Job]:
    """What can run now and is not done, in the order of its worth; [] where all is done.

    Args:
        methods: of part main.
        paper: whether a new role is also fused from isolated blocks, as equation 7 does it.
    """
    jobs: list[Job] = []
    finals: list[Job] = []
    if "main" in parts:
        for method in methods:
            found = search(method, done, p)
            jobs += found.wanted
            if not found.wanted and found.best is not None:
                at = (0,) if method == BASE else seeds
                finals += [Job("main", method, "final", seed, found.best) for seed in at]
    if "leave-one-out" in parts:
        found = search_new(roles, done, p)
        jobs += found.wanted
        if not found.wanted and found.best is not None:
            best = found.best
            finals += [
                Job("leave-one-out", NEW, "final", seed, best, out)
                for seed in seeds
                for out in roles
            ]
        alone = search(ISOLATED, done, p) if paper else Found()
        jobs += alone.wanted
        if not alone.wanted and alone.best is not None:
            best = alone.best
            finals += [
                Job("leave-one-out", PAPER, "final", seed, best, out)
                for seed in seeds
                for out in roles
            ]
    # The searches first: others wait for them.
    return list({job.key: job for job in [*jobs, *finals] if job.key not in done}.values())
