"""Answers of known characters, as audits of judges take them: from results, or from answer files.

Answer files are those of the public Neeko repository (`data/gen_results`): single-turn interviews
as a JSON list of `{question, reply: {role, action, content}}`, multi-turn ones as JSONL of
`{character, content: [{turn_role, turn_content: [{role, action, content}]}]}`. Many published
replies hold the whole prompt, the interviewer's next line, or nothing; those, and refusals, are no
answers of a character. They are left out and said to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

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

Cause = Literal["empty", "failed", "refusal", "contaminated", "later_turn", "not_spoken"]

PROFILES = Path("../../../profiles")
"""Where profiles lie beside an answer file: `profiles/wiki_NAME.txt`."""

MOST_PROFILE_BYTES = 4 * 2**20
PROFILE_CHARS = 1200
"""Paragraphs of a profile are taken until they hold this many characters, at least one."""

_PROMPT = re.compile(
    r"</?s>|<\|[a-z_]{2,30}\|>|\[/?INST\]|<</?SYS>>|^#{2,3} ?(?:Instruction|Response|Input)\b"
    r"|\bI want you to act (?:like|as)\b|(?:我希望你|我要你|我想让你|请你)扮演",
    re.MULTILINE,
)
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
    for one in _exchanges(path):
        persona = characters.get(one.name)
        if persona is None:
            persona = characters[one.name] = _character(path, one.name, found)
        found.left_out += [LeftOut(str(path), one.place, "later_turn")] * one.later
        spoken = [s for s in one.said if "thinking" not in s["action"]]
        answer = "\n".join(s["content"] for s in spoken if s["content"])
        cause = unfit(answer, persona, one.asked)
        if one.said and not spoken:
            cause = "not_spoken"
        if one.others_speak or SPEAKER_MARK.search(answer):
            cause = "contaminated"
        if cause is not None:
            found.left_out.append(LeftOut(str(path), one.place, cause))
            continue
        question = Question(
            id=f"{persona.id}/{content_hash(one.asked)[:8]}",
            persona_id=persona.id,
            task=Task.PERSONA_CONSISTENCY,
            text=one.asked,
        )
        system = f"{path.parent.parent.name}/{path.parent.name}"
        unit = f"{question.id}@{system}"
        found.answers.append(
            AnsweredQuestion(persona, question, answer, system, f"{path}, {one.place}", unit)
        )
    return found


_Said = list[dict[str, str]]


class _Exchange(NamedTuple):
    """A question and what was said in reply; `later` counts the character's turns after it."""

    place: str
    name: str
    asked: str
    said: _Said
    others_speak: bool
    later: int


def _exchanges(path: Path) -> Iterator[_Exchange]:
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        for number, line in read_jsonl(path):
            yield _dialogue(path, f"line {number}", line)
        return
    value = read_json(path)
    if not isinstance(value, list):
        raise _foreign(path, "the whole", "a JSON list was expected")
    for number, entry in enumerate(value, 1):
        place = f"entry {number}"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("question"), str):
            raise _foreign(path, place, "no question")
        asked = entry["question"].strip()
        if not asked:
            raise _foreign(path, place, "the question is empty")
        said = _said(path, place, entry.get("reply"))
        roles = [s["role"] for s in said if s["role"]]
        name = roles[0] if roles else path.stem.partition("_")[0]
        if not name.strip():
            raise _foreign(path, place, "no character is named")
        yield _Exchange(place, name, asked, said, len(set(roles)) > 1, 0)


def _dialogue(path: Path, place: str, line: Mapping[str, Any]) -> _Exchange:
    turns = line.get("content")
    if not isinstance(turns, list) or not all(isinstance(t, Mapping) for t in turns):
        raise _foreign(path, place, "no list of turns under `content`")
    order = [t.get("turn_role") for t in turns]
    if order[:2] != ["interviewer", "character"]:
        raise _foreign(path, place, "the dialogue does not begin with interviewer and character")
    question = _said(path, place, turns[0].get("turn_content"))
    asked = "\n".join(s["content"] for s in question if s["content"])
    if not asked:
        raise _foreign(path, place, "the question is empty")
    said = _said(path, place, turns[1].get("turn_content"))
    interviewers = {s["role"] for s in question}
    roles = [s["role"] for s in said if s["role"] not in interviewers]
    name = roles[0] if roles else str(line.get("character") or "").strip()
    if not name:
        raise _foreign(path, place, "no character is named")
    others = len(roles) < len(said) or len(set(roles)) > 1
    return _Exchange(place, name, asked, said, others, order[2:].count("character"))


def _said(path: Path, place: str, value: Any) -> _Said:
    """One reply or a list of them (`{role, action, content}`); content null is empty."""
    parts = value if isinstance(value, list) else [value]
    said: _Said = []
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("content"), str | None):
            raise _foreign(path, place, "no reply with a text under `content`")
        said.append({k: str(part.get(k) or "").strip() for k in ("role", "action", "content")})
    return said


def _foreign(path: Path, place: str, what: str) -> InputError:
    return InputError(
        f"not an answer file ({what})",
        path=path,
        place=place,
        mend="--answers takes a run, its results.jsonl, or answer files of Neeko's gen_results",
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
            return Persona(id=_slug(known), description=description, source=source)
    found.unknown.append((name, str(path)))
    return Persona(id=_slug(name), description=name, source=str(path))


def _slug(name: str) -> str:
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
