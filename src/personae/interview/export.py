"""A benchmark for other programs and for people: plain lists of questions, and what is in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from personae.records import Benchmark, Task
from personae.records.cells import csv_text
from personae.records.files import write_atomically

COLUMNS = (
    "persona",
    "task",
    "environment",
    "question",
    *(f"exemplar_{score}" for score in range(1, 6)),
    "question_id",
    "persona_id",
)


def export_jsonl(benchmark: Benchmark, path: Path) -> None:
    """The questions as plain JSONL: an object a line with the keys of `COLUMNS`.

    Texts stand exactly as in the benchmark; what is unknown is null. Rubrics, shortfalls and the
    benchmark's hash are not in it: the benchmark file is what runs start from.

    Raises:
        InputError: the file cannot be written.
    """
    write_atomically(
        path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(benchmark))
    )


def export_csv(benchmark: Benchmark, path: Path) -> None:
    """The questions as CSV (RFC 4180) with the columns of `COLUMNS`, for spreadsheets.

    UTF-8 with a byte order mark, without which Excel garbles Chinese. An empty cell is unknown. A
    text that a spreadsheet would take for a formula has an apostrophe before it;
    `personae.records.cells.plain_cell` takes it off again.

    Raises:
        InputError: the file cannot be written.
    """
    rows = (list(row.values()) for row in _rows(benchmark))
    write_atomically(path, "\ufeff" + csv_text(COLUMNS, rows))


def _rows(benchmark: Benchmark) -> Iterator[dict[str, str | None]]:
    people = {p.id: p.description for p in benchmark.personas}
    for question in benchmark.questions:
        values = (
            people[question.persona_id],
            question.task.value,
            question.environment,
            question.text,
            *(question.exemplars or (None,) * 5),
            question.id,
            question.persona_id,
        )
        yield dict(zip(COLUMNS, values, strict=True))


def describe(benchmark: Benchmark) -> dict[str, Any]:
    """What a benchmark holds: the document of `personae bench show --json`.

    Returns:
        `personas` and `questions`: how many; `tasks`: questions by task, tasks without any left
        out; `exemplars`: how many questions have all five. Beside these: `language`, `hash`,
        `environments` (how many different ones the questions are set in; None where the source
        does not say), `rubrics` (by task, `custom` or `shipped`), `made_by`, `shortfalls`.
    """
    counts = Counter(q.task for q in benchmark.questions)
    places = {q.environment for q in benchmark.questions} - {None}
    custom = {r.task for r in benchmark.rubrics}
    return {
        "personas": len(benchmark.personas),
        "questions": len(benchmark.questions),
        "tasks": {task.value: counts[task] for task in Task if counts[task]},
        "exemplars": sum(q.exemplars is not None for q in benchmark.questions),
        "language": benchmark.language,
        "hash": benchmark.hash,
        "environments": len(places) or None,
        "rubrics": {task.value: "custom" if task in custom else "shipped" for task in Task},
        "made_by": dict(benchmark.made_by),
        "shortfalls": [s.to_dict() for s in benchmark.shortfalls],
    }
