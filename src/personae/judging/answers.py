"""Answers of known characters, as audits of judges take them: from results, or from answer files.

Answer files are those of the public Neeko repository (`data/gen_results`): single-turn interviews
as a JSON list of `{question, reply: {role, action, content}}`, multi-turn ones as JSONL of
`{character, content: [{turn_role, turn_content: [{role, action, content}]}]}`. Many published
replies hold the whole prompt, the interviewer's next line, or nothing; those, and refusals, are no
answers of a character. They are left out and said to be.

`answer_entries` reads these files for whoever needs more than an audit does (`interview.neeko`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from personae.errors import InputError
from personae.judging.refusal import is_refusal
from personae.prompts import LANGUAGES, render
from personae.records import (
    Benchmark,
    Persona,
    Question,
    ResultRow,
    Task,
    content_hash,
)
from personae.records.files import read_json, read_jsonl, read_text

Cause = Literal[
    "empty",
    "failed",
    "refusal",
    "contaminated",
    "later_turn",
    "not_spoken",
    "too_long",
    "one_role",
    "not_asked",
    "no_profile",
]
"""From `too_long` on they are those of imported interviews (`interview.neeko`)."""

PROFILES = Path("../../../profiles")
"""Where profiles lie beside an answer file: `profiles/wiki_NAME.txt`."""

MOST_PROFILE_BYTES = 4 * 2**20
MOST_ANSWER_BYTES = 64 * 2**20
"""Of a JSON answer file, which is held whole; the published ones have 70 kB at most."""
PROFILE_CHARS = 1200
"""Paragraphs of a profile are taken until they hold this many characters, at least one."""

_PROMPT = re.compile(
    r"<[/\\]?s>|<unk>|<\|[A-Za-z_]{2,30}\|>|\[/?INST\]|<</?SYS>>"
    r"|^#{2,3} ?(?:Instruction|Response|Input|Human|User|Assistant)\b"
    r"|\n(?:USER|Human|User|用户)\s?[:：]"
    r"|\bI want you to act (?:like|as)\b|\bThe status of you is as follows\b"
    r"|(?:我希望你|我要你|我想让你|请你)扮演",
    re.MULTILINE,
)
_END = re.compile(r"(?:\s{0,9}<[/\\]s>){1,9}\s*\Z")
"""A model's end of sequence behind what it says, as in most published replies of Llama."""
_OWN_MARK = re.compile(
    r"\A(?P<name>[A-Z][\w.-]*(?: (?:[A-Z][\w.-]*|van|von|de|der|of|the)){0,5}"
    r"|[\u3400-\u9fff·]{2,12})\s{0,9}(?:[(（]{1,2}speaking[)）]{1,2}\s{0,9})?[:：]\s*"
)
"""A name before what is said, as dialogues are written."""
SPEAKER_MARK = re.compile(r"\w \(+(?:speaking|thinking)\)")
"""What stands before a line of Character-LLM's dialogues: in an answer, it runs on into others'."""


@dataclass(frozen=True)
class AnsweredQuestion:
    """What somebody answered as a character.

    Attributes:
        system: who played: the model's id, or the folder of an answer file.
        source: file and place.
        unit: the answer's id, unique among the answers read together.
    """

    persona: Persona
    question: Question
    answer: str
    system: str
    source: str
    unit: str


@dataclass(frozen=True)
class LeftOut:
    """An answer that was not used: where it stands, and why."""

    path: str
    place: str
    cause: Cause


@dataclass
class Answers:
    """Answers read together.

    Attributes:
        unknown: names of characters for whom no profile was found, with the file.
    """

    answers: list[AnsweredQuestion] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: Answers) -> None:
        """Take in what another file holds; an answer that is here already is not taken twice."""
        here = {(a.persona, a.question.text, a.answer) for a in self.answers}
        taken = {a.unit for a in self.answers}
        for answer in other.answers:
            if (answer.persona, answer.question.text, answer.answer) in here:
                continue
            here.add((answer.persona, answer.question.text, answer.answer))
            unit, number = answer.unit, 2
            while unit in taken:
                unit, number = f"{answer.unit}#{number}", number + 1
            taken.add(unit)
            self.answers.append(replace(answer, unit=unit))
        self.left_out += other.left_out
        self.unknown += other.unknown

    @property
    def cast(self) -> tuple[Persona, ...]:
        """The characters, in order of first appearance."""
        return tuple({a.persona.id: a.persona for a in self.answers}.values())

    @property
    def hash(self) -> str:
        """SHA-256 over characters, questions and answers."""
        return content_hash(
            [
                [a.unit, a.persona.description, a.question.to_dict(), a.answer]
                for a in sorted(self.answers, key=lambda a: a.unit)
            ]
        )


