"""`SlotAdamW`: one AdamW for every slot of a stack, each at its own pace.

AdamW works on each number by itself, so that K optimisers over K adapters are one optimiser over
stacked tensors, as long as each slot keeps its own count of steps, rate and gradient norm
(`research/lora.md`, section 3). The arithmetic is torch's own (`torch.optim.adamw.adamw`), called
on the slots' slices.

Source: Loshchilov & Hutter 2019, "Decoupled weight decay regularization", algorithm 2.

This module imports torch; import it inside functions (DESIGN rule 7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from personae.errors import UsageError


class SlotAdamW:
    """AdamW over parameters whose first dimension is the slot.

    Args:
        parameters: `[S, ...]` each, float32, as `StackedLoRA.parameters()` gives them.
        betas: decay of the mean and of the mean square of the gradients.
        weight_decay: decoupled.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not parameters:
            raise UsageError("there is nothing to optimise")
        self.parameters = list(parameters)
        self._betas, self._eps, self._weight_decay = betas, eps, weight_decay
        self._fused = self.parameters[0].device.type in {"cpu", "cuda"}
        self._slots: dict[int, _Slot] = {}
        self.zero_grad()

    def zero_grad(self) -> None:
        """Set all gradients to 0 (in place: the slots' slices of them are kept)."""
        missing = [p for p in self.parameters if p.grad is None]
        for parameter in missing:
            parameter.grad = torch.zeros_like(parameter)
        if missing:
            self._refresh()
        torch._foreach_zero_([p.grad for p in self.parameters if p.grad is not None])

    @torch.no_grad()
    def step(
        self,
        rates: Mapping[int, float],
        *,
        clip: float | None = None,
        divide: Mapping[int, float] | None = None,
    ) -> dict[int, float]:
        """One update of the named slots; every other is not touched.

        Args:
            rates: learning rate by number of the slot.
            clip: largest 2-norm of a slot's gradient (over all its matrices), as
                `torch.nn.utils.clip_grad_norm_` clips.
            divide: what a slot's gradient is divided by first (of a block that several losses
                teach: their number).

        Returns:
            The gradients' norms before clipping, by slot. A slot whose norm is not a finite number
            stops the whole update: nothing has changed then.
        """
        slots = {index: self._slot(index) for index in rates}
        norms = {}
        for index, slot in slots.items():
            if divide is not None and divide.get(index, 1) != 1:
                torch._foreach_div_(slot.grads, float(divide[index]))
            norms[index] = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(slot.grads)))
        found = dict(zip(norms, torch.stack(list(norms.values())).tolist(), strict=True))
        if not all(norm < float("inf") for norm in found.values()):  # NaN too
            return found
        for index, rate in rates.items():
            slot = slots[index]
            if clip is not None and found[index] > clip - 1e-6:
                torch._foreach_mul_(slot.grads, clip / (norms[index] + 1e-6))
            adamw(
                slot.values,
                slot.grads,
                slot.means,
                slot.squares,
                [],
                slot.counts,
                fused=self._fused,
                foreach=not self._fused,
                amsgrad=False,
                beta1=self._betas[0],
                beta2=self._betas[1],
                lr=rate,
                weight_decay=self._weight_decay,
                eps=self._eps,
                maximize=False,
            )
        return found

    def state(self) -> dict[str, Tensor]:
        """All there is to go on exactly: `SLOT.mean.N`, `SLOT.square.N`, `SLOT.steps`."""
        made = {}
        for index, slot in self._slots.items():
            for kind, tensors in (("mean", slot.means), ("square", slot.squares)):
                for number, tensor in enumerate(tensors):
                    made[f"{index}.{kind}.{number}"] = tensor
            made[f"{index}.steps"] = slot.counts[0]
        return made

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave.

        Raises:
            UsageError: it is not the state of such an optimiser.
        """
        self._slots = {}
        try:
            for index in sorted({int(name.partition(".")[0]) for name in tensors}):
                slot = self._slot(index)
                for number in range(len(self.parameters)):
                    slot.means[number].copy_(tensors[f"{index}.mean.{number}"])
                    slot.squares[number].copy_(tensors[f"{index}.square.{number}"])
                for count in slot.counts:
                    count.copy_(tensors[f"{index}.steps"])
        except (KeyError, ValueError, IndexError, RuntimeError) as error:
            raise UsageError(f"this is not the state of such a training ({error})") from None

    def _slot(self, index: int) -> _Slot:
        if index not in self._slots:
            self._slots[index] = _Slot(self.parameters, index)
        return self._slots[index]

    def _refresh(self) -> None:
        for index, slot in self._slots.items():
            slot.see(self.parameters, index)


class _Slot:
    """Slices of one slot, made once: a stack over a real model has hundreds of matrices."""

    def __init__(self, parameters: Sequence[nn.Parameter], index: int) -> None:
        self.values: list[Tensor] = []
        self.grads: list[Tensor] = []
        self.see(parameters, index)
        self.means = [torch.zeros_like(v) for v in self.values]
        self.squares = [torch.zeros_like(v) for v in self.values]
        self.counts = [torch.zeros((), device=v.device) for v in self.values]

    def see(self, parameters: Sequence[nn.Parameter], index: int) -> None:
        self.values = [p.detach()[index] for p in parameters]
        self.grads = [p.grad[index] for p in parameters if p.grad is not None]
