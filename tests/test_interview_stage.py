"""The stage `interview` end to end on a script: hold, judge, stop, resume, replay, import."""

import json
from pathlib import Path
from typing import Any

import pytest

from personae.characters.card import card_of
from personae.cli import main
from personae.errors import InputError, StoppedEarlyError, UsageError
from personae.interview.questions import INTERVIEWS, PROFILES, SCRIPTS
from personae.interview_stage import (
    METHODS,
    Interviewed,
    import_interviews,
    interview,
    read_interviews,
    read_kept_scripts,
    read_profiles,
)
from personae.journal.store import Journal
from personae.records import Character, InterviewRow
from personae.records.files import read_jsonl
from personae.session import JOURNAL, RESULTS, Options, read_manifest
from tests.cast.serving import small_cast

SCRIPT = Path(__file__).parent / "scripts" / "interview.py"
MODEL = f"scripted:{SCRIPT}"
CAST = ["starter:sherlock-holmes", "starter:don-quixote"]
SEVEN = ["CB", "CU", "VK", "RK", "HK", "Rel", "Stab"]


def questions(folder: Path, *texts: str) -> Path:
    path = folder / "questions.txt"
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def rows_of(run: Path) -> list[InterviewRow]:
    return [InterviewRow.from_dict(line) for _, line in read_jsonl(run / RESULTS)]


def requests(run: Path) -> int:
    with Journal(run / JOURNAL, read_only=True) as journal:
        return journal.totals().made


async def two_questions(tmp_path: Path, out: str = "run", **arguments: Any) -> Interviewed:
    path = questions(tmp_path, "Where were you born?", "Whom do you love?")
    arguments.setdefault("questions", [path])
    return await interview(CAST, tmp_path / out, [MODEL], [MODEL], **arguments)


async def test_single_questions_are_put_to_every_character_and_judged_on_seven_metrics(tmp_path):
    done = await two_questions(tmp_path)
    assert len(done.interviews) == 4, "two questions, two characters"
    assert {(i.kind, i.mode, i.method) for i in done.interviews} == {("single", "single", "prompt")}
    assert all(i.location and i.status for i in done.interviews), "appendix B.2"
    rows = rows_of(tmp_path / "run")
    assert tuple(rows) == done.rows
    assert [r.metric for r in rows[:7]] == SEVEN
    assert len(rows) == 4 * 7
    assert all(r.score is not None and 1 <= r.score <= 7 for r in rows)
    assert {p.name for p in read_profiles(tmp_path / "run")} == {"Sherlock Holmes", "Don Quixote"}
    assert len(read_kept_scripts(tmp_path / "run")) == 4
    assert read_interviews(tmp_path / "run") == done.interviews
    assert requests(tmp_path / "run") == 4 + 4 * 7


async def test_methods_stand_side_by_side_on_the_same_scripts(tmp_path) -> None:
    done = await two_questions(tmp_path, methods=("prompt", "rag"))
    by_script: dict[str, set[str]] = {}
    for one in done.interviews:
        by_script.setdefault(one.script_id, set()).add(one.method)
    assert list(by_script.values()) == [{"prompt", "rag"}] * 4
    found = [one for one in done.interviews if one.method == "rag"]
    assert all(e.passages for one in found for e in one.exchanges), "retrieval is real"
    assert len({one.id for one in done.interviews}) == 8


async def test_a_live_interviewer_leads_as_many_turns_as_are_asked_for(tmp_path) -> None:
    done = await two_questions(tmp_path, turns=3, interviewer=MODEL)
    assert {(i.kind, i.mode, len(i.exchanges)) for i in done.interviews} == {("multi", "live", 3)}
    stab = [row for row in done.rows if row.metric == "Stab"]
    assert all(len(row.turn_scores) == 3 for row in stab), "the curve over turns"
    with pytest.raises(UsageError, match="--interviewer"):
        await two_questions(tmp_path, "other", turns=3)


