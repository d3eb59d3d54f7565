"""From encoded rows to batches: who is taught by which token, and through whose blocks it goes.

This module imports torch; import it inside functions (DESIGN rule 7).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from personae.cast.plan import Stage, TrainPlan
from personae.cast.stacked import Mix, StackedLoRA
from personae.errors import UsageError

if TYPE_CHECKING:
    from personae.cast.encode import Encoded


class Stack(Protocol):
    """What the trainer asks of blocks over a model: `StackedLoRA`, or `densegate.DenseGate`."""

    @property
    def slots(self) -> tuple[str, ...]:
        """What can be trained, in order."""
        ...

    @property
    def layers(self) -> Mapping[str, Any]:
        """Modules with `dropout` and `training`."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the blocks lie."""
        ...

    def index(self, slot: str) -> int:
        """The place of a slot in the parameters' first dimension."""
        ...

    def weights(self, rows: Sequence[Mapping[str, float]]) -> Tensor:
        """`[rows, S]`."""
        ...

    def speaking(self, weights: Any) -> AbstractContextManager[None]:
        """Within it the model's forward passes use these weights."""
        ...

    def parameters(self) -> list[nn.Parameter]:
        """`[S, ...]` each, float32."""
        ...

    def detach(self) -> None:
        """Put the model's own modules back."""
        ...


@dataclass(frozen=True)
class Row:
    """A training row; people are numbered in the order of `people_of`.

    Attributes:
        ids: `[T]`.
        at: positions whose next token is supervised, `[n]`. labels: that token, `[n]`.
        whose: number of the person that it teaches, `[n]`.
        seats: 1 + number of the person through whose blocks each token goes, `[T]`, or all of
            them, `[1]`; 0: the base alone.
        tokens: supervised tokens by the character that they teach.
    """

    ids: Tensor
    at: Tensor
    labels: Tensor
    whose: Tensor
    seats: Tensor
    tokens: Mapping[str, int]


def people_of(stages: Sequence[Stage]) -> tuple[str, ...]:
    """Everybody that stages give weights to, in their order."""
    return tuple(dict.fromkeys(name for stage in stages for name in stage.weights))


def rows_of(
    encoded: Mapping[str, Sequence[Encoded]], plan: TrainPlan, stages: Sequence[Stage]
) -> list[Row]:
    """Every row that teaches somebody, once."""
    people = {name: number for number, name in enumerate(people_of(stages))}
    taught = {name for stage in stages for name in stage.weights if stage.learners(name)}
    found: dict[int, Row] = {}
    for name, of_it in encoded.items():
        for one in of_it:
            if plan.mode == "full" and one.character != name:
                raise UsageError(
                    f"a row of {one.character!r} ({one.row}) stands under {name!r}; encode it in "
                    "mode full, or train in mode speaker"
                )
            if id(one) in found:
                continue
            if not len(one.ids) == len(one.supervised) == len(one.speaker):
                raise UsageError(f"a row of {name!r} ({one.row}) has marks for other tokens")
            if len(one.ids) > plan.max_tokens:
                raise UsageError(
                    f"a row of {name!r} ({one.row}) has {len(one.ids)} tokens, more than "
                    f"{plan.max_tokens}"
                )
            speakers = one.speaker if plan.mode == "speaker" else (one.character,) * len(one.ids)
            at = [
                t
                for t, (supervised, who) in enumerate(zip(one.supervised, speakers, strict=True))
                if t and supervised and who in taught
            ]
            if not at:
                continue
            whose = [people[speakers[t] or ""] for t in at]
            seats = [people.get(who or "", -1) + 1 for who in speakers]
            tokens: dict[str, int] = {}
            for t in at:
                tokens[speakers[t] or ""] = tokens.get(speakers[t] or "", 0) + 1
            ids = torch.tensor(one.ids)
            found[id(one)] = Row(
                ids,
                torch.tensor(at) - 1,
                ids[at],
                torch.tensor(whose),
                torch.tensor(seats if plan.mode == "speaker" else seats[:1]),
                tokens,
            )
    learnt = {name for row in found.values() for name in row.tokens}
    if silent := [name for name in people if name in taught - learnt]:
        raise UsageError(f"{silent[0]!r} is to be trained, and no row has a token that teaches it")
    return list(found.values())


@dataclass(frozen=True)
class Batch:
    """Rows side by side.

    Attributes:
        ids: `[rows, T]`, padded at the end (where a causal model's other tokens never look).
        weights: of slots, for `Stack.speaking`.
        at: flat positions (in rows x T) whose next token is supervised, `[n]`.
        labels: that token, `[n]`.
        whose: which of the batch's characters it teaches, `[n]`.
        real: tokens that are no padding.
    """

    ids: Tensor
    weights: Tensor | Mix
    at: Tensor
    labels: Tensor
    whose: Tensor
    real: int


