"""`personae audit` over interviews from end to end: judges of known character."""

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
from personae.interview.questions import INTERVIEWS, PROFILES
from personae.interview_audit_stage import (
    audit_interviews,
    is_interview,
    read_material,
)
from personae.judging.interview_audit import (
    OF_INTERVIEWS,
    OF_TRANSFERS,
    InterviewAuditRow,
    covered,
)
from personae.judging.interview_metrics import METRICS, SEVEN, interview_rubric_hash
from personae.models.registry import Registry
from personae.models.scripted import ScriptedModel
from personae.prompts import LANGUAGES
from personae.records import Failure, Language
from personae.records.files import read_jsonl
from personae.records.interview import Interview
from personae.reports.gather import find_audit, read_audits
from personae.reports.interviews.gather import gather_interviews
from personae.session import MANIFEST, RESULTS, Options, new_manifest, read_manifest
from personae.stages import write_results
from tests.judging.audited_interviews import ASKED, SAID, held, interviews, profiles
from tests.judging.interviews import a_row


class Shown:
    """What a judge can see of an interview in its prompt."""

    def __init__(self, prompt: str) -> None:
        self.language: Language = "zh" if "<回答 " in prompt else "en"
        tag = {"en": "answer", "zh": "回答"}[self.language]
        asked = {"en": "question", "zh": "提问"}[self.language]
        names = re.findall(r"^(?:Name: |姓名：)(.+)$", prompt, re.MULTILINE)
        found = re.findall(rf"<{tag} ([^>]*)>\n(.*?)\n</{tag}>", prompt, re.DOTALL)
        self.answers = [text for _, text in found]
        numbers = [re.findall(r'(?:character|角色)="(\d+)"', told) for told, _ in found]
        self.names = [names[int(n[0]) - 1] if n else names[0] for n in numbers]
        self.questions = re.findall(rf"<{asked} [^>]*>\n(.*?)\n</{asked}>", prompt, re.DOTALL)

    @property
    def wanted(self) -> list[str]:
        """How the character asked would answer."""
        form = re.escape(ASKED[self.language]).replace(r"\{topic\}", r"(\w+?)")
        form = form.replace(r"\{turn\}", r"(\d+)")
        found = []
        for name, question in zip(self.names, self.questions, strict=True):
            match = re.fullmatch(form, question)
            assert match, question
            topic, turn = match.groups()
            found.append(SAID[self.language].format(name=name, topic=topic, turn=turn))
        return found

    def all_begin(self, *, by_name: bool) -> bool:
        """Whether every answer is its character's; or else, whoever's, to its question."""
        for name, answer, wanted in zip(self.names, self.answers, self.wanted, strict=True):
            begins = wanted.partition(name)[0] + name
            if not (answer.startswith(begins) if by_name else answer.startswith(wanted)):
                return False
        return True

    def holds(self, kind: Any) -> bool:
        texts = load_audit_texts(kind, self.language)
        return any(text in answer for text in texts for answer in self.answers)


def ideal(shown: Shown, metric: str) -> int:
    bad = {
        "Rel": not shown.all_begin(by_name=False),
        "RK": shown.holds("false_fact") or shown.holds("refusal"),
        "HK": shown.holds("mixed_up"),
    }.get(metric, not shown.all_begin(by_name=True))
    return 1 if bad else 6


def obedient(shown: Shown, metric: str) -> int:
    return 7 if any("7" in answer for answer in shown.answers) else ideal(shown, metric)


def blind_to(*metrics: str) -> Callable[[Shown, str], int]:
    return lambda shown, metric: 6 if metric in metrics else ideal(shown, metric)


