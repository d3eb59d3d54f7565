"""Training rows: read from what there is, checked, counted, written, split.

What a row was made of is told from the content (`cast.row_formats`), never from a file's name. A
row that cannot be learnt from is a `Refused`: where it stands and why. Of a dialogue in which a
character's line is empty, a refusal or somebody else's words, the lines before it are kept, since
all that follows leans on it; what is lost is a `Refused` too. Cards and rows of our own are taken
as they are: their authors meant what they wrote.

The licence of a row is the one that it states, else the caller's word for the files, else unknown:
a LICENSE that lies about may be of the code.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from personae.cast.row_formats import (
    Draft,
    NotReadableError,
    Reading,
    Said,
    Thoughts,
    drafts,
    neighbours_joined,
    whole_text,
)
from personae.characters.starter import SCHEME, starter
from personae.errors import InputError, UsageError
from personae.records import Character, Language, Persona, Record, ResultRow, content_hash
from personae.records.benchmark import NotBlank
from personae.records.cast import SHARED, CastRow, CastTurn, DataSource
from personae.records.files import files_of, read_bytes, read_json, read_jsonl, write_atomically
from personae.records.language import written_in

if TYPE_CHECKING:
    from personae.cast.encode import Encoded

STARTER_LICENCE = "Apache-2.0"
"""Of the cards that ship with this package."""
PLAYS, RESULTS, BENCHMARK = "plays.jsonl", "results.jsonl", "benchmark.jsonl"
ENDINGS = (".jsonl", ".ndjson", ".json", ".png", ".apng", ".charx")
MAX_JSON_BYTES = 256 * 2**20
MAX_ROWS = 1_000_000
MAX_TURNS = 2_000
MAX_CHARS = 100_000
"""Of one line. What is longer is no utterance."""
_HEAD = 4096
_KNOWN = (
    "character cards, runs of `personae eval` and `personae play`, messages or ShareGPT JSONL, "
    "Character-LLM's prompted dialogues, Neeko's interviews, rows written by `personae cast`"
)


class Refused(Record):
    """What of a file is not learnt.

    Attributes:
        place: line, entry, unit or example.
        why: one clause.
        kept: whether the rest of that row is learnt.
    """

    file: NotBlank
    place: NotBlank
    why: NotBlank
    kept: bool = False


class CharacterRows(Record):
    """What there is of one character.

    Attributes:
        rows: dialogues in which it is learnt.
        turns: utterances of it.
        tokens: of those, the end of each turn included; None where they were not counted.
        licences: rows by licence; "" is unknown.
    """

    rows: int = Field(ge=0)
    turns: int = Field(ge=0)
    tokens: int | None = Field(default=None, ge=0)
    licences: dict[str, int] = {}


class RowsSummary(Record):
    """What training data come to.

    Attributes:
        turns: utterances, of whomever.
        licences: rows by licence; "" is unknown.
    """

    rows: int = Field(ge=0)
    turns: int = Field(ge=0)
    characters: dict[str, CharacterRows] = {}
    languages: dict[Language, int] = {}
    licences: dict[str, int] = {}
    sources: tuple[DataSource, ...] = ()


class Data(NamedTuple):
    """What was read.

    Attributes:
        cards: the characters of the cards among the files, by name, the first of each name.
    """

    rows: list[CastRow]
    refused: list[Refused]
    cards: dict[str, Character]


def read_rows(
    paths: Iterable[Path | str | Character],
    **how: Any,
) -> tuple[list[CastRow], list[Refused]]:
    """The rows of `read_data`, whose arguments these are, and what was refused."""
    found = read_data(paths, **how)
    return found.rows, found.refused


def read_data(
    paths: Iterable[Path | str | Character],
    *,
    licence: str | None = None,
    character: str | None = None,
    names: Mapping[str, str] | None = None,
    language: Language | None = None,
    thoughts: Thoughts = "drop",
    least_score: float | None = None,
) -> Data:
    """Training rows of files, run directories and folders of files.

    Args:
        paths: cards (JSON, PNG, CHARX, `starter:ID`, or characters already read), JSON or JSONL of
            any known shape, directories of runs, or folders whose files are all taken (not those
            of folders inside).
        licence: of rows that state none.
        character: who speaks where a row does not say.
        names: other names of characters: each is replaced by what it maps to.
        language: None takes the row's own, else tells it from the letters.
        thoughts: lines that are thought and not said (Character-LLM's "(thinking)") are left out,
            or kept with that mark before them.
        least_score: of a run of `personae eval` only answers whose mean score over all judges is
            at least this (1 to 5).

    Returns:
        The rows in the order of the files, and what was refused. A dialogue that stands there twice
        is taken once.

    Raises:
        InputError: a path is absent, cannot be read, or nothing in it is of a known shape.
    """
    work = _Work(Reading(character, thoughts), licence, dict(names or {}), language, least_score)
    for path in paths:
        if isinstance(path, Character):
            work.character(path, f"card of {path.name}")
        elif isinstance(path, str) and path.startswith(SCHEME):
            before = len(work.rows)
            work.character(starter(path), path)
            work.rows[before:] = [
                row.model_copy(update={"licence": STARTER_LICENCE}) for row in work.rows[before:]
            ]
        else:
            work.read(Path(path))
    return Data(work.rows, work.refused, work.cards)


def write_rows(rows: Iterable[CastRow], path: Path) -> None:
    """Rows as JSONL, whole or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    write_atomically(path, (row.to_json() + "\n" for row in rows))


def split(
    rows: Sequence[CastRow], share: float, seed: int = 0
) -> tuple[list[CastRow], list[CastRow]]:
    """Rows to train on, and rows to tune on.

    Whole dialogues: rows of one source that are of different characters (a play as each of them
    saw it) stay together. Of each character, or set of characters that talk to each other, `share`
    of the dialogues is tuned on, rounded; at least one where there are two and `share` is above 0,
    and never all. Which ones depends on the seed and on what is said, not on the order of the rows.

    Args:
        share: 0 to below 1.

    Raises:
        UsageError: `share` is out of its range.
    """
    if not 0 <= share < 1:
        raise UsageError("the share of rows to tune on is at least 0 and below 1")
    dialogues = _dialogues(rows)
    groups: dict[frozenset[str], list[list[int]]] = {}
    for numbers in dialogues:
        names = frozenset(chain.from_iterable(rows[n].characters for n in numbers))
        groups.setdefault(names, []).append(numbers)
    tuned: set[int] = set()
    for ones in groups.values():
        wanted = min(max(round(share * len(ones)), 1), len(ones) - 1) if share else 0
        order = sorted(ones, key=lambda numbers: _drawn(seed, [rows[n] for n in numbers]))
        tuned.update(chain.from_iterable(order[:wanted]))
    train = [row for n, row in enumerate(rows) if n not in tuned]
    return train, [row for n, row in enumerate(rows) if n in tuned]


def _dialogues(rows: Sequence[CastRow]) -> list[list[int]]:
    """Numbers of rows that are one dialogue: of one source, seen by different characters."""
    by_source: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        by_source.setdefault(row.source, []).append(number)
    found = []
    for numbers in by_source.values():
        heard = Counter(chain.from_iterable(rows[n].characters for n in numbers))
        views = max(heard.values()) == 1
        found += [numbers] if views else [[n] for n in numbers]
    return found


def summary(
    rows: Sequence[CastRow], encoded: Mapping[str, Sequence[Encoded]] | None = None
) -> RowsSummary:
    """What rows come to.

    Args:
        encoded: the rows of each character as token ids (`cast.encode`), for their tokens.
    """
    people: dict[str, dict[str, Any]] = {}
    for row in rows:
        for name in row.characters:
            one = people.setdefault(name, {"rows": 0, "turns": 0, "licences": Counter()})
            one["rows"] += 1
            one["turns"] += sum(turn.speaker == name for turn in row.turns)
            one["licences"][row.licence or ""] += 1
    if encoded is not None:
        for name, one in people.items():
            one["tokens"] = sum(
                sum(
                    wanted and who == name
                    for wanted, who in zip(made.supervised, made.speaker, strict=True)
                )
                for made in encoded.get(name, ())
            )
    return RowsSummary(
        rows=len(rows),
        turns=sum(len(row.turns) for row in rows),
        characters={name: CharacterRows(**one) for name, one in people.items()},
        languages=dict(Counter(row.language for row in rows)),
        licences=dict(Counter(row.licence or "" for row in rows)),
        sources=data_sources(rows),
    )


def data_sources(rows: Iterable[CastRow], character: str | None = None) -> tuple[DataSource, ...]:
    """What rows come from: each file under each licence, in order of appearance.

    Args:
        character: count only the rows in which it is learnt.
    """
    found = Counter(
        (row.source.rpartition(", ")[0] or row.source, row.licence)
        for row in rows
        if character is None or character in row.characters
    )
    return tuple(DataSource(source=s, licence=one, rows=n) for (s, one), n in found.items())


def _drawn(seed: int, rows: Sequence[CastRow]) -> str:
    said = [[[turn.speaker, turn.text] for turn in row.turns] for row in rows]
    return sha256(f"{seed}\0{content_hash(said)}".encode()).hexdigest()


@dataclass
class _Work:
    """Files being read.

    Attributes:
        seen: where a dialogue already stands, by its content.
    """

    how: Reading
    licence: str | None
    names: dict[str, str]
    language: Language | None
    least_score: float | None
    rows: list[CastRow] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    cards: dict[str, Character] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)

    def read(self, path: Path) -> None:
        if not os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises without permission)
            self._file(path)
            return
        for name in (PLAYS, RESULTS):
            if (path / name).is_file():
                self._file(path / name)
                return
        root = Path(os.path.realpath(path))
        files = sorted({f for ending in ENDINGS for f in files_of(path, ending, root)})
        if not files:
            raise InputError(f"holds no {', '.join(ENDINGS)} file", path=path, mend=_mend())
        unread = 0
        for file in files:
            try:
                self._file(file)
            except InputError as error:
                unread += 1
                self._refuse(file, error.place or "the whole", error.what)
        if unread == len(files):
            first = self.refused[-unread]
            raise InputError(
                f"no file in it can be read ({first.file}: {first.why})", path=path, mend=_mend()
            )

    def _file(self, path: Path) -> None:
        if not _is_text(path):
            self._card(path)
            return
        known = unknown = 0
        before = len(self.refused)
        for number, (place, row) in enumerate(_objects(path)):
            if number == 0 and isinstance(row, Mapping) and _is_result(row):
                self._run(path)
                return
            if len(self.rows) >= MAX_ROWS:
                raise InputError(f"more than the {MAX_ROWS:,} rows allowed", path=path, place=place)
            if not isinstance(row, Mapping):
                unknown += 1
                self._refuse(path, place, "no JSON object")
                continue
            try:
                found = drafts(row, self.how)
            except NotReadableError as error:
                known += 1
                self._refuse(path, place, str(error))
                continue
            if found is None and place == "the whole":
                self._card(path)
                return
            if found is None:
                unknown += 1
                self._refuse(path, place, "of no known shape")
                continue
            known += 1
            for draft in found:
                self._take(draft, path, place)
        if unknown and not known:
            del self.refused[before:]
            raise InputError("nothing in it is of a known shape", path=path, mend=_mend())

    def _card(self, path: Path) -> None:
        from personae.characters.card import read_character

        try:
            character = read_character(path)
        except InputError as error:
            raise InputError(
                f"neither rows nor a card: {error.what}",
                path=path,
                place=error.place,
                mend=error.mend or _mend(),
            ) from None
        self.character(character, path)

    def character(self, character: Character, path: Path | str) -> None:
        """The examples on a card."""
        from personae.characters.macros import STRANGER, expand
        from personae.characters.prompt import example_conversations

        self.cards.setdefault(self.names.get(character.name, character.name), character)
        language = character.ours.language or written_in(_texts_of(character))
        user = STRANGER[language]
        number = 0
        for number, example in enumerate(example_conversations(character, user), 1):
            lines = [
                Said(
                    character.name if line.own else None,
                    expand(line.text, char=character.called, user=user, seed=number).strip(),
                )
                for line in example
            ]
            draft = Draft(tuple(lines), (character.name,), language=language)
            self._take(draft, path, f"example {number}", authored=True)
        if number == 0:
            self._refuse(path, "the whole", "the card shows no line of its character")

    def _run(self, path: Path) -> None:
        """Answers of a run of `personae eval`, each under its persona."""
        from personae.interview.benchmark_file import read_benchmark
        from personae.judging.answers import answers_of_results
        from personae.prompts import render

        if not (path.parent / BENCHMARK).is_file():
            raise InputError(
                f"there is no {BENCHMARK} beside it, which says who the characters are",
                path=path,
                mend="Give the results inside their run directory",
            )
        benchmark = read_benchmark(path.parent / BENCHMARK)
        results = [
            ResultRow.from_dict(row, path=path, place=f"line {number}")
            for number, row in read_jsonl(path)
        ]
        scores: dict[str, list[int]] = {}
        for row in results:
            if row.score is not None:
                scores.setdefault(row.unit_id, []).append(row.score)
        answers = answers_of_results(results, benchmark, path)
        for left in answers.left_out:
            self._refuse(path, left.place, _CAUSES.get(left.cause, left.cause))
        for one in answers.answers:
            place = f"unit {one.unit}"
            mean = sum(s) / len(s) if (s := scores.get(one.unit)) else None
            if self.least_score is not None and (mean is None or mean < self.least_score):
                got = "no score" if mean is None else f"a mean score of {mean:.2f}"
                self._refuse(path, place, f"{got}, at least {self.least_score:g} is asked for")
                continue
            (system,) = render(
                "persona_system", benchmark.language, persona=one.persona.description
            )
            lines = (Said(None, one.question.text), Said(one.persona.id, one.answer))
            self._take(
                Draft(lines, (one.persona.id,), system.content, benchmark.language), path, place
            )

    def _take(self, draft: Draft, path: Path | str, place: str, *, authored: bool = False) -> None:
        if draft.record is not None:
            row = self._renamed(draft.record)
            if SHARED in row.characters:
                self._refuse(path, place, f"no character may be named {SHARED!r}")
                return
            if row.licence is None and self.licence:
                row = row.model_copy(update={"licence": self.licence})
            self.rows.append(row)
            return
        for why in draft.left_out:
            self._refuse(path, place, why, kept=True)
        learnt = {self.names.get(name, name) for name in draft.characters}
        lines = [Said(None if s is None else self.names.get(s, s), text) for s, text in draft.lines]
        if SHARED in learnt:
            self._refuse(path, place, f"no character may be named {SHARED!r}")
            return
        if long := next((line for line in lines if len(line.text) > MAX_CHARS), None):
            self._refuse(path, place, f"a line of {len(long.text):,} characters is no utterance")
            return
        if len(lines) > MAX_TURNS:
            self._refuse(path, place, f"{len(lines):,} lines, at most {MAX_TURNS:,} are allowed")
            return
        whole = list(
            neighbours_joined(line for line in lines if line.text or line.speaker in learnt)
        )
        turns = whole if authored else list(_fit(whole, learnt))
        if len(turns) < len(whole):
            why = _unfit(whole[: len(turns) + 1], learnt) or "unfit"
            rest = len(whole) - len(turns)
            kept = any(turn.speaker in learnt for turn in turns)
            self._refuse(path, place, f"{why}; {rest} turns from there on are left out", kept=kept)
            if not kept:
                return
            while turns[-1].speaker not in learnt:  # nobody learns from what is not answered
                turns.pop()
        turns = [turn for turn in turns if turn.text]
        speakers = tuple(n for n in dict.fromkeys(t.speaker for t in turns) if n in learnt)
        if not speakers:
            self._refuse(path, place, "no character says anything")
            return
        row = CastRow(
            characters=tuple(name for name in speakers if name is not None),
            turns=tuple(CastTurn(speaker=s, text=text) for s, text in turns),
            system=draft.system,
            language=self.language
            or draft.language
            or written_in(t.text for t in turns if t.speaker in learnt),
            source=whole_text(f"{path}, {place}"),
            licence=draft.licence or self.licence,
        )
        content = content_hash(row.model_copy(update={"source": "-", "licence": None}).to_dict())
        if content in self.seen:
            self._refuse(path, place, f"the same dialogue as {self.seen[content]}")
            return
        self.seen[content] = row.source
        self.rows.append(row)

    def _renamed(self, row: CastRow) -> CastRow:
        if not any(name in self.names for name in row.characters):
            return row
        return CastRow(
            **{
                **row.model_dump(),
                "characters": tuple(dict.fromkeys(self.names.get(n, n) for n in row.characters)),
                "turns": tuple(
                    CastTurn(
                        speaker=t.speaker and self.names.get(t.speaker, t.speaker), text=t.text
                    )
                    for t in row.turns
                ),
            }
        )

    def _refuse(self, path: Path | str, place: str, why: str, *, kept: bool = False) -> None:
        where = {"file": str(path), "place": place, "why": why}  # a name of a file need not be text
        self.refused.append(Refused(**whole_text(where), kept=kept))


