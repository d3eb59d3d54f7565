"""Which audit the given answers ask for."""

from pathlib import Path

import pytest

from personae.audits import audit_any, kind_of
from personae.errors import InputError, UsageError
from personae.interview.questions import INTERVIEWS
from personae.play_stage import PLAYS
from personae.stages import write_results
from tests.judging.audited_interviews import held
from tests.judging.plays import a_play


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    """A run of each kind; that of answers is an answer file."""
    found = {name: tmp_path / name for name in ("plays", "interviews")}
    for folder in found.values():
        folder.mkdir()
    write_results([a_play()], found["plays"] / PLAYS)
    write_results([held("S", "Ada")], found["interviews"] / INTERVIEWS)
    found["answers"] = tmp_path / "answers.json"
    found["answers"].write_text("[]")
    return found


def test_runs_and_their_files_are_told_by_what_they_hold(runs: dict[str, Path]) -> None:
    for kind, path in runs.items():
        assert kind_of([path]) == kind
    assert kind_of([runs["plays"] / PLAYS]) == "plays"
    assert kind_of([runs["interviews"] / INTERVIEWS]) == "interviews"
    assert kind_of([runs["interviews"], runs["interviews"] / INTERVIEWS]) == "interviews"


@pytest.mark.parametrize(
    ("one", "other"), [("plays", "answers"), ("interviews", "plays"), ("answers", "interviews")]
)
def test_two_kinds_are_not_audited_together(runs: dict[str, Path], one: str, other: str) -> None:
    with pytest.raises(InputError, match=f"holds {one} and .* holds {other}.*one of them"):
        kind_of([runs[one], runs[other]])


async def test_an_audit_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one of --answers"):
        await audit_any([], ["local"], tmp_path / "audit")
