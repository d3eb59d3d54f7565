"""Published interviews in, ours out: the file shapes of the public Neeko repository.

What is read and written, what is left out and why: docs/interview-data.md. A reply that cannot
stand for its character (empty, holding the prompt, running on into others' lines) is kept as it was
found with the cause, so that it is counted and shown, and never scored. A refusal is an answer.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from personae.errors import InputError
from personae.interview.names import Names, names_of
from personae.interview.people import MAX_NAME, Interviewee, read_interviewees
from personae.interview.questions import (
    AS_FOUND,
    EXPORTED,
    INTERVIEWS,
    MAX_CHARS,
    MAX_TURNS,
    PROFILES,
    script_id,
    topic_of,
)
from personae.judging.answers import (
    AnswerEntry,
    AnswerTurn,
    Cause,
    LeftOut,
    dialogue_entry,
    json_entries,
    single_entry,
    slug,
    system_of,
    whole,
)
from personae.records import (
    Exchange,
    Failure,
    Interview,
    InterviewProfile,
    InterviewScript,
    Language,
    Persona,
    ScriptTurn,
    content_hash,
)
from personae.records.files import MAX_FILES, read_records, write_atomically
from personae.records.interview import InterviewKind, InterviewMode
from personae.records.similarity import normalised

LOCATION: Mapping[Language, str] = {"en": "Coffee Shop - Afternoon", "zh": "咖啡馆，下午"}
"""Where the released code has its characters interviewed, whatever is asked (appendix B.2)."""
STATUS: Mapping[Language, str] = {
    "en": "Talking at ease with a man from the 21st century, and keeping nothing from him.",
    "zh": "正与一位来自21世纪的人随意交谈，对他毫无保留。",
}

MAX_DEPTH = 40
MOST_PLACES = 10
"""Places that a note names; all of them are in the interviews themselves."""

_ENDINGS = (".json", ".jsonl", ".ndjson")
_DETAIL: Mapping[Cause, str] = {
    "empty": "nothing was answered",
    "contaminated": "it holds a prompt, the question, or words of others",
    "not_spoken": "it is thought, and nothing is said",
    "too_long": f"a text of more than {MAX_CHARS:,} characters",
    "one_role": "a transfer dialogue in which one character answers throughout",
    "not_asked": "the dialogue ends before",
}


@dataclass(frozen=True)
class Imported:
    """What files hold.

    Attributes:
        interviews: all of them, also those that cannot be scored (`Interview.failure`).
        scripts: what was asked, each once.
        profiles: of the characters of whom one is known.
        left_out: every exchange that cannot be scored: file, place and cause.
        unknown: characters without a profile.
        appended: files that hold a question to a character more than once, and how many runs that
            makes: the second run of `MODEL` is `MODEL#run-2`.
        cut: files, and in how many of their answers a model's end of sequence or the speaker's own
            name stood around what is said.
    """

    interviews: tuple[Interview, ...] = ()
    scripts: tuple[InterviewScript, ...] = ()
    profiles: tuple[InterviewProfile, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    unknown: tuple[str, ...] = ()
    appended: Mapping[str, int] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is odd in them, in plain words: for the manifest."""
        places: dict[tuple[str, Cause], list[str]] = {}
        for left in self.left_out:
            places.setdefault((left.path, left.cause), []).append(left.place)
        told = [
            f"{path}: {len(some)} not scored ({cause}): {_listed(some)}"
            for (path, cause), some in places.items()
        ]
        told += [
            f"{path}: holds {runs} runs, one after the other; the later ones are told apart as "
            f"#run-2 and so on"
            for path, runs in self.appended.items()
        ]
        told += [
            f"{path}: an end of sequence or the speaker's name is cut from {count} answers"
            for path, count in self.cut.items()
        ]
        if self.unknown:
            told.append(f"no profile of {_listed(self.unknown)}")
        return tuple(told)


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_PLACES
    return "; ".join(texts[:MOST_PLACES]) + (f"; and {more} more" if more > 0 else "")


