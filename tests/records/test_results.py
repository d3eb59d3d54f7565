"""Result rows and scores: a scale is a scale, missing is null, a share is a share."""

from typing import Any

import pytest

from personae.errors import InputError
from personae.records import Audit, Estimate, Manifest, ResultRow

ROW = {
    "unit_id": "a/EA/01@m", "model": "m", "persona": "a", "task": "Expected Action",
    "question_id": "a/EA/01", "question": "Q?", "answer": "A.", "judge": "j", "score": 3,
    "failure": None,
}  # fmt: skip


@pytest.mark.parametrize("score", [0, 6, -1, 4.5, "many", [4]])
def test_a_score_outside_its_scale_is_refused(score: Any) -> None:
    with pytest.raises(InputError, match="score"):
        ResultRow.from_dict({**ROW, "score": score})


@pytest.mark.parametrize("field", ["answer", "score", "failure"])
def test_a_row_must_say_that_something_is_missing(field: str) -> None:
    assert ResultRow.from_dict({**ROW, field: None}).to_dict()[field] is None
    without = {k: v for k, v in ROW.items() if k != field}
    with pytest.raises(InputError, match=f"{field}: Field required"):
        ResultRow.from_dict(without)


@pytest.mark.parametrize("score", [0.99, 5.01, float("nan")])
def test_an_expected_score_lies_on_the_scale(score: float) -> None:
    with pytest.raises(InputError, match="expected_score"):
        ResultRow.from_dict({**ROW, "expected_score": score})


def test_a_task_that_is_none_of_the_five_is_refused() -> None:
    with pytest.raises(InputError, match="task"):
        ResultRow.from_dict({**ROW, "task": "Toxicity"})


@pytest.mark.parametrize(("field", "value"), [("missing", 1.01), ("missing", -0.1), ("n", -1)])
def test_an_estimates_shares_and_counts_are_checked(field: str, value: float) -> None:
    whole = {"mean": None, "low": None, "high": None, "n": 0, "missing": 1.0}
    assert Estimate.from_dict(whole).mean is None
    with pytest.raises(InputError, match=field):
        Estimate.from_dict({**whole, field: value})


def test_an_audit_passes_or_fails_and_nothing_between() -> None:
    audit: dict[str, Any] = {
        "judge": "j", "rubric_hash": "h", "language": "en", "reasons": [], "groups": [],
        "order_shift": None, "length_slope": None, "repeat_variance": None, "swap_shift": None,
        "missing": 0, "thresholds": {},
    }  # fmt: skip
    assert Audit.from_dict({**audit, "verdict": "failed"}).verdict == "failed"
    with pytest.raises(InputError, match="verdict"):
        Audit.from_dict({**audit, "verdict": "mostly"})


@pytest.mark.parametrize(
    ("field", "value"), [("format", 2), ("status", "lost"), ("protocol", "mine"), ("seed", "x")]
)
def test_a_manifest_of_another_make_is_refused(field: str, value: Any) -> None:
    manifest = {"kind": "eval", "arguments": {}, "models": {}, "created": "2025-01-01T00:00:00Z"}
    assert Manifest.from_dict(manifest).status == "running"
    with pytest.raises(InputError, match=field):
        Manifest.from_dict({**manifest, field: value})
