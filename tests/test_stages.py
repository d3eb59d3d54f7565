"""The stages end to end on a scripted model: build, exemplify, evaluate, stop, resume, replay."""

import json
from pathlib import Path

import pytest

from personae import prompts
from personae.characters.card import card_of
from personae.characters.convert import write_card
from personae.characters.starter import starter
from personae.errors import (
    BadRequestError,
    ContentFilterError,
    InputError,
    StoppedEarlyError,
    UsageError,
)
from personae.interview.benchmark_file import read_benchmark, write_benchmark
from personae.interview.evaluate import limited
from personae.journal.store import Journal
from personae.models import Registry, ScriptedModel
from personae.records import Benchmark, Persona, Question, Task
from personae.reports.gather import read_results
from personae.session import JOURNAL, RESULTS, Options, read_manifest
from personae.stages import build, evaluate_benchmark, exemplify

GYM = f"scripted:{Path(__file__).parent / 'scripts' / 'gym.py'}"


def personas(tmp_path: Path, count: int = 2) -> Path:
    path = tmp_path / "personas.txt"
    path.write_text(
        "\n".join(
            [
                "A retired lighthouse keeper from Cornwall",
                "一位来自成都的年轻茶艺师",
                "A jazz pianist",
            ][:count]
        ),
        encoding="utf-8",
    )
    return path


async def built(tmp_path: Path, **more) -> Benchmark:
    out = tmp_path / "bench.jsonl"
    done = await build(
        out, GYM, personas=personas(tmp_path), exemplars=GYM, **{"questions": 2, **more}
    )
    assert read_benchmark(out) == done.benchmark
    return done.benchmark


def requests(run: Path) -> int:
    with Journal(run / JOURNAL, read_only=True) as journal:
        return journal.totals().made


async def test_a_benchmark_has_exactly_n_distinct_questions_a_task_each_tied_to_its_environment(
    tmp_path: Path,
):
    bench = await built(tmp_path, questions=12)
    assert len(bench.questions) == 2 * 5 * 12
    assert len({q.text for q in bench.questions}) == 120
    for q in bench.questions:
        assert q.environment in bench.environments[q.persona_id]
    assert bench.has_exemplars
    assert bench.shortfalls == ()


async def test_a_folder_of_cards_becomes_a_benchmark_of_their_characters(tmp_path: Path):
    cards = tmp_path / "cards"
    cards.mkdir()
    for name in ("alice", "sun-wukong"):
        write_card(card_of(starter(name)), cards / f"{name}.png")
    done = await build(tmp_path / "bench.jsonl", GYM, personas=cards, questions=1)
    assert [p.source for p in done.benchmark.personas] == ["alice.png", "sun-wukong.png"]
    assert len(done.benchmark.questions) == 2 * 5
    with Journal(tmp_path / "bench.jsonl.run" / JOURNAL, read_only=True) as journal:
        asked = [call.to_json() for call, _ in journal.items()]
    assert any("pinafore" in call for call in asked)
    for told in starter("alice").ours.secrets:
        assert not any(told.fact in call for call in asked)


async def test_per_environment_asks_n_in_every_environment_chosen(tmp_path: Path):
    bench = await built(tmp_path, per_environment=True, tasks=[Task.LINGUISTIC_HABITS])
    assert len(bench.questions) == 2 * 2 * 2
    (first, second) = bench.environments[bench.personas[0].id]
    of_first = [q.environment for q in bench.questions if q.persona_id == bench.personas[0].id]
    assert of_first == [first, first, second, second]


async def test_a_question_does_not_come_again_in_the_next_environment(tmp_path: Path):
    def same_for_all(call):
        wanted = call["schema"]["properties"]
        if "environments" in wanted:
            return {"environments": wanted["environments"]["items"]["enum"][:2]}
        place = wanted["questions"]["items"]["properties"]["environment"]["enum"][0]
        told = "Do not repeat" in call["messages"][-1]["content"]
        text = "And whom would you ask for a dance?" if told else "What do you bring to the table?"
        return {"questions": [{"environment": place, "question": text}]}

    registry = Registry()
    registry.register("same", lambda _id: ScriptedModel(same_for_all))
    done = await build(
        tmp_path / "bench.jsonl", "same:x", personas=personas(tmp_path, 1), questions=1,
        per_environment=True, tasks=[Task.EXPECTED_ACTION], registry=registry,
    )  # fmt: skip
    one, two = done.benchmark.questions
    assert one.environment != two.environment
    assert one.text != two.text
    assert done.benchmark.shortfalls == ()


