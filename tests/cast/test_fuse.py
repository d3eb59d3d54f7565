import math

import numpy as np
import pytest

from personae.cast.fuse import eq7_error, fused_weights, paper_fuse, shares, tune_weights
from personae.errors import UsageError
from personae.records.cast import BaseModelRef, Block, CastCharacter, CastManifest


def manifest(characters, blocks=("shared", "Ann", "Bob", "Cid"), **more):
    return CastManifest(
        version="0",
        base=BaseModelRef(id="x", sha256="0" * 64, architecture="llama"),
        rank=4,
        alpha=8,
        targets=("q",),
        blocks=tuple(Block(name=b) for b in blocks),
        characters=tuple(CastCharacter(name=n, weights=w) for n, w in characters.items()),
        blocks_sha256="0" * 64,
        **more,
    )


TRAINED = {name: {"shared": 1.0, name: 1.0} for name in ("Ann", "Bob", "Cid")}


def blocks(slots=3, rank=4, width=96, height=80, modules=("m", "n"), seed=0):
    draw = np.random.default_rng(seed)
    made = {}
    for name in modules:
        made[f"A.{name}"] = draw.normal(size=(slots, rank, width)).astype(np.float32)
        made[f"B.{name}"] = draw.normal(size=(slots, height, rank)).astype(np.float32)
    return made


def update(tensors, module, weights):
    """sum_k w_k B_k A_k, written out."""
    a, b = tensors[f"A.{module}"].astype(float), tensors[f"B.{module}"].astype(float)
    return sum(w * b[k] @ a[k] for k, w in enumerate(weights))


# The exact sum -------------------------------------------------------------------------------


def test_a_fusion_holds_the_shared_block_once_and_the_neighbours_in_their_shares():
    found = fused_weights(manifest(TRAINED), {"Bob": 3, "Ann": 1})

    assert found == {"shared": 1.0, "Ann": 0.25, "Bob": 0.75}
    assert list(found) == ["shared", "Ann", "Bob"]


def test_the_shared_block_weighs_exactly_1_even_where_the_shares_sum_to_a_bit_less():
    odd = {"Ann": 0.1, "Bob": 0.2, "Cid": 0.7 / 3}

    assert fused_weights(manifest(TRAINED), odd)["shared"] == 1.0


def test_a_fusion_of_fused_and_expanded_characters_is_the_sum_of_their_blocks():
    cast = manifest(
        {
            **TRAINED,
            "Dan": {"shared": 1.0, "Ann": 0.5, "Bob": 0.5},
            "Eve": {"shared": 1.0, "Ann": 0.25, "Cid": 0.75, "Eve": 1.0},
        },
        blocks=("shared", "Ann", "Bob", "Cid", "Eve"),
    )

    found = fused_weights(cast, {"Dan": 0.5, "Eve": 0.5})

    assert found == {"shared": 1.0, "Ann": 0.375, "Bob": 0.25, "Cid": 0.375, "Eve": 0.5}


def test_a_fusion_does_what_the_weighted_updates_of_its_neighbours_do():
    cast = manifest({**TRAINED, "Dan": {"shared": 1.0, "Ann": 0.3, "Cid": 0.7}})
    tensors = blocks(slots=4)
    slots = [b.name for b in cast.blocks]

    def of(weights):
        return update(tensors, "m", [weights.get(s, 0.0) for s in slots])

    neighbours = {"Bob": 0.4, "Dan": 0.6}
    exact = sum(w * of(dict(cast.of(n).weights)) for n, w in neighbours.items())

    assert of(fused_weights(cast, neighbours)) == pytest.approx(exact, abs=1e-12)


def test_without_a_shared_block_the_isolated_blocks_alone_are_mixed():
    cast = manifest({"Ann": {"Ann": 1.0}, "Bob": {"Bob": 1.0}}, blocks=("Ann", "Bob"))

    assert fused_weights(cast, {"Ann": 1, "Bob": 1}) == {"Ann": 0.5, "Bob": 0.5}


def test_a_neighbour_of_weight_0_is_left_out():
    assert fused_weights(manifest(TRAINED), {"Ann": 1, "Bob": 0}) == {"shared": 1.0, "Ann": 1.0}


@pytest.mark.parametrize(
    ("neighbours", "said"),
    [
        ({"Ann": 1.5, "Bob": -0.5}, "'Bob' must be 0 or more"),
        ({"Ann": math.nan}, "'Ann' must be 0 or more"),
        ({"Ann": 0.0}, "not 0"),
        ({}, "not 0"),
        ({"Zoe": 1.0}, "no 'Zoe'; it has Ann, Bob, Cid"),
    ],
)
def test_weights_that_are_none_are_refused(neighbours, said):
    with pytest.raises(UsageError, match=said):
        fused_weights(manifest(TRAINED), neighbours)


def test_shares_sum_to_1():
    assert shares({"a": 2, "b": 6}) == {"a": 0.25, "b": 0.75}


# Equation 7 ----------------------------------------------------------------------------------


def test_equation_7_with_a_single_neighbour_is_that_neighbours_block():
    tensors = blocks()
    found = paper_fuse(tensors, [0, 1, 0])

    assert all(np.array_equal(found[name], tensors[name][1]) for name in tensors)
    assert eq7_error(tensors, [0, 1, 0]) == 0.0


def test_equation_7_is_the_weighted_mean_of_each_number():
    tensors = {"A.m": np.array([[[1.0, 2.0]], [[5.0, 6.0]]]), "B.m": np.array([[[1.0]], [[3.0]]])}
    found = paper_fuse(tensors, [0.75, 0.25])

    assert found["A.m"].tolist() == [[2.0, 3.0]]
    assert found["B.m"].tolist() == [[1.5]]


