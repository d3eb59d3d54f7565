"""The benchmark file: JSONL with a header line, a line a character, a line a question."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from personae.errors import InputError
from personae.records import Benchmark, Persona, Question
from personae.records.base import explain
from personae.records.files import read_jsonl, write_atomically

FORMAT = 1


def dump_benchmark(benchmark: Benchmark) -> Iterator[str]:
    """The lines of a benchmark file."""
    whole = benchmark.model_copy(update={"personas": (), "questions": ()}).to_dict()
    del whole["personas"], whole["questions"]
    header = {"record": "benchmark", "format": FORMAT, "content_hash": benchmark.hash, **whole}
    yield json.dumps(header, ensure_ascii=False) + "\n"
    # Every record's JSON begins with a brace and has at least one field.
    for person in benchmark.personas:
        yield '{"record":"persona",' + person.to_json()[1:] + "\n"
    for question in benchmark.questions:
        yield '{"record":"question",' + question.to_json()[1:] + "\n"


def write_benchmark(benchmark: Benchmark, path: Path) -> None:
    """Write a benchmark file, whole or not at all."""
    write_atomically(path, dump_benchmark(benchmark))


def read_benchmark(path: Path) -> Benchmark:
    """Read a benchmark file.

    Raises:
        InputError: names the line and what is wrong there; also when the content does not match
            the hash in the header.
    """
    header: dict[str, Any] | None = None
    personas: list[Persona] = []
    questions: list[Question] = []
    stated: str | None = None
    for number, line in read_jsonl(path):
        place = f"line {number}"
        kind = line.pop("record", None)
        if header is None:
            if kind != "benchmark":
                raise InputError(
                    'not a benchmark file (its first line must say "record": "benchmark")',
                    path=path,
                    place=place,
                    mend="Make one with `personae bench build`",
                )
            if line.pop("format", None) != FORMAT:
                raise InputError(
                    f"this version reads benchmark format {FORMAT}", path=path, place=place
                )
            stated = line.pop("content_hash", None)
            header = line
        elif kind == "persona":
            personas.append(Persona.from_dict(line, path=path, place=place))
        elif kind == "question":
            questions.append(Question.from_dict(line, path=path, place=place))
        else:
            raise InputError(f"unknown record {kind!r}", path=path, place=place)
    if header is None:
        raise InputError("the file is empty", path=path)
    try:
        benchmark = Benchmark.model_validate(
            {**header, "personas": personas, "questions": questions}
        )
    except ValidationError as error:
        raise InputError(f"not a valid benchmark: {explain(error)}", path=path) from None
    if stated is not None and stated != benchmark.hash:
        raise InputError(
            "its content is not what its content_hash says: it was edited or damaged",
            path=path,
            place="line 1",
            mend='If the edit was meant, delete "content_hash" from the first line',
        )
    return benchmark
