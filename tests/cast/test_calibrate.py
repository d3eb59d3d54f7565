import math

import numpy as np
import pytest
from scipy.optimize import minimize

from personae.cast.calibrate import (
    FEATURES,
    Example,
    accept_threshold,
    ask_threshold,
    default_calibration,
    fit_calibration,
    instructions,
    logistic,
    probability,
)
from personae.cast.router import Router
from personae.characters.starter import starter
from personae.errors import UsageError

EIGHT = {
    "sherlock-holmes", "ada-lovelace", "alice", "don-quixote",
    "sun-wukong", "zhuge-liang", "lin-daiyu", "li-qingzhao",
}  # fmt: skip


def test_the_threshold_is_the_conformal_quantile():
    # 9 strangers and a rate of 0.2: the ceil(10 * 0.8) = 8th smallest.
    assert accept_threshold([9, 1, 8, 2, 7, 3, 6, 4, 5], 0.2) == 8
    assert accept_threshold([1, 2, 3], 0.25) == 3
    assert accept_threshold([1, 2, 3], 0.2) == math.inf
    assert ask_threshold([9, 1, 8, 2, 7, 3, 6, 4, 5], 0.2) == 2


def test_a_new_stranger_lies_above_the_threshold_no_more_often_than_stated():
    rng = np.random.default_rng(0)
    trials = [rng.normal(size=40) for _ in range(4_000)]
    above = [rng.normal() > accept_threshold(list(scores), 0.1) for scores in trials]

    # The exact rate is at most 0.1 and at least 0.1 - 1/41; three standard errors are 0.015.
    assert 0.1 - 1 / 41 - 0.015 < np.mean(above) < 0.1 + 0.015


def test_the_regression_is_at_the_minimum_of_its_penalised_loss():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 3))
    y = (x @ [1.0, -2.0, 0.5] + rng.normal(size=80) > 0).astype(float)

    def loss(w: np.ndarray) -> float:
        z = x @ w[:-1] + w[-1]
        return float(np.sum(np.logaddexp(0, z) - y * z) + 0.5 * 2.0 * w[:-1] @ w[:-1])

    weights, bias = logistic(x, y, ridge=2.0)
    assert np.allclose([*weights, bias], minimize(loss, np.zeros(4)).x, atol=1e-4)


def test_separable_examples_have_finite_weights():
    weights, bias = logistic(np.array([[-1.0], [1.0]]), np.array([0.0, 1.0]))

    assert 0 < weights[0] < 10
    assert abs(bias) < 1e-6


def test_log_odds_become_probabilities_without_overflow():
    assert probability(0) == 0.5
    assert probability(math.log(3)) == pytest.approx(0.75)
    assert 0 <= probability(-1e9) < 1e-20
    assert probability(1e9) <= 1


def test_too_few_examples_for_a_rate_are_an_error():
    with pytest.raises(UsageError, match="too few"):
        fit_calibration(
            [[0.0], [1.0]] * 4, [False, True] * 4, [False, True] * 4, ["en"] * 8, ("one",),
            false_accept=0.05,
        )  # fmt: skip


def test_every_language_has_thresholds_of_its_own_and_asks_below_where_it_accepts():
    found = default_calibration()

    assert found.features == FEATURES
    assert set(found.accept) == set(found.ask) == {"en", "zh"}
    assert all(found.ask[one] <= found.accept[one] for one in ("en", "zh"))
    assert found.false_accept == 0.10


def test_the_calibration_that_ships_is_the_one_of_dev():
    cast = {role: starter(role) for role in sorted(EIGHT)}
    order = [
        "sherlock-holmes", "ada-lovelace", "alice", "don-quixote",
        "sun-wukong", "zhuge-liang", "lin-daiyu", "li-qingzhao",
    ]  # fmt: skip
    router = Router.from_characters({role: cast[role] for role in order})
    again = router.calibrated([*instructions("dev", "en"), *instructions("dev", "zh")]).calibration

    kept = default_calibration()
    assert again.weights == pytest.approx(kept.weights, abs=1e-6)
    assert again.accept == pytest.approx(kept.accept, abs=1e-6)
    assert again.ask == pytest.approx(kept.ask, abs=1e-6)


def test_on_the_strangers_that_set_it_no_more_than_a_tenth_are_accepted():
    router = Router.from_characters({role: starter(role) for role in EIGHT})
    for language in ("en", "zh"):
        strangers = [e for e in instructions("dev", language) if e.kind == "unknown"]
        accepted = [e.text for e in strangers if router.route(e.text).decision == "accept"]
        assert len(accepted) <= 0.1 * len(strangers)


# The sets ----------------------------------------------------------------------------------------


def of(split: str, language: str, kind: str) -> list[Example]:
    return [e for e in instructions(split, language) if e.kind == kind]  # type: ignore[arg-type]


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("kind", ["implied", "unknown"])
def test_a_third_of_at_least_ninety_instructions_is_held_out(language, kind):
    dev, held = of("dev", language, kind), of("heldout", language, kind)

    assert len(dev) + len(held) >= 90
    assert len(held) * 3 >= len(dev) + len(held)
    assert not {e.text for e in dev} & {e.text for e in held}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("split", ["dev", "heldout"])
def test_the_sets_ask_for_characters_of_the_starter_cast_and_strangers_for_nobody(language, split):
    for one in instructions(split, language):
        assert one.role in EIGHT or (one.role is None and one.kind in {"unknown", "switch"})
        assert (one.previous in EIGHT) == (one.kind == "switch")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_an_implied_instruction_does_not_give_the_name(language):
    for split in ("dev", "heldout"):
        for one in of(split, language, "implied"):
            assert starter(str(one.role)).name.casefold() not in one.text.casefold()
