"""A new character out of old ones, without data: the weighted sum of their updates.

Neeko (section 3.3, eq. 7) combines the blocks of the old roles element by element,

    A = sum_k w_k A_k,    B = sum_k w_k B_k,

and that is not the sum of what they do: B A = sum_k w_k^2 B_k A_k + cross terms between every two
roles, none of which was trained with the other's. The sum itself costs nothing more, for a
character of a cast speaks through a *weighted set of blocks* (`CastCharacter.weights`):

    sum_k w_k B_k A_k  =  [w_1 B_1 .. w_K B_K] [A_1; ..; A_K]

(PEFT calls this combination `cat`), so that a fused character is a line in cast.json and no tensor.
`fused_weights` gives that line; `paper_fuse` is equation 7 as written, for `--protocol paper`;
`eq7_error` is how far one is from the other; `tune_weights` moves the weights on a few sample lines
without gradients (LoraHub: Huang et al. 2023, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personae.errors import UsageError
from personae.records.cast import SHARED, CastManifest

NEIGHBOURS = 3
"""The most neighbours of a fusion: more regress to nobody in particular, and cost rank."""
BUDGET = 40
SAMPLE_LINES = 3
_SAME = 1e-6
_REACH = 0.2

Loss = Callable[[Mapping[str, float]], float]
"""From neighbours' weights, which sum to 1, to a loss in nats."""


def shares(neighbours: Mapping[str, float]) -> dict[str, float]:
    """Neighbours' weights, scaled to sum to 1; those of weight 0 are left out.

    Raises:
        UsageError: there are none, one is negative or no number, or all are 0.
    """
    for name, weight in neighbours.items():
        if not math.isfinite(weight) or weight < 0:
            raise UsageError(f"the weight of {name!r} must be 0 or more, not {weight}")
    total = math.fsum(neighbours.values())
    if total <= 0:
        raise UsageError("a fusion needs a neighbour whose weight is not 0")
    return {name: weight / total for name, weight in neighbours.items() if weight > 0}


def fused_weights(manifest: CastManifest, neighbours: Mapping[str, float]) -> dict[str, float]:
    """What a character speaks through whose update is the weighted sum of its neighbours'.

    Exact for whatever the neighbours speak through, blocks of their own or of others: the sum of
    sums is a sum. The shared block, which each of them has once, stays there once.

    Args:
        neighbours: weights by character; scaled to sum to 1.

    Returns:
        Weights by block, `shared` first, then in the order of the cast's blocks.

    Raises:
        UsageError: a neighbour is not of the cast, or the weights are no weights (`shares`).
    """
    parts: dict[str, list[float]] = {}
    given = shares(neighbours)
    for name, share in given.items():
        character = manifest.of(name)
        if character is None:
            there = ", ".join(one.name for one in manifest.characters)
            raise UsageError(f"the cast has no {name!r}; it has {there}")
        for block, weight in character.weights.items():
            parts.setdefault(block, []).append(share * weight)
    mixed = {block: math.fsum(terms) for block, terms in parts.items()}
    spoken = [manifest.of(name) for name in given]
    if all(one is not None and one.weights.get(SHARED) == 1 for one in spoken):
        mixed[SHARED] = 1.0  # shares sum to 1 but for the last bit
    order = [SHARED, *(block.name for block in manifest.blocks if block.name != SHARED)]
    return {block: mixed[block] for block in order if mixed.get(block)}


def paper_fuse(
    tensors: Mapping[str, NDArray[Any]], weights: Sequence[float]
) -> dict[str, NDArray[np.float32]]:
    """Equation 7 as written: a new block, each number of it the mean of the old blocks' numbers.

    Args:
        tensors: `A.<module>` `[S, r, in]` and `B.<module>` `[S, out, r]`, as `StackedLoRA.state`.
        weights: omega of equation 7, one a slot; 0 leaves a slot out.

    Returns:
        `A.<module>` `[r, in]` and `B.<module>` `[out, r]`.

    Raises:
        UsageError: there is not one weight a slot, or they are no weights.
    """
    omega = _omega(tensors, weights)
    used = np.flatnonzero(omega)
    return {
        # float64 within, or the one-hot sum would not be the block itself at every size
        name: np.einsum("s,sij->ij", omega[used], stack[used].astype(np.float64)).astype(np.float32)
        for name, stack in tensors.items()
    }


def eq7_error(tensors: Mapping[str, NDArray[Any]], weights: Sequence[float]) -> float:
    """How far the update of equation 7 is from the weighted sum of updates.

    The Frobenius norm of the difference over that of the sum, over all modules together; from the
    Gram matrices of A's rows and B's columns, so that no update is ever written out.

    Raises:
        UsageError: as `paper_fuse`; or the sum is 0 (blocks that were never trained).
    """
    omega = _omega(tensors, weights)
    used = np.flatnonzero(omega)
    w = omega[used]
    far, whole = 0.0, 0.0
    for name in (one for one in tensors if one.startswith("A.")):
        a = tensors[name][used].astype(np.float64)
        b = tensors[f"B.{name[2:]}"][used].astype(np.float64)
        rank = a.shape[1]
        rows = np.einsum("iax,jbx->iajb", a, a).reshape(len(used) * rank, -1)
        columns = np.einsum("ixa,jxb->iajb", b, b).reshape(len(used) * rank, -1)
        exact = np.kron(np.diag(w), np.eye(rank))
        written = np.kron(np.outer(w, w), np.eye(rank))
        for which, mix in (("far", written - exact), ("whole", exact)):
            squared = float(np.sum((mix.T @ columns @ mix) * rows))
            if which == "far":
                far += squared
            else:
                whole += squared
    if whole <= 0:
        raise UsageError("these blocks do nothing yet: their weighted sum is 0")
    return math.sqrt(max(far, 0.0) / whole)


