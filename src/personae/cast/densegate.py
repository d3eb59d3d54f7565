"""Neeko as its released code has it: a dense softmax gate over all blocks, in every module.

Source: github.com/weiyifan1023/Neeko at c9ed62f, `moelora/tuners/{moelora,gating}.py` (read, not
copied; research/upstream.md, C1). For a role with embedding e, each adapted module computes

    h = W x + alpha / r  *  sum_k softmax(G e)_k B_k A_k x,

r the rank of one block, G `[blocks, d]` of that module without bias. All blocks work on every token
and all are trained on every role's lines, so that no block belongs to a character. The gate is
applied before B (the same sum; the released code does it behind B, at the cost of a tensor
`[rows, tokens, blocks, out]`). Two defects are not repeated: the role embedding that is reversed in
training alone, and the role that is fixed once a process.

e is the embedding of the first paragraph of a role's profile. The released code takes
deberta-v3-large (1024 dimensions); here it is what `cast.gate` takes, unless another encoder is
given, of length sqrt(d), which is the length of e there (a vector after a layer norm).

`DenseGate` offers what the trainer asks of a stack (`cast.train`): it is trained by the same steps
on the same rows as every other method. It is a baseline and never part of a cast.

This module imports torch; import it inside functions (DESIGN rule 7).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from personae.cast.plan import Stage
from personae.cast.stacked import ALL_LINEAR, linear_modules, put_module, weight_table
from personae.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALL_BLOCKS = "all blocks"
"""What is trained, for the trainer: one thing, since no block is a character's own."""


class _Roles:
    """What the layers share: the role embeddings of the batch under way, and where they speak."""

    embeddings: Tensor | None = None
    on: Tensor | None = None


class DenseGateLinear(nn.Module):
    """A frozen linear module under all blocks at once.

    Attributes:
        a: `[1, blocks * r, in]`. b: `[1, out, blocks * r]`. gate: `[1, blocks, d]`. The leading 1
            is the one slot that the trainer sees.
    """

    bears_blocks = True

    def __init__(
        self,
        base: nn.Module,
        sizes: tuple[int, int],
        blocks: int,
        rank: int,
        scale: float,
        dropout: float,
        width: int,
        roles: _Roles,
    ) -> None:
        super().__init__()
        device = next(base.parameters()).device
        self.base, self.blocks, self.rank = base, blocks, rank
        self.scale, self.dropout = scale, dropout
        self.a = nn.Parameter(torch.zeros(1, blocks * rank, sizes[0], device=device))
        self.b = nn.Parameter(torch.zeros(1, sizes[1], blocks * rank, device=device))
        self.gate = nn.Parameter(torch.zeros(1, blocks, width, device=device))
        self._roles = roles
        self.train(base.training)

    def forward(self, x: Tensor) -> Tensor:
        """`base(x)` plus the gated sum of all blocks' updates."""
        out: Tensor = self.base(x)
        embeddings, on = self._roles.embeddings, self._roles.on
        if embeddings is None or on is None:
            return out
        seen = nn.functional.dropout(x, self.dropout, self.training) if self.dropout else x
        if x.dim() == 2:  # the rows' tokens one after the other
            seen = seen.reshape(len(on), -1, seen.shape[-1])
        shares = (embeddings @ self.gate[0].T).softmax(-1) * on * self.scale
        hidden = seen @ self.a[0].T.to(x.dtype)
        hidden = hidden.view(*seen.shape[:-1], self.blocks, self.rank)
        hidden = hidden * shares.to(x.dtype)[..., None]
        update: Tensor = hidden.flatten(-2) @ self.b[0].T.to(x.dtype)
        return out + update.reshape(out.shape)


