"""`StackedLoRA`: the low-rank blocks of a whole cast over one frozen language model.

Source: Neeko, section 3.1, eq. 4 and 5: one pair of matrices A, B whose rows and columns fall into
non-overlapping blocks, one a character. Written out, with rank p a block and w the blocks' weights,

    B diag(w (x) 1_p) A  =  sum_k  w_k B_k A_k,

so that a character whose own weight is 1 and whose others are 0 speaks through B_k A_k alone: a
plain LoRA adapter of rank p and the same alpha. Nothing is lost by storing the blocks as
`A[K, p, in]` and `B[K, out, p]`, and a block *is* a PEFT adapter (tests/cast/test_stacked.py).
No gate stands inside the layers: who speaks is chosen outside, once a turn (`cast.router`).

This module imports torch; import it inside functions (DESIGN rule 7).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from personae.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class Mix:
    """Which blocks work on what: weights of S slots for each row or each token of a batch.

    Attributes:
        weights: `[rows, S]`, or `[rows, tokens, S]`; 0 switches a slot off.
    """

    weights: Tensor
    present: Tensor = field(init=False)
    """The slots that work on anything, `[P]`."""
    active: Tensor = field(init=False)
    """Their weights, `[rows, 1 or tokens, P]`."""

    def __post_init__(self) -> None:
        weights = self.weights if self.weights.dim() == 3 else self.weights[:, None, :]
        present = weights.detach().flatten(0, 1).any(0).nonzero()[:, 0]
        object.__setattr__(self, "present", present)
        object.__setattr__(self, "active", weights.index_select(-1, present))


class _Speaking:
    """What the layers of one stack share: the mix of the batch under way."""

    mix: Mix | None = None


class StackedLinear(nn.Module):
    """A frozen linear module and the blocks of all slots over it.

    Args:
        base: `torch.nn.Linear` or transformers' `Conv1D`.
        sizes: features in and out.
    """

    def __init__(
        self,
        base: nn.Module,
        sizes: tuple[int, int],
        slots: int,
        rank: int,
        scale: float,
        dropout: float,
        speaking: _Speaking,
    ) -> None:
        super().__init__()
        width, height = sizes
        device = next(base.parameters()).device
        self.base = base
        self.scale, self.dropout = scale, dropout
        self.a = nn.Parameter(torch.zeros(slots, rank, width, device=device))
        self.b = nn.Parameter(torch.zeros(slots, height, rank, device=device))
        self._speaking = speaking

    def forward(self, x: Tensor) -> Tensor:
        """`base(x)` plus the weighted updates of the slots that the mix names."""
        out: Tensor = self.base(x)
        mix = self._speaking.mix
        if mix is None or not len(mix.present):
            return out
        seen = nn.functional.dropout(x, self.dropout, self.training) if self.dropout else x
        a = self.a.index_select(0, mix.present).to(x.dtype)
        b = self.b.index_select(0, mix.present).to(x.dtype)
        hidden = (seen @ a.flatten(0, 1).T).view(*x.shape[:-1], *a.shape[:2])
        hidden = hidden * (mix.active * self.scale).to(x.dtype)[..., None]  # [rows, tokens, P, r]
        updated: Tensor = out + hidden.flatten(-2) @ b.movedim(0, 1).flatten(1).T
        return updated


class StackedLoRA:
    """The blocks of a cast over one model; its linear modules are replaced in place.

    Args:
        model: a Hugging Face causal language model; all its parameters are frozen.
        slots: names of the slots, in order (`shared` first, where there is one).
        rank: of each block.
        alpha: the update of a block is `alpha / rank * B @ A`.
        targets: `all-linear` (all but the output embedding), or ends of module names.
        dropout: on what goes into A, in training.
        seed: of A's first values (those of PEFT: Kaiming uniform; B is 0).

    Raises:
        UsageError: no module has such a name, or two slots bear one.
    """

    def __init__(
        self,
        model: Any,
        slots: Sequence[str],
        *,
        rank: int = 8,
        alpha: float = 16.0,
        targets: str | Sequence[str] = ALL_LINEAR,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        if len(set(slots)) < len(slots) or not slots:
            raise UsageError("a stack needs slots, each with a name of its own")
        if rank < 1:
            raise UsageError("the rank of a block counts from 1")
        self.model, self.rank, self.alpha = model, rank, alpha
        self._slots = list(slots)
        self._speaking = _Speaking()
        self.layers: dict[str, StackedLinear] = {}
        model.requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        for name, sizes in linear_modules(model, targets).items():
            layer = StackedLinear(
                model.get_submodule(name),
                sizes,
                len(slots),
                rank,
                alpha / rank,
                dropout,
                self._speaking,
            )
            bound = 1 / math.sqrt(sizes[0])
            with torch.no_grad():
                first = torch.rand(layer.a.shape, generator=generator) * 2 * bound - bound
                layer.a.copy_(first)
            _replace(model, name, layer)
            self.layers[name] = layer

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the slots, in order."""
        return tuple(self._slots)

    @property
    def device(self) -> torch.device:
        """Where the blocks lie."""
        return next(iter(self.layers.values())).a.device

    def index(self, slot: str) -> int:
        """The number of a slot.

        Raises:
            UsageError: there is no such slot.
        """
        if slot not in self._slots:
            raise UsageError(f"the stack has no slot {slot!r}; it has {', '.join(self._slots)}")
        return self._slots.index(slot)

    def weights(self, rows: Sequence[Mapping[str, float]]) -> Tensor:
        """`[rows, S]` of each row's weights by slot name; {} is the base alone.

        Raises:
            UsageError: there is no such slot.
        """
        made = torch.zeros(len(rows), len(self._slots))
        for number, row in enumerate(rows):
            for slot, weight in row.items():
                made[number, self.index(slot)] = weight
        return made.to(self.device)

    @contextlib.contextmanager
    def speaking(self, weights: Tensor | None) -> Iterator[None]:
        """Within it, the model's forward passes use these weights; None is the base alone.

        Args:
            weights: `[rows, S]`, or `[rows, tokens, S]`.
        """
        before, self._speaking.mix = (
            self._speaking.mix,
            None if weights is None else Mix(weights),
        )
        try:
            yield
        finally:
            self._speaking.mix = before

    def parameters(self) -> list[nn.Parameter]:
        """A `[S, r, in]` and B `[S, out, r]` of every layer, in order."""
        return [p for layer in self.layers.values() for p in (layer.a, layer.b)]

    def state(self) -> dict[str, np.ndarray]:
        """`A.<module>` `[S, r, in]` and `B.<module>` `[S, out, r]`, float32."""
        made = {}
        for name, layer in self.layers.items():
            made[f"A.{name}"] = layer.a.detach().float().cpu().numpy().copy()
            made[f"B.{name}"] = layer.b.detach().float().cpu().numpy().copy()
        return made

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over what `state` gave.

        Raises:
            UsageError: a tensor is missing, or of another shape.
        """
        for name, layer in self.layers.items():
            for kind, own in (("A", layer.a), ("B", layer.b)):
                given = tensors.get(f"{kind}.{name}")
                if given is None or tuple(given.shape) != tuple(own.shape):
                    raise UsageError(f"the blocks do not fit this model at {kind}.{name}")
                with torch.no_grad():
                    own.copy_(torch.from_numpy(given))

    def detach(self) -> None:
        """Put the model's own modules back."""
        for name, layer in self.layers.items():
            _replace(self.model, name, layer.base)
        self.layers = {}


def linear_modules(model: Any, targets: str | Sequence[str]) -> dict[str, tuple[int, int]]:
    """The modules to adapt by name, with features in and out, in the model's order.

    Raises:
        UsageError: no module has such a name.
    """
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not head:
            found[name] = (module.in_features, module.out_features)
        elif isinstance(module, Conv1D):
            found[name] = (module.weight.shape[0], module.weight.shape[1])
    if targets == ALL_LINEAR:
        wanted = found
    else:
        ends = (targets,) if isinstance(targets, str) else tuple(targets)
        wanted = {
            n: s for n, s in found.items() if any(n == e or n.endswith(f".{e}") for e in ends)
        }
        for end in ends:
            if not any(n == end or n.endswith(f".{end}") for n in wanted):
                kinds = sorted({n.rpartition(".")[2] for n in found})
                raise UsageError(f"no linear module is named {end!r}; there are {', '.join(kinds)}")
    if not wanted:
        raise UsageError("this model has no linear module to adapt")
    return wanted


def _replace(model: Any, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