async def test_what_a_live_interviewer_asked_can_be_replayed_to_another_model(tmp_path) -> None:
    first = await two_questions(tmp_path, turns=3, interviewer=MODEL)
    again = await two_questions(tmp_path, "again", questions=[tmp_path / "run"])
    assert {i.mode for i in again.interviews} == {"replayed"}
    asked = [[e.asked for e in i.exchanges] for i in first.interviews]
    assert sorted(asked) == sorted([e.asked for e in i.exchanges] for i in again.interviews)


async def test_transfer_dialogues_change_the_character_and_have_one_metric(tmp_path) -> None:
    done = await two_questions(tmp_path, transfer=True, turns=2, limit=3)
    assert [i.kind for i in done.interviews] == ["transfer"] * 3
    assert all(len(i.characters) == 2 for i in done.interviews)
    assert {row.metric for row in done.rows} == {"Trans"}
    again = await two_questions(tmp_path, "again", transfer=True, turns=2, limit=3)
    assert [i.exchanges for i in again.interviews] == [i.exchanges for i in done.interviews]


async def test_a_place_that_is_given_holds_for_dialogues_that_begin_with_no_question(
    tmp_path: Path,
) -> None:
    path = tmp_path / "generated_agent_interview_Don_Quixote.json"
    path.write_text(json.dumps([{"question": "Whom do you love?"}]), "utf-8")
    done = await two_questions(
        tmp_path, questions=[path], transfer=True, interviewer=MODEL, location="A barn", limit=2
    )
    assert {one.location for one in done.interviews} == {"A barn"}
    assert {one.exchanges[0].character for one in done.interviews} == {
        "Sherlock Holmes", "Don Quixote",
    }  # fmt: skip


async def test_written_questions_cover_the_topics_and_tempt_out_of_the_role(tmp_path) -> None:
    done = await two_questions(tmp_path, questions=(), generate=4, interviewer=MODEL)
    assert len(done.interviews) == 8
    scripts = read_kept_scripts(tmp_path / "run")
    assert any(script.tempting for script in scripts)
    assert len({script.topic for script in scripts}) > 2


async def test_a_stopped_run_keeps_what_it_has_and_goes_on(tmp_path) -> None:
    with pytest.raises(StoppedEarlyError):
        await two_questions(tmp_path, options=Options(max_calls=9, concurrency=1))
    partial = rows_of(tmp_path / "run")
    assert len(partial) == 28
    missing = [row for row in partial if row.failure is not None]
    assert missing
    assert {row.failure.cause.removeprefix("answer: ") for row in missing if row.failure} == {
        "not_asked"
    }
    done = await two_questions(tmp_path)
    assert requests(tmp_path / "run") == 4 + 28, "nothing was asked twice"
    whole = await two_questions(tmp_path, "whole")
    assert done.rows == whole.rows
    replayed = await two_questions(tmp_path, options=Options(replay=True))
    assert replayed.rows == whole.rows


async def test_a_dry_run_counts_and_leaves_nothing(tmp_path) -> None:
    done = await two_questions(tmp_path, options=Options(dry_run=True))
    assert done.plan is not None
    assert sum(done.plan.calls.values()) == 4 + 4 * 7
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"questions": ()}, "--questions FILE or --generate"),
        ({"generate": 2}, "--questions FILE or --generate"),
        ({"questions": (), "generate": 2}, "--interviewer"),
        ({"methods": ("cast",)}, "cast:DIR"),
        ({"methods": ("oracle",)}, "oracle"),
        ({"turns": 0}, "--turns"),
        ({"turns": 1_001, "interviewer": MODEL}, "1,000 turns"),
        (
            {"questions": (), "generate": 2, "interviewer": MODEL, "transfer": True},
            "5 turns asks nothing twice, and --generate 2 gives 4",
        ),
        ({"limit": 0}, "--limit"),
        ({"transfer": True, "turns": 1}, "two turns"),
        ({"questions": (), "generate": 1_001, "interviewer": MODEL}, "1,000 questions a character"),
    ],
)
async def test_arguments_that_do_not_go_together_are_refused_before_anything_is_written(
    tmp_path, arguments, says
) -> None:
    with pytest.raises(UsageError, match=says):
        await two_questions(tmp_path, **arguments)
    assert not (tmp_path / "run").exists()


