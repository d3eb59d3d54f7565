"""Training the blocks of a whole cast in one pass over one frozen model.

An optimiser step takes a few rows of *each* character that is still learning. Their rows are pooled
and sorted by length (little padding), go through the base together, each under its own blocks, and
each character has a loss of its own: the mean over its supervised tokens of the step. Gradients of
blocks do not mix (`cast.stacked`), clipping, rate and count of steps are each block's own
(`cast.optimise`), so the result is that of training every adapter alone; only the base's work is
shared. A block that several characters teach (the shared one) learns from the mean of their losses.

Source: Neeko, section 3.1 (a block a role); the shared block first and the residual second, joint
batches and their measured gain: research/lora.md, sections 3, 6 and 8.

This module imports torch; import it inside functions (DESIGN rule 7).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from personae.cast.history import TrainingStep, mean_loss
from personae.cast.optimise import SlotAdamW
from personae.cast.plan import (
    Stage,
    TrainPlan,
    one_per_character,
    one_shared,
    slots_of,
    stages_of,
)
from personae.cast.stacked import StackedLoRA
from personae.errors import UsageError
from personae.journal.flow import NoWatcher, Watcher
from personae.records.cast import Block

if TYPE_CHECKING:
    from personae.cast.base import LoadedBase
    from personae.cast.encode import Encoded

__all__ = [
    "Stage",
    "TrainPlan",
    "Trained",
    "one_per_character",
    "one_shared",
    "slots_of",
    "stages_of",
    "train",
]


@dataclass(frozen=True)
class Trained:
    """What a training leaves.

    Attributes:
        stack: over the base's model, with what was learnt.
        history: one record a character and step (`cast.history`).
        blocks: of the slots that the stages name, in the stack's order; their `data` is the
            caller's to fill.
        padding: share of padding in all tokens that went through the base.
    """

    stack: StackedLoRA
    history: tuple[TrainingStep, ...]
    blocks: tuple[Block, ...]
    padding: float


@dataclass(frozen=True)
class _Row:
    encoded: Encoded
    tokens: Mapping[str, int]
    """Supervised tokens by the character that they teach."""


@dataclass(frozen=True)
class _Draw:
    """One step of a stage: which rows, for whom, and how far each is through its own."""

    rows: tuple[int, ...]
    epochs: Mapping[str, float]


def train(
    base: LoadedBase,
    encoded: Mapping[str, Sequence[Encoded]],
    plan: TrainPlan,
    *,
    stages: Sequence[Stage] | None = None,
    stack: StackedLoRA | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    hear: Callable[[Sequence[TrainingStep]], None] | None = None,
) -> Trained:
    """Train blocks over a frozen model.

    Args:
        base: the model; it stays on its device and in its dtype.
        encoded: rows by character. In mode `speaker` a row teaches everybody who speaks in it, and
            the same object may stand under each of them.
        stages: who trains what; None: those of `plan.protocol`. One more character on an existing
            cast is `Stage("expand", {NAME: {"shared": 1, NAME: 1}}, (NAME,), lr)`.
        stack: an existing one, whose slots the stages name; None: a new one over `base.model`.
        checkpoint: a directory for what is needed to go on after an interruption.
        resume: go on from there, if there is something; bit-equal to a run never interrupted (CPU).
        watcher: hears each optimiser step of each stage.
        hear: gets the records of each step and each check.

    Raises:
        UsageError: rows and stages do not fit, or a loss is not a finite number.
    """
    stages = tuple(stages) if stages is not None else stages_of(plan, tuple(encoded))
    rows = _rows(encoded, plan, stages)
    learning, watched = _apart(rows, plan)
    if stack is None:
        stack = StackedLoRA(
            base.model,
            slots_of(stages),
            rank=plan.rank,
            alpha=plan.alpha,
            targets=plan.targets,
            dropout=plan.dropout,
            seed=plan.seed,
        )
    for slot in slots_of(stages):
        stack.index(slot)
    run = _Training(base.model, stack, plan, learning, watched, watcher or NoWatcher(), hear)
    for stage in stages:
        run.stage(stage)
    return Trained(stack, tuple(run.history), _blocks(stack, stages, run), run.padding)


class _Training:
    """One training under way."""

    def __init__(
        self,
        model: Any,
        stack: StackedLoRA,
        plan: TrainPlan,
        learning: Sequence[_Row],
        watched: Sequence[_Row],
        watcher: Watcher,
        hear: Callable[[Sequence[TrainingStep]], None] | None,
    ) -> None:
        self.model, self.stack, self.plan = model, stack, plan
        self.learning, self.watched = learning, watched
        self.history: list[TrainingStep] = []
        self.steps: dict[str, int] = {}
        self._watcher, self._hear = watcher, hear
        self._real = self._padded = 0
        self._logits = _Supervised(model)

    @property
    def padding(self) -> float:
        return 1 - self._real / self._padded if self._padded else 0.0

    def stage(self, stage: Stage) -> None:
        draws = _draws(self.learning, stage, self.plan)
        optimiser = SlotAdamW(
            self.stack.parameters(),
            betas=self.plan.betas,
            eps=self.plan.eps,
            weight_decay=self.plan.weight_decay,
        )
        length = {
            slot: sum(any(slot in stage.learners(c) for c in draw.epochs) for draw in draws)
            for slot in stage.trains
        }
        done = dict.fromkeys(stage.trains, 0)
        self._watcher.begin(stage.name, len(draws))
        for number, draw in enumerate(draws, 1):
            taught = {c: stage.learners(c) for c in draw.epochs}
            teachers: dict[str, int] = {}
            for slots in taught.values():
                for slot in slots:
                    teachers[slot] = teachers.get(slot, 0) + 1
            rates = {
                slot: _rate(stage.lr, done[slot], length[slot], self.plan) for slot in teachers
            }
            optimiser.zero_grad()
            losses = self._gradients(stage, number, draw)
            norms = optimiser.step(
                {self.stack.index(slot): rate for slot, rate in rates.items()},
                clip=self.plan.clip,
                divide={self.stack.index(slot): n for slot, n in teachers.items()},
            )
            for slot in teachers:
                norm = norms[self.stack.index(slot)]
                if not math.isfinite(norm):
                    raise UsageError(
                        f"the gradient of block {slot!r} is not finite at step {number} of stage "
                        f"{stage.name!r}: lower its learning rate, or train with a float32 base"
                    )
                done[slot] += 1
                self.steps[slot] = self.steps.get(slot, 0) + 1
            self._tell(
                TrainingStep(
                    stage=stage.name,
                    step=number,
                    epoch=draw.epochs[character],
                    character=character,
                    loss=loss,
                    lr=max(rates[slot] for slot in taught[character]),
                    tokens=tokens,
                )
                for character, (loss, tokens) in losses.items()
            )
            self._watcher.step(stage.name)

    def _tell(self, records: Iterable[TrainingStep]) -> None:
        told = tuple(records)
        self.history.extend(told)
        if self._hear is not None:
            self._hear(told)

    def _gradients(self, stage: Stage, number: int, draw: _Draw) -> dict[str, tuple[float, int]]:
        """Gradients of a step, and each character's mean loss and number of tokens."""
        rows = [self.learning[r] for r in draw.rows]
        characters = tuple(draw.epochs)
        tokens = {c: sum(row.tokens.get(c, 0) for row in rows) for c in characters}
        share = torch.tensor([1 / tokens[c] for c in characters])
        sums = torch.zeros(len(characters), dtype=torch.float64)
        for part in _micro(rows, self.plan.micro_tokens):
            batch = _Batch.of(part, characters, stage, self.stack, self.plan.mode)
            with self.stack.speaking(batch.weights):
                logits = self._logits(batch)
            each = torch.nn.functional.cross_entropy(logits.float(), batch.labels, reduction="none")
            (each * share.to(each.device)[batch.whose]).sum().backward()  # type: ignore[no-untyped-call]
            sums.index_add_(0, batch.whose.cpu(), each.detach().double().cpu())
            self._real += batch.real
            self._padded += batch.ids.numel()
        losses = {}
        for character, total in zip(characters, sums.tolist(), strict=True):
            if not math.isfinite(total):
                raise UsageError(
                    f"the loss of {character!r} is not a finite number at step {number} of stage "
                    f"{stage.name!r}: lower the learning rate, or train with a float32 base"
                )
            losses[character] = (total / tokens[character], tokens[character])
        return losses


