"""Writers compared: means, differences, what is missing."""

from typing import Any

import pytest

from personae.judging.writers import summarise
from personae.world.writing import CRITERIA, ComparedScene


def test_means_and_differences_are_those_that_a_hand_computes():
    def row(unit: str, method: Any, score: int | None) -> ComparedScene:
        scores = None if score is None else dict.fromkeys(CRITERIA, score)
        return ComparedScene(
            unit=unit, origin="generated", method=method, writer="a", reviewer="r",
            scores=scores, cause=None if scores else "rejected",
        )  # fmt: skip

    singles = [row(u, "single", s) for u, s in zip("wxyz", [2, 3, 4, 5], strict=True)]
    staged = [row(u, "three_stages", s) for u, s in zip("wxyz", [3, 5, None, 5], strict=True)]
    result = summarise([*singles, *staged], "r")
    single, three = result.writers
    assert single.criteria["detail"] is not None
    assert single.criteria["detail"].mean == 3.5
    assert three.criteria["detail"] is not None
    assert three.criteria["detail"].mean == pytest.approx(13 / 3)
    assert (three.n, three.missing) == (3, 0.25)
    (difference,) = result.differences
    assert difference.n == 3
    assert difference.criteria["detail"] is not None
    assert difference.criteria["detail"].mean == pytest.approx((1 + 2 + 0) / 3)