def import_dialogues(
    paths: Sequence[Path],
    people: Sequence[Interviewee] = (),
    *,
    language: Language = "en",
) -> Imported:
    """Published interviews as records, none of them dropped.

    Reads single-turn answers (JSON), dialogues and transfer dialogues (JSONL), what
    `export_dialogues` wrote, `interviews.jsonl` of a run, and folders of all these. Question files
    among them give dialogues their topic numbers. Who answered is told by the folders
    (`system_of`). A dialogue is `replayed` where another system's to the same character on the same
    topic has the same words of the interviewer in every turn, else `unknown`: nothing in the files
    says whether a model found them.

    Args:
        people: characters that are known; else what the judges of a run were told is taken from
            it, and profiles are looked for beside the files.
        language: of files that do not say.

    Raises:
        InputError: a file is of no known shape (names file and place), is given twice, or holds
            too much; there is nothing to import; runs told judges different things of a character
            whom `people` has not.
    """
    found = _Import(tuple(people), language)
    seen: set[str] = set()
    for path in _files(paths):
        real = os.path.realpath(path)
        if real in seen:
            raise InputError("this file is given twice", path=path, mend="Name it once")
        seen.add(real)
        found.read(path)
    if not found.drafts and not found.ours:
        raise InputError(
            "no answers are in these files",
            path=paths[0] if paths else None,
            mend="Give answers or dialogues (docs/interview-data.md)",
        )
    return found.done()


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """The files, and those in folders at any depth, by name; of a run its interviews."""
    for path in paths:
        if not os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises without permission)
            yield path
            continue
        several: list[Path] = []
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            if INTERVIEWS in names:  # a run: what else lies there is about them
                several.append(Path(folder, INTERVIEWS))
                continue
            several += [
                Path(folder, name)
                for name in sorted(names)
                if name.lower().endswith(_ENDINGS) and not name.startswith(".")
            ]
            if len(several) > MAX_FILES:
                raise InputError(
                    f"holds more than the {MAX_FILES:,} files allowed",
                    path=path,
                    mend="Is this the right folder?",
                )
        if not several:
            raise InputError("holds no .json and no .jsonl file", path=path)
        yield from several


class _Draft(NamedTuple):
    """An entry as it was read, before it is known who is who."""

    entry: AnswerEntry
    turns: tuple[AnswerTurn, ...]
    number: int


def _turns(entry: AnswerEntry) -> tuple[AnswerTurn, ...]:
    turns = entry.turns()
    if len(turns) > MAX_TURNS:
        raise InputError(
            f"a dialogue of {len(turns):,} turns (at most {MAX_TURNS:,})",
            path=entry.path,
            place=entry.place,
        )
    return turns


def _nothing(path: Path, place: str) -> InputError:
    return InputError(
        "neither an answer nor a dialogue nor an interview",
        path=path,
        place=place,
        mend="What can be imported is in docs/interview-data.md",
    )


_Part: TypeAlias = tuple[str, int, int, str]
"""A part of a reply behind its first: the dialogue's questions, turn, number, and its text."""


def _later_parts(draft: _Draft, turn: int) -> Iterator[_Part]:
    asked = content_hash([one.asked for one in draft.turns])
    for number, part in enumerate(draft.turns[turn].said[1:]):
        if part.content:
            yield asked, turn, number, part.content


def _shared_parts(drafts: Iterable[_Draft]) -> frozenset[_Part]:
    """Later parts of replies that two systems have word for word, to the same questions.

    The released script that replays dialogues overwrites the first part of each reply and leaves
    the others, which are the replayed system's: nobody knows whose such a reply is.
    """
    systems: dict[_Part, set[str]] = defaultdict(set)
    for draft in drafts:
        for turn, one in enumerate(draft.turns):
            if len(one.said) > 1:
                for part in _later_parts(draft, turn):
                    systems[part].add(system_of(draft.entry.path))
    return frozenset(part for part, some in systems.items() if len(some) > 1)


