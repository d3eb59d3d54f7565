"""RQ4's table: what follows from sizes, what was measured, and what nobody knows."""

import pytest

from personae.cast.consumption import BaseSize, Shape, consumption
from personae.cast.training import Spent
from personae.records.cast_scores import Consumption, ConsumptionOf, Figure, KeptMethod

BASE = BaseSize(parameters=1_000, bytes=2_000)  # in 16 bits
SHAPES: dict[ConsumptionOf, Shape] = {"one_shared": Shape(60), "cast": Shape(50, stored=230)}


def kept(seed: int, seconds: float, peak: int | None = None) -> KeptMethod:
    return KeptMethod(
        method="one_shared",
        seed=seed,
        rank=4,
        alpha=8.0,
        slots=("shared",),
        parameters=60,
        active=60,
        tokens=10,
        seconds=seconds,
        peak_bytes=peak,
        recipe="0" * 64,
        file=f"baselines/one_shared-{seed}.safetensors",
        sha256="0" * 64,
    )


def by_method(found: tuple[Consumption, ...]) -> dict[str, Consumption]:
    return {one.method: one for one in found}


def test_a_model_each_is_arithmetic_over_the_base() -> None:
    each = by_method(consumption(BASE, 6, shapes=SHAPES))["model_each"]
    assert each.parameters == Figure(value=6_000, how="computed")
    assert each.stored == Figure(value=12_000, how="computed")
    assert each.training_memory == Figure(value=16_000, how="computed")  # one at a time, float32
    assert each.serving_memory == Figure(value=12_000, how="computed")
    assert each.training_seconds == Figure()  # nobody trained it
    assert each.token_seconds == Figure()


def test_blocks_come_on_top_of_one_base() -> None:
    found = by_method(consumption(BASE, 6, shapes=SHAPES))
    assert found["one_shared"].stored == Figure(value=240, how="computed")
    assert found["one_shared"].training_memory == Figure(value=2_000 + 60 * 16, how="computed")
    assert found["one_shared"].serving_memory == Figure(value=2_000 + 240, how="computed")
    assert found["cast"].stored == Figure(value=230, how="measured")
    assert found["cast"].training_seconds == Figure()


def test_what_was_run_is_measured_and_seeds_are_averaged() -> None:
    table = consumption(
        BASE,
        6,
        shapes=SHAPES,
        kept=[kept(0, 4.0, 5_000), kept(1, 8.0, 6_000)],
        stored={"baselines/one_shared-0.safetensors": 250},
        token_seconds={"base": 0.001, "one_shared": 0.002, "cast": 0.003},
    )
    found = by_method(table)
    assert found["one_shared"].training_seconds == Figure(value=6.0, how="measured")
    assert found["one_shared"].training_memory == Figure(value=6_000, how="measured")
    assert found["one_shared"].stored == Figure(value=250, how="measured")
    assert found["one_shared"].token_seconds == Figure(value=0.002, how="measured")
    assert found["cast"].token_seconds == Figure(value=0.003, how="measured")
    assert found["model_each"].token_seconds == Figure(value=0.001, how="computed")


def test_the_cast_s_own_training_stands_where_it_was_not_trained_again() -> None:
    spent = Spent(seconds=9.0, peak_bytes=7_000)
    found = by_method(consumption(BASE, 6, shapes=SHAPES, cast=spent))
    assert found["cast"].training_seconds == Figure(value=9.0, how="measured")
    assert found["cast"].training_memory == Figure(value=7_000, how="measured")
    again = kept(0, 3.0).model_copy(update={"method": "retrained"})
    found = by_method(consumption(BASE, 6, shapes=SHAPES, cast=spent, kept=[again]))
    assert found["cast"].training_seconds == Figure(value=3.0, how="measured")


def test_a_figure_says_how_it_is_known() -> None:
    with pytest.raises(ValueError, match="how it is known"):
        Figure(value=3.0)
    with pytest.raises(ValueError, match="how it is known"):
        Figure(how="measured")