async def test_an_examiner_that_repeats_itself_leaves_a_shortfall_and_no_invented_question(
    tmp_path: Path,
):
    def dull(call):
        wanted = call["schema"]["properties"]
        if "environments" in wanted:
            return {"environments": wanted["environments"]["items"]["enum"][:1]}
        one = {
            "environment": wanted["questions"]["items"]["properties"]["environment"]["enum"][0],
            "question": "How do you do?",
        }
        return {"questions": [one] * wanted["questions"]["minItems"]}

    registry = Registry()
    registry.register("dull", lambda _id: ScriptedModel(dull))
    done = await build(
        tmp_path / "b.jsonl", "dull:x", personas=personas(tmp_path, 1), questions=3,
        tasks=[Task.EXPECTED_ACTION], registry=registry,
    )  # fmt: skip
    assert len(done.benchmark.questions) == 1
    (short,) = done.benchmark.shortfalls
    assert (short.wanted, short.got, short.cause) == (3, 1, "the examiner repeated itself")


async def test_a_build_never_writes_over_a_benchmark_that_was_completed_in_place(tmp_path: Path):
    out = tmp_path / "bench.jsonl"
    people = personas(tmp_path)
    first = await build(out, GYM, personas=people, questions=1)
    assert (await build(out, GYM, personas=people, questions=1)).benchmark == first.benchmark
    completed = await exemplify(out, out, GYM)
    with pytest.raises(UsageError, match=r"bench\.jsonl is there already.*another --out"):
        await build(out, GYM, personas=people, questions=1)
    assert read_benchmark(out) == completed.benchmark
    assert completed.benchmark.has_exemplars


async def test_a_build_takes_no_file_that_is_not_its_own(tmp_path: Path):
    out = tmp_path / "notes.txt"
    out.write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        await build(out, GYM, personas=personas(tmp_path), questions=1)
    assert out.read_text() == "mine"
    assert not list(tmp_path.glob("*.run")), "nothing was asked"


async def test_a_build_that_is_resumed_completes_its_own_benchmark(tmp_path: Path):
    rested = False

    def tired(call):
        wanted = call["schema"]["properties"]
        if "environments" in wanted:
            return {"environments": wanted["environments"]["items"]["enum"][:1]}
        if call["meta"]["task"] == Task.LINGUISTIC_HABITS.value and not rested:
            raise ContentFilterError("not now")
        place = wanted["questions"]["items"]["properties"]["environment"]["enum"][0]
        return {"questions": [{"environment": place, "question": f"{call['meta']['task']}?"}]}

    registry = Registry()
    registry.register("tired", lambda _id: ScriptedModel(tired))
    out, people = tmp_path / "bench.jsonl", personas(tmp_path, 1)
    short = await build(out, "tired:x", personas=people, questions=1, registry=registry)
    assert len(short.benchmark.questions) == 4
    rested = True
    whole = await build(out, "tired:x", personas=people, questions=1, registry=registry)
    assert len(whole.benchmark.questions) == 5
    assert read_benchmark(out) == whole.benchmark


async def test_generated_personas_are_diverse_and_the_end_of_diversity_is_said(tmp_path: Path):
    def narrow(call):
        wanted = call["schema"]["properties"]
        if "personas" in wanted:
            names = ["A baker from Lyon who fears dogs", "A diver from Oslo with two parrots"]
            return {"personas": [names[n % 2] for n in range(wanted["personas"]["minItems"])]}
        if "environments" in wanted:
            return {"environments": wanted["environments"]["items"]["enum"][:1]}
        return {
            "questions": [
                {"environment": wanted["questions"]["items"]["properties"]["environment"]["enum"][0],
                 "question": "How do you do?"}
            ]
        }  # fmt: skip

    registry = Registry()
    registry.register("narrow", lambda _id: ScriptedModel(narrow))
    done = await build(
        tmp_path / "b.jsonl", "narrow:x", generate=20, questions=1, registry=registry
    )
    assert len(done.benchmark.personas) == 2
    assert "diversity ran out after 2 personas" in done.benchmark.shortfalls[0].cause


