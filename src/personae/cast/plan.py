"""What training a cast takes: a plan of numbers, and stages that say who trains which blocks.

Both protocols and the baselines are lists of `Stage`; nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from personae.errors import UsageError
from personae.records.cast import SHARED, CastProtocol, Mode

Schedule = Literal["constant", "cosine"]

TRAINING, PLAN, ROWS = "training", "plan.json", "rows.jsonl"
"""Where a cast keeps what it was trained on, and how."""
MEASURED_WIDTH = 576
"""Width of the embedded model, over which the default learning rates were chosen."""
WIDTH_POWER = 0.775
"""A LoRA's best rate falls with the model's width to this power ("LoRA Without Regret", 2025)."""
PAPER_TARGETS = ("q_proj", "v_proj")
"""Neeko's released code: the blocks sit on the query and value projections."""


@dataclass(frozen=True)
class Stage:
    """A part of a training: which blocks each character speaks through, and which of them learn.

    Attributes:
        name: for people and for the history.
        weights: of blocks, by character; only rows of these characters are seen.
        trains: the blocks that learn; every other stays as it is, bit for bit.
        lr: highest learning rate of AdamW.
        share: of the budget (epochs or tokens a role) that this stage takes.
    """

    name: str
    weights: Mapping[str, Mapping[str, float]]
    trains: tuple[str, ...]
    lr: float
    share: float = 1.0

    def __post_init__(self) -> None:
        if not self.weights or not self.trains:
            raise UsageError(f"stage {self.name!r} has nobody to train")
        if not (0 < self.lr < math.inf and 0 < self.share < math.inf):
            raise UsageError(f"stage {self.name!r}: learning rate and share must be above 0")
        used = {slot for weights in self.weights.values() for slot, w in weights.items() if w}
        if idle := [slot for slot in self.trains if slot not in used]:
            raise UsageError(f"stage {self.name!r}: nobody speaks through {idle[0]!r}")

    def learners(self, character: str) -> tuple[str, ...]:
        """The blocks that a character's lines teach."""
        return tuple(
            s for s, w in self.weights.get(character, {}).items() if w and s in self.trains
        )


