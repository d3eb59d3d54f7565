"""How far a training is, and the directory from which it goes on.

This module imports torch; import it inside functions (DESIGN rule 7).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from personae.cast.batches import Row, Stack
from personae.cast.history import TrainingStep, read_history, write_history
from personae.cast.plan import Stage, TrainPlan
from personae.errors import InputError, UsageError
from personae.records.base import content_hash
from personae.records.files import read_bytes, read_json, write_atomically

if TYPE_CHECKING:
    from personae.cast.base import LoadedBase
    from personae.cast.optimise import SlotAdamW

CHECKPOINT_SECONDS = 60.0
STATE = "state.json"
FORMAT = "personae-training/1"


@dataclass
class State:
    """How far a training is: with the tensors, all that is needed to go on.

    Attributes:
        stage: number of the stage under way, from 0. step: of that stage, behind us.
        done: steps of each block in that stage. steps: in all stages.
        best: development loss of each block at its best, and checks since.
    """

    stage: int = 0
    step: int = 0
    done: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    best: dict[str, tuple[float, int]] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    real: int = 0
    padded: int = 0
    history: list[TrainingStep] = field(default_factory=list)

    @property
    def padding(self) -> float:
        """Share of padding in all tokens so far."""
        return 1 - self.real / self.padded if self.padded else 0.0


@dataclass
class Progress:
    """A training under way: its state, and what it holds in tensors.

    Attributes:
        optimiser: of the stage under way; None between two stages.
        best: each block at its best so far, in the order of the stack's parameters.
    """

    stack: Stack
    new_optimiser: Callable[[], SlotAdamW]
    state: State = field(default_factory=State)
    optimiser: SlotAdamW | None = None
    best: dict[str, list[Tensor]] = field(default_factory=dict)


class Checkpoint:
    """A directory from which a training goes on.

    Two sets of files take turns, and state.json, written last, says which one holds: whatever
    happens, one of them is whole.
    """

    def __init__(
        self,
        folder: Path,
        stages: Sequence[Stage],
        plan: TrainPlan,
        rows: Sequence[Row],
        stack: Stack,
        base: LoadedBase,
    ) -> None:
        self.folder = folder
        self._turn = 0
        self._last = time.monotonic()
        self._identity = content_hash(
            {
                "plan": asdict(plan),
                "stages": [asdict(stage) for stage in stages],
                "rows": _digest(t for r in rows for t in (r.ids, r.at, r.whose, r.seats)),
                "blocks": hashlib.sha256(
                    b"".join(p.detach().cpu().numpy().tobytes() for p in stack.parameters())
                ).hexdigest(),
                "base": base.ref.sha256,
                "dtype": str(next(base.model.parameters()).dtype),
            }
        )

    def begin(self, resume: bool, now: Progress) -> None:
        """Take up what is there, if it is asked for.

        Raises:
            UsageError: it is of another training, or is there and not asked for.
            InputError: it is damaged.
        """
        path = self.folder / STATE
        if not path.exists():
            return
        if not resume:
            raise UsageError(
                f"{self.folder} holds a training that can go on: resume it, or remove the directory"
            )
        found = read_json(path)
        mend = "Remove the directory to train from the start"
        try:
            if found["format"] != FORMAT:
                raise InputError("of another version", path=path, mend=mend)
            if found["identity"] != self._identity:
                raise UsageError(
                    f"{self.folder} holds another training (other rows, plan, stages or base): "
                    "remove it, or train as before"
                )
            state = found["state"]
            self._turn = int(found["turn"])
            tensors = self._tensors(self.folder / f"tensors-{self._turn}.safetensors", found)
            history = read_history(self.folder / f"history-{self._turn}.jsonl")
            now.state = State(
                **{**state, "best": {k: (v[0], v[1]) for k, v in state["best"].items()}},
                history=list(history[: int(found["records"])]),
            )
            now.optimiser = now.new_optimiser() if found["within"] else None
            self._fill(now, tensors)
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise InputError(f"damaged ({error!r})", path=path, mend=mend) from None

    def maybe(self, now: Progress) -> None:
        """Write, where the last time is long ago."""
        if time.monotonic() - self._last >= CHECKPOINT_SECONDS:
            self.write(now)

    def write(self, now: Progress) -> None:
        """Write all there is."""
        from safetensors.torch import save

        turn = 1 - self._turn
        tensors = {f"block.{n}": p.detach() for n, p in enumerate(now.stack.parameters())}
        if now.optimiser is not None:
            tensors |= {f"adamw.{k}": v for k, v in now.optimiser.state().items()}
        for slot, best in now.best.items():
            tensors |= {f"best.{n}.{slot}": t for n, t in enumerate(best)}
        raw = save({name: t.contiguous().cpu().clone() for name, t in tensors.items()})
        write_atomically(self.folder / f"tensors-{turn}.safetensors", raw)
        write_history(self.folder / f"history-{turn}.jsonl", now.state.history)
        state = {k: v for k, v in vars(now.state).items() if k != "history"}
        found = {
            "format": FORMAT,
            "identity": self._identity,
            "turn": turn,
            "sha256": hashlib.sha256(raw).hexdigest(),
            "records": len(now.state.history),
            "within": now.optimiser is not None,
            "state": state,
        }
        write_atomically(self.folder / STATE, json.dumps(found))
        self._turn, self._last = turn, time.monotonic()

    def _tensors(self, path: Path, found: Mapping[str, Any]) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load

        raw = read_bytes(path, limit=path.stat().st_size if path.is_file() else 0)
        if hashlib.sha256(raw).hexdigest() != found["sha256"]:
            raise ValueError("its tensors are not those that it names")
        try:
            return load(raw)
        except SafetensorError as error:
            raise ValueError(str(error)) from None

    def _fill(self, now: Progress, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for n, parameter in enumerate(now.stack.parameters()):
                parameter.copy_(tensors[f"block.{n}"])
        if now.optimiser is not None:
            now.optimiser.load_state(
                {k.removeprefix("adamw."): v for k, v in tensors.items() if k.startswith("adamw.")}
            )
        for slot in now.state.best:
            if f"best.0.{slot}" in tensors:
                now.best[slot] = [
                    tensors[f"best.{n}.{slot}"].to(p.device)
                    for n, p in enumerate(now.stack.parameters())
                ]


def _digest(parts: Iterable[Tensor]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part.numpy().tobytes())
    return found.hexdigest()