async def test_a_model_for_which_no_method_is_left_is_refused_and_not_passed_over(
    tmp_path: Path,
) -> None:
    path = questions(tmp_path, "Where were you born?")
    with pytest.raises(UsageError, match="is no cast: --method needs prompt or rag"):
        await interview(
            CAST, tmp_path / "run", [MODEL, "cast:nowhere"], [MODEL], questions=[path],
            methods=("cast",),
        )  # fmt: skip


async def test_one_character_of_a_cast_does_not_play_the_others(tmp_path: Path) -> None:
    path = questions(tmp_path, "Where were you born?")
    with pytest.raises(UsageError, match="cast:nowhere, which plays each"):
        await interview(
            CAST, tmp_path / "run", ["cast:nowhere#Don Quixote"], [MODEL], questions=[path]
        )


async def test_a_cast_stands_beside_its_own_base_and_another_model(
    tmp_path: Path, tiny_base: Path
) -> None:
    cast = small_cast(tmp_path / "cast", tiny_base)
    cards = tmp_path / "cards"
    cards.mkdir()
    for name in ("Ada Byron", "wu  song"):  # as somebody may write them
        card = Character(name=name, description="Keeps the inn.")
        (cards / f"{name}.json").write_text(json.dumps(card_of(card).document), "utf-8")
    path = questions(tmp_path, "Where were you born?")
    model = f"cast:{cast.path}"
    done = await interview(
        [cards], tmp_path / "run", [model, MODEL], [MODEL], questions=[path],
        methods=("prompt", "rag", "cast"), sampling={"max_tokens": 24, "temperature": 1.0},
    )  # fmt: skip
    assert {i.failure for i in done.interviews} == {None}
    by_voice = {(i.model, i.method, i.characters[0]): i for i in done.interviews}
    assert by_voice.keys() == {
        *((model, method, name) for method in METHODS for name in ("Ada Byron", "wu song")),
        *((MODEL, method, name) for method in METHODS[:2] for name in ("Ada Byron", "wu song")),
    }
    assert read_manifest(tmp_path / "run").models["model"] == (
        f"{model}#base", f"{model}#Ada Byron", f"{model}#Wu Song", MODEL,
    )  # fmt: skip
    said = {method: by_voice[model, method, "Ada Byron"].exchanges[0].answer for method in METHODS}
    assert said["cast"] != by_voice[model, "cast", "wu song"].exchanges[0].answer, "other blocks"
    assert len(set(said.values())) > 1
    assert {(row.model, row.method) for row in done.rows} == {v[:2] for v in by_voice}


def kept_script(folder: Path, **fields: Any) -> Path:
    path = folder / "scripts.jsonl"
    path.write_text(json.dumps({"id": "s", **fields}) + "\n", "utf-8")
    return path


async def test_too_few_questions_for_the_transfer_dialogues_leave_no_run_in_the_way(
    tmp_path,
) -> None:
    with pytest.raises(InputError, match="fewer with --limit"):
        await two_questions(tmp_path, transfer=True, turns=2)
    assert not (tmp_path / "run").exists()
    assert len((await two_questions(tmp_path, transfer=True, turns=2, limit=3)).interviews) == 3


async def test_questions_to_others_are_told_as_such(tmp_path) -> None:
    path = tmp_path / "questions.json"
    path.write_text(json.dumps([{"question": "Why?"}, {"question": "Who?", "character": "Ada"}]))
    await two_questions(tmp_path, questions=[path])
    (note,) = read_manifest(tmp_path / "run").notes
    assert note == f"{path}: 1 not asked (for somebody who is not among --characters)"


