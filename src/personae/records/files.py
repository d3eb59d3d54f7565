"""Files from strangers read carefully, files of ours written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import IO, Any, TypeVar

from personae.errors import InputError, OutputError
from personae.records.base import Record

Kept = TypeVar("Kept", bound=Record)

MAX_BYTES = 512 * 2**20
MAX_LINE = 16 * 2**20
MAX_FILES = 5_000


def read_text(path: Path, *, limit: int = MAX_BYTES) -> str:
    """A text file from a stranger.

    Raises:
        InputError: it is absent, a folder, too large, or not UTF-8 text.
    """
    return _decoded(read_bytes(path, limit=limit), path)


def read_bytes(path: Path, *, limit: int = MAX_BYTES) -> bytes:
    """A file from a stranger.

    Raises:
        InputError: it is absent, a folder, or too large.
    """
    with _opened(path, limit) as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:  # a device or a pipe, which states no size
        raise InputError(f"holds more than the {limit:,} bytes allowed", path=path)
    return raw


@contextlib.contextmanager
def _opened(path: Path, limit: int) -> Iterator[IO[bytes]]:
    if "\0" in str(path):  # a ValueError to Python
        raise InputError("no file can have such a name", path=path, mend="Check the path")
    try:
        size = path.stat().st_size
        if size > limit:
            raise InputError(
                f"the file has {size:,} bytes, more than the {limit:,} allowed", path=path
            )
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise InputError("there is no such file", path=path, mend="Check the path") from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from None


def _decoded(raw: bytes, path: Path, line: str = "", start: int = 0) -> str:
    """Bytes as text; `line` and `start` say where in the file they stand."""
    where = f"{line}, " if line else ""
    try:
        text = raw.decode("utf-8" if start else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            "not UTF-8 text",
            path=path,
            place=f"{where}byte {start + error.start}",
            mend="Save it as UTF-8; is this the right file?",
        ) from None
    if "\0" in text:
        raise InputError(
            "binary data, not text",
            path=path,
            place=f"{where}character {text.index(chr(0))}",
            mend="Is this the right file?",
        )
    return text


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file with their line numbers; empty lines are skipped.

    One line is held at a time: results of a large run do not fit twice into memory.

    Raises:
        InputError: names the line that is not a JSON object.
    """
    with _opened(path, MAX_BYTES) as file:
        start = 0
        for number in count(1):
            raw = file.readline(MAX_LINE + 1)
            if not raw:
                return
            place = f"line {number}"
            line = _decoded(raw, path, place, start) if len(raw) <= MAX_LINE else ""
            start += len(raw)
            if len(raw) > MAX_LINE:
                _decoded(raw[:4096], path, place, start)  # noise is better called noise
                raise InputError("the line is too long", path=path, place=place)
            if start > MAX_BYTES:
                raise InputError(f"holds more than the {MAX_BYTES:,} bytes allowed", path=path)
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(
                    f"not JSON ({_complaint(error)})", path=path, place=place
                ) from None
            if not isinstance(value, dict):
                raise InputError("not a JSON object", path=path, place=place)
            yield number, value


def files_of(folder: Path, ending: str, root: Path) -> Iterator[Path]:
    """The files of a stranger's folder with that ending, by name.

    Raises:
        InputError: no such folder, too many files, one that is not a regular file, or one that
            lies outside of `root` once links are followed.
    """
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, 4 * MAX_FILES + 1)]
    except FileNotFoundError:
        raise InputError("there is no such folder", path=folder, mend="Check the path") from None
    except OSError as error:
        raise InputError(f"cannot be read as a folder ({error.strerror})", path=folder) from None
    found = sorted(n for n in names if n.lower().endswith(ending) and not n.startswith("."))
    if len(names) > 4 * MAX_FILES or len(found) > MAX_FILES:
        raise InputError(
            f"holds more than the {MAX_FILES:,} {ending} files allowed",
            path=folder,
            mend="Is this the right folder?",
        )
    for name in found:
        path = folder / name
        try:
            real = path.resolve(strict=True)
            usable = real.is_file()
        except (OSError, RuntimeError):  # RuntimeError: a loop of links, before Python 3.13
            real, usable = path, False
        if usable and not real.is_relative_to(root):
            raise InputError(
                "a link to a file outside of the folder, which is not followed",
                path=path,
                mend="Put a copy in its place",
            )
        if not usable:
            raise InputError("not a regular file", path=path, mend="Remove it")
        yield path


def read_records(record: type[Kept], path: Path) -> tuple[Kept, ...]:
    """The records of a JSONL file.

    Raises:
        InputError: names the line that is none.
    """
    return tuple(
        record.from_dict(line, path=path, place=f"line {number}")
        for number, line in read_jsonl(path)
    )


def write_records(records: Iterable[Record], path: Path) -> None:
    """Write a JSONL file, whole or not at all."""
    write_atomically(path, (record.to_json() + "\n" for record in records))


def write_atomically(path: Path, content: str | bytes | Iterable[str]) -> None:
    """Write a file whole or not at all; parts are written one by one.

    Raises:
        OutputError: the disk is full, or the folder cannot be written; the old file stays.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            parts = [content] if isinstance(content, str | bytes) else content
            file.writelines(
                part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
                for part in parts
            )
        as_new(Path(temporary))
        os.replace(temporary, path)  # noqa: PTH105  (Path.replace is the same call)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise OutputError(
            f"{path}: cannot be written ({error.strerror}); mend that and run the command again: "
            "nothing answered is lost"
        ) from None


def as_new(path: Path, *, runs: bool = False) -> None:
    """Give a file or folder the permissions of any new one; those of temporary ones are tighter.

    Args:
        runs: whether the file is a program.

    Raises:
        OSError: it is not ours.
    """
    mask = os.umask(0)
    os.umask(mask)
    path.chmod((0o777 if runs or path.is_dir() else 0o666) & ~mask)


def read_json(path: Path, *, limit: int = MAX_BYTES) -> Any:
    """A JSON file of at most `limit` bytes.

    Raises:
        InputError: absent, not text, or not JSON (names line and column).
    """
    try:
        return json.loads(read_text(path, limit=limit))
    except json.JSONDecodeError as error:
        raise InputError(
            f"not JSON ({error.msg})", path=path, place=f"line {error.lineno}, column {error.colno}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({_complaint(error)})", path=path) from None


def _complaint(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return "a number is too large"  # Python refuses an integer of thousands of digits