async def test_every_answer_is_seen_by_every_judge_and_a_judge_named_twice_is_a_repeat(
    tmp_path: Path,
):
    bench = await built(tmp_path)
    done = await evaluate_benchmark(
        bench, tmp_path / "run", [GYM], [GYM, GYM, f"lift:{GYM}"], seed=3
    )
    assert len(done.rows) == 20 * 3
    seats = {(r.judge, r.repeat) for r in done.rows}
    assert seats == {(GYM, 0), (GYM, 1), (f"lift:{GYM}", 0)}
    for row in done.rows:
        lift = row.judge.startswith("lift:")
        assert (row.score is None) == lift
        assert (row.lift is not None) == lift
        assert row.failure is None
    assert read_results(tmp_path / "run" / RESULTS) == done.rows
    manifest = read_manifest(tmp_path / "run")
    assert manifest.status == "done"
    assert manifest.benchmark_hash == bench.hash
    assert manifest.sampling["judge"]["temperature"] == 0
    assert (manifest.sampling["model"]["temperature"], manifest.seed) == (0.9, 3)


async def test_a_panel_of_lift_alone_writes_no_prompt_for_verdicts(tmp_path: Path):
    bench = await built(tmp_path)
    prompts._sections.cache_clear()
    await evaluate_benchmark(bench, tmp_path / "run", [GYM], [f"lift:{GYM}"])
    used = prompts._sections.cache_info().currsize
    assert used == 2, "the answers' and the generic assistant's"
    await evaluate_benchmark(bench, tmp_path / "verdicts", [GYM], [GYM])
    assert prompts._sections.cache_info().currsize == used + 1


async def test_a_judge_that_its_endpoint_does_not_know_ends_the_run_in_an_error_to_resume_from(
    tmp_path: Path,
):
    bench = await built(tmp_path)
    known = False

    def judge(call):
        if not known:
            raise BadRequestError("judge-1 is not a valid model")
        return {"justification": "Plain.", "score": 3}

    registry = Registry()
    registry.register("late", lambda _id: ScriptedModel(judge))
    run = tmp_path / "run"
    with pytest.raises(BadRequestError, match="late:x as judge was rejected: judge-1 is not"):
        await evaluate_benchmark(bench, run, [GYM], ["late:x"], registry=registry)
    assert read_manifest(run).status == "failed"
    assert {r.failure.cause for r in read_results(run / RESULTS) if r.failure} == {"bad_request"}
    known = True
    done = await evaluate_benchmark(bench, run, [GYM], ["late:x"], registry=registry)
    assert {r.score for r in done.rows} == {3}
    assert requests(run) == 20 + 2 * 20, "the answers are kept, the verdicts asked again"


async def test_the_personas_sentence_of_the_paper_is_the_system_prompt(tmp_path: Path):
    bench = await built(tmp_path)
    await evaluate_benchmark(bench, tmp_path / "run", [GYM], [GYM])
    with Journal(tmp_path / "run" / JOURNAL, read_only=True) as journal:
        call, _ = next(journal.items(role="character"))
    assert call.messages[0].content == (
        "You are a retired lighthouse keeper from Cornwall. Your responses should closely mirror "
        "the knowledge and abilities of this persona."
    )


async def test_a_second_model_on_the_same_benchmark_makes_no_exemplar_call(tmp_path: Path):
    bench = await built(tmp_path)
    await evaluate_benchmark(bench, tmp_path / "run", [GYM, f"{GYM}"][:1], [GYM], exemplars=GYM)
    with Journal(tmp_path / "run" / JOURNAL, read_only=True) as journal:
        assert "exemplar_writer" not in {line.role for line in journal.usage()}


async def test_a_benchmark_without_exemplars_is_refused_with_the_command_that_adds_them(
    tmp_path: Path,
):
    bench = await built(tmp_path)
    bare = bench.model_copy(
        update={
            "questions": tuple(q.model_copy(update={"exemplars": None}) for q in bench.questions)
        }
    )
    path = tmp_path / "bare.jsonl"
    write_benchmark(bare, path)
    with pytest.raises(UsageError, match="bench exemplify"):
        await evaluate_benchmark(path, tmp_path / "r1", [GYM], [GYM])
    await evaluate_benchmark(path, tmp_path / "r2", [GYM], [GYM], no_exemplars=True)
    await evaluate_benchmark(path, tmp_path / "r3", [GYM], [GYM], exemplars=GYM)
    completed = read_benchmark(tmp_path / "r3" / "benchmark.jsonl")
    assert completed.has_exemplars
    assert read_manifest(tmp_path / "r3").benchmark_hash == completed.hash
    assert read_benchmark(path) == bare, "the user's file stays as it was"
    await evaluate_benchmark(path, tmp_path / "r3", [GYM], [GYM], exemplars=GYM)  # and again
    added = await exemplify(path, tmp_path / "full.jsonl", GYM)
    assert added.benchmark.questions == bench.questions