async def test_a_transfer_dialogue_without_words_needs_an_interviewer_before_anything_is_paid(
    tmp_path: Path,
) -> None:
    turns = [{"character": "Sherlock Holmes"}, {"character": "Don Quixote"}]
    path = kept_script(tmp_path, kind="transfer", topic="Fog", turns=turns)
    with pytest.raises(UsageError, match="--interviewer"):
        await two_questions(tmp_path, questions=[path], transfer=True)
    assert not (tmp_path / "run").exists()


async def test_turns_that_would_change_nothing_are_refused(tmp_path: Path) -> None:
    turns = [{"character": "Don Quixote", "asked": text} for text in ("Who?", "Why?")]
    path = kept_script(tmp_path, kind="multi", turns=turns)
    with pytest.raises(UsageError, match="--turns leads on from questions"):
        await two_questions(tmp_path, questions=[path], turns=3, interviewer=MODEL)


async def test_a_run_is_in_one_language_for_its_rubrics_and_audits_are(tmp_path: Path) -> None:
    turns = [{"character": "Don Quixote", "asked": "你是谁？"}]
    path = kept_script(tmp_path, kind="single", language="zh", turns=turns)
    with pytest.raises(InputError, match="Give --lang zh"):
        await two_questions(tmp_path, questions=[path])
    await two_questions(tmp_path, questions=[path], language="zh")
    with pytest.raises(InputError, match="Give --lang zh"):
        await import_interviews([tmp_path / "run" / INTERVIEWS], tmp_path / "again")


async def test_a_writer_that_writes_nothing_is_named_with_its_cause(tmp_path: Path) -> None:
    mute = tmp_path / "mute.py"
    mute.write_text("def reply(call):\n    return 'I will not.'\n", "utf-8")
    with pytest.raises(InputError, match=r"nothing to ask: questions to Sherlock Holmes .*writer"):
        await two_questions(tmp_path, questions=(), generate=1, interviewer=f"scripted:{mute}")


async def test_an_import_under_another_profile_is_another_run(tmp_path: Path) -> None:
    path = published(tmp_path)
    await import_interviews([path], tmp_path / "run", [MODEL])
    profile = tmp_path / "profiles" / "wiki_Ada.txt"
    profile.write_text(profile.read_text("utf-8") + "\nShe also kept bees.\n", "utf-8")
    with pytest.raises(UsageError, match="what it is made from"):
        await import_interviews([path], tmp_path / "run", [MODEL])


def published(folder: Path) -> Path:
    """Two answers as Neeko publishes them, one of them empty; and the character's profile."""
    profiles = folder / "profiles"
    results = folder / "gen_results" / "interview_single" / "somebody"
    profiles.mkdir(parents=True)
    results.mkdir(parents=True)
    (profiles / "wiki_Ada.txt").write_text(
        "# Ada Lovelace\n\nAda Lovelace wrote the first program for a machine.\n", "utf-8"
    )
    path = results / "Ada_single.json"
    answers = [("Who are you?", "I am Ada, who teaches engines."), ("And now?", "")]
    path.write_text(
        json.dumps(
            [
                {
                    "topic_id": "topic-1",
                    "question": asked,
                    "reply": {"role": "Ada", "action": "(speaking)", "content": said},
                }
                for asked, said in answers
            ]
        ),
        "utf-8",
    )
    return path


async def test_published_interviews_are_judged_and_what_is_unfit_is_reported(tmp_path) -> None:
    done = await import_interviews([published(tmp_path)], tmp_path / "run", [MODEL])
    assert [i.method for i in done.interviews] == ["imported", "imported"]
    by_failure = {i.failure.cause if i.failure else None: i for i in done.interviews}
    assert by_failure.keys() == {None, "empty"}
    unfit = [row for row in done.rows if row.interview_id == by_failure["empty"].id]
    assert {row.failure.cause for row in unfit if row.failure} == {"answer: empty"}
    assert requests(tmp_path / "run") == 7, "no judge saw the empty reply"
    assert any("empty" in note for note in read_manifest(tmp_path / "run").notes)