class DenseGate:
    """All blocks over one model under a dense gate; the linear modules are replaced in place.

    Args:
        model: a Hugging Face causal language model; all its parameters are frozen.
        roles: the characters; there are as many blocks.
        embeddings: `[roles, d]`, float; of the first paragraph of each profile.
        rank: of each block.
        alpha: the update of a block is `alpha / rank * B @ A`, times its share.
        targets: as of `StackedLoRA`.
        dropout: on what goes into A, in training.
        seed: of the first values: A and G uniform as torch's linear layers have them, B is 0.

    Raises:
        UsageError: no module has such a name, or not one embedding for each role.
    """

    def __init__(
        self,
        model: Any,
        roles: Sequence[str],
        embeddings: NDArray[Any],
        *,
        rank: int = 8,
        alpha: float = 16.0,
        targets: str | Sequence[str] = ALL_LINEAR,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        if len(set(roles)) < len(roles) or not roles or len(embeddings) != len(roles):
            raise UsageError("a dense gate needs roles, each with a name and an embedding")
        if ALL_BLOCKS in roles:
            raise UsageError(f"no role may be named {ALL_BLOCKS!r} under a dense gate")
        self.model, self.rank, self.alpha = model, rank, alpha
        self.roles = tuple(roles)
        self._roles = _Roles()
        self.layers: dict[str, DenseGateLinear] = {}
        model.requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        width = embeddings.shape[1]
        for name, sizes in linear_modules(model, targets).items():
            layer = DenseGateLinear(
                model.get_submodule(name),
                sizes,
                len(roles),
                rank,
                alpha / rank,
                dropout,
                width,
                self._roles,
            )
            with torch.no_grad():
                for matrix, fan in ((layer.a, sizes[0]), (layer.gate, width)):
                    drawn = torch.rand(matrix.shape, generator=generator)
                    matrix.copy_((drawn * 2 - 1) / math.sqrt(fan))
            put_module(model, name, layer)
            self.layers[name] = layer
        lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
        unit = embeddings / np.where(lengths > 0, lengths, 1.0)
        self.embeddings = torch.tensor(unit * math.sqrt(width), dtype=torch.float32).to(self.device)

    @property
    def slots(self) -> tuple[str, ...]:
        """What the trainer trains: all blocks as one."""
        return (ALL_BLOCKS,)

    @property
    def device(self) -> torch.device:
        """Where the blocks lie."""
        return next(iter(self.layers.values())).a.device

    def index(self, slot: str) -> int:
        """The number of a role, for its weights; all blocks together have 0.

        Raises:
            UsageError: there is no such role.
        """
        if slot == ALL_BLOCKS:
            return 0
        if slot not in self.roles:
            raise UsageError(f"the gate knows no role {slot!r}; it has {', '.join(self.roles)}")
        return self.roles.index(slot)

    def weights(
        self, rows: Sequence[Mapping[str, float]], *, device: torch.device | str | None = None
    ) -> Tensor:
        """`[rows, roles]`: whose embedding each row's gate sees; {} is the base alone.

        Args:
            device: where to make them; None: where the blocks lie.

        Raises:
            UsageError: there is no such role.
        """
        seen = [{role: w for role, w in row.items() if role != ALL_BLOCKS} for row in rows]
        made = weight_table(seen, self.index, len(self.roles))
        return made.to(self.device if device is None else device)

    @contextlib.contextmanager
    def speaking(self, weights: Tensor | None) -> Iterator[None]:
        """Within it, the model's forward passes speak as these roles; None is the base alone.

        Args:
            weights: `[rows, roles]`, or `[rows, tokens, roles]`.
        """
        before = (self._roles.embeddings, self._roles.on)
        if weights is None:
            self._roles.embeddings = self._roles.on = None
        else:
            weights = weights.to(self.device)
            mixed = weights if weights.dim() == 3 else weights[:, None, :]
            self._roles.embeddings = mixed @ self.embeddings
            self._roles.on = (mixed != 0).any(-1, keepdim=True)
        try:
            yield
        finally:
            self._roles.embeddings, self._roles.on = before

    def parameters(self) -> list[nn.Parameter]:
        """A, B and the gate of every layer, in order; the first dimension of each is 1."""
        return [p for layer in self.layers.values() for p in (layer.a, layer.b, layer.gate)]

    def state(self) -> dict[str, np.ndarray]:
        """`A.<module>`, `B.<module>`, `G.<module>` (`DenseGateLinear`), float32."""
        made = {}
        for name, layer in self.layers.items():
            for kind, own in (("A", layer.a), ("B", layer.b), ("G", layer.gate)):
                made[f"{kind}.{name}"] = own.detach().float().cpu().numpy().copy()
        return made

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over what `state` gave.

        Raises:
            UsageError: a tensor is missing, or of another shape.
        """
        for name, layer in self.layers.items():
            for kind, own in (("A", layer.a), ("B", layer.b), ("G", layer.gate)):
                given = tensors.get(f"{kind}.{name}")
                if given is None or tuple(given.shape) != tuple(own.shape):
                    raise UsageError(f"the dense gate does not fit this model at {kind}.{name}")
                with torch.no_grad():
                    own.copy_(torch.from_numpy(given))

    def detach(self) -> None:
        """Put the model's own modules back."""
        for name, layer in self.layers.items():
            put_module(self.model, name, layer.base)
        self.layers = {}


def speaks_as(roles: Sequence[str]) -> dict[str, dict[str, float]]:
    """The weights under which each role speaks, for `score_rows` and for the trainer."""
    return {role: {role: 1.0, ALL_BLOCKS: 1.0} for role in roles}


def dense_gate(roles: Sequence[str], lr: float) -> tuple[Stage, ...]:
    """The one stage of its training: every role's lines train all blocks and the gates."""
    return (Stage("dense gate", speaks_as(roles), (ALL_BLOCKS,), lr),)
