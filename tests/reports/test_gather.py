"""Runs on disk become what a report shows: nothing twice, nothing compared that is not the same."""

import json
import shutil
from pathlib import Path

import pytest

from personae.errors import UsageError
from personae.models.prices import load_prices
from personae.records import Benchmark, Persona, Question, Task
from personae.reports.data import ReportData
from personae.reports.gather import gather
from personae.reports.html import model_lines, render
from personae.reports.language import Words
from personae.session import read_manifest
from personae.stages import evaluate_benchmark

GYM = f"scripted:{Path(__file__).parents[1] / 'scripts' / 'gym.py'}"
EXEMPLARS = ("one", "two", "three", "four", "five")
BENCH = Benchmark(
    personas=tuple(Persona(id=p, description=f"The character {p}") for p in "ab"),
    questions=tuple(
        Question(id=f"{p}/{t.short}", persona_id=p, task=t, text=f"{p} {t}?", exemplars=EXEMPLARS)
        for p in "ab"
        for t in Task
    ),
)


async def run(path: Path, model: str = GYM, **more) -> Path:
    await evaluate_benchmark(BENCH, path, [model], [GYM], **more)
    return path


def report(*runs: Path, **more) -> ReportData:
    return gather(runs, prices=load_prices(), **more)


def another(tmp_path: Path) -> str:
    """A second model: the same script under another name."""
    return f"scripted:{shutil.copy(GYM.partition(':')[2], tmp_path / 'other.py')}"


def audit(folder: Path, manifest_of: Path, created: str, verdict: str) -> Path:
    """An audit of the judge under the rubrics of that run, as `personae audit` leaves it."""
    folder.mkdir(exist_ok=True)
    manifest = read_manifest(manifest_of)
    about: dict[str, object] = {
        "judge": GYM, "rubric_hash": manifest.rubric_hash, "language": "en", "verdict": verdict,
        "reasons": [], "groups": [], "order_shift": None, "length_slope": None,
        "repeat_variance": None, "swap_shift": None, "missing": 0, "thresholds": {},
    }  # fmt: skip
    (folder / "audits.json").write_text(json.dumps([about]))
    if folder != manifest_of:
        dated = manifest.model_copy(update={"created": created, "kind": "audit"})
        (folder / "manifest.json").write_text(dated.to_json())
    return folder


async def test_a_run_that_is_named_twice_is_not_counted_twice(tmp_path: Path, monkeypatch):
    one = await run(tmp_path / "one")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="named twice"):
        report(one, Path("one"))


async def test_runs_of_one_name_in_two_folders_stand_apart(tmp_path: Path):
    runs = [await run(tmp_path / folder / "run") for folder in ("x", "y")]
    found = report(*runs)
    assert [m.model for m in found.models] == [f"{GYM} [{path}]" for path in runs]
    lines = model_lines(found)
    assert [line.calls for line in lines] == [10, 10], "each with the use of its own answers"
    assert sum(line.calls for line in found.usage) == 2 * (10 + 10)
    assert Words("en")("judges_itself") in render(found), "the judge's name has no run behind it"


async def test_the_run_one_stands_in_has_its_name_and_its_neighbours(tmp_path: Path, monkeypatch):
    one = await run(tmp_path / "one")
    audit(tmp_path / "audit", one, "2026-01-01T00:00:00+00:00", "passed")
    monkeypatch.chdir(one)
    found = report(Path())
    assert found.title == "one"
    assert found.judge_state(GYM) == "passed"


async def test_two_models_are_compared_on_the_same_questions_under_the_same_rules(tmp_path: Path):
    other = another(tmp_path)
    one = await run(tmp_path / "one")
    same = await run(tmp_path / "same", other)
    without = await run(tmp_path / "without", other, no_exemplars=True)
    assert [d.estimate.mean for d in report(one, same).paired] == [0.0] * 6
    found = report(one, without)
    assert (found.paired, found.paired_reason) == ((), "different_rules")


async def test_of_several_audits_the_one_asked_for_counts_then_the_own_then_the_newest(
    tmp_path: Path,
):
    one = await run(tmp_path / "one")
    assert report(one).judge_state(GYM) == "none"
    # By name the older audit would come last.
    asked_for = audit(tmp_path / "z-older", one, "2026-01-01T00:00:00+00:00", "failed")
    audit(tmp_path / "a-newer", one, "2026-02-01T00:00:00+00:00", "passed")
    assert report(one).judge_state(GYM) == "passed"
    audit(one, one, "", "failed")
    assert report(one).judge_state(GYM) == "failed"
    audit(one, one, "", "passed")
    assert report(one, audits=[asked_for]).judge_state(GYM) == "failed"


async def test_a_damaged_neighbour_is_named_and_does_not_stand_in_the_way(tmp_path: Path):
    one = await run(tmp_path / "one")
    audit(tmp_path / "sound", one, "2026-01-01T00:00:00+00:00", "passed")
    broken = audit(tmp_path / "zz", one, "2026-02-01T00:00:00+00:00", "failed") / "audits.json"
    broken.write_text('[{"judge": 1}]')
    found = report(one)
    assert found.judge_state(GYM) == "passed"
    (note,) = found.notes
    assert str(broken) in note


def test_the_embedded_model_under_two_names_is_one_rater(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PERSONAE_CACHE", str(tmp_path / "cache"))
    from personae.models.local import weights
    from personae.reports.gather import weights_of

    stored = weights.weights_dir() / weights.DEFAULT.file_name
    stored.parent.mkdir(parents=True)
    stored.write_bytes(b"GGUF the same")
    for name, content in (("copy", b"GGUF the same"), ("other", b"GGUF another")):
        (tmp_path / f"{name}.gguf").write_bytes(content)
    assert weights_of("local") == weights_of(f"local:{tmp_path}/copy.gguf")
    assert weights_of("local") != weights_of(f"local:{tmp_path}/other.gguf")
    assert weights_of("openai/gpt-4o") == "openai/gpt-4o"
