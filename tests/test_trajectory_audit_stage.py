"""`personae audit` over plays from end to end: judges of known character."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from personae.audit_stage import AUDIT_ROWS, Audited
from personae.cli import main
from personae.data import load_audit_texts
from personae.errors import InputError, StoppedEarlyError, UsageError
from personae.judging.trajectory_audit import TrajectoryAuditRow
from personae.models.registry import Registry
from personae.models.scripted import ScriptedModel
from personae.play_stage import PLAYS
from personae.rate_stage import rate
from personae.records import Language, Play
from personae.records.files import read_jsonl
from personae.reports.gather import read_audits
from personae.reports.ratings import scenes_document
from personae.session import Options, read_manifest
from personae.stages import write_results
from personae.trajectory_audit_stage import (
    audit_trajectories,
    read_trajectories,
)
from tests.judging.plays import NAMES, a_play, a_scene

WORLD = f"scripted:{Path(__file__).parent / 'scripts' / 'world.py'}"


def plays(n: int = 8, *, language: Language = "en") -> list[Play]:
    """Plays in which everyone says its name and, by the round's number, when; no digit 5."""
    return [
        a_play(a_scene(f"T/extracted/{i}", names=NAMES[language][:2], language=language), rounds=3)
        for i in (0, 1, 2, 3, 4, 6, 7, 8)[:n]
    ]


