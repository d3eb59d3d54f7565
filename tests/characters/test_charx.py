"""CHARX: members are read under caps, and no name leads out of a folder."""

import io
import json
import struct
import zipfile
import zlib
from pathlib import Path

import pytest

from personae.characters import charx as charx_module
from personae.characters.card import Card, card_from_bytes, read_card
from personae.characters.charx import Charx, is_zip, wrong_name
from personae.errors import InputError
from tests.characters import samples

CARD = json.dumps(samples.v3()).encode()


def archive(*members: tuple[str | zipfile.ZipInfo, bytes], card: bytes = CARD) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in (("card.json", card), *members):
            made.writestr(name, data)
    return buffer.getvalue()


def read(raw: bytes) -> Card:
    return card_from_bytes(raw, path="card.charx")


def test_card_and_files_are_read_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "card.charx"
    path.write_bytes(archive(("assets/icon/images/main.png", b"png"), ("module.risum", b"\0")))
    card = read_card(path)
    assert card.character.called == "Ada"
    assert card.charx is not None
    assert list(card.charx.members) == ["card.json", "assets/icon/images/main.png", "module.risum"]
    changed = card.with_character(card.character.model_copy(update={"creator": "x"}))
    again = read(changed.to_bytes())
    assert again.character.creator == "x"
    assert again.charx is not None
    assert again.charx.members["module.risum"] == b"\0"
    assert changed.to_bytes() == changed.to_bytes()


def test_a_picture_in_front_of_the_zip_stays_there() -> None:
    raw = b"\xff\xd8\xff\xe0 a picture \xff\xd9" + archive()
    card = read(raw)
    changed = card.with_character(card.character.model_copy(update={"creator": "x"}))
    assert changed.to_bytes().startswith(b"\xff\xd8\xff\xe0 a picture \xff\xd9PK")
    assert read(changed.to_bytes()).character.creator == "x"


def test_what_is_written_has_sound_names_and_no_time_of_day() -> None:
    made = Charx({"card.json": CARD, "a/b.png": b"x"}).to_bytes()
    with zipfile.ZipFile(io.BytesIO(made)) as found:
        assert found.testzip() is None
        assert {info.date_time for info in found.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert is_zip(made)


@pytest.mark.parametrize(
    "name",
    [
        "../evil", "a/../../evil", "/etc/passwd", "C:/x", "a\\b", "a//b", "./a", "a/.", "..",
        "a\x01b", "x" * 501,
    ],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    assert wrong_name(name)
    path = tmp_path / "in" / "card.charx"
    path.parent.mkdir()
    path.write_bytes(archive((name, b"evil")))
    with pytest.raises(InputError, match="a name that a file in an archive must not have"):
        read_card(path)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


@pytest.mark.parametrize(
    "name", ["card.json", "assets/icon/images/主图.png", "a b.png", "dir/", "...x"]
)
def test_an_ordinary_name_is_well(name: str) -> None:
    assert not wrong_name(name)


def test_a_link_is_refused() -> None:
    link = zipfile.ZipInfo("assets/x")
    link.external_attr = 0o120777 << 16
    with pytest.raises(InputError, match="a link"):
        read(archive((link, b"/etc/passwd")))


def test_a_member_that_stands_twice_is_refused() -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        raw = archive(("card.json", b"{}"))
    with pytest.raises(InputError, match="twice"):
        read(raw)


def test_an_encrypted_archive_is_refused() -> None:
    raw = bytearray(archive())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(mark) + offset] |= 1
    with pytest.raises(InputError, match="encrypted"):
        read(bytes(raw))


def test_an_odd_compression_is_refused() -> None:
    odd = zipfile.ZipInfo("a")
    odd.compress_type = zipfile.ZIP_LZMA
    with pytest.raises(InputError, match="compressed in a way"):
        read(archive((odd, b"x")))


@pytest.mark.parametrize(
    ("cap", "size", "said"),
    [
        ("MAX_MEMBERS", 1, "members"),
        ("MAX_TOTAL_BYTES", 100, "inflates beyond"),
        ("MAX_MEMBER_BYTES", 100, "inflates beyond"),
        ("MAX_CHARX_BYTES", 100, "larger than"),
    ],
)
def test_what_is_beyond_a_cap_is_refused(
    monkeypatch: pytest.MonkeyPatch, cap: str, size: int, said: str
) -> None:
    monkeypatch.setattr(charx_module, cap, size)
    with pytest.raises(InputError, match=said):
        read(archive(("a", b"x")))


def test_a_bomb_is_refused_by_its_ratio() -> None:
    bomb = b"\0" * (charx_module.RATIO_FROM + 1)
    with pytest.raises(InputError, match="200 times"):
        read(archive(("assets/bomb", bomb)))


def test_a_size_that_lies_does_not_get_past_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bytearray(archive(("a", b"\0" * 4000)))
    at = raw.rindex(b"PK\x01\x02")
    raw[at + 24 : at + 28] = struct.pack("<I", 10)
    monkeypatch.setattr(charx_module, "MAX_MEMBER_BYTES", 3000)
    with pytest.raises(InputError):
        read(bytes(raw))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"PK\x03\x04", "damaged"),
        (b"PK\x03\x04" + b"\0" * 100, "damaged"),
        (archive()[:-30], "damaged"),
        (archive().replace(CARD[:0] + b"card.json", b"card.jsom"), "no card.json"),
        (archive(card=b"{"), "card.json, line 1"),
        (archive(card=b"\xff"), "UTF-8"),
    ],
)
def test_a_broken_archive_is_refused_in_words(raw: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read(raw)
    assert str(caught.value).startswith("card.charx")


def test_a_wrong_checksum_is_refused() -> None:
    raw = bytearray(archive())
    at = raw.index(b"PK\x01\x02")
    (crc,) = struct.unpack_from("<I", raw, at + 16)
    raw[at + 16 : at + 20] = struct.pack("<I", crc ^ 1)
    with pytest.raises(InputError, match="damaged"):
        read(bytes(raw))
    assert crc == zlib.crc32(CARD)
