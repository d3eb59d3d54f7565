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
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from personae.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

ALL_LINEAR = "all-linear"


class Mix:
    """Which blocks work on what: weights of S slots for each row, or each token, of a batch.

    Made once and used for many forward passes (`StackedLoRA.mix`), it spares each pass the
    arithmetic on the weights and each layer the gathering of its blocks.

    Args:
        weights: `[rows, S]`, or `[rows, tokens, S]`; 0 switches a slot off.
        device: of the blocks; None: that of the weights.
    """

    @torch.inference_mode(mode=False)  # kept, and perhaps used to learn later
    def __init__(self, weights: Tensor, device: torch.device | None = None) -> None:
        weights = weights.detach().clone()
        device = weights.device if device is None else device
        by_token = weights if weights.dim() == 3 else weights[:, None]
        self.weights = weights
        self.rows, self.tokens = by_token.shape[:2]
        on = by_token.any(1)  # [rows, S]
        present = on.any(0).nonzero()[:, 0]
        self.size = len(present)
        """P, the number of slots that work on anything."""
        self.present = present.to(device)
        """Which they are, `[P]`."""
        among = by_token.index_select(-1, present)
        self.uniform = among[0, 0].to(device) if bool((among == among[:1, :1]).all()) else None
        """Their weights, `[P]`, where these are the same for all rows and tokens."""
        self.active = among.to(device)
        """Their weights, `[rows, 1 or tokens, P]`."""
        on = on.index_select(1, present)
        self.few = int(on.sum(1).max()) if self.size else 0
        """p, the largest number of slots that one row has."""
        own = on.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : self.few]
        self.own = own.to(device)
        """Those of each row among the P, `[rows, p]`; where it has fewer, some of weight 0."""
        index = own[:, None].expand(-1, by_token.shape[1], -1)
        self.own_active = among.gather(-1, index).to(device)
        """Their weights, `[rows, 1 or tokens, p]`."""
        self.own_present = present[own].flatten().to(device)
        """Which slots they are, `[rows * p]`."""
        self._spread: dict[tuple[bool, int, float, torch.dtype], Tensor] = {}

    def same(self, weights: Tensor) -> bool:
        """Whether it was made of these weights."""
        return (
            weights.shape == self.weights.shape
            and weights.device == self.weights.device
            and torch.equal(weights, self.weights)
        )

    def by_rows(self, tokens: int) -> bool:
        """Whether to gather each row's own blocks instead of running all P over all rows.

        All P cost `P` products a token, the own ones `p` and a copy of p blocks a row, which is
        worth about `COPY` tokens' products (measured on a CPU at width 576, rank 8, 9 slots).
        """
        return tokens * (self.size - self.few) > COPY * self.few

    def spread(self, by_rows: bool, rank: int, scale: float, dtype: torch.dtype) -> Tensor:
        """Scaled weights of the blocks' inner dimensions, `[rows, 1 or tokens, slots * rank]`.

        Where they are uniform, `[slots * rank]`.
        """
        key = (by_rows, rank, scale, dtype)
        if key not in self._spread:
            active = self.own_active if by_rows else self.active
            active = active if self.uniform is None else self.uniform
            with torch.inference_mode(mode=False):
                self._spread[key] = (active * scale).to(dtype).repeat_interleave(rank, -1)
        return self._spread[key]


COPY = 48


class _Speaking:
    """What the layers of one stack share: the mix of the batch under way."""

    mix: Mix | None = None

    def __init__(self) -> None:
        self.ready: dict[StackedLinear, _Ready] = {}


@dataclass(frozen=True)
class _Ready:
    """A layer's blocks as one pass needs them.

    Attributes:
        down: `[P r, in]`, or by rows `[rows, p r, in]`.
        up: `[P r, out]`, or by rows `[rows, p r, out]`.
    """

    down: Tensor
    up: Tensor

    def fits(self, by_rows: bool, dtype: torch.dtype) -> bool:
        """Whether it was made for such a pass."""
        return (self.down.dim() == 3) == by_rows and self.down.dtype == dtype