class _Import:
    def __init__(self, people: tuple[Interviewee, ...], language: Language) -> None:
        self.people, self.language = people, language
        self.beside: dict[str, Interviewee] = {}
        self.kept: dict[str, InterviewProfile] = {}
        self.looked: set[Path] = set()
        self.drafts: list[_Draft] = []
        self.ours: list[tuple[Path, str, Interview, InterviewScript | None]] = []
        self.topics: dict[str, str] = {}

    # Reading -----------------------------------------------------------------------------------

    def read(self, path: Path) -> None:
        """Take in a file."""
        self._profiles(path)
        if path.name == INTERVIEWS:
            self._kept_profiles(path.parent)
        answered = False
        for number, (place, line) in enumerate(json_entries(path), 1):
            if not isinstance(line, Mapping):
                raise _nothing(path, place)
            if EXPORTED in line:
                self.ours.append((path, place, *restored(path, place, line)))
            elif "exchanges" in line:
                kept = Interview.from_dict(line, path=path, place=place)
                self.ours.append((path, place, kept, None))
            elif "content" in line or "reply" in line:
                read = single_entry if "reply" in line else dialogue_entry
                entry = read(path, place, line)
                self.drafts.append(_Draft(entry, _turns(entry), number))
                answered = True
            elif "question" in line and not answered:
                self._question(path, place, line)
            else:
                raise _nothing(path, place)

    def _question(self, path: Path, place: str, entry: Mapping[str, Any]) -> None:
        """A question without a reply: what it is about, dialogues about it are."""
        text, topic = entry.get("question"), entry.get("topic_id")
        if not isinstance(text, str) or not isinstance(topic, str | None):
            raise _nothing(path, place)
        if topic:
            self.topics.setdefault(normalised(text), topic)

    def _kept_profiles(self, run: Path) -> None:
        """What judges were told in a run, of those of whom nothing else is given."""
        path = run / PROFILES
        given = {person.name for person in self.people}
        for one in read_records(InterviewProfile, path) if os.path.lexists(path) else ():
            known = self.kept.setdefault(one.name, one)
            if known.text != one.text and one.name not in given:
                raise InputError(
                    f"says something else of {one.name!r} than another of these runs",
                    path=path,
                    mend="Give --characters CARD..., or import the runs one by one",
                )

    def _profiles(self, path: Path) -> None:
        """Profiles that lie beside a file: `profiles/wiki_NAME.txt`, up to three folders above."""
        folder = Path(os.path.abspath(path)).parent  # noqa: PTH100  (links keep their names)
        for above in (folder, *list(folder.parents)[:3]):
            wanted = above / "profiles"
            if wanted in self.looked or not os.path.isdir(wanted):  # noqa: PTH112
                continue
            self.looked.add(wanted)
            files = sorted(wanted.glob("wiki_*.txt"))[:MAX_FILES]
            for one in read_interviewees(files, self.language) if files else ():
                self.beside.setdefault(one.name, one)

    # Putting together ----------------------------------------------------------------------------

    def done(self) -> Imported:
        """All that was read, as records."""
        known = {person.name: person for person in self.people}
        given = Names(names_of(self.people))
        for name, person in self.beside.items():
            if given.find(name) is None:
                known.setdefault(name, person)
        stated = {draft.entry.character for draft in self.drafts if draft.entry.character}
        names = Names(
            names_of(self.people),
            names_of(p for p in known.values() if p not in self.people),
            {name: name for name in sorted(stated)},
        )
        made: list[Interview] = [interview for _, _, interview, _ in self.ours]
        scripts: dict[str, InterviewScript] = {}
        appended: Counter[str] = Counter()
        runs: Counter[tuple[str, str, str]] = Counter()
        cut: Counter[str] = Counter()
        left_out: list[LeftOut] = []
        shared = _shared_parts(self.drafts)
        cast = [_characters(draft, names) for draft in self.drafts]
        # Where the character changes in one dialogue, it was meant to in all of the file.
        transfers = {
            draft.entry.path
            for draft, some in zip(self.drafts, cast, strict=True)
            if len(set(some)) > 1
        }
        for draft, some in zip(self.drafts, cast, strict=True):
            transfer = draft.entry.path in transfers
            interview, script = self._interview(
                draft, some, transfer, known, shared, left_out, runs
            )
            cut.update(str(draft.entry.path) for turn in draft.turns if turn.was_cut)
            run = int(interview.model.rpartition("#run-")[2]) if "#run-" in interview.model else 1
            if run > 1:
                file = str(draft.entry.path)
                appended[file] = max(appended[file], run)
            made.append(interview)
            scripts.setdefault(script.id, script)
        for path, place, interview, kept in self.ours:
            left_out += (
                LeftOut(str(path), f"{place}, turn {number}", "failed")
                for number, one in enumerate(interview.exchanges, 1)
                if one.failure is not None
            )
            script = kept or _script_of(interview)
            scripts.setdefault(script.id, script)
        _check_unique(made)
        interviews = _with_modes(made)
        characters = dict.fromkeys(name for one in interviews for name in one.characters)
        told = {
            name: InterviewProfile(name=name, text=one.profile, source=one.source)
            for name, one in known.items()
        }
        told |= {n: p for n, p in self.kept.items() if known.get(n) not in self.people}
        return Imported(
            interviews=interviews,
            scripts=tuple(scripts.values()),
            profiles=tuple(told[name] for name in characters if name in told),
            left_out=tuple(left_out),
            unknown=tuple(name for name in characters if name not in told),
            appended=dict(appended),
            cut=dict(cut),
        )

    def _interview(
        self,
        draft: _Draft,
        characters: Sequence[str],
        transfer: bool,
        known: Mapping[str, Interviewee],
        shared: Collection[_Part],
        left_out: list[LeftOut],
        runs: Counter[tuple[str, str, str]],
    ) -> tuple[Interview, InterviewScript]:
        entry, turns, number = draft
        path = str(entry.path)
        one_role = transfer and len(set(characters)) == 1
        exchanges: list[Exchange] = []
        for index, (name, turn) in enumerate(zip(characters, turns, strict=True)):
            person = known.get(name)
            told = person.short if person is not None else name
            cause = _cause(turn, Persona(id=slug(name), description=told))
            if cause is None and any(part in shared for part in _later_parts(draft, index)):
                cause = "contaminated"
            place = f"{entry.place}, turn {index + 1}" if entry.is_dialogue else entry.place
            if one_role and index == 0:
                left_out.append(LeftOut(path, entry.place, "one_role"))
            if cause is not None:
                left_out.append(LeftOut(path, place, cause))
            elif one_role and index == 0:
                cause = "one_role"
            exchanges.append(_exchange(name, turn, cause))
        kind: InterviewKind = "transfer" if transfer else ("single" if len(turns) == 1 else "multi")
        asked = [ScriptTurn(character=e.character, asked=e.asked) for e in exchanges]
        topic, topic_id = self._topic(entry)
        known_topic = topic_of(topic_id, topic)
        script = InterviewScript(
            id=script_id(kind, asked),
            kind=kind,
            language=self.language,
            topic=topic or (known_topic.names[self.language] if known_topic else ""),
            topic_id=topic_id,
            tempting=bool(known_topic and known_topic.tempting),
            location=LOCATION[self.language],
            status=STATUS[self.language],
            turns=tuple(asked),
            source=f"{path}, {entry.place}",
        )
        system = system_of(entry.path)
        about = normalised(topic) if entry.is_dialogue and not transfer and topic else script.id
        key = (system, exchanges[0].character, f"{kind} {about}")
        runs[key] += 1
        run = runs[key]
        while runs[system, script.id, str(run)]:  # the same words on two topics
            run += 1
        runs[system, script.id, str(run)] = 1
        model = system if run == 1 else f"{system}#run-{run}"
        return Interview(
            id=f"{script.id}@{model}#imported",
            script_id=script.id,
            kind=kind,
            mode="single" if kind == "single" else "unknown",
            method="imported",
            model=model,
            language=self.language,
            topic=script.topic,
            topic_id=topic_id,
            tempting=script.tempting,
            location=script.location,
            status=script.status,
            exchanges=tuple(exchanges),
            source=script.source,
            extra={
                "neeko": {
                    "file": "/".join(Path(os.path.abspath(path)).parts[-3:]),  # noqa: PTH100
                    "lines": entry.place.startswith("line"),
                    "number": number,
                    "entry": _framed(entry, exchanges),
                }
            },
        ), script

    def _topic(self, entry: AnswerEntry) -> tuple[str, str]:
        """What it is about, and the number of that, where the entry or a question file says so."""
        told = []
        for key in ("topic", "topic_id"):
            value = entry.raw.get(key)
            told.append(" ".join(whole(value).split()) if isinstance(value, str) else "")
        topic, number = told
        return topic, number or self.topics.get(normalised(topic), "")