class Voices:
    """What everybody speaks through in a stage."""

    def __init__(self, stack: Stack, stage: Stage, people: Sequence[str]) -> None:
        self._stack = stack
        self._numbers = {name: number for number, name in enumerate(people)}
        # On the CPU: which slots work is found out there, and a GPU need not be waited for.
        self._table = stack.weights([{}, *(stage.weights.get(name, {}) for name in people)]).cpu()

    def batch(self, rows: Sequence[Row], characters: Sequence[str]) -> Batch:
        """Rows side by side, for the losses of these characters."""
        place = torch.full((len(self._numbers),), -1)
        place[[self._numbers[c] for c in characters]] = torch.arange(len(characters))
        width = max(len(row.ids) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        seats = torch.zeros(len(rows), max(len(row.seats) for row in rows), dtype=torch.long)
        for r, row in enumerate(rows):
            ids[r, : len(row.ids)] = row.ids
            seats[r, : len(row.seats)] = row.seats
        whose = place[torch.cat([row.whose for row in rows])]
        at = torch.cat([row.at + r * width for r, row in enumerate(rows)])
        labels = torch.cat([row.labels for row in rows])
        wanted = whose >= 0
        weights = self._table[seats if seats.shape[1] > 1 else seats[:, 0]]
        device = self._stack.device
        return Batch(
            ids.to(device),
            self._stack.mix(weights)
            if isinstance(self._stack, StackedLoRA)
            else weights.to(device),
            at[wanted].to(device),
            labels[wanted].to(device),
            whose[wanted].to(device),
            sum(len(row.ids) for row in rows),
        )

    def speaking(self, batch: Batch, *, learn: bool) -> AbstractContextManager[None]:
        """Within it, one forward pass over the batch; with `learn`, one backward too."""
        # A CPU gains nothing from gathering all blocks at once, and it costs memory (measured).
        if isinstance(self._stack, StackedLoRA) and learn and self._stack.device.type != "cpu":
            return self._stack.speaking(batch.weights, once=batch.ids.shape[1])
        return self._stack.speaking(batch.weights)


@contextlib.contextmanager
def only_at(head: nn.Module, places: Tensor) -> Iterator[None]:
    """Within it the model makes logits `[1, places, vocabulary]` of those places alone.

    A hook on the output embedding drops the others before its product, so that what a model does
    with its logits afterwards (soft capping, scaling) is done here too.

    Args:
        places: flat positions, in rows x tokens.
    """

    def select(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (given[0].flatten(0, 1).index_select(0, places)[None], *given[1:])

    hook = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        hook.remove()


class SupervisedLogits:
    """The logits `[n, V]` of a batch's supervised positions.

    The output embedding is asked for those positions only (`only_at`). Whether that gives what the
    full logits give is to be checked once (`check`); until then, and where it does not, they are
    cut out of the full logits.
    """

    def __init__(self, model: Any) -> None:
        self._model, self._head = model, model.get_output_embeddings()
        self._sparse: bool | None = None if self._head is not None else False

    def __call__(self, batch: Batch) -> Tensor:
        """One forward pass under the weights that are set (`Stack.speaking`)."""
        return self._few(batch) if self._sparse else self._all(batch)

    def check(self, batch: Batch) -> None:
        """Find out, once, whether few logits can be had; to be called without dropout."""
        if self._sparse is None:
            self._sparse = self._agree(batch)

    def _forward(self, batch: Batch) -> Tensor:
        logits: Tensor = self._model(
            input_ids=batch.ids, attention_mask=torch.ones_like(batch.ids), use_cache=False
        ).logits
        return logits

    def _all(self, batch: Batch) -> Tensor:
        return self._forward(batch).flatten(0, 1)[batch.at]

    def _few(self, batch: Batch) -> Tensor:
        with only_at(self._head, batch.at):
            return self._forward(batch)[0]

    @torch.no_grad()
    def _agree(self, batch: Batch) -> bool:
        full = self._all(batch).float()
        try:
            few = self._few(batch).float()
        except (RuntimeError, IndexError, ValueError):  # the model does more with its logits
            return False
        if few.shape != full.shape:
            return False
        gap = (few - full).abs().max() / full.abs().max().clamp_min(1e-3)
        exact = next(self._model.parameters()).dtype in {torch.float32, torch.float64}
        return bool(gap <= (1e-4 if exact else 3e-2))


def micro_batches(rows: Sequence[Row], tokens: int) -> Iterator[list[Row]]:
    """Rows of like length together, at most `tokens` (padding counted) or one row.

    A part that is a quarter full ends before a row that would be a quarter padding.
    """
    part: list[Row] = []
    for row in sorted(rows, key=lambda row: -len(row.ids)):
        if part:
            width = len(part[0].ids)
            full = (len(part) + 1) * width > tokens
            if full or (4 * len(part) * width >= tokens and 4 * len(row.ids) < 3 * width):
                yield part
                part = []
        part.append(row)
    if part:
        yield part