async def test_of_a_limited_import_the_run_holds_what_it_says_and_no_more(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await import_interviews([published(tmp_path)], run, [MODEL], limit=1)
    (kept,) = read_interviews(run)
    assert [script.id for script in read_kept_scripts(run)] == [kept.script_id]
    assert "1 of the 2 interviews (--limit)" in read_manifest(run).notes


async def test_without_judges_an_import_is_kept_and_can_be_judged_later(tmp_path) -> None:
    path = published(tmp_path)
    await import_interviews([path], tmp_path / "run")
    assert (tmp_path / "run" / INTERVIEWS).is_file()
    assert (tmp_path / "run" / PROFILES).is_file()
    assert not (tmp_path / "run" / RESULTS).exists()


async def test_a_character_without_a_profile_cannot_be_judged(tmp_path) -> None:
    path = published(tmp_path)
    (tmp_path / "profiles" / "wiki_Ada.txt").unlink()
    with pytest.raises(InputError, match="profile"):
        await import_interviews([path], tmp_path / "run", [MODEL])


async def test_another_judge_reads_a_run_without_anybody_being_asked_again(tmp_path: Path) -> None:
    first = await two_questions(tmp_path)
    done = await import_interviews([tmp_path / "run"], tmp_path / "again", [MODEL])
    assert {i.id for i in done.interviews} == {i.id for i in first.interviews}
    scores = [{(r.interview_id, r.metric): r.score for r in run.rows} for run in (first, done)]
    assert scores[0] == scores[1], "what this script scores by is the prompt: it was the same"
    assert requests(tmp_path / "again") == 4 * 7


async def test_of_interviews_that_come_back_those_with_somebody_unknown_are_reported(
    tmp_path: Path,
) -> None:
    await two_questions(tmp_path)
    kept = tmp_path / "run" / INTERVIEWS
    (tmp_path / "run" / PROFILES).unlink()
    done = await import_interviews([kept], tmp_path / "again", [MODEL], characters=CAST[:1])
    causes = {
        one.characters: {
            row.failure.cause for row in done.rows if row.failure and row.interview_id == one.id
        }
        for one in done.interviews
    }
    assert causes == {("Sherlock Holmes",): set(), ("Don Quixote",): {"no_profile"}}


def test_the_commands_leave_a_page_and_a_document(tmp_path, capsys) -> None:
    path = questions(tmp_path, "Where were you born?")
    words = ["interview", "--model", MODEL, "--characters", *CAST, "--questions", str(path)]
    words += ["--method", "prompt,rag", "--judge", MODEL, "--out", str(tmp_path / "run")]
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    document = json.loads(capsys.readouterr().out)
    models = document["interviews"]["models"]
    assert [(m["model"], m["method"], m["mode"]) for m in models] == [
        (MODEL, "prompt", "single"), (MODEL, "rag", "single"),
    ]  # fmt: skip
    assert list(models[0]["metrics"]) == [*SEVEN, "Trans"]
    assert (tmp_path / "run" / "report.html").is_file()
    for again in (["report"], ["resume", "--trust-scripts"]):
        assert main([again[0], str(tmp_path / "run"), *again[1:], "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["interviews"]["models"] == models
    assert (tmp_path / "run" / SCRIPTS).is_file()


def test_an_import_is_exported_in_the_shape_it_came_in(tmp_path, capsys) -> None:
    path = published(tmp_path)
    run, out = tmp_path / "run", tmp_path / "out"
    assert main(["interview", "import", str(path), "--out", str(run)]) == 0
    assert main(["interview", "export", str(run), "--out", str(out)]) == 0, capsys.readouterr().err
    (written,) = out.rglob("*_single.json")
    assert json.loads(written.read_text("utf-8")) == json.loads(path.read_text("utf-8"))