@pytest.mark.parametrize("weights", [[0.5, 0.5, 0.0], [1 / 3] * 3, [0.6, 0.3, 0.1]])
def test_the_error_of_equation_7_is_that_of_the_updates_written_out(weights):
    tensors = blocks()
    found = paper_fuse(tensors, weights)
    far = whole = 0.0
    for module in ("m", "n"):
        exact = update(tensors, module, weights)
        written = found[f"B.{module}"].astype(float) @ found[f"A.{module}"].astype(float)
        far += float(np.sum((written - exact) ** 2))
        whole += float(np.sum(exact**2))

    assert eq7_error(tensors, weights) == pytest.approx(math.sqrt(far / whole), rel=1e-5)


@pytest.mark.parametrize(("count", "expected"), [(2, 0.707), (3, 0.816), (8, 0.935)])
def test_equation_7_misses_the_sum_by_most_of_its_size(count, expected):
    # Independent blocks: the difference has K terms of (1/K^2 - 1/K)^2 and K^2 - K of 1/K^4, the
    # sum K of 1/K^2; so sqrt(1 - 1/K).
    assert expected == pytest.approx(math.sqrt(1 - 1 / count), abs=1e-3)
    tensors = blocks(slots=count, width=1024, height=1024, modules=("m",))

    assert eq7_error(tensors, [1 / count] * count) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("weights", [[1.0, 0.0], [0.5, 0.7, -0.2], [0, 0, 0], [math.inf, 0, 0]])
def test_equation_7_refuses_what_are_no_weights(weights):
    with pytest.raises(UsageError, match="weights"):
        paper_fuse(blocks(), weights)


def test_untrained_blocks_have_no_relative_error():
    tensors = blocks()
    tensors["B.m"][:] = tensors["B.n"][:] = 0

    with pytest.raises(UsageError, match="do nothing yet"):
        eq7_error(tensors, [0.5, 0.5, 0])


# Tuning --------------------------------------------------------------------------------------


class Bowl:
    """A quadratic whose least value lies at a known mix."""

    def __init__(self, **best):
        self.best = best
        self.asked = []

    def __call__(self, weights):
        self.asked.append(dict(weights))
        return 2.0 + sum((weights.get(n, 0.0) - w) ** 2 for n, w in self.best.items())


@pytest.mark.parametrize(
    "best", [{"a": 0.7, "b": 0.3}, {"a": 0.2, "b": 0.5, "c": 0.3}, {"a": 0.0, "b": 0.35, "c": 0.65}]
)
def test_tuning_finds_the_mix_of_the_least_loss(best):
    bowl = Bowl(**best)
    found = tune_weights(bowl, dict.fromkeys(best, 1 / len(best)), lines=3)

    assert {n: found.weights.get(n, 0.0) for n in best} == pytest.approx(best, abs=0.05)
    assert found.loss < found.start_loss
    assert sum(found.weights.values()) == pytest.approx(1)


@pytest.mark.parametrize("other", ["a", "b", "c"])
def test_tuning_leaves_a_corner_towards_whoever_helps(other):
    # The best of all that is tried first is d alone; a little of one other is better still.
    best = {"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.9, other: 0.1}
    found = tune_weights(Bowl(**best), {"a": 1, "b": 1, "c": 1, "d": 1}, lines=3, budget=60)

    assert found.weights.get(other, 0.0) == pytest.approx(0.1, abs=0.05)
    assert found.weights["d"] == pytest.approx(0.9, abs=0.07)


def test_tuning_reaches_a_single_neighbour():
    found = tune_weights(Bowl(a=0.0, b=1.0, c=0.0), {"a": 0.5, "b": 0.2, "c": 0.3}, lines=3)

    assert found.weights == {"b": 1.0}


@pytest.mark.parametrize("budget", [1, 2, 5, 40])
def test_tuning_asks_no_more_often_than_its_budget_and_always_for_mixes(budget):
    bowl = Bowl(a=0.1, b=0.6, c=0.3)
    found = tune_weights(bowl, {"a": 0.8, "b": 0.1, "c": 0.1}, lines=3, budget=budget)

    assert len(bowl.asked) == found.evaluations <= budget
    assert all(sum(one.values()) == pytest.approx(1) for one in bowl.asked)
    assert all(weight > 0 for one in bowl.asked for weight in one.values())


def test_tuning_is_never_worse_than_the_start():
    start = {"a": 0.31, "b": 0.27, "c": 0.42}
    needle = Bowl(**start)
    found = tune_weights(lambda w: float(needle(w) > 2.0 + 1e-12), start, lines=3)

    assert found.weights == pytest.approx(start)
    assert found.loss == found.start_loss == 0.0


def test_tuning_again_with_the_same_seed_finds_the_same():
    runs = [
        tune_weights(Bowl(a=0.2, b=0.5, c=0.3), {"a": 1, "b": 1, "c": 1}, lines=3, seed=5)
        for _ in range(2)
    ]

    assert runs[0] == runs[1]


def test_a_single_neighbour_leaves_nothing_to_tune():
    found = tune_weights(Bowl(a=1.0), {"a": 0.4}, lines=3)

    assert (found.weights, found.evaluations) == ({"a": 1.0}, 1)


def test_two_sample_lines_are_too_few_to_tune_on():
    with pytest.raises(UsageError, match="at least 3 sample lines, not 2"):
        tune_weights(Bowl(a=1.0), {"a": 1.0}, lines=2)


def test_a_loss_that_is_no_number_is_a_failure():
    with pytest.raises(UsageError, match="the loss of the sample lines is nan"):
        tune_weights(lambda _: math.nan, {"a": 1.0, "b": 1.0}, lines=3)
