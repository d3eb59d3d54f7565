"""One job of the experiment, done with the product's own trainer, evaluation and fusion.

Imports torch; a process that does jobs loads the base once (`Bench`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import quality_plan as plans
import torch
from quality_data import Role, digest, load
from quality_plan import Job, Protocol

from personae.cast.base import LoadedBase, load_base
from personae.cast.encode import Encoded, encode
from personae.cast.evaluate import score_rows
from personae.cast.expand import expanded_weights, first_slot
from personae.cast.forgetting import profile_text
from personae.cast.fuse import eq7_error, paper_fuse, tune_weights
from personae.cast.layout import layout_of
from personae.cast.plan import Stage, TrainPlan, one_per_character, one_shared, stages_of
from personae.cast.router import Router
from personae.cast.stacked import StackedLoRA
from personae.cast.train import Trained, train
from personae.errors import UsageError
from personae.records.cast import SHARED, CastRow

EVERYBODY = "everybody"
"""Whose rows they are where one shared LoRA takes them from one pool."""
FUSED_AS_WRITTEN = "equation 7"
SCORE_TOKENS = 32_768
Scores = list[list[float]]
"""`[nats, tokens]` of each held-out answer."""
Rows = Mapping[str, Sequence[Encoded]]
Weights = Mapping[str, Mapping[str, float]]
"""Of blocks, by role."""


@dataclass(frozen=True)
class _Leg:
    """A training of some stages on some rows; a method's legs share a stack."""

    rows: Rows
    plan: TrainPlan
    stages: Sequence[Stage]


