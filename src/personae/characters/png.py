"""PNG and APNG as what they are to a card: chunks, a few of which hold text.

Every chunk is kept as its bytes, its checksum included, so a picture that is written again is the
picture that was read. Only checksums of chunks that we read are checked.

Sources: PNG Specification, third edition, sections 5 and 11.3.3; Character Card V3, "PNG/APNG".
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from personae.errors import InputError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_PNG_BYTES = 256 * 2**20
MAX_CHUNKS = 100_000
MAX_TEXT_BYTES = 48 * 2**20  # base64 of the longest JSON, and of an asset
MAX_KEYWORD_BYTES = 4_000
TEXT_TYPES = (b"tEXt", b"zTXt", b"iTXt")

_TYPE = re.compile(rb"[A-Za-z]{4}")
_SPACE = re.compile(rb"[ \t\r\n\f]+")


@dataclass(frozen=True)
class Chunk:
    """One chunk: its type, its content, and its whole bytes (length and checksum with it)."""

    type: bytes
    data: bytes = field(repr=False)
    raw: bytes = field(repr=False)
    start: int = 0

    @property
    def keyword(self) -> str:
        """The keyword of a text chunk; empty for any other.

        PNG has Latin-1 there; RisuAI writes the names of files in UTF-8.
        """
        if self.type not in TEXT_TYPES:
            return ""
        name = self.data[:MAX_KEYWORD_BYTES].partition(b"\0")[0]
        try:
            return name.decode()
        except UnicodeDecodeError:
            return name.decode("latin-1")


@dataclass(frozen=True)
class Png:
    """A PNG file: its chunks from IHDR to IEND, and what follows them."""

    chunks: tuple[Chunk, ...]
    after: bytes = b""

    def to_bytes(self) -> bytes:
        """The file."""
        return b"".join([SIGNATURE, *(chunk.raw for chunk in self.chunks), self.after])

    def with_texts(self, drop: Iterable[str], add: Iterable[tuple[str, bytes]]) -> Png:
        """Without the text chunks of these keywords (in lower case), with these before the end."""
        gone = set(drop)
        kept = [c for c in self.chunks if c.keyword.lower() not in gone or not c.keyword]
        return replace(self, chunks=(*kept[:-1], *(text_chunk(k, t) for k, t in add), kept[-1]))


def is_png(raw: bytes) -> bool:
    """Whether the file says that it is a PNG."""
    return raw.startswith(SIGNATURE)


def read_png(raw: bytes, *, path: object) -> Png:
    """The chunks of a PNG.

    Raises:
        InputError: it is cut short, has too many chunks, or no image in it.
    """

    def refused(what: str, at: int) -> InputError:
        return InputError(
            what, path=str(path), place=f"byte {at}", mend="Is the file complete? Fetch it again"
        )

    chunks: list[Chunk] = []
    at = len(SIGNATURE)
    while True:
        if len(raw) - at < 12:
            raise refused("the PNG ends before its end (no IEND chunk)", at)
        (length,) = struct.unpack_from(">I", raw, at)
        kind = raw[at + 4 : at + 8]
        if not _TYPE.fullmatch(kind):
            raise refused("no PNG chunk begins here", at)
        if length > len(raw) - at - 12:
            raise refused(f"the chunk {kind.decode()} is longer than the file", at)
        if not chunks and (kind != b"IHDR" or length != 13):
            raise refused("the PNG does not begin with its header (IHDR)", at)
        if len(chunks) >= MAX_CHUNKS:
            raise refused(f"the PNG has more than the {MAX_CHUNKS:,} chunks allowed", at)
        end = at + 12 + length
        chunks.append(Chunk(kind, raw[at + 8 : end - 4], raw[at:end], at))
        at = end
        if kind == b"IEND":
            break
    return Png(tuple(chunks), raw[at:])


def text_of(chunk: Chunk, *, path: object) -> bytes:
    """The text of a tEXt, zTXt or iTXt chunk.

    Raises:
        InputError: its checksum is wrong, it is malformed, or it inflates beyond the cap.
    """
    place = f"chunk {chunk.type.decode()} {chunk.keyword!r} at byte {chunk.start}"

    def refused(what: str) -> InputError:
        return InputError(what, path=str(path), place=place, mend="Fetch or export the card again")

    if struct.unpack(">I", chunk.raw[-4:])[0] != zlib.crc32(chunk.raw[4:-4]):
        raise refused("the checksum is wrong: the text is damaged")
    _, found, rest = chunk.data.partition(b"\0")
    if not found:
        raise refused("a text chunk without a text")
    if chunk.type == b"tEXt":
        text = rest
    elif chunk.type == b"zTXt":
        if rest[:1] != b"\0":
            raise refused("compressed in a way that PNG does not know")
        text = _inflated(rest[1:], refused)
    else:
        flags, rest = rest[:2], rest[2:]
        if len(flags) < 2 or rest.count(b"\0") < 2:
            raise refused("an iTXt chunk that is cut short")
        text = rest.split(b"\0", 2)[2]
        if flags[0]:
            if flags[1]:
                raise refused("compressed in a way that PNG does not know")
            text = _inflated(text, refused)
    if len(text) > MAX_TEXT_BYTES:
        raise refused(f"the text is longer than the {MAX_TEXT_BYTES:,} bytes allowed")
    return text


def _inflated(data: bytes, refused: Callable[[str], InputError]) -> bytes:
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(data, MAX_TEXT_BYTES + 1)
    except zlib.error:
        raise refused("the compressed text is damaged") from None
    if len(text) > MAX_TEXT_BYTES:
        raise refused(f"the text inflates beyond the {MAX_TEXT_BYTES:,} bytes allowed")
    if not inflater.eof:
        raise refused("the compressed text is cut short")
    return text


def text_chunk(keyword: str, text: bytes) -> Chunk:
    """A tEXt chunk."""
    return _chunk(b"tEXt", keyword.encode() + b"\0" + text)


def _chunk(kind: bytes, data: bytes) -> Chunk:
    body = kind + data
    raw = struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
    return Chunk(kind, data, raw)


def from_base64(text: bytes) -> bytes:
    """Base64 as the card programs read it: spaces, a missing end and the URL alphabet are well.

    Raises:
        ValueError: it is not base64.
    """
    compact = _SPACE.sub(b"", text).rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    try:
        return base64.b64decode(compact + b"=" * (-len(compact) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def plain_picture(seed: bytes) -> Png:
    """A small picture for a card that has none: one plain colour, 64 by 96, told by the seed."""
    red, green, blue = (96 + byte // 2 for byte in zlib.crc32(seed).to_bytes(4, "big")[:3])
    width, height = 64, 96
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes((red, green, blue)) * width) * height
    return Png(
        (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows, 9)), _chunk(b"IEND", b""))
    )
