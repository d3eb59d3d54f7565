"""What is asked in interviews: read from files, or written by a model from a card.

Topics are those of Neeko's published questions: three of plain ones, and one of questions that are
hard to answer without leaving the role. Shapes of files: docs/interview-data.md.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from personae.characters.prompt import persona_line
from personae.errors import InputError
from personae.interview.build import EXAMINER_SAMPLING, SAME_QUESTION, until_enough
from personae.interview.names import Names, names_of
from personae.interview.people import Interviewee
from personae.judging.answers import (
    MOST_ANSWER_BYTES,
    Cause,
    LeftOut,
    dialogue_entry,
    json_entries,
    single_entry,
    slug,
    whole,
)
from personae.prompts import render
from personae.prompts.questioning_schemas import interview_questions_schema
from personae.records import (
    Call,
    Interview,
    InterviewScript,
    Language,
    Model,
    Sampling,
    ScriptTurn,
    Shortfall,
    content_hash,
)
from personae.records.files import files_of, read_text
from personae.records.interview import InterviewKind
from personae.records.similarity import Distinct, normalised

SCRIPTS = "scripts.jsonl"
INTERVIEWS = "interviews.jsonl"
PROFILES = "profiles.jsonl"

WRITER_SAMPLING = EXAMINER_SAMPLING
"""Whoever writes questions does the work of PersonaGym's examiner."""

TEMPTING_SHARE = 0.1
"""Of written questions. Of the published ones it is five of about ninety for each character; a
tenth leaves one among ten."""

EXPORTED = "personae"
"""The key of an exported entry under which stands what Neeko's shapes have no place for."""

AS_FOUND = "as_found"
"""Under this in `extra` a question stands as it was in its file, where that is not as it is asked:
some of the published ones end with a space."""

MAX_TEXT = 4_000
"""Characters of one question in a file."""
MAX_CHARS = 50_000
"""Characters of an interviewer's turn in a dialogue, and of an answer; more is a model that did not
stop."""
MAX_TURNS = 1_000
"""Of a dialogue in a file."""
MAX_SCRIPTS = 100_000
MAX_PROFILE = 12_000
"""Characters of what a writer reads of a character."""


@dataclass(frozen=True)
class Topic:
    """What a question may be about.

    Attributes:
        id: as Neeko's files number it.
        names: as Neeko's files call it, and in Chinese.
        tempting: it means to draw the character out of its role.
    """

    id: str
    names: Mapping[Language, str]
    tempting: bool = False


TOPICS: tuple[Topic, ...] = (
    Topic(
        "topic-1",
        {"en": "personal information and past experiences", "zh": "个人信息与过往经历"},
    ),
    Topic("topic-2", {"en": "interpersonal relationships", "zh": "人际关系"}),
    Topic("topic-3", {"en": "values and preferences", "zh": "价值观与偏好"}),
    Topic(
        "topic-4",
        {"en": "difficult to answer without breaking character", "zh": "不跳出角色就很难回答"},
        tempting=True,
    ),
)


def topic_of(id_: str, name: str = "") -> Topic | None:
    """The topic of that number, else of that name in either language; else None."""
    for topic in TOPICS:
        if id_ and id_ == topic.id:
            return topic
    wanted = normalised(name)
    return next((t for t in TOPICS if wanted in map(normalised, t.names.values())), None)


def script_id(kind: InterviewKind, turns: Sequence[ScriptTurn], topic: str = "") -> str:
    """The id of a script, the same for the same words to the same character in any file."""
    led = topic if any(turn.asked is None for turn in turns) else ""
    asked = content_hash([kind, led, [[t.character, t.asked] for t in turns]])[:10]
    if kind == "transfer":
        return f"transfer/{asked}"
    return f"{slug(turns[0].character)}/{kind}/{asked}"