async def test_a_run_stopped_by_a_cap_keeps_what_it_has_and_ends_as_an_undisturbed_one(
    tmp_path: Path,
):
    bench = await built(tmp_path)
    judges = [GYM, f"lift:{GYM}"]
    whole = await evaluate_benchmark(bench, tmp_path / "whole", [GYM], judges)
    cut = tmp_path / "cut"
    with pytest.raises(StoppedEarlyError):
        await evaluate_benchmark(bench, cut, [GYM], judges, options=Options(max_calls=17))
    assert read_manifest(cut).status == "stopped"
    assert requests(cut) == 17
    partial = read_results(cut / RESULTS)
    assert {r.failure.cause for r in partial if r.failure} <= {"not_asked", "answer: not_asked"}
    assert len(partial) == len(whole.rows)
    again = await evaluate_benchmark(bench, cut, [GYM], judges)
    assert (cut / RESULTS).read_bytes() == (tmp_path / "whole" / RESULTS).read_bytes()
    assert again.rows == whole.rows
    assert requests(cut) == requests(tmp_path / "whole")


async def test_a_replay_needs_no_model_and_gives_the_same_rows(tmp_path: Path):
    bench = await built(tmp_path)
    registry = Registry()
    registry.register("once", lambda _id: ScriptedModel(_answer))
    first = await evaluate_benchmark(
        bench, tmp_path / "run", ["once:x"], ["once:y"], registry=registry
    )

    def nobody(_id):
        raise AssertionError("a replay asks no model")

    silent = Registry()
    silent.register("once", nobody)
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    second = await evaluate_benchmark(
        bench, tmp_path / "run", ["once:x"], ["once:y"],
        registry=silent, options=Options(replay=True),
    )  # fmt: skip
    assert second.rows == first.rows
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before


def _answer(call):
    return {"justification": "x", "score": 3} if call["schema"] else "an answer"


async def test_a_dry_run_writes_nothing_and_counts_every_call(tmp_path: Path):
    out = tmp_path / "bench.jsonl"
    done = await build(
        out, "openai/none", personas=personas(tmp_path), exemplars="openai/none", questions=3,
        options=Options(dry_run=True),
    )  # fmt: skip
    assert done.plan is not None
    assert done.plan.calls["examiner", "openai/none"] == 2 + 2 * 5
    assert done.plan.calls["exemplar_writer", "openai/none"] == 2 * 5 * 3
    assert not out.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["personas.txt"]
    bench = await built(tmp_path)
    run = tmp_path / "run"
    planned = await evaluate_benchmark(
        bench, run, ["openai/a", "openai/b"], ["openai/j", "lift:openai/l"],
        options=Options(dry_run=True),
    )  # fmt: skip
    assert planned.plan is not None
    assert planned.plan.calls == {
        ("character", "openai/a"): 20,
        ("character", "openai/b"): 20,
        ("judge", "openai/j"): 40,
        ("lift", "openai/l"): 40 * 3,
    }
    assert not run.exists()


@pytest.mark.parametrize(("per_environment", "most"), [(False, 1), (True, 6)])
async def test_a_dry_run_counts_personas_to_be_written_and_all_that_hangs_on_them(
    tmp_path: Path, per_environment, most
):
    done = await build(
        tmp_path / "b.jsonl", "openai/none", generate=25, questions=30,
        per_environment=per_environment, options=Options(dry_run=True),
    )  # fmt: skip
    assert done.plan is not None
    # 3 batches of at most ten personas; then a choice each, and 3 batches of ten questions a task
    # (and environment: six is the most that an examiner may choose).
    assert done.plan.calls["examiner", "openai/none"] == 3 + 25 * (1 + 5 * most * 3)