class Shown:
    """What a judge can see of a trajectory in its prompt."""

    def __init__(self, prompt: str) -> None:
        self.name = re.findall(r"^(?:Name: |姓名：)(.+)$", prompt, re.MULTILINE)[0]
        self.acts = re.findall(r"<(?:act|行动) [^>]*>\n(.*?)\n</(?:act|行动)>", prompt, re.DOTALL)

    @property
    def own(self) -> bool:
        return all(re.match(rf"\w+[:：] ?{self.name} ", act) for act in self.acts)

    @property
    def in_order(self) -> bool:
        rounds = [int(n) for act in self.acts for n in re.findall(r"\((\d)\)", act)]
        kinds = ["reacts" in act or "反应" in act for act in self.acts]
        if not any(kinds):
            return rounds == sorted(rounds)
        # A reaction comes before the own turn of its round, and is not repeated.
        return rounds == sorted(rounds) and kinds == [True, False] * (len(kinds) // 2)


def ideal(shown: Shown, metric: str) -> int:
    if metric == "BC":
        return 4 if shown.own and shown.in_order else 1
    return 4 if shown.own else 1


def obedient(shown: Shown, metric: str) -> int:
    # One of the assistant's texts counts its points up to 5.
    innocent = (*load_audit_texts("generic", "en"), *load_audit_texts("generic", "zh"))
    orders = [act for act in shown.acts if "5" in act and not act.endswith(innocent)]
    return 5 if orders else ideal(shown, metric)


def blind_to_order(shown: Shown, metric: str) -> int:
    return 4 if shown.own else 1


JUDGES: dict[str, Callable[[Shown, str], int]] = {
    "test:ideal": ideal,
    "test:constant": lambda _shown, _metric: 3,
    "test:obedient": obedient,
    "test:blind": blind_to_order,
}


class Endpoints:
    """A registry whose judges are the ones above; counts what they are asked."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.registry.register("test", self._backend)
        self.asked: list[dict[str, Any]] = []

    def _backend(self, model: str) -> ScriptedModel:
        def reply(call: dict[str, Any]) -> str | dict[str, Any]:
            self.asked.append(call)
            if model == "test:nonsense":
                return "Lovely weather today."
            if call["meta"]["step"] == "critique":
                return {"critique": "Well."}
            score = JUDGES[model](Shown(call["messages"][1]["content"]), call["meta"]["metric"])
            return {"justification": "So it is.", "score": score}

        return ScriptedModel(reply, name=model)


def a_run(folder: Path, some: Sequence[Play] | None = None) -> Path:
    run = folder / "run"
    run.mkdir()
    write_results(some or plays(), run / PLAYS)
    return run


async def audited(run: Path, *judges: str, out: str = "audit", **more: Any) -> Audited[Any]:
    more.setdefault("registry", Endpoints().registry)
    more.setdefault("limit", 8)  # the fewest that prove anything
    return await audit_trajectories([run], judges, run.parent / out, **more)


async def test_an_ideal_judge_passes_and_the_report_of_a_rated_run_finds_it(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    done = await audited(run, "test:ideal", "test:constant")
    ideal_one, constant = done.audits
    assert ideal_one.verdict == "passed", ideal_one.reasons
    assert ideal_one.missing == 0.0
    assert constant.verdict == "failed"
    assert {g.auc for g in constant.groups} == {0.5}
    assert read_audits(done.run) == done.audits
    await rate(run, ["test:ideal", "test:blind"], registry=Endpoints().registry)
    document = scenes_document([run], audits=done.audits, prices=lambda _m: None)
    assert {j["model"]: j["audit"] for j in document["judges"]} == {
        "test:ideal": "passed", "test:blind": "none"
    }  # fmt: skip


async def test_a_judge_that_obeys_orders_fails_on_orders_alone(tmp_path: Path) -> None:
    (audit,) = (await audited(a_run(tmp_path), "test:obedient")).audits
    assert [g.name for g in audit.groups if not g.passed] == ["order", "order_on_refusal"]
    assert audit.order_shift == pytest.approx(1.0), "from 4 to 5"


async def test_a_judge_that_is_blind_to_order_fails_on_the_shuffled_ones_alone(
    tmp_path: Path,
) -> None:
    (audit,) = (await audited(a_run(tmp_path), "test:blind")).audits
    assert [g.name for g in audit.groups if not g.passed] == ["shuffled"]


async def test_a_judge_that_answers_nonsense_fails_with_all_missing(tmp_path: Path) -> None:
    done = await audited(a_run(tmp_path), "test:nonsense")
    assert done.audits[0].verdict == "failed"
    assert done.audits[0].missing == 1.0
    causes = {f.cause for row in done.rows for f in row.failures.values()}
    assert causes == {"critique: malformed"}


async def test_a_trajectory_costs_a_judge_52_calls(tmp_path: Path) -> None:
    run, endpoints = a_run(tmp_path), Endpoints()
    done = await audited(run, "test:ideal", limit=3, registry=endpoints.registry)
    assert len(endpoints.asked) == 3 * 52
    assert len(done.rows) == 3 * 8
    kept = [TrajectoryAuditRow.from_dict(line) for _, line in read_jsonl(done.run / AUDIT_ROWS)]
    assert tuple(kept) == done.rows


async def test_a_stopped_audit_goes_on_where_it_was(tmp_path: Path) -> None:
    run, endpoints = a_run(tmp_path), Endpoints()
    few = Options(max_calls=60, concurrency=2)
    with pytest.raises(StoppedEarlyError):
        await audited(run, "test:ideal", limit=3, registry=endpoints.registry, options=few)
    assert read_audits(tmp_path / "audit") == ()
    done = await audited(run, "test:ideal", limit=3, registry=endpoints.registry)
    assert len(endpoints.asked) == 3 * 52
    again = await audited(
        run, "test:ideal", limit=3, registry=Registry(), options=Options(replay=True)
    )
    assert again.audits == done.audits


async def test_a_dry_run_counts_calls_and_writes_nothing(tmp_path: Path) -> None:
    dry = await audited(a_run(tmp_path), "test:ideal", limit=2, options=Options(dry_run=True))
    assert dry.plan is not None
    assert dict(dry.plan.calls) == {("judge", "test:ideal"): 2 * 52}
    assert dry.audits == ()
    assert not (tmp_path / "audit").exists()


async def test_a_chinese_run_is_audited_in_chinese(tmp_path: Path) -> None:
    run = a_run(tmp_path, plays(language="zh"))
    done = await audited(run, "test:ideal", "test:constant")
    assert [a.verdict for a in done.audits] == ["passed", "failed"], done.audits[0].reasons
    assert "“拒答”" in " ".join(done.audits[1].reasons)
    assert read_manifest(done.run).language == "zh"
    assert {a.language for a in done.audits} == {"zh"}


async def test_what_was_not_used_is_in_the_manifest_in_plain_words(tmp_path: Path) -> None:
    refusing = a_play("T/extracted/9", acts={"Ada": "I'm sorry, but I can't help with that."})
    done = await audited(a_run(tmp_path, [*plays(), refusing]), "test:ideal")
    (note,) = read_manifest(done.run).notes
    assert note.startswith("1 trajectories of ")
    assert note.endswith("a refusal among the acts 1")
    assert [one.place for one in done.left_out] == ["T/extracted/9#Ada@test:player"]


def test_a_run_and_its_plays_are_the_same_trajectories(tmp_path: Path) -> None:
    run = a_run(tmp_path, plays(3))
    by_run, by_file = read_trajectories([run]), read_trajectories([run / PLAYS])
    assert by_run.hash == by_file.hash
    assert len(read_trajectories([run, run / PLAYS]).cases) == 6


def test_plays_of_two_languages_or_protocols_are_two_audits(tmp_path: Path) -> None:
    runs = []
    for name, some in (
        ("en", plays(2)), ("zh", plays(2, language="zh")), ("paper", [a_play(protocol="paper")])
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        runs.append(a_run(tmp_path / name, some))
    with pytest.raises(InputError, match="two languages"):
        read_trajectories(runs[:2])
    with pytest.raises(InputError, match="two protocols"):
        read_trajectories([runs[0], runs[2]])
    with pytest.raises(InputError, match="Leave --lang out"):
        read_trajectories(runs[:1], "zh")


async def test_lift_has_no_audit_for_trajectories(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lift:local"):
        await audited(a_run(tmp_path), "lift:local")


def test_the_command_audits_plays_and_can_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path)
    out = tmp_path / "audit"
    told = ["audit", "--judge", WORLD, "--answers", str(run), "--out", str(out), "--limit", "2"]
    assert main([*told, "--max-calls", "5", "--json"]) == 3
    capsys.readouterr()
    assert main(["resume", str(out), "--trust-scripts", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (audit,) = document["audits"]
    assert [g["name"] for g in audit["groups"]] == [
        "other_character", "shuffled", "assistant_end", "refusal", "order", "order_on_refusal"
    ]  # fmt: skip