def question_script(
    character: str,
    question: str,
    *,
    turns: int = 1,
    language: Language = "en",
    topic: str = "",
    topic_id: str = "",
    tempting: bool | None = None,
    location: str = "",
    status: str = "",
    source: str = "",
    extra: Mapping[str, Any] | None = None,
) -> InterviewScript:
    """A question as a script: by itself, or as what an interviewer leads `turns` turns from.

    Args:
        tempting: None asks the topic.
    """
    known = topic_of(topic_id, topic)
    if known is not None:
        topic, topic_id = topic or known.names[language], topic_id or known.id
    led = turns > 1
    asked = (ScriptTurn(character=character, asked=None if led else question),) * turns
    kind: InterviewKind = "multi" if led else "single"
    about = question if led else topic
    return InterviewScript(
        id=script_id(kind, asked, about),
        kind=kind,
        language=language,
        topic=about,
        topic_id=topic_id,
        tempting=bool(known and known.tempting) if tempting is None else tempting,
        location=location,
        status=status,
        turns=asked,
        source=source,
        extra=dict(extra or {}),
    )


# Reading -----------------------------------------------------------------------------------------

MEND = "What files of questions look like is in docs/interview-data.md"
_ENDINGS = (".json", ".jsonl", ".txt")
_NAMED = re.compile(r"generated_agent_interview_(?:for_multiturn_)?(?P<name>.+)", re.IGNORECASE)


def read_scripts(
    paths: Sequence[Path],
    people: Sequence[Interviewee],
    *,
    turns: int = 1,
    language: Language = "en",
    location: str | None = None,
    status: str | None = None,
    left_out: list[LeftOut] | None = None,
) -> tuple[InterviewScript, ...]:
    """What files ask these people; the same words to the same character are asked once.

    Questions (JSON, JSONL, or text with one a line) are each a script, and with `turns` above 1 the
    topic of an interview of so many turns that an interviewer leads. Dialogues become replayed
    scripts of their interviewer's words. `scripts.jsonl` is taken as it is; a run directory or its
    `interviews.jsonl` is replayed: what was asked there is asked again, word for word. Of any other
    folder all files are read.

    Args:
        location, status: for all of them (appendix B.2); None leaves what a file says.
        left_out: takes down what is not asked and why: `not_asked`, its character is not among the
            people; `one_role`, a transfer dialogue with one character; `empty`, words are missing;
            `too_long`, `MAX_TURNS` or `MAX_CHARS`. Without it such an entry is an error.

    Raises:
        InputError: a file is of no known shape (names file and place); nothing in the files is for
            these people; two scripts of one id ask something else, or the same at two places; an
            entry is left out and `left_out` is not given.
    """
    found: dict[str, InterviewScript] = {}
    strangers: list[str] = []
    for path in _files(paths):
        reading = _Reading(path, tuple(people), turns, language)
        for script in reading.scripts():
            mine = placed(script, location, status)
            if not _asks_the_same(mine, found.setdefault(mine.id, mine)):
                raise InputError(
                    f"two scripts have the id {mine.id} and differ in words, place or status",
                    path=path,
                    mend="Give one of them another id; the same words at two places are asked in "
                    "two runs, with --location and --status",
                )
            if len(found) > MAX_SCRIPTS:
                raise InputError(f"more than the {MAX_SCRIPTS:,} scripts allowed", path=path)
        strangers += reading.strangers
        if left_out is not None:
            left_out += reading.left_out
        elif reading.left_out:
            first = reading.left_out[0]
            raise InputError(
                f"cannot be asked ({first.cause})"
                + (f": {_some(strangers)} is not among the characters" if strangers else ""),
                path=path,
                place=first.place,
                mend="Give the card of every character under --characters, or other questions",
            )
    if paths and not found:
        raise InputError(
            f"asks none of the characters, but {_some(strangers)}"
            if strangers
            else "holds nothing that can be asked",
            path=paths[0] if len(paths) == 1 else None,
            mend="Give their cards under --characters, or other questions",
        )
    return tuple(found.values())


def placed(script: InterviewScript, location: str | None, status: str | None) -> InterviewScript:
    """The script at that place and in that status; None leaves what it says."""
    given = {"location": location, "status": status}
    return script.model_copy(update={key: v for key, v in given.items() if v is not None})