class Bench:
    """A base, the data as it sees them, and what to do with both.

    Args:
        base: `local`, or a Hugging Face directory.
        data: `data/neeko`.
    """

    def __init__(self, base: str, data: Path, protocol: Protocol, *, device: str | None) -> None:
        torch.set_num_threads(1)
        self.p = protocol
        dtype = "bfloat16" if protocol.precision == "bfloat16" else "float32"
        self.base: LoadedBase = load_base(base, dtype=dtype, device=device)
        self.roles: dict[str, Role] = load(data, development=protocol.development)
        self.names = tuple(self.roles)
        self._layout = layout_of(self.base.tokenizer)
        self.train = {n: self.encoded(r.train) for n, r in self.roles.items()}
        self.development = {n: self.encoded(r.development) for n, r in self.roles.items()}
        self.held = {n: self.encoded(r.held, whole=True) for n, r in self.roles.items()}
        self.samples = {
            n: self.encoded([first_answer(row) for row in r.train[: protocol.samples]])
            for n, r in self.roles.items()
        }
        self.told = {
            n: self.encoded(r.held, profile=r.profile.description) for n, r in self.roles.items()
        }

    def about(self) -> dict[str, Any]:
        """What all results share."""
        cuda = torch.cuda.is_available() and self.base.model.device.type == "cuda"
        return {
            "protocol": self.p.to_dict(),
            "base": self.base.ref.sha256[:16],
            "data": digest(self.roles),
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "torch": torch.__version__,
        }

    def encoded(
        self, rows: Sequence[CastRow], *, profile: str = "", whole: bool = False
    ) -> list[Encoded]:
        """Rows as token ids, one each.

        Args:
            profile: told of the character in the system message.
            whole: whether all turns must fit.

        Raises:
            UsageError: a row does not fit.
        """
        found = []
        for row in rows:
            (name,) = row.characters
            told = {name: profile} if profile else None
            made = encode(row, self._layout, "full", self.p.max_tokens, profiles=told)
            if len(made) != 1 or (whole and made[0].cut):
                raise UsageError(f"{row.source} does not fit into {self.p.max_tokens} tokens")
            found += made
        return found

    def run(self, job: Job) -> dict[str, Any]:
        """Do a job; what comes back is JSON."""
        began = time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        if job.part == "main":
            found = self._main(job)
        elif job.method == plans.NEW:
            found = self._new(job)
        else:
            found = self._paper(job)
        peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
        return {
            "key": job.key,
            "job": job.to_dict(),
            **found,
            "seconds": round(time.perf_counter() - began, 2),
            "peak_gib": peak and round(peak, 2),
        }

    # Part main: how a method is trained, and what it is scored on.

    def _main(self, job: Job) -> dict[str, Any]:
        if job.method == plans.BASE:
            return self._all_roles(None, {name: {} for name in self.names}, job)
        with self._trained(job, self.names) as made:
            if made is None:
                return {"development": None}
            stack, trained, weights = made
            try:
                return {**self._all_roles(stack, weights, job), **_course(*trained)}
            except UsageError as error:
                if job.purpose == "final" or not diverged(error):
                    raise
                return {"development": None}

    def _all_roles(self, stack: StackedLoRA | None, weights: Weights, job: Job) -> dict[str, Any]:
        each = {n: self._per_token(stack, self.development[n], weights[n]) for n in self.names}
        found: dict[str, Any] = {
            "development": sum(each.values()) / len(each),
            "development_roles": each,
        }
        if job.purpose == "final":
            found["held"] = {n: self._scores(stack, self.held[n], weights[n]) for n in self.names}
        return found

    @contextlib.contextmanager
    def _trained(
        self, job: Job, names: Sequence[str], spare: Sequence[str] = ()
    ) -> Iterator[tuple[StackedLoRA, list[Trained], Weights] | None]:
        """A method's blocks over the base, and what each role speaks through; None: diverged."""
        legs = self._legs(job, names)
        stages = [stage for leg in legs for stage in leg.stages]
        slots = dict.fromkeys(s for one in stages for w in one.weights.values() for s in w)
        last = stages[-1].weights
        weights = {name: last.get(name, {SHARED: 1.0}) for name in names}
        with self._stack((*slots, *spare), legs[0].plan) as stack:
            done = []
            for leg in legs:
                trained = self._train(leg.rows, leg.plan, leg.stages, stack)
                if trained is None:
                    break
                done.append(trained)
            yield (stack, done, weights) if len(done) == len(legs) else None

    def _legs(self, job: Job, names: Sequence[str]) -> list[_Leg]:
        """One training, or two where the shared block takes its rows from one pool."""
        plan = self._plan(job, len(self.names))
        rows: Rows = {name: self.train[name] for name in names}
        if not job.settings.get("pooled"):
            return [_Leg(rows, plan, stages_for(job, names, plan))]
        rate = job.settings["shared_lr" if "shared_lr" in job.settings else "lr"]
        budget = job.settings.get("share", 1.0) * self.p.tokens * len(names)
        pool = _Leg(
            {EVERYBODY: [replace(row, character=EVERYBODY) for of in rows.values() for row in of]},
            replace(plan, tokens_per_role=round(budget), batch_rows=self.p.pooled_rows),
            one_shared([EVERYBODY], rate),
        )
        own = [_Leg(rows, plan, stages_of(plan, names)[1:])] if job.method == plans.OWN else []
        return [pool, *own]

    def _plan(self, job: Job, roles: int) -> TrainPlan:
        p, rank = self.p, rank_of(job.method, self.p.rank, roles)
        share = job.settings.get("share")
        first = job.method == plans.FIRST
        return TrainPlan(
            rank=rank,
            alpha=2.0 * rank,
            lr=job.settings.get("lr", 1e-3),
            shared_lr=job.settings.get("shared_lr", 1e-3),
            shared_share=share or 0.5,
            tokens_per_role=round(p.tokens * share) if first and share else p.tokens,
            batch_rows=p.batch_rows,
            micro_tokens=p.micro_tokens,
            warmup=p.warmup,
            schedule=p.schedule,
            seed=job.seed,
            max_tokens=p.max_tokens,
        )

    @contextlib.contextmanager
    def _stack(self, slots: Sequence[str], plan: TrainPlan) -> Iterator[StackedLoRA]:
        stack = StackedLoRA(
            self.base.model, slots, rank=plan.rank, alpha=plan.alpha, targets=plan.targets,
            seed=plan.seed,
        )  # fmt: skip
        try:
            yield stack
        finally:
            stack.detach()

    def _train(
        self,
        rows: Rows,
        plan: TrainPlan,
        stages: Sequence[Stage],
        stack: StackedLoRA,
    ) -> Trained | None:
        """None where the rate was too high: a loss or a gradient that is not finite."""
        with precision(self.p.precision):
            try:
                return train(self.base, rows, plan, stages=stages, stack=stack)
            except UsageError as error:
                if not diverged(error):
                    raise
                return None

    def _scores(
        self, stack: StackedLoRA | None, rows: Sequence[Encoded], weights: Mapping[str, float]
    ) -> Scores:
        """Always in full float32, whatever trained."""
        with precision("float32"):
            found = score_rows(
                self.base, stack, rows, [weights] * len(rows), batch_tokens=SCORE_TOKENS
            )
        return [[round(one.nll, 5), one.tokens] for one in found]

    def _per_token(
        self, stack: StackedLoRA | None, rows: Sequence[Encoded], weights: Mapping[str, float]
    ) -> float:
        nats, tokens = np.sum(self._scores(stack, rows, weights), axis=0)
        return float(nats / tokens)

    # Part leave-one-out.

    def _new(self, job: Job) -> dict[str, Any]:
        out, names = job.out, [name for name in self.names if name != job.out]
        cast = replace(job, method=plans.OWN)
        with self._trained(cast, names, spare=(out,)) as made:
            if made is None:
                raise UsageError(f"the cast without {out} diverged at {dict(job.settings)}")
            stack, trained, spoken = made
            near = self._neighbours(out, names)
            by_router = {SHARED: 1.0, **near}

            def expand(rate: float) -> Trained | None:
                self._put(stack, out, first_slot(stack.state(), job.seed))
                plan = replace(self._plan(cast, len(self.names)), lr=rate)
                stage = Stage("expand", {out: expanded_weights(by_router, out)}, (out,), rate)
                return self._train({out: self.train[out]}, plan, [stage], stack)

            found: dict[str, Any] = {"neighbours": near, **_course(*trained)}
            if job.purpose == "tune":
                found["rates"] = {}
                for rate in self.p.new_rates:
                    done = expand(rate)
                    found["rates"][f"{rate:g}"] = done and self._per_token(
                        stack, self.development[out], expanded_weights(by_router, out)
                    )
                return found
            tuned = tune_weights(
                lambda weights: self._per_token(stack, self.samples[out], {SHARED: 1.0, **weights}),
                near if len(near) > 1 else dict.fromkeys(names, 1 / len(names)),
                lines=len(self.samples[out]),
                budget=self.p.evaluations,
                seed=job.seed,
            )
            state = stack.state()
            omega = [near.get(slot, 0.0) for slot in stack.slots]
            stack.add_slot(FUSED_AS_WRITTEN, paper_fuse(state, omega))
            held, told = self.held[out], self.told[out]
            found["held"] = {
                "base": self._base(stack, held),
                "base, profile": self._base(stack, told),
                "shared alone": self._scores(stack, held, {SHARED: 1.0}),
                "profile": self._scores(stack, told, {SHARED: 1.0}),
                "equation 7": self._scores(stack, held, {SHARED: 1.0, FUSED_AS_WRITTEN: 1.0}),
                "fusion": self._scores(stack, held, by_router),
                "fusion, tuned": self._scores(stack, held, {SHARED: 1.0, **tuned.weights}),
            }
            old = {n: self._scores(stack, self.development[n], spoken[n]) for n in names}
            done = expand(job.settings["new_lr"])
            if done is None:
                raise UsageError(f"expansion by {out} diverged at {dict(job.settings)}")
            found["held"]["expansion"] = self._scores(stack, held, expanded_weights(by_router, out))
            after = {n: self._scores(stack, self.development[n], spoken[n]) for n in names}
            return {
                **found,
                "tuned": tuned.weights,
                "evaluations": tuned.evaluations,
                "eq7_error": eq7_error(state, omega),
                "old_unchanged": old == after,
                "expansion_course": _course(done),
            }

    def _paper(self, job: Job) -> dict[str, Any]:
        out, names = job.out, [name for name in self.names if name != job.out]
        isolated = replace(job, method=plans.ISOLATED)
        with self._trained(isolated, names) as made:
            if made is None:
                raise UsageError(f"the cast without {out} diverged at {dict(job.settings)}")
            stack, trained, _ = made
            near = self._neighbours(out, names)
            state = stack.state()
            omega = [near.get(slot, 0.0) for slot in stack.slots]
            stack.add_slot(FUSED_AS_WRITTEN, paper_fuse(state, omega))
            held = self.held[out]
            return {
                "neighbours": near,
                "eq7_error": eq7_error(state, omega),
                "held": {
                    "isolated, equation 7": self._scores(stack, held, {FUSED_AS_WRITTEN: 1.0}),
                    "isolated, fusion": self._scores(stack, held, near),
                },
                **_course(*trained),
            }

    def _base(self, stack: StackedLoRA, rows: Sequence[Encoded]) -> Scores:
        """The base alone; the stack that lies over it is switched off."""
        return self._scores(stack, rows, {})

    def _neighbours(self, out: str, names: Sequence[str]) -> dict[str, float]:
        """The router's weights for a stranger's profile, from the profiles of the others."""
        router = Router.from_characters({name: self.roles[name].profile for name in names})
        near = router.neighbours(profile_text(self.roles[out].profile))
        if not near:
            raise UsageError(f"nothing of the profile of {out} is in the others'")
        return near

    def _put(self, stack: StackedLoRA, slot: str, block: Mapping[str, Any]) -> None:
        """A block's numbers into its slot."""
        index = stack.index(slot)
        with torch.no_grad():
            for name, layer in stack.layers.items():
                layer.a[index] = torch.from_numpy(block[f"A.{name}"]).to(layer.a)
                layer.b[index] = torch.from_numpy(block[f"B.{name}"]).to(layer.b)


