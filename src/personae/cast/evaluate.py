"""How likely a model finds what a character really said: an evaluation that needs no judge.

Everything here is a sum over one thing, the negative log-likelihood in nats of each supervised
token of held-out lines. Natural logarithms; nats a token are comparable between methods only over
the same tokens of the same tokenizer. `score_rows` is the core; `score_method` asks it all that is
asked of a cast, or of what it is compared with (docs/cast-evaluation.md).

This module imports torch; import it inside functions (DESIGN rule 7).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from personae.cast.base import still
from personae.cast.batches import only_at
from personae.errors import UsageError
from personae.journal.flow import NoWatcher, Watcher
from personae.records import Failure
from personae.records.cast_scores import DialogueScore, MethodName, SwitchScore

if TYPE_CHECKING:
    from personae.cast.base import LoadedBase
    from personae.cast.densegate import DenseGate
    from personae.cast.encode import Encoded
    from personae.cast.heldout import Row, Switch, Unit, Way
    from personae.cast.scores import Line
    from personae.cast.stacked import StackedLoRA

Weights: TypeAlias = Mapping[str, float]
"""Of blocks by slot name; {} is the base alone."""
Voices: TypeAlias = Mapping[str, Weights]
"""Of each speaker of a row in `speaker` mode; who is not in it speaks through the base alone."""
Speaking: TypeAlias = Callable[[Sequence[int], int], AbstractContextManager[None]]
"""Numbers of the rows of a batch and its width in tokens; within it the model speaks as they do."""

BATCH_TOKENS = 2048
_LOGITS = 2**28
"""Logits held at once: 1 GiB in float32, whatever the vocabulary."""


@dataclass(frozen=True)
class Scored:
    """The supervised tokens of one row.

    Attributes:
        nll: the sum of their negative log-likelihoods, in nats.
        tokens: how many they are; at least 1.
    """

    nll: float
    tokens: int

    @property
    def per_token(self) -> float:
        """Nats a token."""
        return self.nll / self.tokens


def score_rows(
    base: LoadedBase,
    stack: StackedLoRA | DenseGate | None,
    rows: Sequence[Encoded],
    weights: Sequence[Weights | Voices],
    *,
    batch_tokens: int = BATCH_TOKENS,
    heard: Callable[[int], None] | None = None,
) -> list[Scored]:
    """The likelihood of the supervised tokens of each row under its own weights of blocks.

    Args:
        stack: the blocks over `base.model`; None: the base alone, and all weights are {}.
        rows: as `encode` makes them, in any order and of any length.
        weights: of each row: of slots (`full`; the row has a character), or of slots by speaker
            (`speaker` mode; the row has none).
        batch_tokens: tokens of a batch, padding included; a longer row is a batch of its own.
        heard: is told after each batch how many rows it had.

    Returns:
        in the order of the rows.

    Raises:
        UsageError: as `token_nlls`; not as many weights as rows; an unknown slot.
    """
    if len(rows) != len(weights):
        raise UsageError(f"{len(rows)} rows but weights for {len(weights)}")
    if stack is None:
        if any(value for given in weights for value in given.values()):  # a weight, or {} of one
            raise UsageError("without blocks all rows speak through the base alone")
        speaking: Speaking = _base_alone
    else:
        speaking = stack_speaking(stack, rows, weights)
    found = token_nlls(base.model, rows, speaking, batch_tokens=batch_tokens, heard=heard)
    return [Scored(float(nlls.sum(dtype=np.float64)), len(nlls)) for nlls in found]


def token_nlls(
    model: Any,
    rows: Sequence[Encoded],
    speaking: Speaking,
    *,
    batch_tokens: int = BATCH_TOKENS,
    heard: Callable[[int], None] | None = None,
) -> list[NDArray[np.float32]]:
    """Negative log-likelihood in nats of each supervised token, row by row, in their order.

    Rows of like length share a batch, padded on the right: in a causal model nothing looks at what
    stands behind it, so no mask is needed. Logits are made at supervised places alone.

    Args:
        model: a Hugging Face causal language model; evaluated without dropout, then as it was.
        speaking: how the rows of a batch speak.

    Raises:
        UsageError: a row has nothing to predict, its first token is to be predicted, or a
            likelihood is not a finite number.
    """
    for number, row in enumerate(rows):
        if len(row.ids) != len(row.supervised):
            raise UsageError(f"row {number} has {len(row.ids)} tokens, {len(row.supervised)} marks")
        if not any(row.supervised) or row.supervised[0]:
            what = "its first token" if any(row.supervised) else "no token"
            raise UsageError(f"row {number} ({row.row}) asks for {what} to be predicted")
    head = model.get_output_embeddings()
    device = model.get_input_embeddings().weight.device
    found: dict[int, NDArray[np.float32]] = {}
    with still(model):
        for batch in _batches(rows, batch_tokens, _LOGITS // head.weight.shape[0]):
            width = max(len(rows[n].ids) for n in batch)
            ids = torch.zeros(len(batch), width, dtype=torch.long)
            wanted = torch.zeros(len(batch), width, dtype=torch.bool)
            for at, n in enumerate(batch):
                ids[at, : len(rows[n].ids)] = torch.tensor(rows[n].ids)
                wanted[at, : len(rows[n].ids)] = torch.tensor(rows[n].supervised)
            targets = ids[wanted].to(device)
            # What stands at t predicts t + 1; supervised[0] is False, so nothing wraps around.
            before = wanted.roll(-1, 1).flatten().nonzero()[:, 0].to(device)
            with torch.inference_mode(), only_at(head, before), speaking(batch, width):
                logits = model(input_ids=ids.to(device), use_cache=False).logits[0]
                if logits.shape[:-1] != targets.shape:
                    raise UsageError(
                        f"{type(model).__name__} does not make one row of logits for each row of "
                        "its output embedding, and cannot be scored"
                    )
                nlls = _cross_entropy(logits, targets).cpu().numpy()
            if not np.isfinite(nlls).all():
                raise UsageError("the model's likelihoods are not finite: are its weights whole?")
            ends = np.cumsum(wanted.sum(1).numpy())[:-1]
            found.update(zip(batch, np.split(nlls, ends), strict=True))
            if heard is not None:
                heard(len(batch))
    return [found[n] for n in range(len(rows))]


def stack_speaking(
    stack: StackedLoRA | DenseGate, rows: Sequence[Encoded], weights: Sequence[Weights | Voices]
) -> Speaking:
    """How rows speak through the blocks of a stack (`token_nlls`).

    Raises:
        UsageError: an unknown slot; when the batch is scored.
    """

    def speaking(batch: Sequence[int], width: int) -> AbstractContextManager[None]:
        # On the CPU: which slots work is found out there, and a GPU need not be waited for.
        of = partial(stack.weights, device="cpu")
        if all(rows[n].character is not None for n in batch):
            return stack.speaking(of([cast("Weights", weights[n]) for n in batch]))
        table = torch.zeros(len(batch), width, of([{}]).shape[-1])
        for at, n in enumerate(batch):
            row, given = rows[n], weights[n]
            if row.character is not None:
                table[at, : len(row.ids)] = of([cast("Weights", given)])[0]
                continue
            for speaker, own in cast("Voices", given).items():
                whose = torch.tensor([s == speaker for s in row.speaker])
                table[at, : len(row.ids)][whose] = of([own])[0]
        return stack.speaking(table)

    return speaking


def _base_alone(batch: Sequence[int], width: int) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


def _cross_entropy(logits: Tensor, targets: Tensor, *, at_once: int = 512) -> Tensor:
    """In float32, some at a time: a copy of all logits would be the largest thing in memory."""
    return torch.cat(
        [
            nn.functional.cross_entropy(some.float(), wanted, reduction="none")
            for some, wanted in zip(
                torch.split(logits, at_once), torch.split(targets, at_once), strict=True
            )
        ]
    )


def _batches(rows: Sequence[Encoded], tokens: int, supervised: int) -> list[list[int]]:
    """Numbers of rows, the longest first, so that memory that is not there is missed at once."""
    batches: list[list[int]] = []
    room = 0
    for n in sorted(range(len(rows)), key=lambda n: -len(rows[n].ids)):
        length = len(rows[batches[-1][0]].ids) if batches else 0
        room -= sum(rows[n].supervised)
        if not batches or (len(batches[-1]) + 1) * length > tokens or room < 0:
            batches.append([])
            room = supervised - sum(rows[n].supervised)
        batches[-1].append(n)
    return batches


# One method ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodLines:
    """What scoring one method gives.

    Attributes:
        lines: of results.jsonl.
        seconds: that the model took.
        tokens: that went through it, context included and padding not.
    """

    lines: tuple[Line, ...]
    seconds: float
    tokens: int


def score_method(
    base: LoadedBase,
    stack: StackedLoRA | DenseGate | None,
    way: Way,
    units: Sequence[Unit],
    switches: Sequence[Switch],
    names: Sequence[str],
    *,
    method: MethodName,
    seed: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    watcher: Watcher | None = None,
) -> MethodLines:
    """Score all units and switches under one method.

    Args:
        way: how the method speaks (`cast.heldout`).
        names: the characters whose blocks are tried on each unit.

    Raises:
        UsageError: a likelihood is not a finite number.
    """
    jobs = _Jobs()
    tried = [name for name in names if way.knows(name)] if way.tells else []
    for number, unit in enumerate(units):
        key = ("unit", number)
        if unit.failure is not None:
            jobs.failures[key] = unit.failure
            continue
        jobs.put(key, "own", partial(way.own, unit))
        if len(tried) > 1:
            for name in tried:
                jobs.put(key, f"fit {name}", partial(way.fit, unit, name))
    for number, switch in enumerate(switches):
        key = ("switch", number)
        if switch.failure is not None:
            jobs.failures[key] = switch.failure
            continue
        jobs.put(key, "own", partial(way.switch, switch))
        jobs.put(key, "without", partial(way.switch, switch, without=True))
        if switch.previous in tried:
            jobs.put(key, "previous", partial(way.switch, switch, previous=True))
    rows = [row for row, _, _ in jobs.rows]
    stage = str(method) if seed is None else f"{method} (seed {seed})"
    watcher = watcher or NoWatcher()
    watcher.begin(stage, len(rows))

    def heard(done: int) -> None:
        for _ in range(done):
            watcher.step(stage)

    started = time.perf_counter()
    scored = score_rows(
        base,
        stack,
        rows,
        [weights for _, weights, _ in jobs.rows],
        batch_tokens=batch_tokens,
        heard=heard,
    )
    seconds = time.perf_counter() - started
    found = jobs.sums(scored)
    lines: list[Line] = [
        _dialogue_line(
            unit, method, seed, found.get(("unit", n), {}), jobs.failures.get(("unit", n))
        )
        for n, unit in enumerate(units)
    ]
    lines += [
        _switch_line(
            s, method, seed, found.get(("switch", n), {}), jobs.failures.get(("switch", n))
        )
        for n, s in enumerate(switches)
    ]
    return MethodLines(tuple(lines), seconds, sum(len(row.ids) for row in rows))


def missing_lines(
    units: Sequence[Unit],
    switches: Sequence[Switch],
    method: MethodName,
    seed: int | None,
    failure: Failure,
) -> tuple[Line, ...]:
    """The lines of a method that nothing could be scored under."""
    lines: list[Line] = [_dialogue_line(unit, method, seed, {}, failure) for unit in units]
    lines += [_switch_line(switch, method, seed, {}, failure) for switch in switches]
    return tuple(lines)


_JobKey: TypeAlias = tuple[str, int]


@dataclass
class _Jobs:
    """Rows to score, and what their sums are of."""

    rows: list[tuple[Encoded, Weights | Voices, tuple[_JobKey, str]]] = field(default_factory=list)
    failures: dict[_JobKey, Failure] = field(default_factory=dict)

    def put(self, key: _JobKey, part: str, made: Callable[[], Sequence[Row]]) -> None:
        """Rows whose sum is a part of what `key` names; where they cannot be made, it fails."""
        from personae.cast.heldout import UnscoredError

        if key in self.failures:
            return
        try:
            self.rows += [(row, weights, (key, part)) for row, weights in made()]
        except UnscoredError as error:
            self.failures[key] = error.failure
            self.rows = [one for one in self.rows if one[2][0] != key]

    def sums(self, scored: Sequence[Scored]) -> dict[_JobKey, dict[str, Scored]]:
        found: dict[_JobKey, dict[str, Scored]] = {}
        for (_, _, (key, part)), one in zip(self.rows, scored, strict=True):
            before = found.setdefault(key, {}).get(part, Scored(0.0, 0))
            found[key][part] = Scored(before.nll + one.nll, before.tokens + one.tokens)
        return found


def _dialogue_line(
    unit: Unit,
    method: MethodName,
    seed: int | None,
    found: Mapping[str, Scored],
    failure: Failure | None,
) -> DialogueScore:
    own = found.get("own")
    fits = {part.removeprefix("fit "): s.nll for part, s in found.items() if part != "own"}
    return DialogueScore(
        method=method,
        seed=seed,
        row=unit.number,
        source=unit.row.source,
        language=unit.row.language,
        character=unit.character,
        cut=unit.cut,
        named=unit.named,
        tokens=None if own is None else own.tokens,
        nll=None if own is None else own.nll,
        fits=fits or None,
        failure=failure,
    )


def _switch_line(
    switch: Switch,
    method: MethodName,
    seed: int | None,
    found: Mapping[str, Scored],
    failure: Failure | None,
) -> SwitchScore:
    own, without, previous = (found.get(part) for part in ("own", "without", "previous"))
    return SwitchScore(
        method=method,
        seed=seed,
        row=switch.number,
        source=switch.row.source,
        language=switch.row.language,
        character=switch.character,
        previous=switch.previous,
        turn=switch.turn,
        tokens=None if own is None else own.tokens,
        nll=None if own is None else own.nll,
        nll_without=None if without is None else without.nll,
        nll_previous=None if previous is None else previous.nll,
        failure=failure,
    )