def _characters(draft: _Draft, names: Names) -> tuple[str, ...]:
    """Whom each turn asks."""
    entry = draft.entry
    found = []
    for number, turn in enumerate(draft.turns, 1):
        name = " ".join(names.of(turn.name, entry.character).split())
        if not 0 < len(name) <= MAX_NAME:
            raise InputError(
                f"a name of {len(name):,} characters (at most {MAX_NAME})",
                path=entry.path,
                place=f"{entry.place}, turn {number}",
            )
        found.append(name)
    return tuple(found)


def _cause(turn: AnswerTurn, persona: Persona) -> Cause | None:
    """Why an answer cannot be scored; a refusal can."""
    if max(len(turn.asked), len(turn.answer)) > MAX_CHARS:
        return "too_long"
    cause = turn.cause(persona)
    return None if cause == "refusal" else cause


def _exchange(name: str, turn: AnswerTurn, cause: Cause | None) -> Exchange:
    """A turn; an answer that is unfit stands as it was found."""
    answer: str | None = turn.answer
    if cause in ("contaminated", "not_spoken"):
        answer = "\n".join(
            part.content if part.role == turn.name else f"{part.role} {part.action}: {part.content}"
            for part in turn.said
        )
    elif cause == "empty":
        answer = None
    return Exchange(
        character=name,
        asked=turn.asked,
        answer=answer,
        failure=None if cause is None else Failure(cause=cause, detail=_DETAIL.get(cause, "")),
    )