def whole(text: str) -> str:
    """Text that UTF-8 can hold: half of a surrogate pair becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def normal(text: str) -> str:
    """A text for comparison: lower case, single spaces."""
    return " ".join(text.lower().split())


@lru_cache(maxsize=4096)
def _told(description: str) -> tuple[str, ...]:
    """What a model under test is told of its persona, in each language."""
    return tuple(
        normal(message.content)
        for language in LANGUAGES
        for message in render("persona_system", language, persona=description)
    )


def unfit(answer: str, persona: Persona, question: str) -> Cause | None:
    """Why a reply cannot stand for its character, or None."""
    if not answer.strip():
        return "empty"
    if (
        _PROMPT.search(answer)
        or normal(answer) == normal(question)
        or any(told in normal(answer) for told in _told(persona.description))
    ):
        return "contaminated"
    return "refusal" if is_refusal(answer) else None


def answers_of_results(
    rows: Sequence[ResultRow], benchmark: Benchmark, path: Path | str
) -> Answers:
    """The answers of a run, each once, however many judges saw it.

    Raises:
        InputError: a row is about a question that the benchmark does not hold.
    """
    questions = {q.id: q for q in benchmark.questions}
    people = {p.id: p for p in benchmark.personas}
    found = Answers()
    seen: set[str] = set()
    for row in rows:
        if row.unit_id in seen:
            continue
        seen.add(row.unit_id)
        question = questions.get(row.question_id)
        if question is None:
            raise InputError(
                "the benchmark beside it does not hold this question",
                path=path,
                place=f"unit {row.unit_id}",
                mend="Keep results.jsonl beside the benchmark.jsonl of its own run",
            )
        persona = people[question.persona_id]
        place = f"unit {row.unit_id}"
        cause = "failed" if row.answer is None else unfit(row.answer, persona, question.text)
        if row.answer is None or cause is not None:
            found.left_out.append(LeftOut(str(path), place, cause or "failed"))
            continue
        found.answers.append(
            AnsweredQuestion(
                persona, question, row.answer, row.model, f"{path}, {place}", row.unit_id
            )
        )
    return found


def read_answer_file(path: Path) -> Answers:
    """An answer file of the Neeko repository, single-turn (JSON) or multi-turn (JSONL).

    Of a dialogue only the first exchange is taken: the later ones lean on it. The task is Persona
    Consistency. A character's persona is its name and the head of its profile, where that lies
    beside the file (`PROFILES`), else its name.

    Raises:
        InputError: the file is neither; names the entry.
    """
    found = Answers()
    characters: dict[str, Persona] = {}
    for entry in answer_entries(path):
        one = entry.first
        persona = characters.get(one.name)
        if persona is None:
            persona = characters[one.name] = _character(path, one.name, found)
        found.left_out += [LeftOut(str(path), entry.place, "later_turn")] * entry.later
        cause = one.cause(persona)
        if cause is not None:
            found.left_out.append(LeftOut(str(path), entry.place, cause))
            continue
        question = Question(
            id=f"{persona.id}/{content_hash(one.asked)[:8]}",
            persona_id=persona.id,
            task=Task.PERSONA_CONSISTENCY,
            text=one.asked,
        )
        system = system_of(path)
        unit = f"{question.id}@{system}"
        found.answers.append(
            AnsweredQuestion(persona, question, one.answer, system, f"{path}, {entry.place}", unit)
        )
    return found


_RESULT = "_result"
_SAME_NAME = 0.75


def system_of(path: Path) -> str:
    """Who answered, after the folders of an answer file: their field `model` is not to be trusted.

    In `gen_results/interview_single/Neeko-7B/Caesar_single.json` it is `interview_single/Neeko-7B`,
    and so it is where the folder is `Caesar_Neeko-7B_result`, as the repository has it, or
    `Casar_Neeko-7B_result`.
    """
    folder = Path(os.path.abspath(path)).parent  # noqa: PTH100  (links keep their names)
    name = folder.name
    if name.endswith(_RESULT) and name != _RESULT:
        name = name.removesuffix(_RESULT)
        who, _, rest = name.partition("_")
        called = path.stem.partition("_")[0]
        same = SequenceMatcher(None, who.casefold(), called.casefold()).ratio()
        name = rest if rest and same >= _SAME_NAME else name
    return f"{folder.parent.name}/{name}"


@dataclass(frozen=True)
class AnswerPart:
    """A part of a reply, spaces around it cut; `action` is "(speaking)" or "(thinking)"."""

    role: str
    action: str
    content: str


@dataclass(frozen=True)
class AnswerTurn:
    """A question and what was said in reply.

    Attributes:
        name: who answers, as the reply says.
        said: the parts of the reply; none, where nothing came back.
        others_speak: the reply runs on into lines of others.
    """

    name: str
    asked: str
    said: tuple[AnswerPart, ...]
    others_speak: bool

    @property
    def spoken(self) -> tuple[AnswerPart, ...]:
        """What is said and not only thought."""
        return tuple(part for part in self.said if "thinking" not in part.action)

    @property
    def answer(self) -> str:
        """What is said, a part a line, without what a model puts around it.

        That is its end of sequence behind, and before it the speaker's own name as dialogues are
        written ("Newton (speaking): ", "Sir Isaac Newton: ").
        """
        return self._cut()[0]

    @property
    def was_cut(self) -> bool:
        """Whether something stood around the answer."""
        return self._cut()[1]

    def _cut(self) -> tuple[str, bool]:
        found = "\n".join(part.content for part in self.spoken if part.content)
        answer = _END.sub("", found)
        mark = _OWN_MARK.match(answer)
        if mark is not None and set(_words(self.name)) <= set(_words(mark["name"])):
            answer = answer[mark.end() :]
        return answer, answer != found

    def cause(self, persona: Persona) -> Cause | None:
        """Why it cannot stand for its character, or None."""
        if self.others_speak or SPEAKER_MARK.search(self.answer):
            return "contaminated"
        if self.said and not self.spoken:
            return "not_spoken"
        return unfit(self.answer, persona, self.asked)


def _words(name: str) -> list[str]:
    return re.findall(r"\w+", name.casefold()) or [name]


@dataclass(frozen=True)
class AnswerEntry:
    """An entry of an answer file: a question with its reply, or a dialogue.

    Attributes:
        place: where in the file.
        raw: as it was found.
        character: whom the dialogue names; a single reply names nobody beside its `role`.
        first: the first exchange.
        later: how many turns of the character follow it.
        is_dialogue: it has the shape of one, be it of one exchange.
    """

    path: Path
    place: str
    raw: Mapping[str, Any]
    character: str
    first: AnswerTurn
    later: int = 0
    is_dialogue: bool = False

    def turns(self) -> tuple[AnswerTurn, ...]:
        """All exchanges; a last question without a reply has `said` empty.

        Raises:
            InputError: interviewer and character do not take turns, or a turn is malformed.
        """
        if not self.is_dialogue:
            return (self.first,)
        turns = self.raw["content"]
        found = [self.first]
        for start in range(2, len(turns), 2):
            place = f"{self.place}, turn {start + 1}"
            pair = turns[start : start + 2]
            if [t.get("turn_role") for t in pair] != ["interviewer", "character"][: len(pair)]:
                raise _foreign(self.path, place, "interviewer and character do not take turns")
            reply = pair[1].get("turn_content") if len(pair) == 2 else []
            asked = pair[0].get("turn_content")
            found.append(_turn(self.path, place, asked, reply, self.character))
        return tuple(found)


def answer_entries(path: Path) -> Iterator[AnswerEntry]:
    """The entries of an answer file, one by one.

    Raises:
        InputError: it is none; names the entry.
    """
    for place, entry in json_entries(path):
        has = entry.keys() if isinstance(entry, Mapping) else set()
        single = "reply" in has or (place.startswith("entry") and "content" not in has)
        yield (single_entry if single else dialogue_entry)(path, place, entry)


def json_entries(path: Path) -> Iterator[tuple[str, Any]]:
    """The entries of a JSON list or of JSONL, each with its place ("entry 3", "line 3").

    What a file is, its content decides: some published files of lines are called `.json`.

    Raises:
        InputError: it is neither.
    """
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        yield from ((f"line {number}", line) for number, line in read_jsonl(path))
        return
    text = read_text(path, limit=MOST_ANSWER_BYTES).lstrip()
    if text.startswith("{") and _is_line(text.partition("\n")[0]):
        yield from ((f"line {number}", line) for number, line in read_jsonl(path))
        return
    value = read_json(path, limit=MOST_ANSWER_BYTES)
    if not isinstance(value, list):
        raise _foreign(path, "the whole", "a JSON list was expected")
    yield from ((f"entry {number}", entry) for number, entry in enumerate(value, 1))


def _is_line(text: str) -> bool:
    """Whether this is an object by itself, of a kind that stands in files of lines."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and bool({"content", "exchanges", "turns"} & value.keys())


