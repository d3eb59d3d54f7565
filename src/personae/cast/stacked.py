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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    arithmetic on the weights and, where nothing is learnt, the gathering of blocks.

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
        self.own = present[own].to(device)
        """The slots of each row, `[rows, p]`; where it has fewer, some of weight 0."""
        index = own[:, None].expand(-1, by_token.shape[1], -1)
        self.own_active = among.gather(-1, index).to(device)
        """Their weights, `[rows, 1 or tokens, p]`."""
        self.kept: dict[tuple[bool, torch.dtype], _Ready] = {}
        """The blocks as passes need them, while none of them changes."""

    def same(self, weights: Tensor) -> bool:
        """Whether it was made of these weights."""
        return (
            weights.shape == self.weights.shape
            and weights.device == self.weights.device
            and torch.equal(weights, self.weights)
        )

    def by_rows(self, tokens: int, *, kept: bool) -> bool:
        """Whether to give each row its own blocks instead of running all P over all rows.

        All P cost `P` products a token, the own ones `p` and a copy of p blocks a row, which is
        worth about `COPY` tokens' products. Copies that are kept over many passes cost nothing
        anew but their reading: on a processor as much as that of all P; on a GPU a step's time is
        its number of kernels, and own blocks need the fewest (benchmarks/cast_decode.py).
        """
        if self.uniform is not None:
            return False
        more = GPU_COPIES if self.present.is_cuda else 1
        if kept and self.rows * self.few <= more * self.size:
            return True
        return tokens * (self.size - self.few) > COPY * self.few


COPY = 48
GPU_COPIES = 8


class _Speaking:
    """What the layers of one stack share: the mix of the batch under way."""

    mix: Mix | None = None


@dataclass(frozen=True, eq=False)
class _Ready:
    """All blocks as one pass needs them.

    Attributes:
        by_rows: each row has its own.
        down: by group of modules that read the same, G of them: `[G P r, in]`, or by rows
            `[rows, G p r, in]`.
        up: by module `[P r, out]`, or by rows `[rows, p r, out]`; the blocks' scale is in it, and
            the weights, where they are not a token's own.
        spread: weights for the inner dimensions of a group, by G, `[rows, 1 or tokens, G P r]`;
            None where they are in `up`.
        stamp: which values of which tensors they were taken from.
    """

    by_rows: bool
    down: tuple[Tensor, ...]
    up: tuple[Tensor, ...]
    spread: Mapping[int, Tensor] | None
    stamp: tuple[int, ...]
    source: Sequence[nn.Parameter]


