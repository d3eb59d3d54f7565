"""What each way of having a cast consumes (Neeko, section 5.5 and Table 5; RQ4).

A figure is measured on this machine, or computed from shapes and sizes, and says which; what nobody
ran and nothing determines is unknown. Seconds were measured on a machine that may have been busy:
compare them within one table only.

All adapters of a method are trained at once (`cast.train`), those of `one_per_character` too.
Memory in training is what must be there for weights, gradients and AdamW's two states; activations
come on top, are the same for all ways of adapters but the dense gate (whose hidden states are those
of all blocks), and depend on the batch. Where the device says what it gave out at most (CUDA), that
is measured, activations and all.

Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from personae.cast.training import Spent
from personae.records.cast_scores import (
    Consumption,
    ConsumptionOf,
    Figure,
    KeptMethod,
    MethodName,
)

FLOAT32 = 4
TRAINED_BYTES = 4 * FLOAT32
"""A trained number: itself, its gradient, and AdamW's mean and mean square, all in float32."""
METHOD_OF: Mapping[ConsumptionOf, MethodName] = {
    "one_shared": "one_shared",
    "one_per_character": "one_per_character",
    "dense_gate": "dense_gate",
    "cast": "retrained",
}


@dataclass(frozen=True)
class BaseSize:
    """A model under a cast.

    Attributes:
        parameters: of the whole model.
        bytes: of its weights as they are loaded.
    """

    parameters: int
    bytes: int


@dataclass(frozen=True)
class Shape:
    """Trained numbers of a method that was not trained here.

    Attributes:
        parameters: of all blocks, gates included.
        stored: bytes of its file; None where it was not written.
    """

    parameters: int
    stored: int | None = None


def consumption(
    base: BaseSize,
    characters: int,
    *,
    shapes: Mapping[ConsumptionOf, Shape],
    kept: Sequence[KeptMethod] = (),
    cast: Spent | None = None,
    stored: Mapping[str, int] | None = None,
    token_seconds: Mapping[MethodName, float] | None = None,
) -> tuple[Consumption, ...]:
    """The table of RQ4, one model per character first.

    Args:
        characters: how many the cast has.
        shapes: of the ways to be compared.
        kept: the methods that were trained here; of several seeds the means are taken.
        cast: what training the cast took; asked where it was not trained again.
        stored: bytes of files by `KeptMethod.file`.
        token_seconds: measured seconds to score a token, by method.
    """
    seconds = token_seconds or {}
    made = [_model_each(base, characters, seconds.get("base"))]
    for method, shape in shapes.items():
        own = [k for k in kept if k.method == METHOD_OF[method]]
        costs = [Spent(seconds=k.seconds, peak_bytes=k.peak_bytes) for k in own]
        if method == "cast" and not costs and cast is not None:
            costs = [cast]
        files = [(stored or {})[k.file] for k in own if k.file in (stored or {})]
        peaks = [one.peak_bytes for one in costs if one.peak_bytes is not None]
        disk = shape.stored if shape.stored is not None else (files[0] if files else None)
        size = shape.parameters * FLOAT32
        speed = seconds.get(METHOD_OF[method], seconds.get("cast") if method == "cast" else None)
        made.append(
            Consumption(
                method=method,
                parameters=computed(shape.parameters),
                stored=computed(size) if disk is None else measured(disk),
                training_memory=measured(max(peaks))
                if peaks
                else computed(base.bytes + shape.parameters * TRAINED_BYTES),
                serving_memory=computed(base.bytes + size),
                training_seconds=measured(sum(one.seconds for one in costs) / len(costs))
                if costs
                else Figure(),
                token_seconds=Figure() if speed is None else measured(speed),
            )
        )
    return tuple(made)


def _model_each(base: BaseSize, characters: int, token_seconds: float | None) -> Consumption:
    """A whole model for each character, as Character-LLM has it: arithmetic, nothing was run.

    Trained in float32 one after another, stored and served as the base is loaded.
    """
    return Consumption(
        method="model_each",
        parameters=computed(characters * base.parameters),
        stored=computed(characters * base.bytes),
        training_memory=computed(base.parameters * TRAINED_BYTES),
        serving_memory=computed(characters * base.bytes),
        training_seconds=Figure(),
        token_seconds=Figure() if token_seconds is None else computed(token_seconds),
    )


def measured(value: float) -> Figure:
    """A figure that was measured here."""
    return Figure(value=value, how="measured")


def computed(value: float) -> Figure:
    """A figure that follows from others."""
    return Figure(value=value, how="computed")