class StackedLinear(nn.Module):
    """A frozen linear module and the blocks of all slots over it.

    Attributes:
        a: `[capacity, r, in]`, float32; the first S are the stack's slots.
        b: `[capacity, out, r]`, float32.

    Args:
        base: `torch.nn.Linear` or transformers' `Conv1D`.
        sizes: features in and out.
    """

    bears_blocks = True

    def __init__(
        self,
        base: nn.Module,
        sizes: tuple[int, int],
        capacity: int,
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
        self.a = nn.Parameter(torch.zeros(capacity, rank, width, device=device))
        self.b = nn.Parameter(torch.zeros(capacity, height, rank, device=device))
        self._speaking = speaking
        self._kept: tuple[object, _Ready] | None = None
        self.train(base.training)  # a new module would drop values where its base does not

    def forward(self, x: Tensor) -> Tensor:
        """`base(x)` plus the weighted updates of the slots that the mix names.

        Args:
            x: `[rows, tokens, in]`, or `[rows * tokens, in]`.
        """
        out: Tensor = self.base(x)
        mix = self._speaking.mix
        if mix is None or not mix.size:
            return out
        seen = nn.functional.dropout(x, self.dropout, self.training) if self.dropout else x
        rank, learning = self.a.shape[1], torch.is_grad_enabled()
        by_rows = False
        if mix.uniform is None:
            if x.dim() == 2:  # the rows' tokens one after the other
                seen = seen.reshape(mix.rows, -1, seen.shape[-1])
            if len(seen) != mix.rows or mix.tokens not in {1, seen.shape[1]}:
                what = f"weights for {mix.rows} x {mix.tokens}, tokens {[*seen.shape[:2]]}"
                raise ValueError(what)
            by_rows = mix.by_rows(seen.shape[1])
        ready = self._ready(mix, by_rows, x.dtype)
        spread = mix.spread(by_rows, rank, self.scale, x.dtype)
        if by_rows:
            hidden = torch.bmm(seen, ready.down.mT) * spread
            if out.dim() == 3:
                return out.baddbmm_(hidden, ready.up)
            return torch.baddbmm(out.reshape(*seen.shape[:2], -1), hidden, ready.up).reshape(
                out.shape
            )
        hidden = ((seen @ ready.down.T) * spread).flatten(0, -2)
        flat = out.reshape(-1, out.shape[-1])
        if learning:  # in place, autograd would copy the view
            return torch.addmm(flat, hidden, ready.up).reshape(out.shape)
        return flat.addmm_(hidden, ready.up).reshape(out.shape)

    def _ready(self, mix: Mix, by_rows: bool, dtype: torch.dtype) -> _Ready:
        """The mix's blocks; kept for the next pass where nothing is learnt."""
        if torch.is_grad_enabled():
            ready = self._speaking.ready.pop(self, None)
            if ready is not None and ready.fits(by_rows, dtype):
                return ready
            return _gathered(mix, [self], by_rows, dtype)[0]
        key = (mix, by_rows, dtype, self.a, self.a._version, self.b, self.b._version)
        if self._kept is None or not _identical(self._kept[0], key):
            ready = _gathered(mix, [self], by_rows, dtype)[0]
            if not by_rows:  # laid out as the product of one token a row reads it
                ready = _Ready(ready.down.T.contiguous().T, ready.up)
            self._kept = (key, ready)
        return self._kept[1]


def _gathered(
    mix: Mix, layers: Sequence[StackedLinear], by_rows: bool, dtype: torch.dtype
) -> list[_Ready]:
    """The mix's blocks of layers of one shape."""
    a = layers[0].a[None] if len(layers) == 1 else torch.stack([layer.a for layer in layers])
    b = layers[0].b[None] if len(layers) == 1 else torch.stack([layer.b for layer in layers])
    if by_rows and dtype == a.dtype:
        a, b = a.index_select(1, mix.own_present), b.index_select(1, mix.own_present)
    else:
        a = a.index_select(1, mix.present).to(dtype)
        b = b.index_select(1, mix.present).to(dtype)
        if by_rows:
            own = mix.own.flatten()
            a, b = a.index_select(1, own), b.index_select(1, own)
    down, up = a.flatten(1, 2), b.mT.flatten(1, 2)  # [layers, slots r, in], [layers, slots r, out]
    if by_rows:
        down = down.reshape(len(layers), mix.rows, -1, down.shape[-1])
        up = up.reshape(len(layers), mix.rows, -1, up.shape[-1])
    return [_Ready(*pair) for pair in zip(down.unbind(), up.unbind(), strict=True)]


def _identical(one: object, other: tuple[Any, ...]) -> bool:
    return isinstance(one, tuple) and all(
        a == b if isinstance(a, int) else a is b for a, b in zip(one, other, strict=True)
    )


class StackedLoRA:
    """The blocks of a cast over one model; its linear modules are replaced in place.

    Args:
        model: a Hugging Face causal language model; all its parameters are frozen.
        slots: names of the slots, in order (`shared` first, where there is one).
        rank: of each block.
        alpha: the update of a block is `alpha / rank * B @ A`.
        targets: `all-linear` (all but the output embedding), or ends of module names.
        dropout: on what goes into A, in training.
        seed: of A's first values (those of PEFT: Kaiming uniform; B is 0). A slot's depend on the
            seed and its name alone.
        spare: room for so many more slots (`add_slot`), to be had without moving the others.

    Raises:
        UsageError: no module has such a name, two slots bear one, or the model bears blocks.
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
        spare: int = 4,
    ) -> None:
        if len(set(slots)) < len(slots) or not slots:
            raise UsageError("a stack needs slots, each with a name of its own")
        if rank < 1:
            raise UsageError("the rank of a block counts from 1")
        self.model, self.rank, self.alpha, self.seed = model, rank, alpha, seed
        self._slots = list(slots)
        self._spare = spare
        self._whole = True
        self._speaking = _Speaking()
        self._last: Mix | None = None
        self.layers: dict[str, StackedLinear] = {}
        model.requires_grad_(False)
        for name, sizes in linear_modules(model, targets).items():
            layer = StackedLinear(
                model.get_submodule(name),
                sizes,
                len(slots) + spare,
                rank,
                alpha / rank,
                dropout,
                self._speaking,
            )
            _replace(model, name, layer)
            self.layers[name] = layer
        for slot in slots:
            self._begin(slot)

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

    def add_slot(self, name: str, tensors: Mapping[str, np.ndarray] | None = None) -> int:
        """One slot more, after the others, whose numbers and values stay as they are.

        Args:
            name: of the slot.
            tensors: `A.<module>` `[r, in]` and `B.<module>` `[out, r]`; None: A as it begins, B 0.

        Returns:
            The slot's number.

        Raises:
            UsageError: there is a slot of that name, or the tensors do not fit.
        """
        if name in self._slots:
            raise UsageError(f"the stack has a slot {name!r} already")
        if not self._whole:
            raise RuntimeError("no slot can be added while some are alone")
        if tensors is not None:
            for module, layer in self.layers.items():
                for kind, own in (("A", layer.a), ("B", layer.b)):
                    _fitting(tensors, f"{kind}.{module}", own.shape[1:])
        number = len(self._slots)
        # Not in inference mode, should a generator be in it: what is made there cannot be learnt.
        with torch.inference_mode(False), torch.no_grad():
            for layer in self.layers.values():
                if number == len(layer.a):
                    room = max(self._spare, number // 2, 1)
                    for kind in ("a", "b"):
                        old = getattr(layer, kind)
                        grown = torch.zeros(number + room, *old.shape[1:], device=old.device)
                        grown[:number] = old
                        setattr(layer, kind, nn.Parameter(grown))
            self._slots.append(name)
            if tensors is None:
                self._begin(name)
            else:
                for module, layer in self.layers.items():
                    layer.a[number].copy_(torch.from_numpy(tensors[f"A.{module}"]))
                    layer.b[number].copy_(torch.from_numpy(tensors[f"B.{module}"]))
        return number

    @torch.no_grad()
    def _begin(self, name: str) -> None:
        """A slot's first values: A Kaiming uniform (as PEFT's, a = sqrt 5), B 0."""
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        number = self.index(name)
        for layer in self.layers.values():
            rank, width = layer.a.shape[1:]
            bound = 1 / math.sqrt(width)
            layer.a[number].copy_(torch.rand(rank, width, generator=generator) * 2 * bound - bound)
            layer.b[number].zero_()

    @contextlib.contextmanager
    def only(self, slots: Sequence[str]) -> Iterator[None]:
        """Within it the stack holds these slots alone; at its end they go back to their places.

        What is not among them cannot change, and costs a training neither memory nor time.

        Raises:
            UsageError: there is no such slot.
        """
        numbers = [self.index(slot) for slot in slots]
        names, self._slots = self._slots, list(slots)
        whole, self._whole = self._whole, False
        before = {name: (layer.a, layer.b) for name, layer in self.layers.items()}
        try:
            for layer in self.layers.values():
                for kind in ("a", "b"):
                    setattr(layer, kind, nn.Parameter(getattr(layer, kind).detach()[numbers]))
            yield
        finally:
            for name, layer in self.layers.items():
                with torch.no_grad():
                    for kind, old in zip(("a", "b"), before[name], strict=True):
                        old[numbers] = getattr(layer, kind).detach()
                        setattr(layer, kind, old)
            self._slots, self._whole = names, whole

    def weights(
        self, rows: Sequence[Mapping[str, float]], *, device: torch.device | str | None = None
    ) -> Tensor:
        """`[rows, S]` of each row's weights by slot name; {} is the base alone.

        Args:
            device: where to make them; None: where the blocks lie.

        Raises:
            UsageError: there is no such slot.
        """
        made = torch.zeros(len(rows), len(self._slots))
        for number, row in enumerate(rows):
            for slot, weight in row.items():
                made[number, self.index(slot)] = weight
        return made.to(self.device if device is None else device)

    def mix(self, weights: Tensor) -> Mix:
        """Weights made ready for many passes; on a GPU they are best given on the CPU.

        Args:
            weights: `[rows, S]`, or `[rows, tokens, S]`.
        """
        return Mix(weights, self.device)

    @contextlib.contextmanager
    def speaking(self, weights: Tensor | Mix | None, *, once: int | None = None) -> Iterator[None]:
        """Within it, the model's forward passes use these weights; None is the base alone.

        Args:
            weights: `[rows, S]`, or `[rows, tokens, S]`, or what `mix` made of such. The same
                weights a second time running (one token after the other) cost nothing anew.
            once: for training: one forward pass over so many tokens a row is made within it, and
                one backward. The blocks of all layers are then gathered together, in a few
                operations instead of some in each layer (a small model on a GPU waits for nothing
                else); their gradients are held until the last of them is there.
        """
        if isinstance(weights, Tensor):
            if self._last is None or not self._last.same(weights):
                self._last = self.mix(weights)
            weights = self._last
        before, self._speaking.mix = self._speaking.mix, weights
        try:
            if once is not None and weights is not None and weights.size:
                by_rows = weights.uniform is None and weights.by_rows(once)
                alike: dict[tuple[torch.Size, torch.Size], list[StackedLinear]] = {}
                for layer in self.layers.values():
                    alike.setdefault((layer.a.shape, layer.b.shape), []).append(layer)
                for layers in alike.values():
                    made = _gathered(weights, layers, by_rows, self.model.dtype)
                    self._speaking.ready.update(zip(layers, made, strict=True))
            yield
        finally:
            self._speaking.mix = before
            self._speaking.ready.clear()

    def parameters(self) -> list[nn.Parameter]:
        """A `[capacity, r, in]` and B `[capacity, out, r]` of every layer, in order.

        The first S of each are the slots; the rest is room for more.
        """
        return [p for layer in self.layers.values() for p in (layer.a, layer.b)]

    def state(self) -> dict[str, np.ndarray]:
        """`A.<module>` `[S, r, in]` and `B.<module>` `[S, out, r]`, float32."""
        made = {}
        for name, layer in self.layers.items():
            made[f"A.{name}"] = layer.a[: len(self._slots)].detach().cpu().numpy().copy()
            made[f"B.{name}"] = layer.b[: len(self._slots)].detach().cpu().numpy().copy()
        return made

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over what `state` gave.

        Raises:
            UsageError: a tensor is missing, or of another shape.
        """
        count = len(self._slots)
        for copying in (False, True):  # all of it fits, or nothing is taken over
            for name, layer in self.layers.items():
                for kind, own in (("A", layer.a), ("B", layer.b)):
                    given = _fitting(tensors, f"{kind}.{name}", (count, *own.shape[1:]))
                    if copying:
                        with torch.no_grad():
                            own[:count].copy_(torch.from_numpy(given))

    def detach(self) -> None:
        """Put the model's own modules back."""
        for name, layer in self.layers.items():
            _replace(self.model, name, layer.base)
        self.layers = {}


def _fitting(tensors: Mapping[str, np.ndarray], name: str, shape: Sequence[int]) -> np.ndarray:
    given = tensors.get(name)
    if given is None or tuple(given.shape) != tuple(shape):
        raise UsageError(f"the blocks do not fit this model at {name}")
    return given


def linear_modules(model: Any, targets: str | Sequence[str]) -> dict[str, tuple[int, int]]:
    """The modules to adapt by name, with features in and out, in the model's order.

    Raises:
        UsageError: no module has such a name, or some bear blocks already.
    """
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    found = {}
    for name, module in model.named_modules():
        if getattr(module, "bears_blocks", False):
            raise UsageError("the model bears blocks already: take them off first (`detach`)")
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