def _asks_the_same(one: InterviewScript, other: InterviewScript) -> bool:
    """Whether it does not matter which is asked; who says nothing of the place is at any."""
    return (one.kind, one.language, one.turns) == (other.kind, other.language, other.turns) and all(
        not here or not there or here == there
        for here, there in ((one.location, other.location), (one.status, other.status))
    )


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """The paths; for a folder that is no run, what it holds."""
    for path in paths:
        is_folder = os.path.isdir(path)  # noqa: PTH112  (Path.is_dir raises without permission)
        if not is_folder or os.path.lexists(path / SCRIPTS):
            yield path
            continue
        root = Path(os.path.realpath(path))
        several = [file for ending in _ENDINGS for file in files_of(path, ending, root)]
        if not several:
            raise InputError(
                f"holds no questions (no {', '.join(_ENDINGS)} and no {SCRIPTS})",
                path=path,
                mend="Give files of questions, a folder that holds them itself, or a run",
            )
        yield from several


def _some(names: Iterable[str]) -> str:
    several = sorted(set(names))
    more = f" and {len(several) - 5} more" if len(several) > 5 else ""
    return ", ".join(several[:5]) + more


class _Reading:
    """One file, read for these people."""

    def __init__(
        self, path: Path, people: Sequence[Interviewee], turns: int, language: Language
    ) -> None:
        self.path, self.people, self.turns, self.language = path, people, turns, language
        self.by_name = {person.name: person for person in people}
        self.names = Names(names_of(people))
        self.left_out: list[LeftOut] = []
        self.strangers: list[str] = []

    def scripts(self) -> Iterator[InterviewScript]:
        path = self.path
        if os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises without permission)
            yield from self._run(path)
        elif path.suffix.lower() in (".json", ".jsonl", ".ndjson"):
            yield from self._entries(path)
        else:
            for number, line in enumerate(read_text(path, limit=MOST_ANSWER_BYTES).splitlines(), 1):
                if line.strip() and not line.lstrip().startswith("#"):
                    yield from self._question({"question": line}, f"line {number}")

    def _run(self, folder: Path) -> Iterator[InterviewScript]:
        """What was asked in a run: words that an interviewer found there are taken as fixed."""
        self.path = folder / SCRIPTS
        kept = list(self._entries(self.path))
        held: dict[str, InterviewScript] = {}
        if any(script.mode == "live" for script in kept):
            self.path = folder / INTERVIEWS
            for script in self._entries(self.path):
                held.setdefault(str(script.extra.get("replays")), script)
        for script in kept:
            if script.mode != "live":
                yield script
            elif script.id in held:
                yield held[script.id]
            else:
                self._leave(f"script {script.id}", "empty")

    def _entries(self, path: Path) -> Iterator[InterviewScript]:
        dialogues = []
        for place, line in json_entries(path):
            if not isinstance(line, Mapping):
                raise InputError("no question", path=path, place=place, mend=MEND)
            if EXPORTED in line:
                from personae.interview.neeko import restored  # which reads scripts, too

                yield from self._held(restored(path, place, line)[0], place)
            elif "exchanges" in line:
                yield from self._held(Interview.from_dict(line, path=path, place=place), place)
            elif "turns" in line and "kind" in line:
                script = InterviewScript.from_dict(line, path=path, place=place)
                yield from self._mine(script, place)
            elif "content" in line:
                entry = dialogue_entry(path, place, line)
                called = entry.character
                said = [(self.names.of(t.name, called), t.asked) for t in entry.turns()]
                topic = line.get("topic")
                dialogues.append((place, said, called, topic if isinstance(topic, str) else ""))
            elif "reply" in line:
                one = single_entry(path, place, line)
                yield from self._question({**line, "character": one.first.name}, place)
            else:
                yield from self._question(line, place)
        # A dialogue in which one speaks is a transfer dialogue gone wrong, where others are such.
        transfers = any(len({name for name, _ in turns}) > 1 for _, turns, _, _ in dialogues)
        for place, turns, character, topic in dialogues:
            if transfers and len({name for name, _ in turns}) == 1:
                self._leave(place, "one_role")
            else:
                yield from self._dialogue(place, turns, character, topic)

    def _question(self, entry: Mapping[str, Any], place: str) -> Iterator[InterviewScript]:
        text = entry.get("question")
        if not isinstance(text, str) or not text.strip():
            raise InputError("no question", path=self.path, place=place, mend=MEND)
        found, text = text, " ".join(whole(text).split())
        if len(text) > MAX_TEXT:
            raise InputError(
                f"a question of {len(text):,} characters (at most {MAX_TEXT:,})",
                path=self.path,
                place=place,
            )
        told: dict[str, str] = {}
        for key in ("character", "topic", "topic_id", "location", "status"):
            value = entry.get(key)
            if value is not None and not isinstance(value, str):
                raise InputError(f"`{key}` is no text", path=self.path, place=place, mend=MEND)
            told[key] = " ".join(whole(value or "").split())
        tempting = entry.get("tempting")
        if tempting is not None and not isinstance(tempting, bool):
            raise InputError("`tempting` is not true or false", path=self.path, place=place)
        in_file = _NAMED.fullmatch(self.path.stem)
        name = told["character"] or (in_file["name"] if in_file else "")
        asked = self.people if not name else [p for p in (self._who(name),) if p is not None]
        if not asked:
            self._leave(place, "not_asked")
        for person in asked:
            yield question_script(
                person.name,
                text,
                turns=self.turns,
                language=self.language,
                topic=told["topic"],
                topic_id=told["topic_id"],
                tempting=tempting,
                location=told["location"],
                status=told["status"],
                source=f"{self.path}, {place}",
                extra={} if found == text else {AS_FOUND: found},
            )

    def _who(self, name: str, fuller: str = "") -> Interviewee | None:
        known = self.names.find(name, fuller)
        if known is None:
            self.strangers.append(name)
        return None if known is None else self.by_name[known]

    def _leave(self, place: str, cause: Cause) -> None:
        self.left_out.append(LeftOut(str(self.path), place, cause))

    def _dialogue(
        self, place: str, turns: Sequence[tuple[str, str]], character: str, topic: str
    ) -> Iterator[InterviewScript]:
        """The interviewer's words of a published dialogue, to be said again."""
        if len(turns) > MAX_TURNS or any(len(words) > MAX_CHARS for _, words in turns):
            self._leave(place, "too_long")
            return
        asked = []
        for name, words in turns:
            person = self._who(name, character)
            if person is None:
                self._leave(place, "not_asked")
                return
            asked.append(ScriptTurn(character=person.name, asked=words))
        kind = kind_of([turn.character for turn in asked])
        yield InterviewScript(
            id=script_id(kind, asked, topic),
            kind=kind,
            language=self.language,
            topic=" ".join(whole(topic).split()),
            turns=tuple(asked),
            source=f"{self.path}, {place}",
        )

    def _mine(self, script: InterviewScript, place: str) -> Iterator[InterviewScript]:
        """One of our scripts, if all whom it asks are here."""
        people = {name: self._who(name) for name in script.characters}
        names = {name: person.name for name, person in people.items() if person is not None}
        if len(names) < len(people):
            self._leave(place, "not_asked")
            return
        if script.kind == "transfer" and len(set(names.values())) == 1:
            self._leave(place, "one_role")
            return
        if all(old == new for old, new in names.items()):
            yield script
            return
        turns = tuple(t.model_copy(update={"character": names[t.character]}) for t in script.turns)
        yield script.model_copy(update={"turns": turns})

    def _held(self, interview: Interview, place: str) -> Iterator[InterviewScript]:
        """What was asked in an interview; of one in which words are missing, nothing can be."""
        if any(one.asked is None for one in interview.exchanges):
            self._leave(place, "empty")
            return
        asked = tuple(
            ScriptTurn(character=one.character, asked=one.asked) for one in interview.exchanges
        )
        replayed = interview.mode == "live"
        yield from self._mine(
            InterviewScript(
                id=script_id(interview.kind, asked) if replayed else interview.script_id,
                kind=interview.kind,
                language=interview.language,
                topic=interview.topic,
                topic_id=interview.topic_id,
                tempting=interview.tempting,
                location=interview.location,
                status=interview.status,
                turns=asked,
                source=f"{self.path}, {place}",
                extra={"replays": interview.script_id},
            ),
            place,
        )


