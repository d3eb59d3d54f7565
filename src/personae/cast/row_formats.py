"""The shapes in which dialogues are published, each read into one `Draft`.

Told apart by their keys. Nothing is judged here: whether a line may be learnt is `cast.rows`'.

- `messages` (OpenAI, Hugging Face) and `conversations` (ShareGPT): role or from, content or value,
  and who speaks under `name` or `speaker`; `system` and `character` of the row.
- Character-LLM (arXiv 2310.10158), prompted: `{prompt, output, source, role?, eot?}`; the output is
  lines `Name (speaking): ...` or `Name (thinking): ...`, parted by `<|eot|>`.
- Neeko's published interviews: `{question, reply: {role, action, content}}`, and dialogues
  `{character, content: [{turn_role, turn_content: [{role, action, content}]}]}`, in which a
  character's turn may run on into somebody else's line; those in which the character changes every
  turn are of the same shape.
- a `Play` (docs/scenes.md), and rows of our own (`CastRow`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from personae.errors import InputError
from personae.records import Event, Language, Play
from personae.records.cast import CastRow

Thoughts = Literal["drop", "keep"]

EOT = "<|eot|>"
MAX_NAME = 200

_LINE = re.compile(
    r"(?P<name>[^\n:：()（）]{1,200}?)\s{0,9}[(（]{1,3}(?P<action>[^\n()（）]{1,80})[)）]{1,3}\s{0,9}[:：]"
)
_HALF = re.compile("[\ud800-\udfff]")
_ACT_LIKE = re.compile(r"\bact (?:like|as) (?P<name>[^.,;:\n]{1,200})", re.IGNORECASE)
_PERSON = frozenset({"user", "human", "person", "interviewer"})
_CHARACTER = frozenset({"assistant", "gpt", "chatgpt", "bot", "model", "char", "character"})
_NARRATED = frozenset({"influence", "result"})


class Said(NamedTuple):
    """One line; `speaker` None is nobody of the cast."""

    speaker: str | None
    text: str


@dataclass(frozen=True)
class Draft:
    """A dialogue as it was found.

    Attributes:
        lines: in order; neighbours may be one speaker's.
        characters: whose lines are learnt; who of them says nothing is left out later.
        licence: that the row itself states.
        left_out: what of the dialogue is not in `lines`, and why.
        record: the row itself, where it is one of ours: nothing of it is changed.
    """

    lines: tuple[Said, ...] = ()
    characters: tuple[str, ...] = ()
    system: str = ""
    language: Language | None = None
    licence: str | None = None
    left_out: tuple[str, ...] = field(default=())
    record: CastRow | None = None


class NotReadableError(Exception):
    """This row is not what its keys promise; says why."""


@dataclass(frozen=True)
class Reading:
    """How rows are read.

    Attributes:
        character: who speaks where a row does not say.
        thoughts: what becomes of lines that are thought and not said.
    """

    character: str | None = None
    thoughts: Thoughts = "drop"


Row = Mapping[str, Any]


def drafts(row: Row, how: Reading) -> list[Draft] | None:
    """The dialogues of a row; None: it is of no known shape.

    Raises:
        NotReadableError: it is of a known shape, and broken.
    """
    try:
        row = whole_text(row)
    except RecursionError:
        raise NotReadableError("it is nested too deeply") from None
    for keys, read in _SHAPES:
        if all(any(key in row for key in one) for one in keys):
            made = read(row, how)
            licence = next((row[k] for k in ("licence", "license") if _text(row.get(k))), None)
            return [d if d.record else replace(d, licence=licence) for d in made]
    return None


def _ours(row: Row, how: Reading) -> list[Draft]:
    try:
        return [Draft(record=CastRow.from_dict(row))]
    except InputError as error:
        raise NotReadableError(str(error)) from None


# Messages ------------------------------------------------------------------------------------


def _messages(row: Row, how: Reading) -> list[Draft]:
    found = next((row[k] for k in _MESSAGES if k in row), None)
    if not isinstance(found, list) or not found:
        raise NotReadableError("no list of messages")
    system = [_text(row.get("system"))]
    lines: list[Said] = []
    own: list[str] = []
    for number, message in enumerate(found, 1):
        if not isinstance(message, Mapping):
            raise NotReadableError(f"message {number} is no object")
        role = _text(message.get("role") or message.get("from")).lower()
        text = _content(message, number)
        name = _name(message.get("name") or message.get("speaker"))
        if role == "system":
            if lines:
                raise NotReadableError(f"message {number}: a system message after the first turn")
            system.append(text)
        elif role in _PERSON or (not role and not name):
            speaker = name if name and name.lower() not in _PERSON else None
            lines.append(Said(speaker, text))
        elif role in _CHARACTER or not role:
            speaker = name or _name(row.get("character")) or how.character
            if not speaker:
                raise NotReadableError(
                    "no character is named (`name` of a message, `character` of the row, --speaker)"
                )
            own.append(speaker)
            lines.append(Said(speaker, text))
        else:
            raise NotReadableError(f"message {number}: the role {role[:40]!r} is nobody's")
    return [Draft(tuple(lines), tuple(dict.fromkeys(own)), "\n\n".join(filter(None, system)))]


def _content(message: Row, number: int) -> str:
    value = message.get("content", message.get("value"))
    if isinstance(value, list):  # parts, as for pictures
        if not all(isinstance(p, Mapping) and p.get("type") == "text" for p in value):
            raise NotReadableError(f"message {number} holds something that is no text")
        value = "\n".join(_text(part.get("text")) for part in value)
    if value is not None and not isinstance(value, str):
        raise NotReadableError(f"message {number} holds no text")
    return (value or "").strip()


# Character-LLM -------------------------------------------------------------------------------


def _prompted(row: Row, how: Reading) -> list[Draft]:
    prompt, output = row.get("prompt"), row.get("output")
    if not isinstance(prompt, str) or not isinstance(output, str):
        raise NotReadableError("`prompt` or `output` is no text")
    said: list[tuple[str, str, str]] = []
    for number, part in enumerate(map(str.strip, output.split(_text(row.get("eot")) or EOT)), 1):
        if not part:
            continue
        mark = _LINE.match(part)
        if mark is None:
            raise NotReadableError(f"line {number} of the output names no speaker")
        said.append((_name(mark["name"]), mark["action"], part[mark.end() :].strip()))
    wanted = (
        _name(row.get("role"))
        or _name(row.get("character"))
        or how.character
        or _name(found["name"] if (found := _ACT_LIKE.search(prompt)) else None)
    )
    if not wanted:
        raise NotReadableError(
            "no character is named (`role` of the row, in the prompt, or --speaker)"
        )
    speakers = tuple(dict.fromkeys(name for name, _, _ in said))
    character = _called(wanted, speakers)
    if character is None:
        raise NotReadableError(f"{wanted} says nothing in this dialogue")
    lines, left_out = _heard(said, how)
    return [Draft(lines, (character,), prompt.strip(), left_out=left_out)]


def _called(wanted: str, speakers: Sequence[str]) -> str | None:
    """The speaker of that name: as it stands, else the only one who bears a part of it."""
    if wanted in speakers:
        return wanted
    words = set(wanted.lower().split())
    near = [name for name in speakers if words & set(name.lower().split())]
    return near[0] if len(near) == 1 else None


def _heard(
    said: Iterable[tuple[str | None, str, str]], how: Reading
) -> tuple[tuple[Said, ...], tuple[str, ...]]:
    """Lines of (speaker, action, text); what is thought is kept or counted."""
    lines: list[Said] = []
    thought = 0
    for speaker, action, text in said:
        thinks = "think" in action.lower()
        if thinks and how.thoughts == "drop":
            thought += 1
        else:
            lines.append(Said(speaker, f"(thinking) {text}" if thinks else text))
    counted = "1 line is thought, not said" if thought == 1 else f"{thought} lines are thought"
    return tuple(lines), (counted,) if thought else ()


# Neeko ---------------------------------------------------------------------------------------


def _interview(row: Row, how: Reading) -> list[Draft]:
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise NotReadableError("no question")
    said, cut = _turn(row.get("reply"), "the reply")
    name = said[0][0] or _name(row.get("character")) or how.character
    if not name:
        raise NotReadableError("no character is named (`role` of the reply, or --speaker)")
    lines, thought = _heard([(name, a, t) for _, a, t in said], how)
    asked = Said(None, question.strip())
    return [Draft((asked, *lines), (name,), left_out=(*cut, *thought))]


def _dialogue(row: Row, how: Reading) -> list[Draft]:
    turns = row.get("content")
    if not isinstance(turns, list) or not turns:
        raise NotReadableError("no list of turns under `content`")
    said: list[tuple[str | None, str, str]] = []
    characters: list[str] = []
    left_out: list[str] = []
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn, Mapping):
            raise NotReadableError(f"turn {number} is no object")
        parts, cut = _turn(turn.get("turn_content"), f"turn {number}")
        left_out += cut
        if turn.get("turn_role") == "interviewer":
            said += [(None, action, text) for _, action, text in parts]
        elif turn.get("turn_role") == "character":
            name = parts[0][0] or _name(row.get("character")) or how.character
            if not name:
                raise NotReadableError(f"turn {number} names no character")
            characters.append(name)
            said += [(name, action, text) for _, action, text in parts]
        else:
            raise NotReadableError(f"turn {number} is neither the interviewer's nor a character's")
    lines, thought = _heard(said, how)
    return [Draft(lines, tuple(dict.fromkeys(characters)), left_out=(*left_out, *thought))]


def _turn(value: Any, place: str) -> tuple[list[tuple[str, str, str]], tuple[str, ...]]:
    """Role, action and text of a turn's parts, up to where it runs on into another's line."""
    parts = value if isinstance(value, list) else [value]
    said: list[tuple[str, str, str]] = []
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("content"), str | None):
            raise NotReadableError(f"{place} holds no text under `content`")
        said.append(
            (_name(part.get("role")), _text(part.get("action")), _text(part.get("content")))
        )
    if not said:
        raise NotReadableError(f"{place} is empty")
    own = 1
    while own < len(said) and said[own][0] == said[0][0]:
        own += 1
    cut = len(said) - own
    return said[:own], (f"{place} runs on into another's line: {cut} of its parts",) if cut else ()


# Plays ---------------------------------------------------------------------------------------


def _play(row: Row, how: Reading) -> list[Draft]:
    try:
        play = Play.from_dict(row)
    except InputError as error:
        raise NotReadableError(str(error)) from None
    return of_play(play)


def of_play(play: Play) -> list[Draft]:
    """A play as dialogues: one of all characters, or, where not all perceived all, one of each.

    What a character does stands in parentheses on the line before what it says.
    Narration is nobody's line. Beliefs and updates of the state are not told, so they are no lines.
    """
    story = [e for e in play.events if e.kind in _TOLD and e.text.strip()]
    names = [c.name for c in play.scene.characters]
    actors = tuple(n for n in names if any(e.actor == n and e.kind in _ACTED for e in story))
    missing = [e for e in play.events if e.kind == "failure"]
    left_out = tuple(
        f"round {e.round}, turn {e.turn}: {e.actor or 'the narrator'} gave nothing "
        f"({e.failure.cause if e.failure else 'unknown'})"
        for e in missing
    )
    if not actors:
        raise NotReadableError("no character does or says anything in this play")
    if all(set(actors) <= set(e.perceived_by) for e in story):
        return [Draft(_told(play, story), actors, language=play.language, left_out=left_out)]
    made = []
    for name in actors:
        seen = [e for e in story if name in e.perceived_by]
        mine = left_out if name == actors[0] else ()  # reported once
        made.append(Draft(_told(play, seen), (name,), language=play.language, left_out=mine))
    return made


_ACTED = frozenset({"action", "speech", "reaction"})
_TOLD = _ACTED | _NARRATED


def _told(play: Play, events: Sequence[Event]) -> tuple[Said, ...]:
    around = play.scene.environment
    start = [around.time, around.location, around.description, play.scene.event]
    lines = [Said(None, "\n".join(text.strip() for text in start if text.strip()))]
    for event in events:
        text = event.text.strip()
        if event.kind in ("action", "reaction"):
            text = f"({text})"
        lines.append(Said(event.actor, text))
    return tuple(line for line in lines if line.text)


# Small things --------------------------------------------------------------------------------


def whole_text(value: Any) -> Any:
    """A JSON value in which half of a surrogate pair, which is no text, is U+FFFD."""
    if isinstance(value, str):
        return value if value.isascii() else _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [whole_text(one) for one in value]
    if isinstance(value, Mapping):
        return {whole_text(key): whole_text(one) for key, one in value.items()}
    return value


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _name(value: Any) -> str:
    """A name in one line; one that is no name is none."""
    name = " ".join(value.split()) if isinstance(value, str) else ""
    return name if len(name) <= MAX_NAME else ""


def neighbours_joined(lines: Iterable[Said]) -> Iterator[Said]:
    """Lines in which nobody speaks twice in a row; a line that is said again at once is one."""
    last: Said | None = None
    for line in lines:
        if last is None:
            last = line
        elif line.speaker != last.speaker:
            yield last
            last = line
        elif line.text != last.text:
            last = Said(last.speaker, f"{last.text}\n{line.text}".strip())
    if last is not None:
        yield last


_MESSAGES = ("messages", "conversations", "conversation")
# Every group of keys must have one that the row has.
_SHAPES: tuple[tuple[tuple[tuple[str, ...], ...], Callable[[Row, Reading], list[Draft]]], ...] = (
    ((("turns",), ("characters",)), _ours),
    ((("scene",), ("events",)), _play),
    ((_MESSAGES,), _messages),
    ((("question",), ("reply",)), _interview),
    ((("prompt",), ("output",)), _prompted),
    ((("content",), ("character", "max_turns")), _dialogue),
)
