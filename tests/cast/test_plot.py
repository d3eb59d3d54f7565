"""The picture of a training: every character's losses, at the right places."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from personae.cast.history import TrainingStep
from personae.cast.plot import PANELS, POINTS, curves, plot, write_plot

SVG = "{http://www.w3.org/2000/svg}"


def _step(
    stage: str,
    step: int,
    character: str,
    loss: float | None,
    dev: float | None = None,
    tokens: int = 10,
) -> TrainingStep:
    return TrainingStep(
        stage=stage, step=step, epoch=1.0, character=character, loss=loss, dev_loss=dev,
        lr=1e-3 if loss is not None else 0.0, tokens=tokens,
    )  # fmt: skip


HISTORY = (
    _step("shared", 0, "Anna", None, 4.0),
    _step("shared", 1, "Anna", 4.0),
    _step("shared", 1, "Bo", 3.0),
    _step("shared", 2, "Anna", 2.0),
    _step("shared", 2, "Anna", None, 2.5),
    _step("own", 1, "Anna", 1.5),
    _step("own", 1, "Bo", 1.0),
)


def test_steps_are_counted_over_all_stages_and_checks_are_a_line_of_their_own() -> None:
    anna, bo = curves(HISTORY)
    assert anna.loss == ((1.0, 4.0), (2.0, 2.0), (3.0, 1.5))
    assert anna.dev_loss == ((0.0, 4.0), (2.0, 2.5))
    assert (bo.character, bo.loss, bo.dev_loss) == ("Bo", ((1.0, 3.0), (3.0, 1.0)), ())


def test_a_long_training_is_averaged_token_by_token() -> None:
    history = [_step("own", n, "Anna", 2.0, tokens=1) for n in range(1, 2 * POINTS, 2)]
    history += [_step("own", n, "Anna", 5.0, tokens=2) for n in range(2, 2 * POINTS + 1, 2)]
    (anna,) = curves(sorted(history, key=lambda r: r.step))
    assert len(anna.loss) == POINTS
    assert {value for _, value in anna.loss} == {4.0}
    assert anna.loss[0][0] == 1.5


def test_points_lie_where_their_values_say() -> None:
    root = ElementTree.fromstring(plot(HISTORY))
    train, *_ = [
        p.get("points") or "" for p in root.iter(f"{SVG}polyline") if p.get("class") == "line"
    ]
    (x1, y1), (x2, y2), (x3, y3) = (tuple(map(float, p.split(","))) for p in train.split())
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.02)
    assert (y3 - y2) / (y2 - y1) == pytest.approx(0.5 / 2.0, abs=0.01)
    assert y1 < y2 < y3  # a higher loss stands higher
    labels = [t.text for t in root.iter(f"{SVG}text")]
    assert {"Anna", "Bo", "shared", "own", "development"} <= set(labels)
    rings = list(root.iter(f"{SVG}circle"))
    assert len(rings) == 2


def test_a_strange_name_is_text_and_nothing_else(tmp_path: Path) -> None:
    name = '<script>alert(1)</script> & "Bo"'
    write_plot([_step("own", 1, name, 1.0)], tmp_path / "loss.svg", language="zh")
    raw = (tmp_path / "loss.svg").read_text(encoding="utf-8")
    assert "<script" not in raw
    labels = [t.text for t in ElementTree.fromstring(raw).iter(f"{SVG}text")]
    assert '<script>alert(1)</script> & "Bo"' in labels
    assert "训练损失" in labels


def test_an_empty_history_and_a_crowd_can_be_drawn() -> None:
    ElementTree.fromstring(plot(()))
    crowd = plot([_step("own", 1, f"C{n}", 1.0) for n in range(PANELS + 7)])
    assert len(re.findall("<polyline", crowd)) == PANELS
    assert "and 7 more characters" in crowd