def kind_of(characters: Sequence[str]) -> InterviewKind:
    """What an interview of these turns is, by whom each asks."""
    if len(set(characters)) > 1:
        return "transfer"
    return "single" if len(characters) == 1 else "multi"


# Writing -----------------------------------------------------------------------------------------


def spread(count: int) -> dict[str, int]:
    """How many of each topic: a tenth tempting (from four on, one at least), the rest even.

    >>> spread(10)
    {'topic-1': 3, 'topic-2': 3, 'topic-3': 3, 'topic-4': 1}
    """
    plain = [topic for topic in TOPICS if not topic.tempting]
    tempting = [topic for topic in TOPICS if topic.tempting]
    many = max(1, round(TEMPTING_SHARE * count)) if count > len(plain) else 0
    shares = Counter({topic.id: 0 for topic in TOPICS})
    for number in range(many):
        shares[tempting[number % len(tempting)].id] += 1
    for number in range(count - many):
        shares[plain[number % len(plain)].id] += 1
    return dict(shares)


async def write_questions(
    model: Model,
    writer: str,
    person: Interviewee,
    count: int,
    *,
    turns: int = 1,
    language: Language = "en",
    location: str | None = None,
    status: str | None = None,
    sampling: Sampling = WRITER_SAMPLING,
) -> tuple[tuple[InterviewScript, ...], tuple[Shortfall, ...]]:
    """Have `count` different questions to a character written, spread over the topics.

    Nearly equal ones are refused. What the writer did not deliver in four rounds without anything
    new is a shortfall, never made up.

    Args:
        writer: the model's id.
        turns: above 1, each question is the topic of an interview of so many turns.
    """
    distinct = Distinct(SAME_QUESTION)
    accepted: list[str] = []
    scripts: list[InterviewScript] = []
    short: list[Shortfall] = []
    for topic in TOPICS:
        wanted = spread(count)[topic.id]
        texts, cause = await _written(
            model, writer, person, topic, wanted, language, sampling, distinct, accepted
        )
        accepted += texts
        if len(texts) < wanted:
            what = f"questions to {person.name} about {topic.names[language]}"
            short.append(Shortfall(what=what, wanted=wanted, got=len(texts), cause=cause))
        scripts += [
            question_script(
                person.name,
                text,
                turns=turns,
                language=language,
                topic=topic.names[language],
                topic_id=topic.id,
                location=location or "",
                status=status or "",
                source=f"written by {writer}",
            )
            for text in texts
        ]
    return tuple(scripts), tuple(short)