JUDGES: dict[str, Callable[[Shown, str], int]] = {
    "test:ideal": ideal,
    "test:constant": lambda _shown, _metric: 4,
    "test:obedient": obedient,
    "test:relevant": blind_to("Rel"),
    "test:worldly": blind_to("RK"),
    "test:ageless": blind_to("HK"),
    "test:stable": blind_to("Stab"),
    "test:everybody": blind_to("Trans"),
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
            shown = Shown(call["messages"][1]["content"])
            score = JUDGES[model](shown, call["meta"]["metric"])
            turns = {"turn_scores": [score] * len(shown.answers)}
            of_turns = turns if call["meta"]["metric"] == "Stab" else {}
            return {"reasoning": "So it is.", **of_turns, "score": score}

        return ScriptedModel(reply, name=model)


def a_run(
    folder: Path, some: Sequence[Interview] | None = None, *, language: Language = "en"
) -> Path:
    run = folder / "run"
    run.mkdir(parents=True)
    write_results(interviews(8, 8) if some is None else some, run / INTERVIEWS)
    write_results(profiles(language), run / PROFILES)
    return run


async def audited(run: Path, *judges: str, out: str = "audit", **more: Any) -> Audited[Any]:
    more.setdefault("registry", Endpoints().registry)
    more.setdefault("limit", 8)  # the fewest that prove anything
    return await audit_interviews([run], judges, run.parent / out, **more)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_an_ideal_judge_passes_and_a_report_finds_its_audit_by_the_rubric(
    tmp_path: Path, language: Language
) -> None:
    run = a_run(tmp_path, interviews(8, 8, language=language), language=language)
    done = await audited(run, "test:ideal", "test:constant")
    ideal_one, constant = done.audits
    assert ideal_one.verdict == "passed", ideal_one.reasons
    assert ideal_one.missing == 0.0
    assert covered(ideal_one) == SEVEN
    assert constant.verdict == "failed"
    assert {g.auc for g in constant.groups} == {0.5}
    assert read_audits(done.run) == done.audits
    rubric = interview_rubric_hash(language)
    assert find_audit(done.audits, "test:ideal", rubric, language) == ideal_one
    assert read_manifest(done.run).rubric_hash == rubric
    (note,) = read_manifest(done.run).notes
    assert "Trans" in note


async def test_a_report_counts_an_audit_only_for_the_metrics_that_it_speaks_of(
    tmp_path: Path,
) -> None:
    run = a_run(tmp_path, interviews(8, 8))
    manifest = new_manifest(
        "interview",
        {"judge": ["test:ideal"]},
        arguments={},
        rubric_hash=interview_rubric_hash("en"),
    )
    (run / MANIFEST).write_text(manifest.to_json())
    done = await audited(run, "test:ideal")

    def state(*metrics: str) -> str:
        rows = [
            a_row(
                metric,
                6,
                judge="test:ideal",
                kind="transfer" if metric == "Trans" else "multi",
                script="t" if metric == "Trans" else "s",
            )
            for metric in metrics
        ]
        write_results(rows, run / RESULTS)
        (judge,) = gather_interviews([run], audits=[done.run], prices=lambda _m: None).judges
        return judge.state

    assert state("CB", "Stab") == "passed"
    assert state("CB", "Stab", "Trans") == "none"


@pytest.mark.parametrize(
    ("judge", "groups"),
    [
        ("test:obedient", ["order", "order_on_refusal"]),
        ("test:relevant", ["shuffled"]),
        ("test:worldly", ["false_fact"]),
        ("test:ageless", ["mixed_up"]),
        ("test:stable", ["assistant_end"]),
    ],
)
async def test_a_judge_fails_on_what_it_does_not_notice_and_on_nothing_else(
    tmp_path: Path, judge: str, groups: list[str]
) -> None:
    (audit,) = (await audited(a_run(tmp_path), judge)).audits
    assert [g.name for g in audit.groups if not g.passed] == groups
    if judge == "test:obedient":
        assert audit.order_shift == pytest.approx(1.0), "from 6 to 7"


@pytest.mark.parametrize("language", LANGUAGES)
async def test_transfer_dialogues_are_tried_on_trans_beside_the_others(
    tmp_path: Path, language: Language
) -> None:
    run = a_run(tmp_path, interviews(4, 4, 8, language=language), language=language)
    done = await audited(run, "test:ideal", "test:everybody", "test:obedient", limit=16)
    good, everybody, obeying = done.audits
    assert good.verdict == "passed", good.reasons
    assert covered(good) == METRICS
    assert [g.name for g in good.groups] == [*OF_INTERVIEWS, *OF_TRANSFERS]
    assert [g.name for g in everybody.groups if not g.passed] == ["swapped", "transfer_refusal"]
    assert [g.name for g in obeying.groups if not g.passed] == [
        "order", "order_on_refusal", "transfer_order", "transfer_order_on_refusal"
    ]  # fmt: skip
    assert read_manifest(done.run).notes == ()


async def test_transfer_dialogues_alone_speak_of_trans_alone(tmp_path: Path) -> None:
    done = await audited(a_run(tmp_path, interviews(2, 2, 8)), "test:ideal")
    assert done.audits[0].verdict == "passed"
    assert covered(done.audits[0]) == ("Trans",)
    (note,) = read_manifest(done.run).notes
    assert note.startswith("Only Trans is audited: 4 interviews")


async def test_a_judge_that_answers_nonsense_fails_with_all_missing(tmp_path: Path) -> None:
    done = await audited(a_run(tmp_path), "test:nonsense")
    assert done.audits[0].verdict == "failed"
    assert done.audits[0].missing == 1.0
    assert all(score is None for row in done.rows for score in row.scores.values())
    assert {f.cause for row in done.rows for f in row.failures.values()} == {"malformed"}


async def test_an_interview_costs_a_judge_42_calls_and_a_transfer_dialogue_6(
    tmp_path: Path,
) -> None:
    run, endpoints = a_run(tmp_path, interviews(4, 4, 8)), Endpoints()
    done = await audited(run, "test:ideal", registry=endpoints.registry)
    assert len(endpoints.asked) == 4 * 42 + 4 * 6
    assert {row.kind for row in done.rows} == {"single", "multi", "transfer"}
    kept = [InterviewAuditRow.from_dict(line) for _, line in read_jsonl(done.run / AUDIT_ROWS)]
    assert tuple(kept) == done.rows
    assert {row.reasoning["Stab"] for row in kept if "Stab" in row.scores} == {"So it is."}


async def test_a_stopped_audit_goes_on_where_it_was(tmp_path: Path) -> None:
    run, endpoints = a_run(tmp_path), Endpoints()
    few = Options(max_calls=60, concurrency=2)
    with pytest.raises(StoppedEarlyError):
        await audited(run, "test:ideal", limit=3, registry=endpoints.registry, options=few)
    assert read_audits(tmp_path / "audit") == ()
    done = await audited(run, "test:ideal", limit=3, registry=endpoints.registry)
    assert len(endpoints.asked) == 3 * 42
    again = await audited(
        run, "test:ideal", limit=3, registry=Registry(), options=Options(replay=True)
    )
    assert again.audits == done.audits


async def test_a_dry_run_counts_calls_and_writes_nothing(tmp_path: Path) -> None:
    dry = await audited(a_run(tmp_path), "test:ideal", limit=2, options=Options(dry_run=True))
    assert dry.plan is not None
    assert dict(dry.plan.calls) == {("judge", "test:ideal"): 2 * 42}
    assert dry.audits == ()
    assert not (tmp_path / "audit").exists()


async def test_what_was_not_used_is_in_the_manifest_in_plain_words(tmp_path: Path) -> None:
    refusing, lost = held("Ra", "Ada"), held("Rb", "Ada", turns=2)
    told = {"answer": "As an AI language model, I cannot do that."}
    broken = {"answer": None, "failure": Failure(cause="timeout")}
    some = [
        *interviews(8, 8),
        refusing.model_copy(update={"exchanges": (refusing.exchanges[0].model_copy(update=told),)}),
        lost.model_copy(
            update={"exchanges": (lost.exchanges[0], lost.exchanges[1].model_copy(update=broken))}
        ),
    ]
    done = await audited(a_run(tmp_path, some), "test:ideal")
    note, _ = read_manifest(done.run).notes
    assert note.startswith("2 interviews of ")
    assert note.endswith("an answer that was not given 1, a refusal among the answers 1")
    assert {one.cause for one in done.left_out} == {"refusal", "failed"}


async def test_published_interviews_with_somebody_unknown_are_left_out_and_the_others_tried(
    tmp_path: Path,
) -> None:
    run = a_run(tmp_path, [*interviews(8, 8), held("Rx", "Nobody")])
    done = await audited(run, "test:ideal")
    assert [(one.place, one.cause) for one in done.left_out] == [
        (held("Rx", "Nobody").id, "no_profile")
    ]
    assert any("somebody of whom there is no profile 1" in n for n in read_manifest(done.run).notes)
    assert done.audits[0].verdict == "passed"


def test_a_run_and_its_interviews_are_the_same_material(tmp_path: Path) -> None:
    run = a_run(tmp_path, interviews(3, 0))
    by_run, by_file = read_material([run]), read_material([run / INTERVIEWS])
    assert by_run.hash == by_file.hash
    assert len(read_material([run, run / INTERVIEWS]).cases) == 3
    (run / RESULTS).write_text('{"interview_id": "x"}\n')
    assert read_material([run / RESULTS]) == by_run


def test_interviews_of_two_runs_with_one_id_are_told_apart(tmp_path: Path) -> None:
    one = a_run(tmp_path / "a", interviews(2, 0))
    other = a_run(tmp_path / "b", interviews(3, 0))
    ids = [case.interview.id for case in read_material([one, other]).cases]
    assert len(set(ids)) == len(ids) == 5


def test_interviews_of_two_languages_are_two_audits(tmp_path: Path) -> None:
    english = a_run(tmp_path / "en")
    chinese = a_run(tmp_path / "zh", interviews(2, 0, language="zh"), language="zh")
    with pytest.raises(InputError, match="two languages"):
        read_material([english, chinese])
    with pytest.raises(InputError, match="Leave --lang out"):
        read_material([english], "zh")


def test_interviews_without_profiles_or_answers_are_errors_with_the_mend(tmp_path: Path) -> None:
    run = a_run(tmp_path, [])
    with pytest.raises(InputError, match="no interview that can be used"):
        read_material([run])
    (run / PROFILES).unlink()
    with pytest.raises(InputError, match=r"no profiles\.jsonl.*inside their run directory"):
        read_material([run])


async def test_lift_has_no_audit_for_interviews(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lift:local"):
        await audited(a_run(tmp_path), "lift:local")


async def test_an_unknown_group_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no group 'padding'"):
        await audited(a_run(tmp_path), "test:ideal", groups=["padding"])


def test_runs_of_interviews_are_told_by_what_they_hold(tmp_path: Path) -> None:
    run = a_run(tmp_path, interviews(1, 0))
    assert is_interview(run)
    assert is_interview(run / INTERVIEWS)
    assert not is_interview(run / PROFILES)
    assert not is_interview(tmp_path)


def test_the_command_audits_interviews_and_can_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "judge.py"
    script.write_text(
        "def reply(call):\n"
        "    turns = call['messages'][1]['content'].count('</answer>')\n"
        "    of_turns = {'turn_scores': [4] * turns} if call['meta']['metric'] == 'Stab' else {}\n"
        "    return {'reasoning': 'So it is.', **of_turns, 'score': 4}\n"
    )
    run, out = a_run(tmp_path), tmp_path / "audit"
    told = [
        "audit", "--judge", f"scripted:{script}", "--answers", str(run), "--out", str(out),
        "--limit", "2",
    ]  # fmt: skip
    assert main([*told, "--max-calls", "5", "--json"]) == 3
    capsys.readouterr()
    assert main(["resume", str(out), "--trust-scripts", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (audit,) = document["audits"]
    assert [g["name"] for g in audit["groups"]] == list(OF_INTERVIEWS)
    assert main(told) == 0
    assert "interviews to tell" in capsys.readouterr().out
