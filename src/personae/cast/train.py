"""Training the blocks of a whole cast in one pass over one frozen model.

An optimiser step takes a few rows of *each* character that is still learning. Their rows are pooled
and sorted by length (little padding), go through the base together, each under its own blocks, and
each character has a loss of its own: the mean over its supervised tokens of the step. Gradients of
blocks do not mix (`cast.stacked`), clipping, rate and count of steps are each block's own
(`cast.optimise`), so the result is that of training every adapter alone; only the base's work is
shared. A block that several characters teach (the shared one) learns from the mean of their losses.
In mode `speaker` that holds between dialogues only: within one, later words look back at earlier
ones, so that a block learns to say its own lines, and also what helps the next speaker's.

Source: Neeko, section 3.1 (a block a role); the shared block first and the residual second, joint
batches and their measured gain: research/lora.md, sections 3, 6 and 8.

This module imports torch; import it inside functions (DESIGN rule 7).
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from personae.cast.base import still
from personae.cast.batches import (
    Row,
    Stack,
    SupervisedLogits,
    Voices,
    micro_batches,
    people_of,
    rows_of,
)
from personae.cast.checkpoint import Checkpoint, Progress
from personae.cast.history import TrainingStep, mean_loss
from personae.cast.optimise import SlotAdamW
from personae.cast.order import Draw, apart, draws_of, rate, seed_of, steps_a_pass
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
    "Stack",
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
        history: one record a character and step or check (`cast.history`).
        blocks: of what the stages train, in the stack's order; their `data` is the caller's to
            fill.
        stopped: blocks whose early stop ended their training.
        padding: share of padding in all tokens that went through the base in training.
    """

    stack: Any
    history: tuple[TrainingStep, ...]
    blocks: tuple[Block, ...]
    stopped: tuple[str, ...]
    padding: float


def train(
    base: LoadedBase,
    encoded: Mapping[str, Sequence[Encoded]],
    plan: TrainPlan,
    *,
    stages: Sequence[Stage] | None = None,
    stack: Stack | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    hear: Callable[[Sequence[TrainingStep]], None] | None = None,
) -> Trained:
    """Train blocks over a frozen model.

    On a CPU the same call gives the same bits. Where it raises, what was learnt so far is in the
    checkpoint, and in the stack, if one was given; one that was made here is taken off again.

    Args:
        base: the model; it stays on its device and in its dtype.
        encoded: rows by character (`encode_all`). In mode `speaker` a row teaches everybody who
            speaks in it, and the same object may stand under each of them.
        stages: who trains what; None: those of `plan.protocol`. One more character on an existing
            cast is `Stage("expand", {NAME: {"shared": 1, NAME: 1}}, (NAME,), lr)`.
        stack: an existing one, whose slots the stages name (its rank, alpha and targets hold, not
            the plan's); None: a new one over `base.model`.
        checkpoint: a directory for what is needed to go on after an interruption; written every
            minute, after each stage, and when something raises.
        resume: go on from there, if there is something; on a CPU the result is bit for bit that
            of a run never interrupted.
        watcher: hears each optimiser step of each stage.
        hear: gets the records of each step and each check.

    Raises:
        UsageError: rows and stages do not fit; a loss or a gradient is not a finite number (the
            step is not taken); the checkpoint is of another training, or there is one and `resume`
            is not asked for.
        OutputError: the checkpoint cannot be written.
    """
    stages = tuple(stages) if stages is not None else stages_of(plan, tuple(encoded))
    if len({stage.name for stage in stages}) < len(stages) or not stages:
        raise UsageError("a training needs stages, each with a name of its own")
    rows = rows_of(encoded, plan, stages)
    learning, watched = apart(rows, plan)
    slots = slots_of(stages)
    made = stack is None
    if stack is None:
        stack = StackedLoRA(
            base.model,
            slots,
            rank=plan.rank,
            alpha=plan.alpha,
            targets=plan.targets,
            seed=plan.seed,
            spare=0,
        )
    for slot in slots:
        stack.index(slot)
    named = [slot for slot in stack.slots if any(slot in stage.trains for stage in stages)]
    alone = (
        stack.only([s for s in stack.slots if s in slots])
        if isinstance(stack, StackedLoRA) and len(slots) < len(stack.parameters()[0])
        else contextlib.nullcontext()
    )
    with _cleared(stack, made), still(base.model), _dropping(stack, plan.dropout), alone:
        kept = (
            None if checkpoint is None else Checkpoint(checkpoint, stages, plan, rows, stack, base)
        )
        run = _Training(
            base.model,
            stack,
            plan,
            people_of(stages),
            learning,
            watched,
            kept,
            watcher or NoWatcher(),
            hear,
        )
        if kept is not None:
            kept.begin(resume, run.now)
        for number in range(run.now.state.stage, len(stages)):
            run.stage(number, stages[number])
    history = tuple(run.now.state.history)
    return Trained(
        stack,
        history,
        tuple(_block(slot, stages, history, run.now.state.steps.get(slot, 0)) for slot in named),
        tuple(slot for slot in named if slot in run.now.state.stopped),
        run.now.state.padding,
    )