class _Blocks:
    """The blocks of all modules, in one tensor for each size of input and of output.

    A pass over a model of hundreds of modules is as fast as its kernels are few: what a batch needs
    of all blocks is gathered with a handful of them, and the optimiser sees a handful of tensors.

    Attributes:
        tensors: A's `[capacity, modules, r, in]` by size of the input, then B's, transposed,
            `[capacity, modules, r, out]` by size of the output; float32.

    Args:
        sizes: features in and out by module.
        groups: modules that read the same tensor, each module in one group.
    """

    def __init__(
        self,
        sizes: Sequence[tuple[int, int]],
        groups: Sequence[Sequence[int]],
        capacity: int,
        rank: int,
        scale: float,
        device: torch.device,
    ) -> None:
        self.rank, self.scale = rank, scale
        self.groups = [tuple(group) for group in groups]
        self.places: list[dict[int, tuple[int, int]]] = [{}, {}]
        """Of A and of B: which tensor a module is in, and where there."""
        shapes: list[tuple[int, int]] = []
        for side in (0, 1):
            for size in dict.fromkeys(both[side] for both in sizes):
                of_it = [g for g, ms in enumerate(self.groups) if sizes[ms[0]][side] == size]
                modules = (
                    [m for g in of_it for m in self.groups[g]]
                    if side == 0
                    else [m for m, both in enumerate(sizes) if both[1] == size]
                )
                for at, module in enumerate(modules):
                    self.places[side][module] = (len(shapes), at)
                shapes.append((len(modules), size))
        self._downs = len({both[0] for both in sizes})
        self._in_down = [
            [g for g, ms in enumerate(self.groups) if self.places[0][ms[0]][0] == t]
            for t in range(self._downs)
        ]
        self.tensors = [
            nn.Parameter(torch.zeros(capacity, count, rank, size, device=device))
            for count, size in shapes
        ]
        self._pass: tuple[Mix, _Ready, list[bool]] | None = None

    def a(self, module: int) -> Tensor:
        """`[capacity, r, in]` of a module: the values themselves, with their gradients."""
        tensor, at = self.places[0][module]
        return _with_grad(self.tensors[tensor], lambda whole: whole[:, at])

    def b(self, module: int) -> Tensor:
        """`[capacity, out, r]` of a module: the values themselves, with their gradients."""
        tensor, at = self.places[1][module]
        return _with_grad(self.tensors[tensor], lambda whole: whole[:, at].mT)

    def ready(self, module: int, mix: Mix, tokens: int, dtype: torch.dtype) -> _Ready:
        """What a pass needs; gathered at its first module, and where nothing is learnt kept."""
        if not torch.is_grad_enabled():
            by_rows = mix.by_rows(tokens, kept=True)
            found = mix.kept.get((by_rows, dtype))
            if found is None or not self._fresh(found):
                found = self._gathered(mix, by_rows, dtype)
                if not by_rows:  # laid out as the product of one token a row reads it
                    found = replace(found, down=tuple(d.T.contiguous().T for d in found.down))
                mix.kept[by_rows, dtype] = found
            return found
        by_rows = mix.by_rows(tokens, kept=False)
        if self._pass is not None:
            of, found, used = self._pass
            # A module that comes a second time begins another pass: a graph serves one backward.
            if (
                of is mix
                and not used[module]
                and found.by_rows == by_rows
                and found.up[module].dtype == dtype
                and self._fresh(found)
            ):
                used[module] = True
                if all(used):
                    self._pass = None
                return found
        found, used = self.prepare(mix, tokens, dtype)
        used[module] = True
        return found

    def prepare(self, mix: Mix, tokens: int, dtype: torch.dtype) -> tuple[_Ready, list[bool]]:
        """Begin a pass that learns; which modules have taken part."""
        found = self._gathered(mix, mix.by_rows(tokens, kept=False), dtype)
        used = [False] * len(found.up)
        self._pass = (mix, found, used)
        return found, used

    def forget(self) -> None:
        """Drop the blocks of a pass that is over, and what leads back through them."""
        self._pass = None

    def _fresh(self, found: _Ready) -> bool:
        """Whether the blocks are still those that were gathered."""
        return found.source is self.tensors and found.stamp == tuple(
            [t._version for t in self.tensors]
        )

    def _gathered(self, mix: Mix, by_rows: bool, dtype: torch.dtype) -> _Ready:
        index = mix.own.flatten() if by_rows else mix.present
        factor: Tensor | None = None
        if mix.uniform is not None:
            factor = mix.uniform
        elif by_rows and mix.tokens == 1:
            factor = mix.own_active.flatten()
        down: list[Tensor] = [torch.empty(0)] * len(self.groups)
        up: list[Tensor] = []
        of_ups: list[tuple[Tensor, ...]] = []
        for number, tensor in enumerate(self.tensors):
            taken = tensor.index_select(0, index)  # [rows p or P, modules, r, size]
            if number >= self._downs:
                taken = taken.to(torch.promote_types(taken.dtype, dtype))
                if factor is None:
                    taken = taken * self.scale
                else:
                    taken = taken * (factor * self.scale).to(taken.dtype)[:, None, None, None]
            count, rank, size = taken.shape[1:]
            if by_rows:
                taken = taken.view(mix.rows, -1, count, rank, size).transpose(1, 2)
                taken = taken.reshape(mix.rows, count, -1, size).to(dtype)
            else:
                taken = taken.transpose(0, 1).reshape(count, -1, size).to(dtype)
            along = 1 if by_rows else 0
            if number < self._downs:
                of_it = self._in_down[number]
                parts = torch.split(taken, [len(self.groups[g]) for g in of_it], along)
                for g, part in zip(of_it, parts, strict=True):
                    down[g] = part.flatten(along, along + 1)
            else:
                of_ups.append(taken.unbind(along))
        for module in range(len(self.places[1])):
            number, at = self.places[1][module]
            up.append(of_ups[number - self._downs][at])
        spread = None
        if factor is None:
            active = mix.own_active if by_rows else mix.active
            one = active.to(dtype).repeat_interleave(self.rank, -1)
            spread = {n: one.repeat(1, 1, n) for n in {len(group) for group in self.groups} | {1}}
        stamp = tuple([t._version for t in self.tensors])
        return _Ready(by_rows, tuple(down), tuple(up), spread, stamp, self.tensors)

    def grow(self, more: int) -> None:
        """Room for so many more slots; the values of the others stay as they are."""
        self.tensors = [
            nn.Parameter(torch.cat([t.detach(), t.new_zeros(more, *t.shape[1:])]))
            for t in self.tensors
        ]


