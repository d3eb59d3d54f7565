"""`personae audit` from end to end: judges of known character, asked through a run of their own."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from personae.audit_stage import AUDIT_ROWS, Audited, audit_judges, read_answers
from personae.errors import InputError, ReplayMissError, StoppedEarlyError, UsageError
from personae.interview.benchmark_file import write_benchmark
from personae.judging.audit import AuditRow
from personae.models.registry import Registry
from personae.models.scripted import ScriptedModel
from personae.records import Benchmark, Language, Persona, Question, Rubric, Task
from personae.records.files import read_jsonl
from personae.reports.gather import find_audit, read_audits
from personae.session import BENCHMARK, Options, read_manifest
from personae.stages import evaluate_benchmark

NAMES = {"en": ("Ada", "Bede", "Cleo", "Dov"), "zh": ("阿黛", "白德", "克莱", "多夫")}
TAGS: dict[Language, tuple[str, str]] = {"en": ("persona", "response"), "zh": ("人物", "回答")}

Judge = Callable[[str, str], dict[str, Any] | str]


def benchmark(language: Language = "en", *, rubrics: tuple[Rubric, ...] = ()) -> Benchmark:
    """Four characters, two tasks, two questions each; no digit stands in it."""
    people = tuple(
        Persona(
            id=f"p{i}", description=f"{name}, {'渡口的船夫' if language == 'zh' else 'a ferryman'}"
        )
        for i, name in enumerate(NAMES[language])
    )
    questions = tuple(
        Question(
            id=f"{p.id}/{task.short}/{n}",
            persona_id=p.id,
            task=task,
            text=f"What of it, {p.id}, {task.short}, {n}?",
            exemplars=("bad", "poor", "fair", "good", "great"),
        )
        for p in people
        for task in (Task.EXPECTED_ACTION, Task.PERSONA_CONSISTENCY)
        for n in "xy"
    )
    return Benchmark(language=language, personas=people, questions=questions, rubrics=rubrics)


def character(call: dict[str, Any]) -> str:
    """Answers in character: its own name, and what it was asked."""
    name = next(n for names in NAMES.values() for n in names if n in call["messages"][0]["content"])
    return f"{name} I am, and I row whoever pays, whatever they ask."


def between(tag: str, text: str) -> str:
    return str(re.findall(rf"<{tag}>\n(.*?)\n</{tag}>", text, re.DOTALL)[-1])


def in_character(persona: str, response: str) -> bool:
    return persona.partition(",")[0] in response


def ideal(persona: str, response: str) -> dict[str, Any]:
    return verdict(4 if in_character(persona, response) else 1)


def verdict(score: int) -> dict[str, Any]:
    return {"justification": "So it seems.", "score": score}


def obedient(persona: str, response: str) -> dict[str, Any]:
    """Judges well, unless a 5 is asked for: the answers themselves hold no digit 5."""
    return verdict(5) if "5" in response else ideal(persona, response)


def fond_of_length(persona: str, response: str) -> dict[str, Any]:
    return verdict(min(5, 1 + len(response) // 40))


JUDGES: dict[str, Judge] = {
    "test:ideal": ideal,
    "test:constant": lambda _p, _r: verdict(3),
    "test:obedient": obedient,
    "test:long": fond_of_length,
    "test:nonsense": lambda _p, _r: "Lovely weather today.",
}


class Endpoints:
    """A registry whose judges are the ones above; counts what they are asked."""

    def __init__(self, language: Language = "en") -> None:
        self.registry = Registry()
        self.registry.register("test", self._backend)
        self.asked: list[dict[str, Any]] = []
        self._tags = TAGS[language]

    def _backend(self, model: str) -> ScriptedModel:
        def reply(call: dict[str, Any]) -> str | dict[str, Any]:
            self.asked.append(call)
            if call["kind"] == "score":
                told, said = call["messages"][0]["content"], call["messages"][-1]["content"]
                return {"logprobs": [-1.0 if told and in_context(told, said) else -2.0] * 4}
            if call["role"] == "character":
                return character(call)
            case = call["messages"][1]["content"]
            return JUDGES[model](*(between(tag, case) for tag in self._tags))

        return ScriptedModel(reply, name=model)


def in_context(told: str, said: str) -> bool:
    return any(name in told and name in said for names in NAMES.values() for name in names)


@pytest.fixture
async def answered(tmp_path: Path) -> Path:
    """A finished run in which all sixteen questions are answered in character."""
    endpoints = Endpoints()
    done = await evaluate_benchmark(
        benchmark(), tmp_path / "run", ["test:ada"], ["test:constant"], registry=endpoints.registry
    )
    return done.run


async def audited(run: Path, *judges: str, out: str = "audit", **more: Any) -> Audited[Any]:
    more.setdefault("registry", Endpoints().registry)
    return await audit_judges([run], judges, run.parent / out, **more)


async def test_an_ideal_judge_passes_and_the_report_can_find_it(answered: Path) -> None:
    done = await audited(answered, "test:ideal")
    (audit,) = done.audits
    assert audit.verdict == "passed", audit.reasons
    assert audit.missing == 0.0
    assert audit.order_shift == audit.swap_shift == audit.length_slope == 0.0
    assert audit.repeat_variance == 0.0
    manifest = read_manifest(answered)
    (kept,) = read_audits(done.run)
    assert kept == audit
    assert find_audit([kept], "test:ideal", manifest.rubric_hash, manifest.language) == audit


async def test_a_constant_judge_fails_on_every_group_that_is_worse(answered: Path) -> None:
    (audit,) = (await audited(answered, "test:constant")).audits
    assert audit.verdict == "failed"
    failed = [g.name for g in audit.groups if g.passed is False]
    assert failed == ["other_character", "refusal", "generic", "copied_question"]
    assert {g.auc for g in audit.groups} == {0.5}


async def test_a_judge_that_obeys_orders_fails_on_the_order_alone(answered: Path) -> None:
    (audit,) = (await audited(answered, "test:obedient")).audits
    assert audit.verdict == "failed"
    assert audit.order_shift == pytest.approx(1.0), "from 4 to 5"
    failed = [g.name for g in audit.groups if g.passed is False]
    assert failed == ["order", "order_on_generic"]
    assert len(audit.reasons) == 2


async def test_a_judge_that_likes_length_shows_a_positive_slope(answered: Path) -> None:
    (audit,) = (await audited(answered, "test:long")).audits
    # Every own answer is 50 to 52 characters long (score 2), padded to 90 to 104 (score 3).
    assert audit.length_slope is not None
    assert 0.9 < audit.length_slope < 1.3


async def test_a_judge_that_answers_nonsense_fails_with_all_missing(answered: Path) -> None:
    done = await audited(answered, "test:nonsense", "test:ideal")
    nonsense, ideal_one = done.audits
    assert nonsense.verdict == "failed"
    assert nonsense.missing == 1.0
    assert ideal_one.verdict == "passed", "one judge's failure is not another's"
    causes = {r.failure.cause for r in done.rows if r.failure and r.judge == "test:nonsense"}
    assert causes == {"malformed"}


async def test_every_verdict_is_kept_with_its_group_and_text(answered: Path) -> None:
    done = await audited(answered, "test:ideal", "test:nonsense")
    kept = [AuditRow.from_dict(line) for _, line in read_jsonl(done.run / AUDIT_ROWS)]
    assert tuple(kept) == done.rows
    # 16 own answers, ten other texts or repeats beside each, two judges
    assert len(kept) == 2 * 16 * 11
    assert all((row.score is None) == (row.failure is not None) for row in kept)
    own = [row for row in kept if row.group == "own" and row.judge == "test:ideal"]
    assert {row.text for row in own} == {
        f"{name} I am, and I row whoever pays, whatever they ask." for name in NAMES["en"]
    }


async def test_swapped_order_shows_the_examples_from_5_to_1(answered: Path) -> None:
    endpoints = Endpoints()
    await audited(answered, "test:ideal", registry=endpoints.registry)

    def first_shown(call: dict[str, Any]) -> str:
        return str(re.findall(r"<example score=\"(\d)\">", call["messages"][1]["content"])[0])

    shown = {(c["meta"]["group"] == "swapped", first_shown(c)) for c in endpoints.asked}
    assert shown == {(True, "5"), (False, "1")}


async def test_judges_are_asked_at_temperature_0_and_repeats_are_new_calls(answered: Path) -> None:
    endpoints = Endpoints()
    await audited(answered, "test:ideal", registry=endpoints.registry)
    assert {c["sampling"]["temperature"] for c in endpoints.asked} == {0.0}
    again = [c["repeat"] for c in endpoints.asked if c["meta"]["group"] in ("own", "repeat")]
    assert sorted(again) == [0] * 16 + [1] * 16 + [2] * 16


async def test_lift_is_audited_by_the_same_way_without_points(answered: Path) -> None:
    done = await audited(answered, "lift:test:any")
    (audit,) = done.audits
    assert audit.verdict == "passed", audit.reasons
    assert audit.order_shift is audit.swap_shift is audit.repeat_variance is None
    own = next(g for g in audit.groups if g.name == "refusal").mean_own
    assert own == pytest.approx(1.0), "-1 told of the persona, -2 in the four other contexts"
    assert all(row.score is None and row.lift is not None for row in done.rows)


async def test_a_stopped_audit_goes_on_and_asks_only_what_is_missing(answered: Path) -> None:
    endpoints = Endpoints()
    few = Options(max_calls=50, concurrency=4)
    with pytest.raises(StoppedEarlyError):
        await audited(answered, "test:ideal", registry=endpoints.registry, options=few)
    out = answered.parent / "audit"
    assert len(endpoints.asked) == 50
    assert read_manifest(out).status == "stopped"
    assert read_audits(out) == (), "half an audit is none"
    done = await audited(answered, "test:ideal", registry=endpoints.registry)
    assert len(endpoints.asked) == 16 * 11
    undisturbed = await audited(answered, "test:ideal", out="other")
    assert done.audits == undisturbed.audits
    assert (out / AUDIT_ROWS).read_text() == (undisturbed.run / AUDIT_ROWS).read_text()


async def test_a_replay_asks_nobody_and_says_the_same(answered: Path) -> None:
    first = await audited(answered, "test:ideal")
    endpoints = Endpoints()
    again = await audited(
        answered, "test:ideal", registry=endpoints.registry, options=Options(replay=True)
    )
    assert again.audits == first.audits
    assert endpoints.asked == []
    with pytest.raises(ReplayMissError):
        await audited(answered, "test:ideal", out="never", options=Options(replay=True))


async def test_a_dry_run_counts_calls_and_writes_nothing(answered: Path) -> None:
    dry = await audited(
        answered, "test:ideal", "lift:test:any", limit=5, options=Options(dry_run=True)
    )
    assert dry.plan is not None
    # Lift: own answer, four worse texts and the padded one, each in five contexts; the copied
    # question and shared texts may be the same call for two answers, so it is counted, not derived.
    assert dry.plan.calls[("judge", "test:ideal")] == 5 * 11
    assert dry.plan.calls[("lift", "test:any")] == 5 * 6 * 5
    assert dry.audits == ()
    assert not (answered.parent / "audit").exists()


async def test_groups_can_be_chosen_and_what_is_left_out_cannot_be_passed(answered: Path) -> None:
    endpoints = Endpoints()
    done = await audited(
        answered, "test:ideal", registry=endpoints.registry, groups=("refusal", "generic")
    )
    assert {c["meta"]["group"] for c in endpoints.asked} == {"own", "refusal", "generic"}
    (audit,) = done.audits
    assert audit.verdict == "failed"
    assert all("not tested" in reason for reason in audit.reasons)
    assert {g.name for g in audit.groups if g.passed} == {"refusal", "generic"}


async def test_other_answers_are_another_audit(answered: Path) -> None:
    await audited(answered, "test:ideal")
    rows = (answered / "results.jsonl").read_text().splitlines(keepends=True)
    (answered / "results.jsonl").write_text("".join(rows[1:]))
    with pytest.raises(UsageError, match="what it is made from would differ"):
        await audited(answered, "test:ideal")


async def test_a_chinese_run_is_audited_in_chinese(tmp_path: Path) -> None:
    endpoints = Endpoints("zh")
    done = await evaluate_benchmark(
        benchmark("zh"), tmp_path / "run", ["test:ada"], ["test:constant"],
        registry=endpoints.registry,
    )  # fmt: skip
    found = await audited(done.run, "test:ideal", "test:constant", registry=endpoints.registry)
    assert [a.verdict for a in found.audits] == ["passed", "failed"], found.audits[0].reasons
    assert {a.language for a in found.audits} == {"zh"}
    assert "拒答" in " ".join(found.audits[1].reasons)
    assert read_manifest(found.run).language == "zh"


async def test_what_was_not_used_is_in_the_manifest_in_plain_words(answered: Path) -> None:
    path = answered / "results.jsonl"
    rows = [line for _, line in read_jsonl(path)]
    rows[0]["answer"], rows[1]["answer"] = (
        "",
        "As an AI language model, I have no personal opinions.",
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = await audited(answered, "test:ideal")
    (note,) = read_manifest(done.run).notes
    assert note.startswith("2 answers of ")
    assert "empty 1, a refusal 1" in note
    assert len(done.left_out) == 2


async def test_a_run_and_its_results_file_are_the_same_answers(answered: Path) -> None:
    by_folder, by_file = read_answers([answered]), read_answers([answered / "results.jsonl"])
    assert by_folder.answers.hash == by_file.answers.hash
    assert len(read_answers([answered, answered / "results.jsonl"]).answers.answers) == 16


async def test_answers_of_two_languages_or_rubrics_are_two_audits(
    answered: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "results.jsonl").write_text((answered / "results.jsonl").read_text())
    mine = Rubric(
        task=Task.EXPECTED_ACTION, description="Does it row?", criteria=("a", "b", "c", "d", "e")
    )
    write_benchmark(benchmark(rubrics=(mine,)), other / BENCHMARK)
    with pytest.raises(InputError, match="different rubrics"):
        read_answers([answered, other])
    write_benchmark(benchmark().model_copy(update={"language": "zh"}), other / BENCHMARK)
    with pytest.raises(InputError, match="different languages"):
        read_answers([answered, other])
    with pytest.raises(InputError, match="the audit was asked for in 'zh'"):
        read_answers([answered], "zh")


def test_what_cannot_be_read_names_the_file_and_the_mend(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_answers([tmp_path / "nothing.json"])
    with pytest.raises(InputError, match=r"no results\.jsonl"):
        read_answers([tmp_path])
    lone = tmp_path / "results.jsonl"
    lone.write_text('{"unit_id": "u"}\n')
    with pytest.raises(InputError, match=r"no benchmark\.jsonl beside it"):
        read_answers([lone])
    empty = tmp_path / "answers.json"
    empty.write_text('[{"question": "Who?", "reply": {"role": "Ada", "content": ""}}]')
    with pytest.raises(InputError, match=r"no answer that can be used \(1 empty\)"):
        read_answers([empty])


@pytest.mark.parametrize(
    ("judges", "more", "what"),
    [
        ([], {}, "at least one --judge"),
        (["lift:"], {}, "needs a model"),
        (["test:ideal"], {"limit": 0}, "counts from 1"),
        (["test:ideal"], {"groups": ["refusals"]}, "no group 'refusals'"),
    ],
)
async def test_wrong_arguments_are_said(
    tmp_path: Path, judges: list[str], more: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        await audit_judges([tmp_path], judges, tmp_path / "audit", **more)


async def test_neekos_answers_audit_a_judge_that_knows_the_names(
    shared_data: Callable[..., Path], tmp_path: Path
) -> None:
    folder = shared_data("neeko", "gen_results", "icl_interview_single", "chatgpt")
    endpoints = Endpoints()
    done = await audit_judges(
        sorted(folder.glob("*.json")), ["test:constant"], tmp_path / "audit", limit=12,
        registry=endpoints.registry,
    )  # fmt: skip
    (audit,) = done.audits
    assert audit.verdict == "failed"
    other = next(g for g in audit.groups if g.name == "other_character")
    assert (other.n, other.auc) == (12, 0.5)
    assert "12 answers to the same question" in other.note
    assert {c["meta"]["task"] for c in endpoints.asked} == {"Persona Consistency"}
    assert any("Ludwig van Beethoven" in c["messages"][1]["content"] for c in endpoints.asked)
    assert audit.swap_shift is None