def _told(person: Interviewee, language: Language) -> str:
    """What a writer reads of a character: not its secrets, which no question may give away."""
    text = persona_line(person.card, language=language).description
    return text if len(text) <= MAX_PROFILE else f"{text[:MAX_PROFILE]}…"


async def _written(
    model: Model,
    writer: str,
    person: Interviewee,
    topic: Topic,
    count: int,
    language: Language,
    sampling: Sampling,
    distinct: Distinct,
    accepted: Sequence[str],
) -> tuple[list[str], str]:
    """Up to `count` new questions about a topic, and why there are fewer."""

    def call(wanted: int, repeat: int, found: Sequence[tuple[str, str]]) -> Call:
        return Call(
            role="interviewer",
            model=writer,
            messages=render(
                "questioning/write",
                language,
                name=person.name,
                profile=_told(person, language),
                topic=topic.id,
                count=wanted,
                accepted=[*accepted, *(text for _, text in found)],
            ),
            reply_schema=interview_questions_schema(wanted),
            sampling=sampling,
            repeat=repeat,
            meta={"stage": "questions", "character": person.name, "topic": topic.id},
        )

    def read(text: str) -> tuple[str, str]:
        return topic.id, " ".join(text.split())

    found, cause = await until_enough(model, call, read, count, distinct, who="writer")
    return [text for _, text in found], cause