def _check_unique(interviews: Sequence[Interview]) -> None:
    seen: dict[str, Interview] = {}
    for one in interviews:
        other = seen.setdefault(one.id, one)
        if other is not one:
            raise InputError(
                f"the interview {one.id} stands twice (also in {other.source or 'another file'})",
                path=one.source or None,
                mend="Leave one of the two files",
            )


def _with_modes(interviews: Sequence[Interview]) -> tuple[Interview, ...]:
    """Dialogues of which nobody says how they were led: replayed, where two systems' agree."""
    systems: dict[str, set[str]] = defaultdict(set)
    for one in interviews:
        if one.mode != "single":
            systems[_words(one)].add(one.model)

    def mode(one: Interview) -> InterviewMode:
        if one.mode != "unknown":
            return one.mode
        return "replayed" if len(systems[_words(one)]) > 1 else "unknown"

    return tuple(
        one if mode(one) == one.mode else one.model_copy(update={"mode": mode(one)})
        for one in interviews
    )


def _words(one: Interview) -> str:
    return content_hash(
        [normalised(one.topic), [[e.character, normalised(e.asked or "")] for e in one.exchanges]]
    )


def _script_of(interview: Interview) -> InterviewScript:
    """What was asked, as far as an interview shows it."""
    live = interview.mode == "live" or any(e.asked is None for e in interview.exchanges)
    topic = interview.topic or "?"
    return InterviewScript(
        id=interview.script_id,
        kind=interview.kind,
        language=interview.language,
        topic=topic if live else interview.topic,
        topic_id=interview.topic_id,
        tempting=interview.tempting,
        location=interview.location,
        status=interview.status,
        turns=tuple(
            ScriptTurn(character=e.character, asked=None if live else e.asked)
            for e in interview.exchanges
        ),
        source=interview.source,
    )


# Frames: entries as they were found, without the words that the exchanges hold already -----------


def _framed(entry: AnswerEntry, exchanges: Sequence[Exchange]) -> dict[str, Any]:
    """The entry with `true` where a text is, letter by letter, the one in its exchange."""
    frame: dict[str, Any] = _plain(entry.raw, entry.path, entry.place)
    for holder, key, number, whose in _texts(frame):
        if key not in holder:
            continue
        one = exchanges[number]
        if holder[key] == (one.asked if whose == "asked" else one.answer):
            holder[key] = True
    return frame


