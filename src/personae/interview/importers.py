"""Benchmarks that others published, read as they are: PersonaGym's questions and rubrics."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from personae.errors import InputError
from personae.interview.build import question_id
from personae.interview.personas import character
from personae.records import Benchmark, Persona, Question, Rubric, Task, content_hash
from personae.records.files import files_of, read_text

QUESTIONS = Path("questions", "benchmark-v1")
SOURCE = "PersonaGym benchmark-v1"
SHAPE = 'A file is {"Expected Action": ["question", ...], ...} and its name is the persona'

# The published set has 200 files of 10 kB; these caps are far above it and far below harm.
MAX_FILE_BYTES = 2**20
MAX_RUBRIC_BYTES = 2**17


def import_personagym(folder: Path, rubrics: Path | None = None) -> Benchmark:
    """PersonaGym's published questions as a benchmark, exactly what the files hold.

    The file name is the persona; the content is task name to questions ("Toxicity" is the paper's
    Toxicity Control). Which environment a question belongs to is not published: it stays None.
    Questions whose texts are the same are kept; their ids differ.

    Args:
        folder: a clone of the public repository, or its `questions/benchmark-v1`.
        rubrics: a folder of rubric files (see `read_rubrics`), which become the custom rubric set.

    Raises:
        InputError: names the file and the place. Nothing is left out in silence: a file that is
            malformed, too large or a link out of the folder ends the import. Only files whose
            names do not end in `.json`, or begin with a dot, are not looked at.
    """
    root, where = _inside(folder, QUESTIONS)
    people: dict[str, Persona] = {}
    questions: list[Question] = []
    read: dict[str, str] = {}
    for path in files_of(where, ".json", root):
        text = read_text(path, limit=MAX_FILE_BYTES)
        read[path.name] = hashlib.sha256(text.encode()).hexdigest()
        person = _persona(path)
        if person.id in people:
            raise InputError(
                f"the same persona as {people[person.id].description!r}",
                path=path,
                mend="Leave one of the two files",
            )
        people[person.id] = person
        questions += _questions(path, text, person)
    if not people:
        raise InputError(
            "holds no questions (no .json file)",
            path=where,
            mend=f"Give a clone of the PersonaGym repository, or its {QUESTIONS.as_posix()}",
        )
    custom: tuple[Rubric, ...] = ()
    if rubrics is not None:
        custom = read_rubrics(rubrics)
        lacking = {q.task for q in questions} - {r.task for r in custom}
        if lacking:  # filled up with ours, the set would be neither theirs nor ours
            names = ", ".join(t.value for t in Task if t in lacking)
            raise InputError(
                f"no rubric for {names}, which the questions belong to",
                path=rubrics,
                mend="Add TASK.txt for each, or leave --rubrics out",
            )
    return Benchmark(
        language="en",
        made_by={"questions": SOURCE, **({"rubrics": "PersonaGym rubrics"} if custom else {})},
        made_from=(content_hash(read),),
        rubrics=custom,
        personas=tuple(people.values()),
        questions=tuple(questions),
    )


def read_rubrics(folder: Path) -> tuple[Rubric, ...]:
    """PersonaGym's rubric files as a custom rubric set, in the order of the tasks.

    A file `TASK.txt` is a `str.format` template with the places `{score_example}`, `{persona}`,
    `{question}` and `{response}`. Taken from it are the text under "Task Description" and, for
    each score from 1 to 5, the text after "Score = N:" (or "N:" alone); the places are filled by
    our own prompt.

    Args:
        folder: the folder of these files, or the clone that holds it as `rubrics/`.

    Raises:
        InputError: a file is named after no task, has no description, or lacks a criterion (says
            which); two files are for one task; the folder holds none.
    """
    root, where = _inside(folder, Path("rubrics"))
    found: dict[Task, tuple[Path, Rubric]] = {}
    for path in files_of(where, ".txt", root):
        try:
            task = Task.parse(path.stem)
        except ValueError as error:
            raise InputError(
                str(error), path=path, mend="Name a rubric file after its task, or move it away"
            ) from None
        if task in found:
            raise InputError(f"a second rubric for {task} (see {found[task][0].name})", path=path)
        found[task] = path, _rubric(task, path)
    if not found:
        raise InputError("holds no rubric (no .txt file)", path=where, mend="Give TASK.txt files")
    return tuple(found[task][1] for task in Task if task in found)


def _inside(folder: Path, part: Path) -> tuple[Path, Path]:
    """The real folder, and its part if it is the clone that has one."""
    has_part = os.path.isdir(folder / part)  # noqa: PTH112  (Path.is_dir raises without permission)
    return Path(os.path.realpath(folder)), folder / part if has_part else folder


def _persona(path: Path) -> Persona:
    try:
        path.stem.encode()
    except UnicodeEncodeError:
        raise InputError("the file name is not UTF-8", path=repr(str(path))) from None
    # Some file systems hand names back decomposed; the same clone must give the same benchmark.
    name = unicodedata.normalize("NFC", path.stem)
    if not name.strip():
        raise InputError("the file name holds no persona", path=path, mend=SHAPE)
    return character(name, SOURCE)


def _questions(path: Path, text: str, person: Persona) -> Iterator[Question]:
    try:
        # As pairs: a dict would keep one of two keys of the same name and say nothing.
        content = json.loads(text, object_pairs_hook=list)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"not JSON ({error.msg})", path=path, place=place) from None
    except (ValueError, RecursionError):
        raise InputError("not JSON that holds questions", path=path, mend=SHAPE) from None
    if not text.lstrip().startswith("{"):
        raise InputError("not a JSON object", path=path, mend=SHAPE)
    if not content:
        raise InputError("holds no task", path=path, mend=SHAPE)
    seen: set[Task] = set()
    for key, texts in content:
        place = f"task {key!r}"
        try:
            task = Task.parse(key)
        except ValueError as error:
            raise InputError(str(error), path=path, place=place) from None
        if task in seen:
            raise InputError(f"{task} stands twice", path=path, place=place)
        seen.add(task)
        if not isinstance(texts, list) or not texts:
            raise InputError("not a list of questions", path=path, place=place, mend=SHAPE)
        for number, question in enumerate(texts, 1):
            if not isinstance(question, str) or not question.strip():
                raise InputError(
                    "not the text of a question",
                    path=path,
                    place=f"{place}, question {number}",
                    mend=SHAPE,
                )
            yield Question.from_dict(
                {
                    "id": question_id(person.id, task, number),
                    "persona_id": person.id,
                    "task": task,
                    "text": question,
                },
                path=path,
                place=f"{place}, question {number}",
            )


_MARKS = r"[ \t#>*_-]*"  # what Markdown puts around headings and list items
_DESCRIPTION = re.compile(
    rf"^{_MARKS}(?:evaluation )?(?:task )?description{_MARKS}(?::{_MARKS}|$)", re.IGNORECASE
)
_CRITERIA = re.compile(
    rf"^{_MARKS}(?:evaluation |scoring |grading )?(?:criteria|rubric){_MARKS}:?{_MARKS}$",
    re.IGNORECASE,
)
# What follows the criteria: a line across the page, a place to fill in, or the next heading.
_END = re.compile(
    r"^[ \t]*[-=_*]{3,}[ \t]*$|^[ \t]*\{\w*\}[ \t]*$"
    rf"|^{_MARKS}(?:score examples?|persona(?: description)?|question|response|evaluation form)"
    rf"{_MARKS}:{_MARKS}(?:\{{\w*\}})?[ \t]*$",
    re.IGNORECASE,
)
_AFTER = rf"(\d{{1,9}})(?: points?)?[)\]]?{_MARKS}[:.)–—=-]{_MARKS}(.*)$"
_SCORE = re.compile(rf"^{_MARKS}score(?: of)?[ \t=:]*{_AFTER}", re.IGNORECASE)
_NUMBER = re.compile(rf"^{_MARKS}[(\[]?{_AFTER}", re.IGNORECASE)
_PLACE = re.compile(r"(?<!\{)\{\w*\}(?!\})")


def _rubric(task: Task, path: Path) -> Rubric:
    """Description and criteria out of one template."""
    lines = read_text(path, limit=MAX_RUBRIC_BYTES).splitlines()
    starts = [i for i, line in enumerate(lines) if _CRITERIA.match(line)]
    if len(starts) != 1:
        raise InputError(
            f"the heading 'Evaluation Criteria:' stands {len(starts)} times",
            path=path,
            mend="Put the five criteria under one such heading",
        )
    head, body = lines[: starts[0]], lines[starts[0] + 1 :]
    described = [i for i, line in enumerate(head) if _DESCRIPTION.match(line)]
    description = ""
    if described:
        rest = head[described[-1] :]
        description = _text([_DESCRIPTION.sub("", rest[0]), *rest[1:]], path, "description")
    if not description:
        raise InputError(
            "no task description",
            path=path,
            mend="Put it under a heading 'Task Description:' before the criteria",
        )
    end = next((i for i, line in enumerate(body) if _END.match(line)), len(body))
    return Rubric.from_dict(
        {"task": task, "description": description, "criteria": _criteria(body[:end], path)},
        path=path,
    )


def _criteria(lines: list[str], path: Path) -> tuple[str, ...]:
    # Where criteria begin with the word, a bare number is a list inside of one.
    pattern = _SCORE if any(_SCORE.match(line) for line in lines) else _NUMBER
    found: dict[int, list[str]] = {}
    current: list[str] = []  # what stands before the first criterion belongs to none
    for line in lines:
        if match := pattern.match(line):
            score = int(match[1])
            if not 1 <= score <= 5:
                raise InputError(f"a criterion for score {score}; scores go from 1 to 5", path=path)
            if score in found:
                raise InputError(f"two criteria for score {score}", path=path)
            current = found[score] = [match[2]]
        else:
            current.append(line)
    texts = {s: _text(some, path, f"score {s}") for s, some in found.items()}
    lacking = [str(score) for score in range(1, 6) if not texts.get(score)]
    if lacking:
        raise InputError(
            f"no criterion for score {', '.join(lacking)}",
            path=path,
            mend="Write one for each score as 'Score = N: text'",
        )
    return tuple(texts[score] for score in range(1, 6))


def _text(lines: list[str], path: Path, place: str) -> str:
    """Lines as one text, as `str.format` would print it."""
    text = "\n".join(lines).strip(" \t\n*_")
    if placeholder := _PLACE.search(text):
        raise InputError(
            f"holds the place {placeholder[0]}, which only the prompt can fill",
            path=path,
            place=place,
            mend="Say it in words",
        )
    return text.replace("{{", "{").replace("}}", "}")