def single_entry(path: Path, place: str, entry: Any) -> AnswerEntry:
    """An entry of a single-turn answer file.

    Raises:
        InputError: it is no question with a reply, or nobody is named.
    """
    if not isinstance(entry, Mapping) or not isinstance(entry.get("question"), str):
        raise _foreign(path, place, "no question")
    asked = whole(entry["question"].strip())
    if not asked:
        raise _foreign(path, place, "the question is empty")
    said = _said(path, place, entry.get("reply"))
    roles = [s.role for s in said if s.role]
    name = roles[0] if roles else path.stem.partition("_")[0]
    if not name.strip():
        raise _foreign(path, place, "no character is named")
    first = AnswerTurn(name, asked, said, len(set(roles)) > 1)
    return AnswerEntry(path, place, entry, "", first)


def dialogue_entry(path: Path, place: str, line: Mapping[str, Any]) -> AnswerEntry:
    """A line of a multi-turn answer file.

    Raises:
        InputError: it is no dialogue that begins with the interviewer and a character.
    """
    turns = line.get("content")
    if not isinstance(turns, list) or not all(isinstance(t, Mapping) for t in turns):
        raise _foreign(path, place, "no list of turns under `content`")
    order = [t.get("turn_role") for t in turns]
    if order[:2] != ["interviewer", "character"]:
        raise _foreign(path, place, "the dialogue does not begin with interviewer and character")
    named = line.get("character")
    character = whole(named.strip()) if isinstance(named, str) else ""
    asked, said = turns[0].get("turn_content"), turns[1].get("turn_content")
    first = _turn(path, place, asked, said, character)
    later = order[2:].count("character")
    return AnswerEntry(path, place, line, character, first, later, is_dialogue=True)