def _filled(frame: Mapping[str, Any], exchanges: Sequence[Exchange]) -> dict[str, Any]:
    """The entry as it was found.

    Raises:
        ValueError: this is no frame of these exchanges.
    """
    entry: dict[str, Any] = _plain(frame, Path(), "")
    for holder, key, number, whose in _texts(entry):
        if holder.get(key) is True:
            if number >= len(exchanges):
                raise ValueError("fewer exchanges than turns")
            one = exchanges[number]
            holder[key] = one.asked if whose == "asked" else one.answer
    return entry


def _texts(entry: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, int, str]]:
    """Where an entry holds words: the object, its key, of which exchange, and whose they are."""
    if "reply" in entry:
        yield entry, "question", 0, "asked"
        reply = entry["reply"]
        for part in reply if isinstance(reply, list) else [reply]:
            yield part, "content", 0, "answer"
        return
    for index, turn in enumerate(entry["content"]):
        said = turn["turn_content"]
        for part in said if isinstance(said, list) else [said]:
            yield part, "content", index // 2, "answer" if index % 2 else "asked"


def _plain(value: Any, path: Path, place: str, depth: int = 0) -> Any:
    """A copy of a JSON value that every reader of JSON can read."""
    if depth > MAX_DEPTH:
        raise InputError("nested too deeply", path=path, place=place)
    if isinstance(value, Mapping):
        return {str(k): _plain(v, path, place, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v, path, place, depth + 1) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError("holds a number that is none (NaN)", path=path, place=place)
    return value


# Writing -----------------------------------------------------------------------------------------

_INTERVIEWER: Mapping[Language, str] = {"en": "Man", "zh": "提问者"}
_SPEAKING = "(speaking)"
_SAFE = re.compile(r"[^\w.()+@ -]")


def export_dialogues(
    interviews: Iterable[Interview],
    folder: Path,
    *,
    scripts: Iterable[InterviewScript] = (),
) -> tuple[Path, ...]:
    """Write interviews in the shapes of Neeko's `gen_results`, and questions in those of its own.

    Imported entries come out as they went in, at the same place below `folder`. Others get an
    entry of the same shape with one more key, `personae`, which holds what the shape has no place
    for: with it, importing gives the same interviews again.

    Args:
        scripts: what was asked; questions, and topics of dialogues, go to `questions/`.

    Returns:
        The files written.

    Raises:
        OutputError: a file cannot be written.
    """
    asked = {script.id: script for script in scripts}
    files: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    of_lines: set[str] = set()
    names = _FileNames()
    for one in interviews:
        kept = _as_found(one)
        if kept is not None:
            name, number, entry = kept
            lines = one.extra["neeko"].get("lines") is True
        else:
            name, number = names.of(one), 0
            entry = _entry(one, asked.get(one.script_id))
            lines = one.kind != "single"
        files.setdefault(name, []).append((number, entry))
        if lines:
            of_lines.add(name)
    written = []
    for name, numbered in files.items():
        entries = [entry for _, entry in sorted(numbered, key=lambda pair: pair[0])]
        path = folder / name
        if name not in of_lines:
            write_atomically(path, json.dumps(entries, indent=4))
        else:
            text = (json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
            write_atomically(path, text)
        written.append(path)
    return (*written, *_write_questions(asked.values(), folder / "questions"))


def _as_found(one: Interview) -> tuple[str, int, dict[str, Any]] | None:
    """File, number and entry of an imported interview; None, where it does not hold them."""
    kept = one.extra.get("neeko")
    if not isinstance(kept, Mapping):
        return None
    file, number, frame = kept.get("file"), kept.get("number"), kept.get("entry")
    if not isinstance(file, str) or not isinstance(number, int) or not isinstance(frame, Mapping):
        return None
    parts = [_safe(part) for part in file.split("/")]
    if len(parts) != 3 or Path(parts[-1]).suffix not in _ENDINGS:
        return None
    try:
        return "/".join(parts), number, _filled(frame, one.exchanges)
    except (InputError, AttributeError, KeyError, TypeError, ValueError):
        return None  # somebody changed it: then it is written as one of ours


def _safe(part: str) -> str:
    """A part of a path that cannot lead out of its folder."""
    return _SAFE.sub("-", part).strip(". ")[:100] or "-"


class _FileNames:
    """Where interviews of our own go; two models never share a folder."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def of(self, one: Interview) -> str:
        folder = _safe(one.model)
        if self._folders.setdefault(folder, one.model) != one.model:
            folder = f"{folder}-{content_hash(one.model)[:6]}"
        ending = "json" if one.kind == "single" else "jsonl"
        who = "trans_dialogues" if one.kind == "transfer" else _safe(slug(one.characters[0]))
        name = who if one.kind == "transfer" else f"{who}_{one.kind}"
        return f"{one.method}_interview_{one.kind}/{folder}/{name}.{ending}"


def _entry(one: Interview, script: InterviewScript | None) -> dict[str, Any]:
    """An interview of ours in Neeko's shape."""
    rest = one.to_dict()
    del rest["exchanges"]
    ours: dict[str, Any] = {
        "interview": rest,
        "exchanges": [
            {key: value for key, value in e.to_dict().items() if key not in ("asked", "answer")}
            for e in one.exchanges
        ],
    }
    if script is not None:
        ours["script"] = script.to_dict()
    first = one.exchanges[0]
    if one.kind == "single":
        return {
            "topic_id": one.topic_id,
            "question": first.asked,
            "reply": _part(first.character, first.answer),
            EXPORTED: ours,
        }
    interviewer = _INTERVIEWER[one.language]
    content: list[dict[str, Any]] = []
    for number, e in enumerate(one.exchanges):
        for role, name, text in (
            ("interviewer", interviewer, e.asked),
            ("character", e.character, e.answer),
        ):
            said = [] if text is None else [_part(name, text)]
            content.append({"turn_id": number, "turn_role": role, "turn_content": said})
    return {
        "character": first.character,
        "model": one.model,
        "topic": one.topic,
        "qid": one.script_id,
        "max_turns": len(one.exchanges),
        "finished": one.failure is None,
        "content": content,
        EXPORTED: ours,
    }


def _part(role: str, text: str | None) -> dict[str, Any]:
    return {"role": role, "action": _SPEAKING, "content": text}


def restored(
    path: Path, place: str, line: Mapping[str, Any]
) -> tuple[Interview, InterviewScript | None]:
    """An interview out of an entry that `_entry` wrote.

    Raises:
        InputError: it is not such an entry.
    """
    ours = line[EXPORTED]
    mend = f"Take `{EXPORTED}` out of the entry to have it read as anybody's"
    try:
        marks = ours["exchanges"]
        if "reply" in line:
            said = [line["question"], line["reply"]["content"]]
        else:
            turns = (turn["turn_content"] for turn in line["content"])
            said = [turn[0]["content"] if turn else None for turn in turns]
        if len(said) != 2 * len(marks):
            raise ValueError("turns without marks")
        whole = {
            **ours["interview"],
            "exchanges": [
                {**mark, "asked": said[2 * n], "answer": said[2 * n + 1]}
                for n, mark in enumerate(marks)
            ],
        }
        script = ours.get("script")
    except (KeyError, TypeError, IndexError, AttributeError, ValueError):
        raise InputError(
            f"`{EXPORTED}` does not fit the entry", path=path, place=place, mend=mend
        ) from None
    return Interview.from_dict(_plain(whole, path, place), path=path, place=place), (
        None
        if script is None
        else InterviewScript.from_dict(_plain(script, path, place), path=path, place=place)
    )


def _write_questions(scripts: Iterable[InterviewScript], folder: Path) -> list[Path]:
    """Question files: single questions, and topics of dialogues, of each character."""
    files: dict[str, dict[str, dict[str, str]]] = {}
    for script in scripts:
        if script.kind == "transfer":
            continue
        single = script.kind == "single"
        text = script.turns[0].asked if single else script.topic
        if not text:
            continue
        known = topic_of(script.topic_id)
        topic = known.names[script.language] if known else script.topic if single else ""
        who = _safe(slug(script.characters[0]))
        name = f"generated_agent_interview_{'' if single else 'for_multiturn_'}{who}.json"
        files.setdefault(name, {})[text] = {
            "topic_id": script.topic_id,
            "topic": topic,
            "question": str(script.extra.get(AS_FOUND) or text),
        }
    written = []
    for name, entries in files.items():
        path = folder / name
        write_atomically(path, json.dumps(list(entries.values()), indent=2, ensure_ascii=False))
        written.append(path)
    return written
