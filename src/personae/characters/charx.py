"""CHARX: a card and its files in a zip.

An archive is never unpacked to a disk: its members are bytes under their names, read with caps on
their number, on their size, and on how far they inflate. A name that could lead out of a folder is
refused, so that whoever does unpack what we write meets none.

Source: Character Card V3, "CHARX". RisuAI also puts a picture in front of the zip; it is kept.
"""

from __future__ import annotations

import io
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from personae.errors import InputError

CARD = "card.json"
MAX_CHARX_BYTES = 256 * 2**20
MAX_MEMBERS = 10_000
MAX_MEMBER_BYTES = 128 * 2**20
MAX_TOTAL_BYTES = 256 * 2**20
MAX_RATIO = 200
RATIO_FROM = 8 * 2**20
MAX_NAME = 500

_EPOCH = (1980, 1, 1, 0, 0, 0)
_BAD_NAME = re.compile(r"[\x00-\x1f\x7f\\:]")
_BROKEN = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, NotImplementedError, RuntimeError,
    EOFError, ValueError, OSError, OverflowError, KeyError, IndexError,
)  # fmt: skip


@dataclass(frozen=True)
class Charx:
    """The members of a CHARX by name, in order, and what stands before the zip."""

    members: Mapping[str, bytes] = field(repr=False)
    before: bytes = field(default=b"", repr=False)

    def to_bytes(self) -> bytes:
        """The file; the same members make the same bytes."""
        buffer = io.BytesIO()
        buffer.write(self.before)
        with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
            for name, data in self.members.items():
                info = zipfile.ZipInfo(name, _EPOCH)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                archive.writestr(info, data)
        return buffer.getvalue()


def is_zip(raw: bytes) -> bool:
    """Whether there is a zip in the file, a picture before it or not."""
    if raw.startswith(b"PK\x03\x04"):
        return True
    return raw.startswith(b"\xff\xd8\xff") and zipfile.is_zipfile(io.BytesIO(raw))


def read_charx(raw: bytes, *, path: object) -> Charx:
    """The members of a CHARX.

    Raises:
        InputError: not a zip, encrypted, without `card.json`, a name that leads elsewhere, a link,
            a name that stands twice, or beyond a cap.
    """

    def refused(what: str, place: str = "", mend: str = "Fetch or export it again") -> InputError:
        return InputError(what, path=str(path), place=place, mend=mend)

    if len(raw) > MAX_CHARX_BYTES:
        raise refused(f"larger than the {MAX_CHARX_BYTES:,} bytes allowed")
    members: dict[str, bytes] = {}
    total = 0
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            infos = archive.infolist()
            if len(infos) > MAX_MEMBERS:
                raise refused(f"{len(infos):,} members, more than the {MAX_MEMBERS:,} allowed")
            if sum(info.file_size for info in infos) > MAX_TOTAL_BYTES:
                raise refused(f"inflates beyond the {MAX_TOTAL_BYTES:,} bytes allowed")
            for info in infos:
                place = f"member {info.filename[:MAX_NAME]!r}"
                wrong = _complaint(info)
                if wrong:
                    raise refused(wrong, place)
                if info.filename in members:
                    raise refused("stands twice in the archive", place)
                with archive.open(info) as file:
                    data = file.read(MAX_MEMBER_BYTES + 1)
                total += len(data)
                if len(data) > MAX_MEMBER_BYTES or total > MAX_TOTAL_BYTES:
                    raise refused("inflates beyond what is allowed", place)
                members[info.filename] = data
            start = min((info.header_offset for info in infos), default=0)
    except InputError:
        raise
    except _BROKEN as error:
        raise refused(f"the archive is damaged ({_short(error)})") from None
    if CARD not in members:
        raise refused("no card.json at the top of the archive", mend="Is this a CHARX file?")
    return Charx(members, raw[: max(start, 0)])


def _complaint(info: zipfile.ZipInfo) -> str:
    if info.flag_bits & 0x1:
        return "encrypted"
    if wrong_name(info.filename):
        return "a name that a file in an archive must not have"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "a link, which is not followed"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "compressed in a way that is not supported"
    if info.file_size > MAX_MEMBER_BYTES:
        return f"inflates beyond the {MAX_MEMBER_BYTES:,} bytes allowed"
    if info.file_size > RATIO_FROM and info.file_size > MAX_RATIO * info.compress_size:
        return f"inflates to more than {MAX_RATIO} times its size"
    return ""


def wrong_name(name: str) -> bool:
    """Whether a member's name could lead out of the folder that it is unpacked into."""
    parts = name.removesuffix("/").split("/")
    return (
        not 0 < len(name) <= MAX_NAME
        or bool(_BAD_NAME.search(name))
        or any(part in ("", ".", "..") for part in parts)
    )


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())[:120]
    return text or type(error).__name__
