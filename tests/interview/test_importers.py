"""PersonaGym's published files become a benchmark exactly as they are, or a clear error."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from personae.errors import InputError
from personae.interview import importers
from personae.interview.benchmark_file import read_benchmark, write_benchmark
from personae.interview.importers import import_personagym, read_rubrics
from personae.interview.personas import persona_id
from personae.judging.rubrics import rubric_set
from personae.records import Task

FIVE = ("Expected Action", "Toxicity", "Linguistic Habits", "Persona Consistency",
        "Action Justification")  # fmt: skip
PAPER = {"Toxicity": "Toxicity Control"}
BAKER = "A baker from Lyon, who sings"

RUBRIC = """You will see a persona and one response. Judge it. End with "Therefore, ..."

Evaluation Task:

{task}

Evaluation Task Description:

How well does the reply suit the person?
It is about the reply, not the question.

Evaluation Criteria:

Score = 1: It does not suit at all.

Score = 2: It hardly suits.

Score = 3: It suits in part:
1. in tone,
2. or in content.

Score = 4: It suits with a slip.

Score = 5: It suits – wholly.

------------------------------
Score Examples:
{{score_example}}
------------------------------

Persona Description:

{{persona}}

Question:

{{question}}

Response:

{{response}}


Evaluation Form:
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of the repository with two personas and a rubric for each task."""
    where = tmp_path / "PersonaGym"
    write(where, BAKER, {task: [f"{task} {n}?" for n in range(1, 4)] for task in FIVE})
    write(where, "A 30-year-old diver", {"Toxicity": ["Why?", "Why?"]})
    (where / "README.md").write_text("not a persona")
    (where / "questions/benchmark-v1/.DS_Store").write_bytes(b"\0")
    (where / "rubrics").mkdir()
    for task in FIVE:
        (where / "rubrics" / f"{task}.txt").write_text(RUBRIC.format(task=task), "utf-8")
    return where


def write(clone: Path, persona: str, content: Any) -> Path:
    path = clone / "questions/benchmark-v1" / f"{persona}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def rubric(clone: Path, text: str, task: str = "Toxicity") -> Path:
    path = clone / "rubrics" / f"{task}.txt"
    path.write_text(text, "utf-8")
    return path


def test_a_clone_becomes_exactly_what_its_files_hold(clone: Path) -> None:
    benchmark = import_personagym(clone)
    assert [p.description for p in benchmark.personas] == ["A 30-year-old diver", BAKER]
    baker = persona_id(BAKER)
    assert [q.text for q in benchmark.questions if q.persona_id == baker] == [
        f"{task} {n}?" for task in FIVE for n in range(1, 4)
    ]
    assert [q.id for q in benchmark.questions if q.persona_id == baker][:4] == [
        f"{baker}/EA/01", f"{baker}/EA/02", f"{baker}/EA/03", f"{baker}/TC/01",
    ]  # fmt: skip
    assert benchmark.language == "en"
    assert benchmark.rubrics == ()


def test_what_is_not_published_is_unknown(clone: Path) -> None:
    benchmark = import_personagym(clone)
    assert {q.environment for q in benchmark.questions} == {None}
    assert {q.exemplars for q in benchmark.questions} == {None}
    assert benchmark.environments == {}


def test_the_public_name_toxicity_means_toxicity_control(clone: Path) -> None:
    tasks = {q.text: q.task for q in import_personagym(clone).questions}
    assert tasks["Toxicity 1?"] is Task.TOXICITY_CONTROL


def test_questions_of_the_same_text_are_kept_with_ids_of_their_own(clone: Path) -> None:
    diver = persona_id("A 30-year-old diver")
    twins = [q for q in import_personagym(clone).questions if q.persona_id == diver]
    assert [q.text for q in twins] == ["Why?", "Why?"]
    assert [q.id for q in twins] == [f"{diver}/TC/01", f"{diver}/TC/02"]


def test_the_clone_and_its_folder_of_questions_give_the_same_benchmark(clone: Path) -> None:
    assert import_personagym(clone) == import_personagym(clone / "questions/benchmark-v1")


def test_a_changed_question_gives_another_origin_and_another_hash(clone: Path) -> None:
    before = import_personagym(clone)
    assert import_personagym(clone).made_from == before.made_from
    write(clone, "A 30-year-old diver", {"Toxicity": ["Why?", "Why not?"]})
    after = import_personagym(clone)
    assert after.made_from != before.made_from
    assert after.hash != before.hash


def test_a_decomposed_file_name_is_the_same_persona(tmp_path: Path) -> None:
    write(tmp_path / "a", "Un caf\u00e9", {"Toxicity": ["Q?"]})
    write(tmp_path / "b", "Un cafe\u0301", {"Toxicity": ["Q?"]})
    assert import_personagym(tmp_path / "a").hash == import_personagym(tmp_path / "b").hash


def test_an_import_survives_the_benchmark_file(clone: Path, tmp_path: Path) -> None:
    benchmark = import_personagym(clone, clone / "rubrics")
    write_benchmark(benchmark, tmp_path / "b.jsonl")
    assert read_benchmark(tmp_path / "b.jsonl") == benchmark


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "not JSON"),
        ("{", "line 1, column 2: not JSON"),
        ("[]", "not a JSON object"),
        ('[["Toxicity", ["Q?"]]]', "not a JSON object"),
        ("7", "not a JSON object"),
        ("null", "not a JSON object"),
        ("{}", "holds no task"),
        ("[" * 50_000, "not JSON"),
        ('{"Toxicity": [' + "9" * 5_000 + "]}", "not JSON that holds questions"),
        ({"Kindness": ["Q?"]}, "task 'Kindness': no task is called 'Kindness'"),
        ({"Toxicity": "Q?"}, "task 'Toxicity': not a list of questions"),
        ({"Toxicity": []}, "task 'Toxicity': not a list of questions"),
        ({"Toxicity": {"1": "Q?"}}, "question 1: not the text of a question"),
        ({"Toxicity": ["Q?", 7]}, "task 'Toxicity', question 2: not the text"),
        ({"Toxicity": ["Q?", None]}, "question 2: not the text"),
        ({"Toxicity": ["Q?", {"q": "Q?"}]}, "question 2: not the text"),
        ({"Toxicity": ["Q?", ["Q?"]]}, "question 2: not the text"),
        ({"Toxicity": ["Q?", " \n"]}, "question 2: not the text"),
        ({"Toxicity": ["half \ud83d"]}, "question 1: not a valid Question"),
        ({"Toxicity": ["Q?"], "Toxicity Control": ["R?"]}, "Toxicity Control stands twice"),
        ('{"Toxicity": ["Q?"], "Toxicity": ["R?"]}', "Toxicity Control stands twice"),
    ],
)
def test_a_malformed_file_ends_the_import_and_is_named(
    clone: Path, content: Any, what: str
) -> None:
    path = write(clone, "Broken", content)
    with pytest.raises(InputError) as caught:
        import_personagym(clone)
    assert str(caught.value.path) == str(path)
    assert what in str(caught.value)


def test_a_file_that_is_not_text_ends_the_import(clone: Path) -> None:
    (clone / "questions/benchmark-v1/Noise.json").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match=r"Noise\.json, byte 0: not UTF-8 text"):
        import_personagym(clone)


def test_two_names_of_one_persona_end_the_import(clone: Path) -> None:
    write(clone, "A  30-year-old diver", {"Toxicity": ["Q?"]})
    with pytest.raises(InputError, match="the same persona as 'A 30-year-old diver'"):
        import_personagym(clone)


def test_a_file_whose_name_is_no_persona_ends_the_import(clone: Path) -> None:
    write(clone, "  ", {"Toxicity": ["Q?"]})
    with pytest.raises(InputError, match="file name holds no persona"):
        import_personagym(clone)


def test_a_file_name_that_is_not_utf8_ends_the_import(clone: Path) -> None:
    name = os.fsencode(clone / "questions/benchmark-v1") + b"/caf\xe9.json"
    try:
        Path(os.fsdecode(name)).write_text('{"Toxicity": ["Q?"]}')
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with pytest.raises(InputError, match="file name is not UTF-8") as caught:
        import_personagym(clone)
    str(caught.value).encode()


def test_an_absent_folder_an_empty_one_and_a_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        import_personagym(tmp_path / "absent")
    with pytest.raises(InputError, match=r"holds no questions.*Give a clone of the PersonaGym"):
        import_personagym(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be read as a folder"):
        import_personagym(tmp_path / "file")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError):
        import_personagym(tmp_path / "loop")


def test_a_link_out_of_the_folder_is_not_followed(clone: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"Toxicity": ["the secret"]}')
    link = clone / "questions/benchmark-v1/Link.json"
    link.symlink_to(secret)
    with pytest.raises(InputError, match="a link to a file outside") as caught:
        import_personagym(clone)
    assert caught.value.path == link
    link.unlink()
    link.symlink_to("../../../secret.json")
    with pytest.raises(InputError, match="a link to a file outside"):
        import_personagym(clone)


def test_a_linked_folder_inside_a_clone_is_not_followed_out_of_it(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", "A diver", {"Toxicity": ["Q?"]})
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone/questions").symlink_to(tmp_path / "elsewhere/questions")
    with pytest.raises(InputError, match="a link to a file outside"):
        import_personagym(tmp_path / "clone")


def test_a_link_that_stays_inside_or_that_the_user_names_is_followed(
    clone: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").symlink_to(clone)
    assert import_personagym(tmp_path / "mine") == import_personagym(clone)
    target = write(clone, "Third", {"Toxicity": ["Q?"]})
    target.rename(clone / "third.data")
    target.symlink_to("../../third.data")
    assert "Third" in {p.description for p in import_personagym(clone).personas}


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling", "loop"])
def test_what_is_not_a_regular_file_ends_the_import(clone: Path, kind: str) -> None:
    path = clone / "questions/benchmark-v1/Odd.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)  # reading it would wait for ever
    else:
        path.symlink_to(path if kind == "loop" else clone / "gone")
    with pytest.raises(InputError, match="not a regular file") as caught:
        import_personagym(clone)
    assert caught.value.path == path


def test_size_and_number_of_files_are_capped(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(clone, "Large", '{"Toxicity": ["' + "x" * importers.MAX_FILE_BYTES + '"]}')
    with pytest.raises(InputError, match="more than the 1,048,576 allowed"):
        import_personagym(clone)
    path.unlink()
    monkeypatch.setattr("personae.records.files.MAX_FILES", 1)
    with pytest.raises(InputError, match=r"holds more than the 1 \.json files allowed"):
        import_personagym(clone)


def test_rubric_files_become_the_custom_rubric_set(clone: Path) -> None:
    benchmark = import_personagym(clone, clone / "rubrics")
    assert [r.task for r in benchmark.rubrics] == list(Task)
    mine = rubric_set("en", benchmark.rubrics)[Task.LINGUISTIC_HABITS]
    assert mine.description == (
        "How well does the reply suit the person?\nIt is about the reply, not the question."
    )
    assert mine.criteria == (
        "It does not suit at all.",
        "It hardly suits.",
        "It suits in part:\n1. in tone,\n2. or in content.",
        "It suits with a slip.",
        "It suits – wholly.",
    )
    assert benchmark.hash != import_personagym(clone).hash


def test_the_clone_may_stand_for_its_folder_of_rubrics(clone: Path) -> None:
    assert read_rubrics(clone) == read_rubrics(clone / "rubrics")


@pytest.mark.parametrize(
    "line",
    [
        "Score = {}: text {}", "Score {}: text {}", "score: {} - text {}", "**Score {}:** text {}",
        "- Score of {}: text {}", "{}: text {}", "{}. text {}", "({}) - text {}", "{} - text {}",
        "* **{}**: text {}", "{} points: text {}", "Score = {}:\n\ntext {}\n",
    ],
)  # fmt: skip
def test_criteria_are_found_however_they_are_written(clone: Path, line: str) -> None:
    criteria = "\n".join(line.format(n, n) for n in range(1, 6))
    rubric(clone, f"## Task Description\n\nD.\n\n## Criteria\n\n{criteria}\n\n{{score_example}}\n")
    found = {r.task: r for r in read_rubrics(clone)}[Task.TOXICITY_CONTROL]
    assert found.description == "D."
    assert found.criteria == ("text 1", "text 2", "text 3", "text 4", "text 5")


def test_doubled_braces_are_braces_as_in_str_format(clone: Path) -> None:
    rubric(clone, RUBRIC.format(task="x").replace("wholly", "wholly {{sic}}"))
    found = {r.task: r for r in read_rubrics(clone)}[Task.TOXICITY_CONTROL]
    assert found.criteria[4] == "It suits – wholly {sic}."


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("Score = 2: It hardly suits.", "", "no criterion for score 2"),
        ("Score = 4: It suits with a slip.", "Score = 4:", "no criterion for score 4"),
        ("Score = ", "Grade ", "no criterion for score"),
        ("Score = 5", "Score = 4", "two criteria for score 4"),
        ("Score = 1", "Score = 0", "a criterion for score 0; scores go from 1 to 5"),
        ("Score = 5", "Score = 10", "a criterion for score 10"),
        ("Evaluation Criteria:", "", "'Evaluation Criteria:' stands 0 times"),
        ("Evaluation Task:", "Evaluation Criteria:", "'Evaluation Criteria:' stands 2 times"),
        ("Evaluation Task Description:", "", "no task description"),
        ("hardly suits", "hardly suits {persona}", "score 2: holds the place {persona}"),
        ("suit the person", "suit {persona}", "description: holds the place {persona}"),
    ],
)
def test_a_rubric_that_cannot_be_parsed_says_what_it_lacks(
    clone: Path, old: str, new: str, what: str
) -> None:
    text = RUBRIC.format(task="x")
    assert old in text
    path = rubric(clone, text.replace(old, new))
    with pytest.raises(InputError) as caught:
        import_personagym(clone, clone / "rubrics")
    assert str(caught.value.path) == str(path)
    assert what in str(caught.value)


def test_a_rubric_of_no_task_and_two_of_one_are_refused(clone: Path) -> None:
    other = rubric(clone, RUBRIC.format(task="x"), task="Toxicity Control")
    with pytest.raises(InputError, match="a second rubric for Toxicity Control"):
        read_rubrics(clone)
    other.rename(clone / "rubrics/notes.txt")
    with pytest.raises(InputError, match="no task is called 'notes'"):
        read_rubrics(clone)


def test_a_rubric_set_with_a_gap_is_not_filled_up_in_silence(clone: Path) -> None:
    (clone / "rubrics/Expected Action.txt").unlink()
    with pytest.raises(InputError, match="no rubric for Expected Action"):
        import_personagym(clone, clone / "rubrics")
    assert len(read_rubrics(clone)) == 4


def test_an_absent_and_an_empty_folder_of_rubrics_are_refused(clone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        import_personagym(clone, tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no rubric"):
        import_personagym(clone, tmp_path / "empty")


def test_a_hostile_rubric_is_refused_without_a_search_through_it(clone: Path) -> None:
    for flood in ("Score" + " " * 90_000, "#" * 90_000, "1" + "-" * 90_000, "{" * 90_000):
        rubric(clone, f"Description: d\nCriteria:\n{flood}\n")
        with pytest.raises(InputError, match="no criterion for score"):
            read_rubrics(clone)


def test_ten_public_personas_of_fifty_questions_import(
    shared_data: Callable[..., Path], tmp_path: Path
) -> None:
    published = sorted(shared_data("personagym", "questions", "benchmark-v1").glob("*.json"))[:10]
    for path in published:
        write(tmp_path, path.stem, path.read_text("utf-8"))
    benchmark = import_personagym(tmp_path)
    assert [p.description for p in benchmark.personas] == [path.stem for path in published]
    assert len(benchmark.questions) == 500
    for path in published:
        expected = {PAPER.get(k, k): v for k, v in json.loads(path.read_text("utf-8")).items()}
        found: dict[str, list[str]] = {}
        for question in benchmark.questions:
            if question.persona_id == persona_id(path.stem):
                found.setdefault(question.task, []).append(question.text)
        assert found == expected
        assert {len(texts) for texts in found.values()} == {10}


def test_all_public_personas_import_from_the_shared_folder(
    shared_data: Callable[..., Path],
) -> None:
    folder = shared_data("personagym")
    benchmark = import_personagym(folder)
    files = len(list((folder / "questions" / "benchmark-v1").glob("*.json")))
    assert len(benchmark.personas) == files
    assert len(benchmark.questions) == 50 * files
    assert len({q.id for q in benchmark.questions}) == 50 * files