@dataclass(frozen=True)
class TrainPlan:
    """How the blocks of a cast are trained.

    Rates and the shared block's share of the budget are what six roles of 25,000 tokens over the
    embedded model chose on development dialogues (docs/cast-quality.md); `for_width` takes the
    rates to another model.

    Attributes:
        rank: of every block.
        alpha: the update of a block is `alpha / rank * B @ A`.
        targets: `all-linear`, or ends of module names.
        mode: `full` or `speaker` (`personae.records.cast.CastManifest.mode`).
        protocol: `personae`: a shared block first, then each character's residual; `paper`:
            isolated blocks.
        lr: highest learning rate of the characters' own blocks.
        shared_lr: of the shared block.
        epochs: how often each character's rows are seen, all stages together; a fraction is cut at
            a step. Not used where `tokens_per_role` is given.
        tokens_per_role: supervised tokens (repeats counted) that each character is trained on, all
            stages together; the step that reaches it is the last.
        shared_share: of the budget that goes to the shared block (protocol personae).
        batch_rows: rows of each character in one optimiser step.
        micro_tokens: tokens (padding counted) in one forward pass: memory and speed, and the last
            digit of sums; None: 2048 on a CPU, 8192 on a GPU.
        clip: largest 2-norm of a block's gradient; None: no clipping.
        warmup: share of a block's steps in which its rate climbs linearly to `lr`.
        schedule: after that, `constant`, or `cosine` down to 0.
        dropout: on what goes into A (the base's own dropout is off).
        seed: of A's first values, of the order of rows and of dropout.
        max_tokens: longest row (for `encode`; the trainer refuses longer ones).
        development: share of each character's rows kept from training to watch its loss.
        patience: checks without a better development loss after which a block stops; whether it
            stops or not, it ends in its best state. None: no early stop, the last state stays.
        check_every: steps from one check to the next; None: as many as the median character needs
            to see its rows once.
        dtype: of the base, for `load_base`; the blocks are float32 always.
    """

    rank: int = 8
    alpha: float = 16.0
    targets: str | tuple[str, ...] = "all-linear"
    mode: Mode = "full"
    protocol: CastProtocol = "personae"
    lr: float = 2e-3
    shared_lr: float = 4e-3
    epochs: float = 3.0
    tokens_per_role: int | None = None
    shared_share: float = 0.75
    batch_rows: int = 4
    micro_tokens: int | None = None
    clip: float | None = 1.0
    warmup: float = 0.03
    schedule: Schedule = "constant"
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    dropout: float = 0.0
    seed: int = 0
    max_tokens: int = 1024
    development: float = 0.0
    patience: int | None = None
    check_every: int | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        for name, right in (
            ("rank", self.rank >= 1),
            ("alpha", 0 < self.alpha < math.inf),
            ("lr", 0 < self.lr < math.inf),
            ("shared_lr", 0 < self.shared_lr < math.inf),
            ("epochs", 0 < self.epochs < math.inf),
            ("tokens_per_role", self.tokens_per_role is None or self.tokens_per_role >= 1),
            ("shared_share", 0 < self.shared_share < 1),
            ("batch_rows", self.batch_rows >= 1),
            ("micro_tokens", self.micro_tokens is None or self.micro_tokens >= 1),
            ("clip", self.clip is None or 0 < self.clip < math.inf),
            ("warmup", 0 <= self.warmup <= 1),
            ("weight_decay", 0 <= self.weight_decay < math.inf),
            ("betas", all(0 <= beta < 1 for beta in self.betas)),
            ("eps", 0 <= self.eps < math.inf),
            ("dropout", 0 <= self.dropout < 1),
            ("development", 0 <= self.development < 1),
            ("patience", self.patience is None or self.patience >= 1),
            ("check_every", self.check_every is None or self.check_every >= 1),
        ):
            if not right:
                raise UsageError(f"training cannot have {name} = {getattr(self, name)!r}")
        if self.patience is not None and not self.development:
            raise UsageError("patience needs rows to watch: give `development` a share")

    def for_width(self, width: int) -> TrainPlan:
        """The same plan with rates for a model of another width (its hidden size).

        The paper's rate stays: it is one for all models.
        """
        if self.protocol == "paper":
            return self
        less = (MEASURED_WIDTH / width) ** WIDTH_POWER
        return replace(self, lr=self.lr * less, shared_lr=self.shared_lr * less)

    def paper(self) -> TrainPlan:
        """The same plan as Neeko trains: isolated blocks of rank 4, ten epochs, eight rows a step.

        Source: Neeko, appendix A.1 and Table 6; what our copy of the text leaves out (alpha 32,
        dropout 0.1, rate 2e-4 falling by a cosine, queries and values) is the released code's.
        """
        return replace(
            self,
            protocol="paper",
            rank=4,
            alpha=32.0,
            dropout=0.1,
            targets=PAPER_TARGETS,
            lr=2e-4,
            schedule="cosine",
            epochs=10.0,
            batch_rows=8,
            warmup=0.0,
        )


def stages_of(plan: TrainPlan, characters: Sequence[str]) -> tuple[Stage, ...]:
    """The stages of a plan's protocol.

    Raises:
        UsageError: a character bears the shared block's name.
    """
    if plan.protocol == "paper":
        return one_per_character(characters, plan.lr)
    if SHARED in characters:
        raise UsageError(f"no character may be named {SHARED!r}: it is the shared block's name")
    shared = Stage(
        "shared",
        {name: {SHARED: 1.0} for name in characters},
        (SHARED,),
        plan.shared_lr,
        plan.shared_share,
    )
    own = Stage(
        "own",
        {name: {SHARED: 1.0, name: 1.0} for name in characters},
        tuple(characters),
        plan.lr,
        1 - plan.shared_share,
    )
    return shared, own


def one_shared(characters: Sequence[str], lr: float) -> tuple[Stage, ...]:
    """Baseline: one block for all (its rank is the plan's: give it R)."""
    return (Stage("shared", {name: {SHARED: 1.0} for name in characters}, (SHARED,), lr),)


def one_per_character(characters: Sequence[str], lr: float) -> tuple[Stage, ...]:
    """Isolated blocks: the paper's protocol, and one plain adapter each as a baseline."""
    return (Stage("own", {name: {name: 1.0} for name in characters}, tuple(characters), lr),)


def slots_of(stages: Iterable[Stage]) -> tuple[str, ...]:
    """The blocks that stages speak through, the shared one first."""
    found = dict.fromkeys(s for stage in stages for w in stage.weights.values() for s in w)
    return tuple(sorted(found, key=lambda name: name != SHARED))