@dataclass(frozen=True)
class _Batch:
    """Rows side by side.

    Attributes:
        ids: `[rows, tokens]`, padded at the end (a causal model never looks there).
        weights: of slots, `[rows, S]` or `[rows, tokens, S]`.
        at: flat positions (into rows x tokens) whose next token is supervised, `[n]`.
        labels: that next token, `[n]`.
        whose: number of the character that it teaches, `[n]`.
        real: tokens that are no padding.
    """

    ids: Tensor
    weights: Tensor
    at: Tensor
    labels: Tensor
    whose: Tensor
    real: int

    @classmethod
    def of(
        cls,
        rows: Sequence[_Row],
        characters: Sequence[str],
        stage: Stage,
        stack: StackedLoRA,
        mode: str,
    ) -> _Batch:
        numbers = {name: n for n, name in enumerate(characters)}
        width = max(len(row.encoded.ids) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        speakers = list(stage.weights)
        seat = {name: n + 1 for n, name in enumerate(speakers)}
        seats = torch.zeros(len(rows), width, dtype=torch.long)
        at, labels, whose = [], [], []
        for r, row in enumerate(rows):
            one = row.encoded
            ids[r, : len(one.ids)] = torch.tensor(one.ids)
            if mode == "full":
                seats[r] = seat.get(one.character or "", 0)
            else:
                seats[r, : len(one.ids)] = torch.tensor([seat.get(s or "", 0) for s in one.speaker])
            for t, supervised in enumerate(one.supervised):
                who = one.character if mode == "full" else one.speaker[t]
                if supervised and who in numbers:
                    at.append(r * width + t - 1)
                    labels.append(one.ids[t])
                    whose.append(numbers[who])
        table = stack.weights([{}, *(stage.weights[name] for name in speakers)])
        device = table.device
        seats = seats.to(device)
        return cls(
            ids.to(device),
            table[seats[:, 0] if mode == "full" else seats],
            torch.tensor(at, device=device),
            torch.tensor(labels, device=device),
            torch.tensor(whose, device=device),
            sum(len(row.encoded.ids) for row in rows),
        )


class _Supervised:
    """The logits `[n, V]` of a batch's supervised positions.

    The output embedding is asked for those positions only: a hook on it drops the others before
    its product, so that whatever the architecture does around it (scales, soft caps) still
    happens. Whether that gives what the full logits give is checked once, on the first batch.
    """

    def __init__(self, model: Any) -> None:
        self._model, self._head = model, model.get_output_embeddings()
        self._sparse: bool | None = None if self._head is not None else False

    def __call__(self, batch: _Batch) -> Tensor:
        if self._sparse is None:
            self._sparse = self._agree(batch)
        return self._few(batch) if self._sparse else self._all(batch)

    def _forward(self, batch: _Batch) -> Tensor:
        logits: Tensor = self._model(
            input_ids=batch.ids, attention_mask=torch.ones_like(batch.ids), use_cache=False
        ).logits
        return logits

    def _all(self, batch: _Batch) -> Tensor:
        return self._forward(batch).flatten(0, 1)[batch.at]

    def _few(self, batch: _Batch) -> Tensor:
        def keep(module: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (given[0].flatten(0, 1)[batch.at][None], *given[1:])

        hook = self._head.register_forward_pre_hook(keep)
        try:
            return self._forward(batch)[0]
        finally:
            hook.remove()

    @torch.no_grad()
    def _agree(self, batch: _Batch) -> bool:
        full = self._all(batch).float()
        try:
            few = self._few(batch).float()
        except (RuntimeError, IndexError, ValueError):  # the model does more with its logits
            return False
        if few.shape != full.shape:
            return False
        return bool((few - full).abs().max() <= 1e-2 * full.abs().max().clamp_min(1e-3))


def _rows(
    encoded: Mapping[str, Sequence[Encoded]], plan: TrainPlan, stages: Sequence[Stage]
) -> list[_Row]:
    """Every row once, with the tokens that each character of the stages learns from it."""
    wanted = {name for stage in stages for name in stage.weights}
    if strange := sorted(wanted - set(encoded)):
        raise UsageError(f"{strange[0]!r} is to be trained and has no rows")
    found: dict[int, _Row] = {}
    for name, of_it in encoded.items():
        for one in of_it:
            if id(one) in found:
                continue
            if len(one.ids) > plan.max_tokens:
                raise UsageError(
                    f"a row of {name!r} has {len(one.ids)} tokens, more than {plan.max_tokens}"
                )
            tokens: dict[str, int] = {}
            for t, supervised in enumerate(one.supervised):
                who = one.character if plan.mode == "full" else one.speaker[t]
                if supervised and t and who in wanted:
                    tokens[who] = tokens.get(who, 0) + 1
            if tokens:
                found[id(one)] = _Row(one, tokens)
    taught = {name for row in found.values() for name in row.tokens}
    if silent := sorted(wanted - taught):
        raise UsageError(f"no row has a token that teaches {silent[0]!r}")
    return list(found.values())


def _apart(rows: Sequence[_Row], plan: TrainPlan) -> tuple[list[_Row], list[_Row]]:
    """Rows to learn from, and rows to watch: a share of each character's, at least one."""
    if not plan.development:
        return list(rows), []
    watched: set[int] = set()
    for name in dict.fromkeys(c for row in rows for c in row.tokens):
        own = [n for n, row in enumerate(rows) if name in row.tokens]
        if len(own) < 2:
            raise UsageError(
                f"{name!r} has one row: none can be kept apart to watch its loss; give more rows, "
                "or train without a development share"
            )
        random.Random(f"{plan.seed}/development/{name}").shuffle(own)  # noqa: S311
        watched.update(own[: max(1, min(len(own) - 1, round(plan.development * len(own))))])
    learning = [row for n, row in enumerate(rows) if n not in watched]
    left = {c for row in learning for c in row.tokens}
    for row in rows:
        if lost := [c for c in row.tokens if c not in left]:
            raise UsageError(
                f"all rows of {lost[0]!r} fell into the development share: lower it, or add rows"
            )
    return learning, [row for n, row in enumerate(rows) if n in watched]


@dataclass
class _Reader:
    """A character on its way through its rows."""

    own: list[int]
    budget: float
    left: list[int] = field(default_factory=list)
    epoch: int = 0
    rows: int = 0
    tokens: int = 0


def _draws(rows: Sequence[_Row], stage: Stage, plan: TrainPlan) -> list[_Draw]:
    """The steps of a stage, all of them, ahead: they depend on seed, rows and plan alone.

    The order of a character's rows depends on its name and not on who else is there. A step's share
    of an epoch is even (5 rows by 4 are 3 and 2).
    """
    readers = {}
    for name in stage.weights:
        if not stage.learners(name):
            continue
        own = [n for n, row in enumerate(rows) if name in row.tokens]
        if plan.tokens_per_role is None:
            budget = plan.epochs * stage.share * len(own)
        else:
            budget = plan.tokens_per_role * stage.share
        readers[name] = _Reader(own, budget)
    by_rows = plan.tokens_per_role is None
    draws: list[_Draw] = []
    while True:
        live = {
            n: r for n, r in readers.items() if (r.rows if by_rows else r.tokens) < r.budget - 1e-9
        }
        if not live:
            return draws
        taken: dict[int, None] = {}
        for name, reader in live.items():
            if not reader.left:
                reader.left = list(reader.own)
                key = f"{plan.seed}/{stage.name}/{name}/{reader.epoch}"
                random.Random(key).shuffle(reader.left)  # noqa: S311
                reader.epoch += 1
            steps = math.ceil(len(reader.left) / plan.batch_rows)
            want = math.ceil(len(reader.left) / steps)
            if by_rows:
                want = min(want, max(1, math.ceil(reader.budget - reader.rows - 1e-9)))
            have = sum(name in rows[n].tokens for n in taken)
            for n in reader.left:
                if have >= want:
                    break
                if n not in taken:
                    taken[n] = None
                    have += 1
        for reader_name, reader in live.items():
            seen = [n for n in taken if reader_name in rows[n].tokens]
            reader.left = [n for n in reader.left if n not in taken]
            reader.rows += len(seen)
            reader.tokens += sum(rows[n].tokens[reader_name] for n in seen)
        draws.append(_Draw(tuple(taken), {name: r.rows / len(r.own) for name, r in live.items()}))


def _micro(rows: Sequence[_Row], tokens: int) -> Iterator[list[_Row]]:
    """Rows of like length together, at most `tokens` (padding counted) or one row."""
    part: list[_Row] = []
    for row in sorted(rows, key=lambda row: -len(row.encoded.ids)):
        if part and (len(part) + 1) * len(part[0].encoded.ids) > tokens:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def _rate(highest: float, done: int, steps: int, plan: TrainPlan) -> float:
    """The rate of a block's next step: `done` of its `steps` are behind it."""
    warm = math.ceil(plan.warmup * steps)
    if done < warm:
        return highest * (done + 1) / warm
    if plan.schedule == "constant":
        return highest
    return highest * 0.5 * (1 + math.cos(math.pi * (done - warm) / max(1, steps - warm)))


def _blocks(stack: StackedLoRA, stages: Sequence[Stage], run: _Training) -> tuple[Block, ...]:
    made = []
    named = set(slots_of(stages))
    for slot in stack.slots:
        if slot not in named:
            continue
        taught = [
            record
            for stage in stages
            for record in run.history
            if record.stage == stage.name and slot in stage.learners(record.character)
        ]
        first = mean_loss([r for r in taught if r.epoch <= 1])
        last_epoch = {
            c: math.ceil(max(r.epoch for r in taught if r.character == c))
            for c in {r.character for r in taught}
        }
        last = mean_loss([r for r in taught if r.epoch > last_epoch[r.character] - 1])
        made.append(
            Block(
                name=slot,
                tokens=sum(r.tokens for r in taught if r.loss is not None),
                steps=run.steps.get(slot, 0),
                loss=None if first is None or last is None else (first, last),
            )
        )
    return tuple(made)
