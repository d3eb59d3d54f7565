"""Answers for audits: what counts as a character's answer, and what is left out and said to be."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from personae.errors import InputError
from personae.judging.answers import (
    Answers,
    answer_entries,
    answers_of_results,
    read_answer_file,
    system_of,
    unfit,
    whole,
)
from personae.prompts import render
from personae.records import Benchmark, Failure, Persona, Question, ResultRow, Task

ADA = Persona(id="ada", description="Ada, who keeps the ferry at the mouth of the river Severn.")


def said(content: str | None, role: str = "Ada", action: str = "(speaking)") -> dict[str, Any]:
    return {"role": role, "action": action, "content": content}


def single(folder: Path, *replies: Any, name: str = "Ada_single.json") -> Path:
    path = folder / "data" / "gen_results" / "single" / "a-model" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [
        {"topic_id": "t", "question": f"Question {i}?", "reply": r} for i, r in enumerate(replies)
    ]
    path.write_text(json.dumps(entries), "utf-8")
    return path


def dialogue(*turns: tuple[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return {
        "character": "Ada of the Ferry",
        "content": [
            {"turn_id": i // 2, "turn_role": role, "turn_content": content}
            for i, (role, content) in enumerate(turns)
        ],
    }


def multi(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "data" / "gen_results" / "multi" / "a-model" / "Ada_multi.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def causes(found: Answers) -> list[str]:
    return [left.cause for left in found.left_out]


def test_a_single_turn_file_gives_question_answer_and_place(tmp_path: Path) -> None:
    path = single(tmp_path, said("I keep the ferry."), [said("Fourpence,"), said("both ways.")])
    found = read_answer_file(path)
    assert [(a.question.text, a.answer) for a in found.answers] == [
        ("Question 0?", "I keep the ferry."),
        ("Question 1?", "Fourpence,\nboth ways."),
    ]
    one = found.answers[0]
    assert one.question.task is Task.PERSONA_CONSISTENCY
    assert one.question.environment is None
    assert one.system == "single/a-model"
    assert one.source == f"{path}, entry 1"
    assert found.left_out == []


def test_a_character_without_a_profile_is_its_name_and_that_is_said(tmp_path: Path) -> None:
    path = single(tmp_path, said("I keep the ferry."))
    found = read_answer_file(path)
    assert found.cast == (Persona(id="ada", description="Ada", source=str(path)),)
    assert found.unknown == [("Ada", str(path))]


def test_the_profile_beside_the_files_gives_name_and_first_paragraphs(tmp_path: Path) -> None:
    path = single(tmp_path, said("I keep the ferry.", role="Ada Byrne"))
    profiles = tmp_path / "data" / "profiles"
    profiles.mkdir()
    long = "She was born in a storm. " * 60
    (profiles / "wiki_Ada.txt").write_text(
        f"# Ada Byrne\n\nA ferrywoman\nof the Severn.\n\nShe is 61.\n\n{long}\n\n## Life\nMore.",
        "utf-8",
    )
    found = read_answer_file(path)
    assert found.cast[0].id == "ada"
    assert found.cast[0].description == "Ada Byrne. A ferrywoman of the Severn. She is 61."
    assert found.unknown == []


def test_a_name_from_a_file_is_never_a_path(tmp_path: Path) -> None:
    path = single(tmp_path, said("I keep the ferry.", role="../../secret"))
    (tmp_path / "data" / "profiles").mkdir()
    (tmp_path / "secret.txt").write_text("Not for judges.", "utf-8")
    (tmp_path / "data" / "wiki_secret.txt").write_text("Nor this.", "utf-8")
    assert read_answer_file(path).cast[0].description == "../../secret"


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (said(""), "empty"),
        (said(None), "empty"),
        ([], "empty"),
        (said("(sits down)", action="(thinking)"), "not_spoken"),
        (said("<s> I want you to act like Ada. Ada (speaking): Hello."), "contaminated"),
        (said("Hello.<|im_end|>"), "contaminated"),
        (said("Hello.\nMan (speaking): How are you?"), "contaminated"),
        ([said("Hello."), said("How are you?", role="Man")], "contaminated"),
        (said("question 0?"), "contaminated"),
        (said("As an AI language model, I do not have personal experiences."), "refusal"),
    ],
)
def test_what_is_not_the_characters_answer_is_left_out_with_its_cause(
    tmp_path: Path, reply: Any, cause: str
) -> None:
    found = read_answer_file(single(tmp_path, reply, said("I keep the ferry.")))
    assert causes(found) == [cause]
    assert found.left_out[0].place == "entry 1"
    assert [a.answer for a in found.answers] == ["I keep the ferry."]


def test_only_the_first_exchange_of_a_dialogue_is_taken_and_the_rest_is_counted(
    tmp_path: Path,
) -> None:
    man = [said("Who are you?", role="Man")]
    path = multi(
        tmp_path,
        dialogue(
            ("interviewer", man), ("character", [said("Ada.")]),
            ("interviewer", man), ("character", [said("Still Ada.")]),
        ),
        dialogue(("interviewer", man), ("character", [said("Tell me, Ada.", role="Man")])),
        dialogue(("interviewer", man), ("character", [said("Hm.", action="(thinking)"), said("I.")])),
    )  # fmt: skip
    found = read_answer_file(path)
    assert [(a.question.text, a.answer) for a in found.answers] == [
        ("Who are you?", "Ada."),
        ("Who are you?", "I."),
    ]
    assert causes(found) == ["later_turn", "contaminated"]


@pytest.mark.parametrize(
    "answer",
    [
        "I row.\nHuman: And then?",
        "I row.\n用户：然后呢？",
        "### Assistant: I row.",
        "I row.\n### User: And then?",
        "The status of you is as follows: on the pier.",
        "I row.<|NONSTOP|>",
    ],
)
def test_an_answer_that_runs_on_or_holds_its_prompt_is_contaminated(answer: str) -> None:
    assert unfit(answer, ADA, "What do you do?") == "contaminated"


@pytest.mark.parametrize(
    "answer",
    [
        "Human: that is what we are.",
        "A user: one who pays fourpence.",
        "Man is a river, and Ada: the ferry.",
    ],
)
def test_a_colon_does_not_make_another_speaker(answer: str) -> None:
    assert unfit(answer, ADA, "What do you do?") is None


def test_an_interviewers_line_in_the_answer_is_another_speakers(tmp_path: Path) -> None:
    man = [said("Who are you?", role="Man")]
    path = multi(
        tmp_path,
        dialogue(("interviewer", man), ("character", [said("Ada.\nMan: Really?")])),
        dialogue(("interviewer", man), ("character", [said("Ada, Man: the ferrywoman.")])),
    )
    found = read_answer_file(path)
    assert [(left.place, left.cause) for left in found.left_out] == [("line 1", "contaminated")]
    assert [a.answer for a in found.answers] == ["Ada, Man: the ferrywoman."]


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("I row.</s>", "I row."),
        ("I row. <\\s></s>\n", "I row."),
        ("Ada: I row.", "I row."),
        ("Dame Ada Byrne (speaking): I row.", "I row."),
        ("Ada's answer: I row.", "Ada's answer: I row."),
        ("I am Ada, and so: I row.", "I am Ada, and so: I row."),
        ("Ben: I row.", "Ben: I row."),
    ],
)
def test_the_end_of_sequence_and_the_speakers_own_name_are_no_part_of_an_answer(
    tmp_path: Path, content: str, answer: str
) -> None:
    found = read_answer_file(single(tmp_path, said(content)))
    assert [a.answer for a in found.answers] == [answer]


def test_an_end_of_sequence_amid_an_answer_is_contamination(tmp_path: Path) -> None:
    found = read_answer_file(single(tmp_path, said("I row.</s> So do I."), said("Yes.<unk> No.")))
    assert causes(found) == ["contaminated", "contaminated"]


def test_all_turns_of_a_dialogue_can_be_had(tmp_path: Path) -> None:
    man = [said("Who are you?", role="Man")]
    path = multi(
        tmp_path,
        dialogue(
            ("interviewer", man), ("character", [said("Ada.")]),
            ("interviewer", man), ("character", [said("Ben.", role="Ben")]),
            ("interviewer", man),
        ),
    )  # fmt: skip
    (entry,) = answer_entries(path)
    assert (entry.character, entry.later) == ("Ada of the Ferry", 1)
    assert [(turn.name, turn.answer) for turn in entry.turns()] == [
        ("Ada", "Ada."),
        ("Ben", "Ben."),
        ("Ada of the Ferry", ""),
    ]


def test_who_answered_is_told_by_the_folders_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = single(tmp_path, said("I keep the ferry."))
    monkeypatch.chdir(path.parent)
    assert system_of(Path(path.name)) == system_of(path) == "single/a-model"


def test_half_a_surrogate_pair_becomes_one_mark() -> None:
    assert whole("a\ud83db") == "a\ufffdb"
    assert whole("\ud83d\ude00 é") == "😀 é"
    assert whole("plain") == "plain"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"question": "a"}', "the whole"),
        ('[{"reply": {"content": "a"}}]', "entry 1"),
        ('[{"question": "a", "reply": "b"}]', "entry 1"),
        ('[{"question": "a", "reply": {"content": 7}}]', "entry 1"),
        ('[{"question": " ", "reply": {"content": "b"}}]', "entry 1"),
        ('["a"]', "entry 1"),
        ("[" * 100_000, ""),
        ("\x89PNG\x00", ""),
    ],
)
def test_a_file_that_holds_no_answers_names_its_place(
    tmp_path: Path, text: str, place: str
) -> None:
    path = tmp_path / "answers.json"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError) as error:
        read_answer_file(path)
    assert str(path) in str(error.value)
    assert place in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        {"character": "Ada"},
        {"character": "Ada", "content": ["x"]},
        dialogue(("character", [said("Ada.")])),
        dialogue(("interviewer", [said("")]), ("character", [said("Ada.")])),
    ],
)
def test_a_line_that_is_no_dialogue_names_its_line(tmp_path: Path, line: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="line 1: not an answer file"):
        read_answer_file(multi(tmp_path, line))


def test_an_answer_of_nobody_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "_single.json"
    path.write_text('[{"question": "Who?", "reply": {"role": "", "content": "Me."}}]')
    with pytest.raises(InputError, match="no character is named"):
        read_answer_file(path)


def run_of(*answers: tuple[str, str | None]) -> tuple[list[ResultRow], Benchmark]:
    questions = tuple(
        Question(id=f"q{i}", persona_id="ada", task=Task.EXPECTED_ACTION, text=f"Question {i}?")
        for i in range(len(answers))
    )
    rows = [
        ResultRow(
            unit_id=f"q{i}@m", model="m", persona="ada", task=Task.EXPECTED_ACTION,
            question_id=f"q{i}", question=f"Question {i}?", answer=answer, judge=judge,
            score=None, failure=Failure(cause="timeout"),
        )
        for i, (judge, answer) in enumerate(answers)
    ]  # fmt: skip
    return rows, Benchmark(personas=(ADA,), questions=questions)


def test_a_runs_answer_counts_once_however_many_judges_saw_it() -> None:
    rows, benchmark = run_of(("j", "I row."))
    again = rows[0].model_copy(update={"judge": "k"})
    found = answers_of_results([*rows, again], benchmark, "results.jsonl")
    assert [(a.unit, a.answer, a.system) for a in found.answers] == [("q0@m", "I row.", "m")]
    assert found.answers[0].persona == ADA


def test_a_runs_failures_refusals_and_leaks_are_left_out() -> None:
    prompt = render("answer", "en", persona=ADA.description, question="Q?")[0].content
    rows, benchmark = run_of(
        ("j", None), ("j", "I'm sorry, but I can't help with that."), ("j", "  "),
        ("j", f"{prompt}\n\nI ferry."), ("j", "I row."),
    )  # fmt: skip
    found = answers_of_results(rows, benchmark, "results.jsonl")
    assert causes(found) == ["failed", "refusal", "empty", "contaminated"]
    assert [a.unit for a in found.answers] == ["q4@m"]


def test_a_row_whose_question_the_benchmark_lacks_is_an_error() -> None:
    rows, benchmark = run_of(("j", "I row."))
    with pytest.raises(InputError, match=r"unit q0@m.*does not hold this question"):
        answers_of_results(rows, benchmark.model_copy(update={"questions": ()}), "results.jsonl")


def test_a_file_given_twice_adds_nothing_and_equal_ids_are_told_apart() -> None:
    rows, benchmark = run_of(("j", "I row."))
    other, _ = run_of(("j", "I sail."))
    together = Answers()
    for some in (rows, rows, other):
        together.add(answers_of_results(some, benchmark, "results.jsonl"))
    assert [(a.unit, a.answer) for a in together.answers] == [
        ("q0@m", "I row."),
        ("q0@m#2", "I sail."),
    ]


def test_the_hash_follows_the_content_and_not_the_order() -> None:
    rows, benchmark = run_of(("j", "I row."), ("j", "I sail."))
    one = answers_of_results(rows, benchmark, "results.jsonl")
    turned = answers_of_results(rows[::-1], benchmark, "results.jsonl")
    changed = answers_of_results(rows[:1], benchmark, "results.jsonl")
    assert one.hash == turned.hash != changed.hash


def test_a_character_may_say_who_it_is() -> None:
    assert unfit(f"You know me, {ADA.description}", ADA, "Who are you?") is None


def test_every_published_answer_file_is_read_and_its_contamination_found(
    shared_data: Callable[..., Path],
) -> None:
    neeko = shared_data("neeko", "gen_results")
    files = sorted(neeko.rglob("*_single.json")) + sorted(neeko.rglob("*_multi.jsonl"))
    together = Answers()
    for path in files:
        found = read_answer_file(path)
        lost = Counter(causes(found))
        entries = 50 if path.suffix == ".jsonl" else len(json.loads(path.read_text("utf-8")))
        first = lost.total() - lost["later_turn"]
        assert len(found.answers) + first == entries
        assert found.unknown == []
        together.add(found)
    assert len(together.cast) == 6
    # Three of ChatGPT's replies go on as the interviewer (found by reading them).
    wrong = [(x.path, x.place) for x in together.left_out if x.cause == "contaminated"]
    assert [(Path(p).name, place) for p, place in wrong] == [
        ("Socrates_single.json", "entry 42"),
        ("Socrates_single.json", "entry 83"),
        ("Spartacus_single.json", "entry 46"),
    ]