_CAUSES = {
    "empty": "the answer is empty",
    "failed": "there is no answer",
    "refusal": "the answer is a refusal",
    "contaminated": "the answer holds its prompt, or somebody else's line",
}


def _fit(lines: Sequence[Said], learnt: set[str]) -> Iterator[Said]:
    """The lines before the first of a character that cannot be learnt."""
    for number, line in enumerate(lines):
        if line.speaker in learnt and _unfit(lines[: number + 1], learnt):
            return
        yield line


def _unfit(lines: Sequence[Said], learnt: set[str]) -> str | None:
    """Why the last of the lines cannot be learnt, if it is a character's."""
    from personae.judging.answers import SPEAKER_MARK, unfit

    speaker, text = lines[-1]
    if speaker is None or speaker not in learnt:
        return None
    asked = lines[-2].text if len(lines) > 1 else ""
    cause = unfit(text, Persona(id=speaker, description=speaker), asked)
    if cause is None and SPEAKER_MARK.search(text):
        cause = "contaminated"
    return f"turn {len(lines)}: {_CAUSES[cause]}" if cause else None


def _objects(path: Path) -> Iterator[tuple[str, Any]]:
    """What a JSON or JSONL file holds, each with its place; a file of one object is `the whole`."""
    lines = read_jsonl(path)
    try:
        first = next(lines, None)
    except InputError as error:
        whole = read_json(path, limit=MAX_JSON_BYTES)  # over several lines, or a list
        if not isinstance(whole, list):
            if not isinstance(whole, Mapping):
                raise error from None
            yield "the whole", whole
            return
        if not whole:
            raise InputError("is empty", path=path, mend=_mend()) from None
        yield from ((f"entry {n}", row) for n, row in enumerate(whole, 1))
        return
    if first is None:
        raise InputError("is empty", path=path, mend=_mend())
    second = next(lines, None)
    yield ("the whole" if second is None else f"line {first[0]}"), first[1]
    for number, row in chain([] if second is None else [second], lines):
        yield f"line {number}", row


def _is_text(path: Path) -> bool:
    """Whether a file begins as JSON does; one that cannot be read is said to by who reads it."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except (OSError, ValueError):
        read_bytes(path, limit=MAX_JSON_BYTES)  # says what is the matter
        raise
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[", b"")


def _is_result(row: Mapping[str, Any]) -> bool:
    return {"unit_id", "judge", "question_id", "answer"} <= row.keys()


def _texts_of(character: Character) -> tuple[str, ...]:
    return (character.description, character.first_mes, character.mes_example)


def _mend() -> str:
    return f"Rows are read from {_KNOWN}"
