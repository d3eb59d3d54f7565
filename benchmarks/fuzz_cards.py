"""Fuzzed cards: mutated JSON, PNG chunks and zips, read, checked, shown and converted.

    .venv/bin/python benchmarks/fuzz_cards.py [--n 10000] [--seed 0]

Every card is read; one that can be read is linted, shown, made into prompt texts and a persona, and
written in every version and kind of file, and what was written is read again. Only an error of ours (`InputError`, `OutputError`) may come
out of that, nothing may be written outside of the target folder, and nothing may be left behind.
Prints a table; exit code 1 if anything else happened.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import copy
import io
import json
import os
import random
import struct
import sys
import tempfile
import time
import traceback
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from personae.characters.card import read_card
from personae.characters.convert import Target, write_card
from personae.characters.lint import lint
from personae.characters.prompt import persona_line, profile
from personae.characters.summary import summary
from personae.errors import InputError, OutputError

Make = Callable[[random.Random], bytes]

ENTRY: dict[str, Any] = {
    "keys": ["tea", r"/caf(e|é)/i"],
    "secondary_keys": ["cup"],
    "selective": True,
    "content": "@@depth 4\n@@role system\n\nTea is at five, {{user}}.",
    "extensions": {"position": 4, "selectiveLogic": 0},
    "enabled": True,
    "insertion_order": 100,
    "use_regex": True,
    "constant": False,
    "id": 1,
    "comment": "",
    "priority": 10,
    "position": "after_char",
}
CARD: dict[str, Any] = {
    "spec": "chara_card_v3",
    "spec_version": "3.0",
    "data": {
        "name": "Ada",
        "description": "{{char}} counts. {{random:a,b}} {{// hidden}}",
        "personality": "exact",
        "scenario": "伦敦，一八四三年。",
        "first_mes": "Good evening, {{user}}.",
        "mes_example": "<START>\n{{user}}: Hello\n{{char}}: {{roll:d6}}",
        "creator_notes": "for people",
        "system_prompt": "{{original}}",
        "post_history_instructions": "",
        "alternate_greetings": ["Do come in."],
        "group_only_greetings": [],
        "tags": ["history"],
        "creator": "someone",
        "character_version": "1",
        "nickname": "Ada",
        "creator_notes_multilingual": {"zh": "给人看的"},
        "source": ["https://example.org"],
        "creation_date": 1,
        "modification_date": 2,
        "assets": [
            {"type": "icon", "uri": "ccdefault:", "name": "main", "ext": "png"},
            {"type": "x_a", "uri": "embeded://assets/x_a/other/a.bin", "name": "a", "ext": "bin"},
            {"type": "x_b", "uri": "__asset:0", "name": "b", "ext": "bin"},
        ],
        "extensions": {
            "personae": {
                "language": "en",
                "voice": "dry",
                "secrets": [{"fact": "f", "known_by": ["Ada"]}],
                "dialogue": [{"user": "u", "character": "c"}],
            },
            "personae/converted": [],
        },
        "character_book": {
            "name": "b",
            "scan_depth": 4,
            "token_budget": 200,
            "recursive_scanning": True,
            "extensions": {},
            "entries": [ENTRY],
        },
    },
}
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, 10**30, 10**400, "", " ", "x", "\0", "\x1b[31m", "\u202e", "\ud800",
    "../../etc/passwd", "/abs", "C:\\x", "a" * 5000, "{{" * 500, "{{reverse:" * 200, "(a+)+$", "[",
    "@@" * 300, "@@depth x\n@@@role\n", [], {}, [[]], {"": {}}, [None], ["", 0, None], "embeded://../x",
    "data:image/png;base64,!!", "__asset:../../x", [{}], {"0": {}}, "%s%n", "<script>", "＜START＞",
    [{"was": "v1", "now": "v2"}], {"was": "v3"}, "true", "12", "1,2,3", "ccdefault:",
)  # fmt: skip


NAMES = (
    "../../evil", "/etc/evil", "C:\\evil", "a/../../evil", "a//b", "./a", "dir/", "\u202eevil",
    "a\x01b", "x" * 600, "card.json/x", "CARD.JSON", "module.risum",
)  # fmt: skip


# Mutations -------------------------------------------------------------------------------------


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, inner in list(items):
            found.append((holder, key))
            if isinstance(inner, dict | list):
                waiting.append(inner)
    return found


def mutated_value(rng: random.Random) -> Any:
    """The sample card in some version, with some of its values gone, odd, doubled or deep."""
    card = copy.deepcopy(CARD)
    kind = rng.random()
    if kind < 0.2:
        card["spec"], card["spec_version"] = "chara_card_v2", "2.0"
    elif kind < 0.3:
        card = card["data"]
    for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
        places = _places(card)
        if not places:
            break
        holder, key = rng.choice(places)
        act = rng.random()
        if act < 0.6:
            holder[key] = copy.deepcopy(rng.choice(ODD))
        elif act < 0.75:
            del holder[key]
        elif act < 0.85 and isinstance(holder, dict):
            name = rng.choice(["zzz", "", "data", "name", "entries", "__proto__"])
            holder[name] = copy.deepcopy(holder[key])
        elif act < 0.95:
            for _ in range(rng.choice([1, 5, 120])):
                holder[key] = [holder[key]] if rng.random() < 0.5 else {"x": holder[key]}
        else:
            holder[key] = [copy.deepcopy(rng.choice(ODD)) for _ in range(rng.randrange(20))]
    return card


def json_bytes(rng: random.Random) -> bytes:
    """Mutated JSON, sometimes with its text damaged too."""
    text = json.dumps(mutated_value(rng), ensure_ascii=rng.random() < 0.9)
    raw = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.05:
        deep = rng.choice([50, 2000, 100_000])
        raw = raw.replace(b'"exact"', b"[" * deep + b"]" * deep, 1)
    if rng.random() < 0.05:
        raw = raw.replace(b"100", rng.choice([b"1e999", b"NaN", b"-Infinity", b"9" * 5000]), 1)
    return noise(rng, raw) if rng.random() < 0.3 else raw


def noise(rng: random.Random, raw: bytes) -> bytes:
    """Bytes with some flipped, cut, doubled or put in."""
    data = bytearray(raw)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        if not data:
            break
        at, act = rng.randrange(len(data)), rng.random()
        if act < 0.4:
            data[at] ^= 1 << rng.randrange(8)
        elif act < 0.6:
            del data[at : at + rng.choice([1, 4, 64])]
        elif act < 0.8:
            data[at:at] = rng.randbytes(rng.choice([1, 4, 64]))
        elif act < 0.9:
            data[at:at] = data[at : at + rng.choice([8, 200])]
        else:
            del data[at:]
    return bytes(data)


def chunk(kind: bytes, data: bytes, *, crc: int | None = None, length: int | None = None) -> bytes:
    """A PNG chunk, with a wrong checksum or length if need be."""
    body = kind + data
    return (
        struct.pack(">I", len(data) if length is None else length)
        + body
        + struct.pack(">I", zlib.crc32(body) if crc is None else crc)
    )


def _base64(rng: random.Random, raw: bytes) -> bytes:
    text = base64.b64encode(raw)
    act = rng.random()
    if act < 0.1:
        return text.rstrip(b"=")
    if act < 0.2:
        return base64.encodebytes(raw)
    if act < 0.25:
        return base64.urlsafe_b64encode(raw)
    if act < 0.3:
        return raw
    return noise(rng, text) if act < 0.4 else text


def _text_chunk(rng: random.Random, keyword: bytes, text: bytes) -> bytes:
    act = rng.random()
    if act < 0.7:
        return chunk(b"tEXt", keyword + b"\0" + text)
    packed = zlib.compress(text)
    if rng.random() < 0.3:
        packed = noise(rng, packed)
    if act < 0.8:
        return chunk(b"zTXt", keyword + b"\0" + rng.choice([b"\0", b"\0", b"\1", b""]) + packed)
    if act < 0.85:
        return chunk(b"iTXt", keyword + b"\0\0\0en\0\0" + text)
    if act < 0.95:
        return chunk(b"iTXt", keyword + b"\0\1\0\0\0" + packed)
    return chunk(b"tEXt", keyword + rng.choice([b"", b"\0"]) + text, crc=rng.getrandbits(32))


@cache
def _png_bomb() -> bytes:
    return chunk(b"zTXt", b"ccv3\0\0" + zlib.compress(b"A" * (49 * 2**20), 1))


@cache
def _zip_bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("card.json", json.dumps(CARD))
        archive.writestr("assets/bomb.bin", b"\0" * (20 * 2**20))
    return buffer.getvalue()


@cache
def _crowd() -> bytes:
    """Eleven thousand names for one member."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("card.json", json.dumps(CARD))
    raw = buffer.getvalue()
    start, end = raw.rindex(b"PK\x01\x02"), raw.rindex(b"PK\x05\x06")
    count = 11_000
    names = raw[start:end] * count
    tail = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, len(names), start, 0)
    return raw[:start] + names + tail


