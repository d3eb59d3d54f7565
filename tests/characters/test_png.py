"""PNG chunks: what the card programs write is read, what would hurt is refused by its place."""

import base64
import json
import struct
import zlib
from pathlib import Path

import pytest

from personae.characters import png as png_module
from personae.characters.card import Card, card_from_bytes, read_card
from personae.characters.png import (
    MAX_TEXT_BYTES,
    SIGNATURE,
    Png,
    from_base64,
    plain_picture,
    read_png,
)
from personae.errors import InputError
from tests.characters import samples

ADA = base64.b64encode(json.dumps(samples.v2()).encode())
OTHER = base64.b64encode(json.dumps({**samples.v1(), "name": "Other"}).encode())


def chunk(kind: bytes, data: bytes, *, crc: int | None = None, length: int | None = None) -> bytes:
    body = kind + data
    size = len(data) if length is None else length
    return (
        struct.pack(">I", size) + body + struct.pack(">I", zlib.crc32(body) if crc is None else crc)
    )


HEADER = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
END = chunk(b"IEND", b"")


def file(*chunks: bytes, end: bytes = END) -> bytes:
    return SIGNATURE + HEADER + b"".join(chunks) + end


def read(raw: bytes) -> Card:
    return card_from_bytes(raw, path="card.png")


def test_a_card_is_read_from_chara_and_from_ccv3_which_wins() -> None:
    assert read(samples.picture(("chara", ADA)).to_bytes()).character.name == "Ada Lovelace"
    both = samples.picture(("chara", OTHER), ("ccv3", ADA)).to_bytes()
    assert read(both).character.name == "Ada Lovelace"
    assert read(both).to_bytes() == both


@pytest.mark.parametrize(
    "body",
    [
        chunk(b"tEXt", b"Chara\0" + ADA),
        chunk(b"zTXt", b"chara\0\0" + zlib.compress(ADA)),
        chunk(b"iTXt", b"chara\0\0\0en\0\0" + ADA),
        chunk(b"iTXt", b"chara\0\1\0\0\0" + zlib.compress(ADA)),
        chunk(b"tEXt", b"chara\0" + json.dumps(samples.v2()).encode()),
        chunk(b"tEXt", b"chara\0" + ADA) + chunk(b"tEXt", b"chara\0" + OTHER),
    ],
    ids=["capital", "zTXt", "iTXt", "iTXt compressed", "no base64", "twice"],
)
def test_what_other_programs_write_is_read_and_said(body: bytes) -> None:
    card = read(file(body))
    assert card.character.name == "Ada Lovelace"
    assert any(finding.place.startswith("chunk") for finding in card.findings)


def test_an_apng_is_a_png_whose_frames_stay(tmp_path: Path) -> None:
    frames = chunk(b"acTL", b"\0" * 8) + chunk(b"fcTL", b"\0" * 26) + chunk(b"fdAT", b"frame")
    path = tmp_path / "card.apng"
    path.write_bytes(file(frames, chunk(b"tEXt", b"chara\0" + ADA)))
    card = read_card(path)
    changed = card.with_character(card.character.model_copy(update={"creator": "x"}))
    assert frames in changed.to_bytes()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (SIGNATURE, "ends before its end"),
        (file(end=b""), "ends before its end"),
        (SIGNATURE + END, "header"),
        (SIGNATURE + b"\0\0\0\x0dI\0DR" + b"\0" * 30, "no PNG chunk"),
        (file(chunk(b"tEXt", b"chara\0" + ADA, length=2**32 - 1)), "longer than the file"),
        (file(chunk(b"tEXt", b"chara\0" + ADA, length=2**31)), "longer than the file"),
        (file(chunk(b"tEXt", b"chara\0" + ADA, crc=1)), "checksum"),
        (file(chunk(b"tEXt", b"chara")), "without a text"),
        (file(chunk(b"iTXt", b"chara\0\1")), "cut short"),
        (file(chunk(b"iTXt", b"chara\0\1\1\0\0x")), "compressed in a way"),
        (file(chunk(b"zTXt", b"chara\0\1x")), "compressed in a way"),
        (file(chunk(b"zTXt", b"chara\0\0no zlib")), "damaged"),
        (file(chunk(b"zTXt", b"chara\0\0" + zlib.compress(ADA)[:-9])), "cut short"),
        (file(chunk(b"tEXt", b"chara\0!!!!")), "base64"),
        (file(chunk(b"tEXt", b"chara\0")), "not JSON"),
        (file(chunk(b"tEXt", b"chara\0" + base64.b64encode(b"\xff\xfe"))), "UTF-8"),
        (file(chunk(b"tEXt", b"ccv3\0rcc||rccv1||x||y||z")), "encrypted"),
        (file(chunk(b"tEXt", b"Comment\0x")), "no card in it"),
    ],
)
def test_a_picture_without_a_sound_card_is_refused_with_its_mend(raw: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read(raw)
    assert caught.value.path == "card.png"
    assert caught.value.mend


def test_a_bomb_is_not_inflated_beyond_the_cap() -> None:
    bomb = zlib.compress(b"A" * (MAX_TEXT_BYTES + 1), 9)
    with pytest.raises(InputError, match="inflates beyond"):
        read(file(chunk(b"zTXt", b"ccv3\0\0" + bomb)))


def test_too_many_chunks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png_module, "MAX_CHUNKS", 5)
    read_png(file(*[chunk(b"IDAT", b"x")] * 3), path="a.png")
    with pytest.raises(InputError, match="more than the 5 chunks"):
        read_png(file(*[chunk(b"IDAT", b"x")] * 4), path="a.png")


def test_a_file_beyond_the_cap_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "big.png"
    with path.open("wb") as big:
        big.truncate(png_module.MAX_PNG_BYTES + 1)
    with pytest.raises(InputError, match="more than the"):
        read_card(path)


def test_a_picture_is_written_as_it_was_read() -> None:
    raw = file(chunk(b"IDAT", b"x", crc=3), chunk(b"teXt", b"own")) + b"behind the end"
    assert read_png(raw, path="a.png").to_bytes() == raw


def test_base64_is_read_as_leniently_as_the_card_programs_read_it() -> None:
    raw = bytes(range(256))
    text = base64.b64encode(raw)
    for form in (text, text.rstrip(b"="), base64.encodebytes(raw), base64.urlsafe_b64encode(raw)):
        assert from_base64(form) == raw
    for wrong in (b"a", b"abc$", "é".encode()):
        with pytest.raises(ValueError):
            from_base64(wrong)


def test_the_plain_picture_is_the_same_for_the_same_seed() -> None:
    assert plain_picture(b"a") == plain_picture(b"a")
    assert plain_picture(b"a") != plain_picture(b"b")
    assert isinstance(read_png(plain_picture(b"a").to_bytes(), path="a.png"), Png)
