"""Files from strangers are read carefully; files of ours are written whole or not at all."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.errors import InputError, OutputError
from personae.records import ScriptTurn, files
from personae.records.files import (
    read_json,
    read_jsonl,
    read_records,
    read_text,
    write_atomically,
    write_records,
)


def given_file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "given"
    path.write_bytes(content)
    return path


def test_an_absent_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone: there is no such file\. Check the path"):
        read_text(tmp_path / "gone")
    with pytest.raises(InputError, match="cannot be read"):
        read_text(tmp_path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"ab\xff", "byte 2: not UTF-8 text"),
        (b"\xff\xfea\0", "byte 0: not UTF-8 text"),
        (b"a\0b", "character 1: binary data"),
        (b"\xed\xa0\xbd", "not UTF-8 text"),
    ],
)
def test_binary_noise_is_refused_with_its_place(tmp_path: Path, content: bytes, what: str) -> None:
    with pytest.raises(InputError, match=what):
        read_text(given_file(tmp_path, content))


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path) -> None:
    assert read_text(given_file(tmp_path, b"\xef\xbb\xbfa")) == "a"


def test_a_file_over_the_limit_is_refused_and_one_at_it_is_read(tmp_path: Path) -> None:
    path = given_file(tmp_path, b"abcd")
    assert read_text(path, limit=4) == "abcd"
    with pytest.raises(InputError, match="4 bytes, more than the 3 allowed"):
        read_text(path, limit=3)


def test_an_endless_device_is_read_no_further_than_the_limit() -> None:
    with pytest.raises(InputError, match="more than the 1,000 bytes allowed"):
        read_text(Path("/dev/zero"), limit=1000)


def test_jsonl_comes_with_line_numbers_and_without_empty_lines(tmp_path: Path) -> None:
    path = given_file(tmp_path, '{"a": 1}\n\n  \r\n{"b": "\u2028文"}\n'.encode())
    assert list(read_jsonl(path)) == [(1, {"a": 1}), (4, {"b": "\u2028文"})]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: not a JSON object"),
        ("7", "line 2: not a JSON object"),
        ("[" * 100_000, "line 2: not JSON .nested too deeply"),
        ('{"n": ' + "9" * 5000 + "}", "line 2: not JSON .a number is too large"),
    ],
)
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        list(read_jsonl(given_file(tmp_path, f'{{"a": 1}}\n{line}\n'.encode())))


def test_an_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 10)
    with pytest.raises(InputError, match="line 1: the line is too long"):
        list(read_jsonl(given_file(tmp_path, b'{"a": "aaaaaaaa"}')))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"{\n 'a'}", "line 2, column 2: not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 5000, "a number is too large"),
    ],
)
def test_a_json_file_that_is_none_says_where(tmp_path: Path, content: bytes, what: str) -> None:
    with pytest.raises(InputError, match=what):
        read_json(given_file(tmp_path, content))


@given(st.text())
def test_a_text_is_written_as_it_is(tmp_path_factory: pytest.TempPathFactory, content: str) -> None:
    path = tmp_path_factory.getbasetemp() / "written"
    write_atomically(path, content)
    assert path.read_bytes() == content.encode()


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_a_written_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_atomically(tmp_path / "ours", "x")
    modes = {stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("plain", "ours")}
    assert len(modes) == 1


def test_when_a_file_cannot_be_written_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match=r"file: cannot be written .No space left on device"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "below", "x")


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file can have such a name"):
        read_text(tmp_path / "a\0b")


def test_records_come_back_as_they_were_and_what_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    turns = (ScriptTurn(character="林黛玉", asked="谁？\u2028"), ScriptTurn(character="Ada"))
    write_records(iter(turns), path)
    assert read_records(ScriptTurn, path) == turns
    write_records((), path)
    assert read_records(ScriptTurn, path) == ()
    path.write_text('{"character": "Ada"}\n\n{"asked": "Who?"}\n', "utf-8")
    with pytest.raises(InputError, match=r"turns\.jsonl.*line 3.*character"):
        read_records(ScriptTurn, path)