async def test_another_benchmark_or_model_in_the_same_run_directory_is_refused(tmp_path: Path):
    bench = await built(tmp_path)
    run = tmp_path / "run"
    await evaluate_benchmark(bench, run, [GYM], [GYM])
    with pytest.raises(UsageError, match="the models would differ"):
        await evaluate_benchmark(bench, run, [GYM], [GYM, f"lift:{GYM}"])
    changed = bench.model_copy(
        update={
            "questions": (
                *bench.questions[:-1],
                bench.questions[-1].model_copy(update={"text": "?"}),
            )
        }
    )
    with pytest.raises(UsageError, match="made from would differ"):
        await evaluate_benchmark(changed, run, [GYM], [GYM])


async def test_a_script_that_changed_since_is_another_run(tmp_path: Path):
    script = tmp_path / "s.py"
    script.write_text(Path(GYM.partition(":")[2]).read_text())
    bench = await built(tmp_path)
    await evaluate_benchmark(bench, tmp_path / "run", [f"scripted:{script}"], [GYM])
    script.write_text(script.read_text() + "\n# changed\n")
    with pytest.raises(UsageError, match=r"the script scripted:.*s\.py"):
        await evaluate_benchmark(bench, tmp_path / "run", [f"scripted:{script}"], [GYM])


async def test_an_answer_that_cannot_be_had_is_missing_and_never_judged(tmp_path: Path):
    bench = await built(tmp_path)

    def shy(call):
        if call["meta"]["question"].endswith("01"):
            raise OSError("no answer today")
        return "an answer"

    registry = Registry()
    registry.register("shy", lambda _id: ScriptedModel(shy))
    done = await evaluate_benchmark(
        bench,
        tmp_path / "run",
        ["shy:x"],
        [GYM],
        registry=registry,
        options=Options(retry_delay=0.001),
    )
    missing = [r for r in done.rows if r.score is None]
    assert len(missing) == 10
    for row in missing:
        assert row.answer is None
        assert row.failure is not None
        assert row.failure.cause == "answer: server"


async def test_scripted_nonsense_makes_scores_go_missing_not_low(tmp_path: Path):
    bench = await built(tmp_path)
    registry = Registry()
    registry.register("fool", lambda _id: ScriptedModel(lambda _c: "blub"))
    done = await evaluate_benchmark(
        bench, tmp_path / "run", ["fool:m"], ["fool:j"], registry=registry
    )
    assert {(r.score, r.failure.cause if r.failure else None) for r in done.rows} == {
        (None, "malformed")
    }


def test_the_limit_goes_round_over_personas_then_tasks():
    people = tuple(Persona(id=p, description=p) for p in "ab")
    questions = tuple(
        Question(id=f"{p}{t.short}{n}", persona_id=p, task=t, text="?")
        for p in "ab"
        for t in (Task.EXPECTED_ACTION, Task.TOXICITY_CONTROL)
        for n in (1, 2)
    )
    bench = Benchmark(personas=people, questions=questions)
    assert [q.id for q in limited(bench, 5)] == ["aEA1", "bEA1", "aTC1", "bTC1", "aEA2"]
    assert limited(bench, None) == questions
    assert limited(bench, 99) == questions


async def test_bad_input_names_the_file_and_the_place(tmp_path: Path):
    noise = tmp_path / "noise.txt"
    noise.write_bytes(bytes(range(256)) * 4)
    with pytest.raises(InputError, match=r"noise\.txt.*not UTF-8"):
        await build(tmp_path / "b.jsonl", GYM, personas=noise)
    with pytest.raises(InputError, match=r"absent\.txt.*no such file"):
        await build(tmp_path / "b.jsonl", GYM, personas=tmp_path / "absent.txt")
    broken = tmp_path / "bench.jsonl"
    broken.write_text('{"record": "benchmark", "format": 1}\n{"record": "question"\n')
    with pytest.raises(InputError, match=r"bench\.jsonl, line 2: not JSON"):
        await evaluate_benchmark(broken, tmp_path / "run", [GYM], [GYM])


async def test_a_benchmark_edited_by_hand_is_noticed(tmp_path: Path):
    await built(tmp_path)
    path = tmp_path / "bench.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    question = json.loads(lines[-1])
    question["text"] = "Something else?"
    path.write_text("\n".join([*lines[:-1], json.dumps(question)]), encoding="utf-8")
    with pytest.raises(InputError, match="content_hash"):
        read_benchmark(path)