@contextlib.contextmanager
def _cleared(stack: Stack, made: bool) -> Iterator[None]:
    """Afterwards no gradients are held, and where it raises, no stack that nobody else knows of."""
    try:
        yield
    except BaseException:
        if made:
            stack.detach()
        raise
    finally:
        for parameter in stack.parameters():
            parameter.grad = None


@contextlib.contextmanager
def _dropping(stack: Stack, share: float) -> Iterator[None]:
    """The plan's dropout in the blocks; when it works, each step says (`_Training._noise`)."""
    before = {name: layer.dropout for name, layer in stack.layers.items()}
    for layer in stack.layers.values():
        layer.dropout = share
    try:
        yield
    finally:
        for name, layer in stack.layers.items():
            layer.dropout = before[name]


class _Training:
    """One training under way."""

    def __init__(
        self,
        model: Any,
        stack: Stack,
        plan: TrainPlan,
        people: Sequence[str],
        learning: Sequence[Row],
        watched: Sequence[Row],
        checkpoint: Checkpoint | None,
        watcher: Watcher,
        hear: Callable[[Sequence[TrainingStep]], None] | None,
    ) -> None:
        self.stack, self.plan, self.people = stack, plan, people
        self.learning, self.watched = learning, watched
        self.now = Progress(stack, self._new_optimiser)
        self._checkpoint, self._watcher, self._hear = checkpoint, watcher, hear
        self._logits = SupervisedLogits(model)
        self._whole = True
        given = plan.micro_tokens
        self._micro = given or (8192 if stack.device.type == "cuda" else 2048)

    def _new_optimiser(self) -> SlotAdamW:
        """AdamW without a past: each stage begins with one."""
        plan = self.plan
        return SlotAdamW(
            self.stack.parameters(),
            betas=plan.betas,
            eps=plan.eps,
            weight_decay=plan.weight_decay,
        )

    def stage(self, number: int, stage: Stage) -> None:
        """Train one stage, from where the state says."""
        state = self.now.state
        draws = draws_of(self.learning, stage, self.plan)
        if state.stage != number or self.now.optimiser is None:
            self.now.optimiser = self._new_optimiser()
            self.now.best = {}
            state.stage, state.step, state.best = number, 0, {}
            state.done = dict.fromkeys(stage.trains, 0)
            state.stopped = [slot for slot in state.stopped if slot not in stage.trains]
            state.unchecked = list(stage.trains)
        length = {
            slot: sum(any(slot in stage.learners(c) for c in draw.epochs) for draw in draws)
            for slot in stage.trains
        }
        voices = Voices(self.stack, stage, self.people)
        every = self.plan.check_every or steps_a_pass(self.learning, stage, self.plan)

        def due(step: int) -> bool:
            return bool(self.watched) and (step % every == 0 or step == len(draws))

        self._watcher.begin(stage.name, len(draws))
        for _ in range(state.step):
            self._watcher.step(stage.name)
        first = next(micro_batches(self.learning[:1], 1))
        batch = voices.batch(first, tuple(first[0].tokens))
        with self.stack.speaking(batch.weights):
            self._logits.check(batch)
        try:
            if due(state.step):  # of the beginning, or one that an interruption came before
                self._check(stage, voices)
            for step in range(state.step + 1, len(draws) + 1):
                self._step(stage, voices, draws[step - 1], step, length)
                if due(step):
                    self._check(stage, voices)
                self._watcher.step(stage.name)
                if self._checkpoint is not None:
                    self._checkpoint.maybe(self.now)
        except BaseException:
            if self._checkpoint is not None and self._whole:
                self._checkpoint.write(self.now)
            raise
        finally:
            self._rest(stage.trains)
        state.stage, state.step = number + 1, 0
        self.now.optimiser = None
        self.now.best = {}
        if self._checkpoint is not None:
            self._checkpoint.write(self.now)

    def _step(
        self,
        stage: Stage,
        voices: Voices,
        draw: Draw,
        step: int,
        length: Mapping[str, int],
    ) -> None:
        """One optimiser step, if anybody of the draw is still learning."""
        state, stack = self.now.state, self.stack
        assert self.now.optimiser is not None
        taught = {
            c: slots
            for c in draw.epochs
            if (slots := [s for s in stage.learners(c) if s not in state.stopped])
        }
        if not taught:
            state.step = step
            return
        teachers: dict[str, int] = {}
        for slots in taught.values():
            for slot in slots:
                teachers[slot] = teachers.get(slot, 0) + 1
        rates = {
            slot: rate(stage.lr, state.done[slot], length[slot], self.plan) for slot in teachers
        }
        self.now.optimiser.zero_grad()
        rows = [row for n in draw.rows if taught.keys() & (row := self.learning[n]).tokens.keys()]
        with self._noise(stage, step):
            losses, real, padded = self._losses(rows, tuple(taught), voices, learn=True)
        if not _finite(losses):
            # In one batch a broken block can break others' losses: name those broken by themselves.
            own = {
                c: self._losses([r for r in rows if c in r.tokens], (c,), voices, learn=False)[0][c]
                for c in taught
            }
            raise _broken(losses if _finite(own) else own, "loss", step, stage)
        self._whole = False
        norms = self.now.optimiser.step(
            {stack.index(slot): rate for slot, rate in rates.items()},
            clip=self.plan.clip,
            divide={stack.index(slot): float(n) for slot, n in teachers.items()},
        )
        for slot in teachers:
            if not math.isfinite(norms[stack.index(slot)]):
                self._whole = True  # the optimiser changed nothing
                raise UsageError(
                    f"the gradient of block {slot!r} is not a finite number at step {step} of "
                    f"stage {stage.name!r}; {_MEND}"
                )
        for slot in teachers:
            state.done[slot] += 1
            state.steps[slot] = state.steps.get(slot, 0) + 1
            if slot not in state.unchecked:
                state.unchecked.append(slot)
        state.real += real
        state.padded += padded
        state.step = step
        records = [
            TrainingStep(
                stage=stage.name,
                step=step,
                epoch=draw.epochs[character],
                character=character,
                loss=loss,
                lr=max(rates[slot] for slot in taught[character]),
                tokens=tokens,
            )
            for character, (loss, tokens) in losses.items()
        ]
        state.history.extend(records)
        self._whole = True
        if self._hear is not None:
            self._hear(records)

    def _check(self, stage: Stage, voices: Voices) -> None:
        """The development loss of all whose blocks have moved; blocks may stop."""
        state, stack = self.now.state, self.stack
        moved = [s for s in state.unchecked if s not in state.stopped]
        characters = tuple(c for c in stage.weights if any(s in moved for s in stage.learners(c)))
        if not characters:
            return
        rows = [row for row in self.watched if any(c in row.tokens for c in characters)]
        losses, _, _ = self._losses(rows, characters, voices, learn=False)
        if not _finite(losses):
            raise _broken(losses, "development loss", state.step, stage)
        self._whole = False
        state.unchecked = []
        epochs = {r.character: r.epoch for r in state.history if r.stage == stage.name}
        records = [
            TrainingStep(
                stage=stage.name,
                step=state.step,
                epoch=epochs.get(character, 0.0),
                character=character,
                dev_loss=loss,
                lr=0.0,
                tokens=tokens,
            )
            for character, (loss, tokens) in losses.items()
        ]
        state.history.extend(records)
        if self.plan.patience is not None:
            for slot in moved:
                own = [losses[c][0] for c in characters if slot in stage.learners(c)]
                loss = statistics.fmean(own)
                best, waited = state.best.get(slot, (math.inf, 0))
                if loss < best:
                    state.best[slot] = (loss, 0)
                    at = stack.index(slot)
                    self.now.best[slot] = [p.detach()[at].clone() for p in stack.parameters()]
                else:
                    state.best[slot] = (best, waited + 1)
                    if waited + 1 >= self.plan.patience:
                        state.stopped.append(slot)
                        self._rest((slot,))
        self._whole = True
        if self._hear is not None:
            self._hear(records)

    @torch.no_grad()
    def _rest(self, slots: Iterable[str]) -> None:
        """Put blocks into their best state, where one is known."""
        for slot in slots:
            if slot in self.now.best:
                at = self.stack.index(slot)
                for parameter, best in zip(
                    self.stack.parameters(), self.now.best[slot], strict=True
                ):
                    parameter[at].copy_(best)

    @contextlib.contextmanager
    def _noise(self, stage: Stage, step: int) -> Iterator[None]:
        """Dropout on, from a seed of the step's own: a step is the same after a resume."""
        if not self.plan.dropout:
            yield
            return
        device = self.stack.device
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed_of(f"{self.plan.seed}/{stage.name}/dropout/{step}"))
            for layer in self.stack.layers.values():
                layer.training = True
            try:
                yield
            finally:
                for layer in self.stack.layers.values():
                    layer.training = False

    def _losses(
        self, rows: Sequence[Row], characters: Sequence[str], voices: Voices, *, learn: bool
    ) -> tuple[dict[str, tuple[float, int]], int, int]:
        """Each character's mean loss and number of tokens; real and all tokens.

        With `learn`, the gradients of the sum of the means are added to the blocks'.
        """
        tokens = {c: sum(row.tokens.get(c, 0) for row in rows) for c in characters}
        device = self.stack.device
        share = torch.tensor([1 / tokens[c] for c in characters], device=device)
        exact = torch.float32 if device.type == "mps" else torch.float64
        sums = torch.zeros(len(characters), dtype=exact, device=device)
        real = padded = 0
        for part in micro_batches(rows, self._micro if learn else 2 * self._micro):
            batch = voices.batch(part, characters)
            with torch.set_grad_enabled(learn), voices.speaking(batch, learn=learn):
                logits = self._logits(batch)
                each = nn.functional.cross_entropy(logits.float(), batch.labels, reduction="none")
                if learn:
                    total: Any = (each * share[batch.whose]).sum()
                    total.backward()
            sums.index_add_(0, batch.whose, each.detach().to(exact))
            real += batch.real
            padded += batch.ids.numel()
        losses = {
            c: (s / tokens[c], tokens[c]) for c, s in zip(characters, sums.tolist(), strict=True)
        }
        return losses, real, padded