def _with_grad(whole: Tensor, view: Callable[[Tensor], Tensor]) -> Tensor:
    values = view(whole.detach())
    if whole.grad is not None:
        values.grad = view(whole.grad)
    return values


class _Group:
    """Modules that read the same tensor, as queries, keys and values do: one product with A.

    Whether it is the same is looked at each time; where it is not, each makes its own.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._of: tuple[Tensor, Tensor] | None = None
        self._parts: tuple[Tensor, ...] = ()

    def hidden(self, at: int, x: Tensor, down: Tensor, spread: Tensor | None) -> Tensor:
        """`[rows, tokens, p r]` of the module at that place in the group."""
        if self._of is None or self._of[0] is not x or self._of[1] is not down:
            made = _down(x, down, spread)
            self._parts = torch.split(made, made.shape[-1] // self.size, -1)
            self._of = (x, down)
        part = self._parts[at]
        if at == self.size - 1:
            self.forget()
        return part

    def forget(self) -> None:
        """Drop what is left of a pass."""
        self._of, self._parts = None, ()


def _down(x: Tensor, down: Tensor, spread: Tensor | None) -> Tensor:
    made = torch.bmm(x, down.mT) if down.dim() == 3 else x @ down.T
    return made if spread is None else made * spread


class StackedLinear(nn.Module):
    """A frozen linear module and the blocks of all slots over it.

    Args:
        base: `torch.nn.Linear` or transformers' `Conv1D`.
        blocks: of all modules; this one is number `number`.
        group: the number of its group, the group, and its place there.
    """

    bears_blocks = True

    def __init__(
        self,
        base: nn.Module,
        blocks: _Blocks,
        number: int,
        group: tuple[int, _Group, int],
        dropout: float,
        speaking: _Speaking,
    ) -> None:
        super().__init__()
        self.base = base
        self.dropout = dropout
        self._blocks, self._number = blocks, number
        self._group_number, self._group, self._place = group
        self._speaking = speaking
        self.train(base.training)  # a new module would drop values where its base does not

    @property
    def a(self) -> Tensor:
        """A, `[capacity, r, in]`, float32; the first S are the stack's slots."""
        return self._blocks.a(self._number)

    @property
    def b(self) -> Tensor:
        """B, `[capacity, out, r]`, float32."""
        return self._blocks.b(self._number)

    def forward(self, x: Tensor) -> Tensor:
        """`base(x)` plus the weighted updates of the slots that the mix names.

        Args:
            x: `[rows, tokens, in]`, or `[rows * tokens, in]`.
        """
        out: Tensor = self.base(x)
        mix = self._speaking.mix
        if mix is None or not mix.size:
            return out
        seen = x
        if x.dim() == 2:  # the rows' tokens one after the other
            seen = x.reshape(mix.rows if mix.uniform is None else 1, -1, x.shape[-1])
        if mix.uniform is None and (len(seen) != mix.rows or mix.tokens not in {1, seen.shape[1]}):
            raise ValueError(f"weights for {mix.rows} x {mix.tokens}, tokens {[*seen.shape[:2]]}")
        ready = self._blocks.ready(self._number, mix, seen.shape[1], x.dtype)
        hidden = self._hidden(x, seen, ready)
        up, learning = ready.up[self._number], torch.is_grad_enabled()
        if ready.by_rows:
            # In place spares a copy; on a view autograd would make one in its stead.
            if out.dim() == 3 and (not learning or out._base is None):
                return out.baddbmm_(hidden, up)
            wide = out.reshape(*seen.shape[:2], -1)
            return torch.baddbmm(wide, hidden, up).reshape(out.shape)
        flat, hidden = out.reshape(-1, out.shape[-1]), hidden.flatten(0, 1)
        if learning:
            return torch.addmm(flat, hidden, up).reshape(out.shape)
        return flat.addmm_(hidden, up).reshape(out.shape)

    def _hidden(self, x: Tensor, seen: Tensor, ready: _Ready) -> Tensor:
        """A's side, `[rows, tokens, p r]`."""
        down, size = ready.down[self._group_number], self._group.size
        dropping = self.dropout > 0 and self.training
        if size == 1 or dropping or seen is not x:
            # Dropout draws for each module, as PEFT has it; a view made here is nobody else's.
            own = down.shape[-2] // size
            down = down.narrow(-2, self._place * own, own)
            seen = nn.functional.dropout(seen, self.dropout, dropping) if dropping else seen
            return _down(seen, down, None if ready.spread is None else ready.spread[1])
        spread = None if ready.spread is None else ready.spread[size]
        return self._group.hidden(self._place, x, down, spread)


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
        model.requires_grad_(False)
        modules = linear_modules(model, targets)
        groups = _siblings([*modules], [*modules.values()])
        first = model.get_submodule(next(iter(modules)))
        self._blocks = _Blocks(
            [*modules.values()],
            groups,
            len(slots) + spare,
            rank,
            alpha / rank,
            next(first.parameters()).device,
        )
        self._groups: list[_Group] = []
        places = {}
        for number, members in enumerate(groups):
            group = _Group(len(members))
            self._groups.append(group)
            places.update({m: (number, group, at) for at, m in enumerate(members)})
        self.layers: dict[str, StackedLinear] = {}
        for number, name in enumerate(modules):
            layer = StackedLinear(
                model.get_submodule(name),
                self._blocks,
                number,
                places[number],
                dropout,
                self._speaking,
            )
            put_module(model, name, layer)
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
        return self._blocks.tensors[0].device

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
            if number == len(self._blocks.tensors[0]):
                self._blocks.grow(max(self._spare, number // 2, 1))
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
        before = self._blocks.tensors
        alone = [nn.Parameter(t.detach()[numbers]) for t in before]
        names, whole = self._slots, self._whole
        self._slots, self._whole, self._blocks.tensors = list(slots), False, alone
        try:
            yield
        finally:
            with torch.no_grad():
                for old, new in zip(before, alone, strict=True):
                    old[numbers] = new.detach()
            self._blocks.tensors = before
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
        made = weight_table(rows, self.index, len(self._slots))
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
                one backward; the blocks are gathered before it begins.

        Raises:
            IndexError: the weights are of more slots than there are.
        """
        if isinstance(weights, Tensor):
            if self._last is None or not self._last.same(weights):
                self._last = self.mix(weights)
            weights = self._last
        before = self._speaking.mix
        try:
            if weights is not None:
                if (count := weights.weights.shape[-1]) > len(self._slots):
                    raise IndexError(f"weights of {count} slots; the stack has {len(self._slots)}")
                if once is not None and weights.size:
                    self._blocks.prepare(weights, once, self.model.dtype)
            self._speaking.mix = weights
            yield
        finally:
            self._speaking.mix = before
            self._blocks.forget()
            for group in self._groups:
                group.forget()

    def parameters(self) -> list[nn.Parameter]:
        """All blocks: `[capacity, modules, r, in]`, then `[capacity, modules, r, out]`.

        A tensor for each size of input and of output; the first S of its first dimension are the
        slots, the rest is room for more.
        """
        return list(self._blocks.tensors)

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
            put_module(self.model, name, layer.base)
        self.layers = {}


SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of modules beside each other that read the same tensor, as most models have them."""


def _siblings(names: Sequence[str], sizes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Modules by groups of those that should read the same; most stand alone."""
    number = {name: n for n, name in enumerate(names)}
    groups, done = [], set()
    for n, name in enumerate(names):
        if n in done:
            continue
        parent, _, last = name.rpartition(".")
        family = next((f for f in SIBLINGS if last in f), (last,))
        beside = [number.get(f"{parent}.{one}" if parent else one) for one in family]
        members = [m for m in beside if m is not None and sizes[m][0] == sizes[n][0]]
        done.update(members)
        groups.append(members)
    return groups


def _fitting(tensors: Mapping[str, np.ndarray], name: str, shape: Sequence[int]) -> np.ndarray:
    given = tensors.get(name)
    if given is None or tuple(given.shape) != tuple(shape):
        raise UsageError(f"the blocks do not fit this model at {name}")
    return given


def weight_table(
    rows: Sequence[Mapping[str, float]], index: Callable[[str], int], columns: int
) -> Tensor:
    """`[rows, columns]` of weights given by name; what is not named weighs 0."""
    made = torch.zeros(len(rows), columns)
    for number, row in enumerate(rows):
        for name, weight in row.items():
            made[number, index(name)] = weight
    return made


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


def put_module(model: Any, name: str, module: nn.Module) -> None:
    """Set a module of a model by its full name."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