def png_bytes(rng: random.Random) -> bytes:
    """A picture with a mutated card in mutated chunks."""
    chunks = [chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))]
    chunks.append(chunk(b"IDAT", zlib.compress(b"\0\1\2\3")))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        keyword = rng.choice([b"chara", b"ccv3"])
        if rng.random() < 0.2:
            keyword = rng.choice([b"Chara", b"CCv3", b"chara\xff", b"x" * 200, b""])
        chunks.append(_text_chunk(rng, keyword, _base64(rng, json_bytes(rng))))
    if rng.random() < 0.3:
        name = rng.choice([b"0", b"../../evil", b"/etc/x", b"C:\\x", b"", b"a/b", b"card.json"])
        text = _base64(rng, rng.randbytes(30))
        chunks.append(_text_chunk(rng, b"chara-ext-asset_:" + name, text))
    if rng.random() < 0.03:
        chunks.append(_png_bomb())
    if rng.random() < 0.03:
        huge = rng.choice([2**31 - 1, 2**32 - 1, 2**20])
        chunks.append(chunk(b"tEXt", b"ccv3\0e30=", length=huge))
    if rng.random() < 0.03:
        chunks += [chunk(b"tEXt", b"a\0b")] * 3000
    if rng.random() < 0.95:
        chunks.append(chunk(b"IEND", b""))
    if rng.random() < 0.05:
        rng.shuffle(chunks)
    raw = b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + (b"after" if rng.random() < 0.1 else b"")
    return noise(rng, raw) if rng.random() < 0.1 else raw