_MEND = (
    "the step was not taken: lower the learning rate, or train with a float32 base (all steps "
    "before it are kept, in the checkpoint too, where there is one)"
)


def _finite(losses: Mapping[str, tuple[float, int]]) -> bool:
    return all(math.isfinite(loss) for loss, _ in losses.values())


def _broken(
    losses: Mapping[str, tuple[float, int]], what: str, step: int, stage: Stage
) -> UsageError:
    names = [repr(c) for c, (loss, _) in losses.items() if not math.isfinite(loss)]
    return UsageError(
        f"the {what} of {', '.join(names)} is not a finite number at step {step} of stage "
        f"{stage.name!r}; {_MEND}"
    )


def _block(
    slot: str, stages: Sequence[Stage], history: Sequence[TrainingStep], steps: int
) -> Block:
    """What a slot was trained on, from the history."""
    taught: dict[tuple[str, str], list[TrainingStep]] = {}
    by_name = {stage.name: stage for stage in stages}
    for record in history:
        learners = by_name[record.stage].learners(record.character)
        if record.loss is not None and slot in learners:
            taught.setdefault((record.stage, record.character), []).append(record)
    first = mean_loss([r for of_one in taught.values() for r in of_one if r.epoch <= 1])
    last = mean_loss(
        [
            r
            for of_one in taught.values()
            for r in of_one
            if r.epoch > math.ceil(max(one.epoch for one in of_one)) - 1
        ]
    )
    return Block(
        name=slot,
        tokens=sum(r.tokens for of_one in taught.values() for r in of_one),
        steps=steps,
        loss=None if first is None or last is None else (first, last),
    )