def _turn(path: Path, place: str, asked: Any, reply: Any, character: str) -> AnswerTurn:
    question = _said(path, place, asked)
    words = "\n".join(s.content for s in question if s.content)
    if not words:
        raise _foreign(path, place, "the question is empty")
    said = _said(path, place, reply)
    interviewers = {s.role for s in question}
    roles = [s.role for s in said if s.role not in interviewers]
    name = roles[0] if roles else character
    if not name:
        raise _foreign(path, place, "no character is named")
    others = len(roles) < len(said) or len(set(roles)) > 1
    marks = "|".join(map(re.escape, filter(None, interviewers)))
    if marks and any(re.search(rf"^(?:{marks})\s?[:：]", s.content, re.MULTILINE) for s in said):
        others = True
    return AnswerTurn(name, words, said, others)


def _said(path: Path, place: str, value: Any) -> tuple[AnswerPart, ...]:
    """One reply or a list of them (`{role, action, content}`); content null is empty."""
    parts = value if isinstance(value, list) else [value]
    said = []
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("content"), str | None):
            raise _foreign(path, place, "no reply with a text under `content`")
        role, action, content = (
            whole(str(part.get(k) or "").strip()) for k in ("role", "action", "content")
        )
        said.append(AnswerPart(role, action, content))
    return tuple(said)


def _foreign(path: Path, place: str, what: str) -> InputError:
    return InputError(
        f"not an answer file ({what})",
        path=path,
        place=place,
        mend="Answer files are those of Neeko's gen_results (docs/interview-data.md)",
    )


def _character(path: Path, name: str, found: Answers) -> Persona:
    """The character of that name, with the head of its profile where there is one."""
    folder = path.parent / PROFILES
    # Looked up among the files that are there: a name from a file never becomes a path.
    profiles = {
        f.stem.removeprefix("wiki_").lower(): f
        for f in (sorted(folder.glob("wiki_*.txt")) if folder.is_dir() else [])
    }
    known = next((n for n in (name.lower(), *name.lower().split()) if n in profiles), None)
    if known is not None:
        description = _head(read_text(profiles[known], limit=MOST_PROFILE_BYTES))
        if description:
            source = str(profiles[known].resolve())
            return Persona(id=slug(known), description=description, source=source)
    found.unknown.append((name, str(path)))
    return Persona(id=slug(name), description=name, source=str(path))


def slug(name: str) -> str:
    """A name as part of an id."""
    return re.sub(r"\W+", "-", name.lower()).strip("-") or content_hash(name)[:8]


def _head(profile: str) -> str:
    """Name (the title) and first paragraphs of a profile."""
    blocks = [" ".join(b.split()) for b in re.split(r"\n\s*\n", profile) if b.strip()]
    title = ""
    if blocks and blocks[0].startswith("# "):
        title = blocks.pop(0)[2:].strip()
    taken: list[str] = []
    for block in blocks:
        if block.startswith("#") or (taken and sum(map(len, taken)) + len(block) > PROFILE_CHARS):
            break
        taken.append(block)
    text = " ".join(taken)
    if not title or text.lower().startswith(title.lower()):
        return text or title
    return f"{title}. {text}".strip()