def charx_bytes(rng: random.Random) -> bytes:
    """An archive with a mutated card, and members that no archive should have."""
    buffer = io.BytesIO()
    if rng.random() < 0.1:
        buffer.write(b"\xff\xd8\xff\xe0 a picture \xff\xd9")
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        names = ["card.json"] if rng.random() < 0.95 else []
        names += ["assets/x_a/other/a.bin"] if rng.random() < 0.7 else []
        if rng.random() < 0.3:
            names.append(rng.choice(NAMES))
        for name in names:
            info = zipfile.ZipInfo(name)
            info.compress_type = rng.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
            if rng.random() < 0.05:
                info.compress_type = rng.choice([zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
            if rng.random() < 0.05:
                info.external_attr = 0o120777 << 16  # a symbolic link
            data = json_bytes(rng) if name == "card.json" else rng.randbytes(rng.randrange(200))
            archive.writestr(info, data)
    raw = buffer.getvalue()
    if rng.random() < 0.04:
        raw = rng.choice([_zip_bomb, _crowd])()
    if rng.random() < 0.1 and len(raw) > 60:
        bent = bytearray(raw)
        at = raw.rfind(b"PK\x01\x02")
        bent[at + rng.choice([8, 10, 20, 24, 28, 42])] ^= rng.choice([1, 0xFF])
        raw = bytes(bent)
    return noise(rng, raw) if rng.random() < 0.25 else raw


KINDS: dict[str, Make] = {"json": json_bytes, "png": png_bytes, "charx": charx_bytes}


# The trial -------------------------------------------------------------------------------------


class Watch:
    """Notes every file that is opened for writing, moved or made outside of the target.

    It listens to the interpreter's audit events, so nothing that Python writes gets past it.
    """

    def __init__(self) -> None:
        self.target: Path | None = None
        self.outside: list[str] = []
        sys.addaudithook(self._hear)  # stays for good; `target` switches it

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.target is None:
            return
        paths: tuple[Any, ...] = ()
        if event == "open":
            path, _, flags = args
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
                paths = (path,)
        elif event in ("os.mkdir", "os.remove", "os.chmod", "os.rmdir", "os.truncate"):
            paths = args[:1]
        elif event in ("os.rename", "os.link", "os.symlink"):
            paths = args[:2]
        for path in paths:
            if isinstance(path, str | bytes):
                where = Path(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100  (follows no link)
                if not where.is_relative_to(self.target):
                    self.outside.append(f"{event} {where}")

    def during(self, target: Path) -> contextlib.AbstractContextManager[None]:
        """Watch, with that folder as the only one that may be written to."""

        @contextlib.contextmanager
        def watching() -> Iterator[None]:
            self.target = target
            try:
                yield
            finally:
                self.target = None

        return watching()


@dataclass
class Tally:
    """What became of the cards of one kind."""

    cards: int = 0
    read: int = 0
    refused: int = 0
    written: int = 0
    not_written: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    broken: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)


OUTPUTS: tuple[tuple[str, Target], ...] = (
    ("out.json", "v1"), ("out.json", "v2"), ("out.json", "v3"),
    ("out.png", "v2"), ("out.png", "v3"), ("out.charx", "charx"),
)  # fmt: skip


def trial(path: Path, target: Path, tally: Tally) -> None:
    """Read the card, and where that works lint it, and write and read it in every form."""
    try:
        card = read_card(path)
    except InputError as error:
        tally.refused += 1
        tally.reasons[error.what[:40]] += 1
        return
    tally.read += 1
    lint(card)
    character = card.character
    summary(card, path)
    try:  # all that a prompt may say of it, its lorebook woken by its own texts
        heard = (character.description, character.first_mes, character.mes_example)
        profile(
            character, language="en", user="Sam", seed=1, heard=heard, turn=1, before=(),
            greeting_index=0,
        )  # fmt: skip
        persona_line(character)
    except InputError as error:
        tally.reasons[f"prompt: {error.what[:32]}"] += 1
    for name, to in OUTPUTS:
        out = target / name
        try:
            write_card(card, out, to)
        except (InputError, OutputError) as error:
            tally.not_written += 1
            tally.reasons[f"write: {str(error)[:32]}"] += 1
            continue
        tally.written += 1
        again = read_card(out)
        if again.character.name != card.character.name:
            raise AssertionError(f"{to} in {name} has another name")
        out.unlink()


def run(n: int, seed: int) -> dict[str, Tally]:
    """Fuzz `n` cards, a third of each kind; what became of them."""
    tallies = {kind: Tally() for kind in KINDS}
    watch = Watch()
    with tempfile.TemporaryDirectory() as top:
        target = Path(top) / "a" / "b" / "target"
        target.mkdir(parents=True)
        source = Path(top) / "source"
        source.mkdir()
        for index in range(n):
            kind = list(KINDS)[index % len(KINDS)]
            rng = random.Random(f"{seed}/{index}")
            path = source / f"card.{kind}"
            path.write_bytes(KINDS[kind](rng))
            tally, begun = tallies[kind], time.perf_counter()
            tally.cards += 1
            try:
                with watch.during(target):
                    trial(path, target, tally)
            except Exception:  # noqa: BLE001  (whatever it is, it is what we look for)
                tally.broken.append(f"card {index}: {traceback.format_exc(limit=-3)}")
                for left in target.iterdir():
                    left.unlink()
            took = time.perf_counter() - begun
            tally.seconds += took
            tally.slowest = max(tally.slowest, took)
            if watch.outside:
                tally.broken.append(f"card {index}: writes outside: {watch.outside}")
                watch.outside.clear()
            stray = {p for p in Path(top).rglob("*") if p.is_file()} - {path}
            if stray:
                tally.broken.append(f"card {index}: files were left: {sorted(map(str, stray))}")
                for left in stray:
                    left.unlink()
            path.unlink()
    return tallies


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tallies = run(args.n, args.seed)
    print(f"{args.n:,} fuzzed cards, seed {args.seed}")
    print(
        "| kind | cards | read | refused | written | not written | broken | ms a card | slowest s |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for kind, t in tallies.items():
        print(
            f"| {kind} | {t.cards:,} | {t.read:,} | {t.refused:,} | {t.written:,} | "
            f"{t.not_written:,} | {len(t.broken)} | {1000 * t.seconds / max(t.cards, 1):.1f} | "
            f"{t.slowest:.2f} |"
        )
    for kind, t in tallies.items():
        print(f"\n{kind}: " + "; ".join(f"{what} ({n})" for what, n in t.reasons.most_common(12)))
        for line in t.broken[:10]:
            print(line)
    return 1 if any(t.broken for t in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
