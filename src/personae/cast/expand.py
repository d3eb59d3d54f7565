"""A new character out of its own lines, beside the old ones: expansion (Neeko, section 3.3, eq. 8).

A new slot is trained and nothing else: blocks do not overlap, so that every old character says what
it said, to the last bit (`cast.forgetting` looks).

**Warm start, exactly.** Under protocol `personae` the character begins as the fusion of its
neighbours and learns what is lacking: it speaks through the fused mix *and* its own block,

    sum_k w_k B_k A_k  +  B_new A_new,    B_new = 0 at the start,

so that before the first step it is the fused character itself, though no block of the cast's rank
could hold that sum (its rank is that of all neighbours together). The price is rank where the
character is exported as one adapter. Under protocol `paper` the new block stands alone, as there.

`hot_add` puts a finished slot into a stack that is loaded and may be speaking; torch is needed only
inside of functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from personae.errors import UsageError
from personae.records.cast import Block, CastManifest

if TYPE_CHECKING:
    from personae.cast.base import LoadedBase
    from personae.cast.encode import Encoded
    from personae.cast.history import TrainingStep
    from personae.cast.plan import TrainPlan
    from personae.cast.stacked import StackedLoRA
    from personae.cast.store import Cast
    from personae.journal.flow import Watcher

Slot = Mapping[str, NDArray[Any]]
"""One block: `A.<module>` `[r, in]` and `B.<module>` `[out, r]`, float32."""


def first_slot(tensors: Mapping[str, NDArray[Any]], seed: int) -> dict[str, NDArray[np.float32]]:
    """A block that does nothing yet: A as in PEFT (Kaiming uniform), B zero.

    Args:
        tensors: of the cast, `[S, r, in]` and `[S, out, r]`: the shapes.
        seed: of A. Each module's A depends on the seed, its name and nothing else.
    """
    made = {}
    for name, stack in tensors.items():
        if name.startswith("A."):
            bound = 1 / math.sqrt(stack.shape[2])
            draw = np.random.default_rng([seed, *name.encode()])
            made[name] = draw.uniform(-bound, bound, stack.shape[1:]).astype(np.float32)
        else:
            made[name] = np.zeros(stack.shape[1:], dtype=np.float32)
    return made


def with_slot(tensors: Mapping[str, NDArray[Any]], slot: Slot) -> dict[str, NDArray[Any]]:
    """The cast's tensors with one slot more, at the end.

    Raises:
        UsageError: the slot is of another shape.
    """
    check_slot(tensors, slot)
    return {name: np.concatenate([stack, slot[name][None]]) for name, stack in tensors.items()}


def check_slot(tensors: Mapping[str, NDArray[Any]], slot: Slot) -> None:
    """Whether a block is of the shape of those that are there.

    Raises:
        UsageError: names the tensor.
    """
    for name, stack in tensors.items():
        given = slot.get(name)
        if given is None or given.shape != stack.shape[1:]:
            shape = "absent" if given is None else f"of shape {list(given.shape)}"
            raise UsageError(f"the new block does not fit: {name} is {shape}")
    if odd := sorted(set(slot) - set(tensors)):
        raise UsageError(f"the new block does not fit: the cast has no {odd[0]!r}")


def expanded_weights(fused: Mapping[str, float], name: str) -> dict[str, float]:
    """What an expanded character speaks through: the fused mix, and its own block whole."""
    return {**fused, name: 1.0}


def plan_for(manifest: CastManifest, plan: TrainPlan, seed: int) -> TrainPlan:
    """A plan that fits a cast: its rank, alpha, modules, mode and protocol."""
    return replace(
        plan,
        rank=manifest.rank,
        alpha=manifest.alpha,
        targets=manifest.targets,
        mode=manifest.mode,
        protocol=manifest.protocol,
        seed=seed,
    )


@dataclass(frozen=True)
class Expanded:
    """What expansion leaves; the stack that it was trained in holds the new slot too.

    Attributes:
        weights: of blocks, of the new character.
        block: of the new slot; its `data` is the caller's to fill.
        slot: what it learnt.
        history: one record a step.
    """

    weights: dict[str, float]
    block: Block
    slot: Slot = field(repr=False)
    history: tuple[TrainingStep, ...] = field(repr=False)


def expand(
    base: LoadedBase,
    stack: StackedLoRA,
    manifest: CastManifest,
    name: str,
    fused: Mapping[str, float],
    encoded: Mapping[str, Sequence[Encoded]],
    plan: TrainPlan,
    *,
    checkpoint: Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> Expanded:
    """Train a new slot on a character's lines; every other slot stays as it is, bit for bit.

    Args:
        stack: of the cast, over `base.model`; it gets the slot, and keeps it where this raises
            (the next attempt begins it anew, or goes on from the checkpoint).
        name: of the character and of its slot.
        fused: weights by block that it starts from (`fuse.fused_weights`, or the shared block
            alone, or none).
        encoded: rows by character (`encode_all`). In mode `speaker` old characters in the same
            dialogues speak through their own blocks, as they will when the cast is played; nothing
            is learnt from them.
        plan: made to fit the cast (`plan_for`).

    Raises:
        UsageError: no row teaches the character, the cast has its block already, or as `train`.
    """
    from personae.cast.train import Stage, train

    if not encoded.get(name):
        raise UsageError(f"there is no line of {name!r} to learn from")
    if any(block.name == name for block in manifest.blocks):
        raise UsageError(f"the cast has a block {name!r} already, and old blocks are not trained")
    _put(stack, name, first_slot(stack.state(), plan.seed))
    weights = expanded_weights(fused, name)
    voices = {name: weights}
    for old in manifest.characters:
        if manifest.mode == "speaker" and encoded.get(old.name):
            voices[old.name] = dict(old.weights)
    trained = train(
        base,
        {who: rows for who, rows in encoded.items() if who in voices},
        plan,
        stages=(Stage("expand", voices, (name,), plan.lr),),
        stack=stack,
        checkpoint=checkpoint,
        resume=resume,
        watcher=watcher,
    )
    (block,) = (one for one in trained.blocks if one.name == name)
    number = stack.index(name)
    slot = {tensor: values[number] for tensor, values in stack.state().items()}
    return Expanded(weights, block, slot, trained.history)


def _put(stack: StackedLoRA, name: str, slot: Slot) -> None:
    """A slot with these values, whatever an expansion that was broken off has left in it."""
    if name not in stack.slots:
        stack.add_slot(name, slot)
        return
    state = stack.state()
    for tensor, values in slot.items():
        state[tensor][stack.index(name)] = values
    stack.load_state(state)


def slot_of(cast: Cast, block: str) -> dict[str, NDArray[np.float32]]:
    """One block of a cast as it was read.

    Raises:
        UsageError: the cast has no such block.
    """
    names = [one.name for one in cast.manifest.blocks]
    if block not in names:
        raise UsageError(f"{cast.path}: there is no block {block!r}; there are {', '.join(names)}")
    return {name: stack[names.index(block)] for name, stack in cast.tensors.items()}


def join(stack: StackedLoRA, cast: Cast, name: str) -> tuple[str, ...]:
    """Bring a character that was added to a cast into a stack that was loaded before that.

    A fused character or a profile brings no block. Who generates must learn of it too
    (`CastGenerator.learn(name, cast.character(name).weights)`), and the router is `cast.router`.

    Args:
        cast: as it was read after the addition.

    Returns:
        the blocks that the stack lacked and has now.

    Raises:
        UsageError: the cast has no such character.
    """
    lacking = [block for block in cast.character(name).weights if block not in stack.slots]
    for block in lacking:
        hot_add(stack, block, slot_of(cast, block))
    return tuple(lacking)


def hot_add(stack: StackedLoRA, name: str, slot: Slot) -> None:
    """Put a finished block into a loaded stack, between two forward passes.

    Nothing that is there is moved or recomputed where the stack has room (its capacity).

    Raises:
        UsageError: there is a slot of that name, or the block does not fit.
    """
    stack.add_slot(name, slot)