def rank_of(method: str, rank: int, roles: int) -> int:
    """The rank of a method's blocks; shared + own has `rank * (roles + 1)` in all."""
    return {
        plans.SHARED_TOTAL: rank * (roles + 1),
        plans.SHARED_ACTIVE: 2 * rank,
        plans.ISOLATED_ACTIVE: 2 * rank,
    }.get(method, rank)


def stages_for(job: Job, names: Sequence[str], plan: TrainPlan) -> tuple[Stage, ...]:
    """Who trains what under a method."""
    if job.method in {plans.SHARED_TOTAL, plans.SHARED_ACTIVE}:
        return one_shared(names, job.settings["lr"])
    if job.method == plans.FIRST:
        return one_shared(names, job.settings["shared_lr"])
    if job.method in {plans.ISOLATED, plans.ISOLATED_ACTIVE}:
        return one_per_character(names, job.settings["lr"])
    if job.method == plans.OWN:
        return stages_of(plan, names)
    weights = {name: {SHARED: 1.0, name: 1.0} for name in names}
    return (Stage("together", weights, (SHARED, *names), job.settings["lr"]),)


def first_answer(row: CastRow) -> CastRow:
    """A dialogue up to the end of its character's first answer."""
    (name,) = row.characters
    last = next(n for n, turn in enumerate(row.turns) if turn.speaker == name)
    return row.model_copy(update={"turns": row.turns[: last + 1]})


def diverged(error: UsageError) -> bool:
    """Whether it says that a loss, a gradient or a likelihood is not a finite number."""
    return "finite" in str(error)


@contextlib.contextmanager
def precision(kind: str) -> Iterator[None]:
    """Matrix products of float32 in TF32 within it, or in full."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _course(*trainings: Trained) -> dict[str, Any]:
    blocks = {block.name: block for one in trainings for block in one.blocks if block.steps}
    return {
        "steps": {name: block.steps for name, block in blocks.items()},
        "tokens": {name: block.tokens for name, block in blocks.items()},
        "loss": {name: block.loss for name, block in blocks.items()},
        "padding": [round(one.padding, 4) for one in trainings],
    }
