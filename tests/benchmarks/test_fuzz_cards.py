"""A part of the fuzzed cards of `benchmarks/fuzz_cards.py`, and whether the watch sees anything."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def fuzz() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks" / "fuzz_cards.py"), run_name="fuzz_cards")


def test_fuzzed_cards_are_read_or_refused_and_nothing_is_written_elsewhere(
    fuzz: dict[str, Any],
) -> None:
    tallies = fuzz["run"](300, seed=11)
    for kind, tally in tallies.items():
        assert tally.broken == [], kind
        assert tally.cards == 100
        assert tally.read > 5, kind
        assert tally.refused > 5, kind
        assert tally.written > 5, kind


def test_the_watch_sees_what_is_written_outside_and_nothing_else(
    fuzz: dict[str, Any], tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    watch = fuzz["Watch"]()
    with watch.during(target):
        (target / "in").write_text("x")
        (target / "in").read_text()
        assert watch.outside == []
        (target / ".." / "out").write_text("x")
        (tmp_path / "out").rename(target / "moved")
    assert [line.partition(" ")[0] for line in watch.outside] == ["open", "os.rename"]
    (tmp_path / "later").write_text("x")
    assert len(watch.outside) == 2