def _omega(tensors: Mapping[str, NDArray[Any]], weights: Sequence[float]) -> NDArray[np.float64]:
    omega = np.asarray(weights, dtype=np.float64)
    slots = {len(stack) for stack in tensors.values()}
    if slots != {len(omega)}:
        raise UsageError(f"{len(omega)} weights for blocks of {sorted(slots)} slots")
    if not np.isfinite(omega).all() or (omega < 0).any() or not omega.any():
        raise UsageError("the weights of a fusion must be 0 or more, and not all 0")
    return omega


@dataclass(frozen=True)
class Tuned:
    """What tuning found.

    Attributes:
        weights: the best, summing to 1.
        loss: of the sample lines under them, nats a token.
        start_loss: under the weights it began with; never less than `loss`.
        evaluations: how often the loss was asked for.
    """

    weights: dict[str, float]
    loss: float
    start_loss: float
    evaluations: int


class _SpentError(Exception):
    """The budget is used up."""


def tune_weights(
    loss: Loss, start: Mapping[str, float], *, lines: int, budget: int = BUDGET, seed: int = 0
) -> Tuned:
    """Move a fusion's weights on the simplex to where a few sample lines are likeliest.

    No gradient, and no step that is taken on trust: first the start, each neighbour alone, all
    alike, and a few draws; then Nelder and Mead's simplex (1965, by scipy) from the best of them.
    The best mix ever seen is returned, so that it is never worse than the start.

    Args:
        loss: of the sample lines under weights that sum to 1; deterministic.
        start: weights by neighbour (the router's).
        lines: how many sample lines the loss is over.
        budget: how often the loss may be asked for.
        seed: of the draws.

    Raises:
        UsageError: fewer than three sample lines, no weights, no budget, or a loss that is no
            number.
    """
    if lines < SAMPLE_LINES:
        raise UsageError(
            f"tuning needs at least {SAMPLE_LINES} sample lines, not {lines}; leave it out, or "
            "give more"
        )
    if budget < 1:
        raise UsageError("the budget counts from 1")
    first = shares(start)
    names = list(first)
    size = len(names)
    seen: list[tuple[float, tuple[float, ...]]] = []

    def at(point: NDArray[np.float64]) -> float:
        place = tuple(float(one) for one in point)
        for value, other in seen:
            if np.allclose(place, other, rtol=0, atol=_SAME):
                return value
        if len(seen) >= budget:
            raise _SpentError
        value = float(loss({n: w for n, w in zip(names, place, strict=True) if w > 0}))
        if not math.isfinite(value):
            raise UsageError(f"the loss of the sample lines is {value} at {place}")
        seen.append((value, place))
        return value

    start_loss = at(np.array(list(first.values())))
    if size > 1:
        try:
            draws = np.random.default_rng(seed).dirichlet(np.ones(size), max(0, budget // 4 - size))
            for point in (*np.eye(size), np.full(size, 1 / size), *draws):
                at(point)
            _descend(at, np.array(min(seen)[1]), budget)
        except _SpentError:
            pass
    best, place = min(seen)
    found = {name: weight for name, weight in zip(names, place, strict=True) if weight > 0}
    return Tuned(found, best, start_loss, len(seen))


def _descend(
    at: Callable[[NDArray[np.float64]], float], start: NDArray[np.float64], budget: int
) -> None:
    from scipy.optimize import minimize

    # A broken stick maps the unit cube onto the simplex, corners included; the optimiser of a box
    # needs no more. The greatest share breaks first: the other breaks then matter.
    order = np.argsort(-start, kind="stable")

    def mix(where: NDArray[np.float64]) -> NDArray[np.float64]:
        left, parts = 1.0, np.zeros(len(start))
        for place, share in zip(order, (*where, 1.0), strict=True):
            parts[place] = left * share
            left -= parts[place]
        return parts

    def breaks(point: NDArray[np.float64]) -> NDArray[np.float64]:
        left, made = 1.0, np.zeros(len(start) - 1)
        for number, place in enumerate(order[:-1]):
            made[number] = min(1.0, point[place] / left) if left > _SAME else 0.5
            left -= point[place]
        return made

    # Towards each of the others in turn: also from a corner, where all but one break are idle.
    others = [start + _REACH * (np.eye(len(start))[place] - start) for place in order[1:]]
    simplex = np.array([breaks(point) for point in (start, *others)])
    options: Any = {"initial_simplex": simplex, "maxfev": 4 * budget, "xatol": 1e-3, "fatol": 1e-6}
    bounds = [(0.0, 1.0)] * (len(start) - 1)

    def along(x: NDArray[np.float64]) -> float:
        return at(mix(x))

    minimize(along, simplex[0], method="Nelder-Mead", bounds=bounds, options=options)
