"""The benchmark file: JSONL with a header line, a line a character, a line a question."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from personae.errors import InputError
from personae.records import Benchmark, Character, Question
from personae.records.base import explain

FORMAT = 1
MAX_BYTES = 512 * 2**20
MAX_LINE = 4 * 2**20


def read_text(path: Path, *, limit: int = MAX_BYTES) -> str:
    """A text file from a stranger.

    Raises:
        InputError: it is absent, a folder, too large, or not UTF-8 text.
    """
    try:
        size = path.stat().st_size
        if size > limit:
            raise InputError(
                f"the file has {size:,} bytes, more than the {limit:,} allowed", path=path
            )
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError("there is no such file", path=path, mend="Check the path") from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            "not UTF-8 text",
            path=path,
            place=f"byte {error.start}",
            mend="Save it as UTF-8; is this the right file?",
        ) from None
    if "\0" in text:
        raise InputError(
            "binary data, not text",
            path=path,
            place=f"character {text.index(chr(0))}",
            mend="Is this the right file?",
        )
    return text


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file with their line numbers; empty lines are skipped.

    Raises:
        InputError: names the line that is not a JSON object.
    """
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        if len(line) > MAX_LINE:
            raise InputError("the line is too long", path=path, place=f"line {number}")
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            what = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
            raise InputError(f"not JSON ({what})", path=path, place=f"line {number}") from None
        if not isinstance(value, dict):
            raise InputError("not a JSON object", path=path, place=f"line {number}")
        yield number, value


def write_atomically(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        InputError: the folder is absent or the disk is full; the old file stays.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass", newline="\n") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        os.replace(temporary, path)  # noqa: PTH105  (Path.replace is the same call)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise InputError(f"cannot be written ({error.strerror})", path=path) from None


def dump_benchmark(benchmark: Benchmark) -> str:
    """The text of a benchmark file."""
    whole = benchmark.to_dict()
    personas, questions = whole.pop("personas"), whole.pop("questions")
    lines: list[dict[str, Any]] = [
        {"record": "benchmark", "format": FORMAT, "content_hash": benchmark.hash, **whole}
    ]
    lines += [{"record": "persona", **p} for p in personas]
    lines += [{"record": "question", **q} for q in questions]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


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
    personas: list[Character] = []
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
            personas.append(Character.from_dict(line, path=path, place=place))
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
