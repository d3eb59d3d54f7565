"""What a character and an interviewer are told: the messages of `prompt`, `rag` and `cast`.

All methods share the meta prompt (Neeko, appendix B.2, in our own words): who speaks, in whose
tone, manner and vocabulary and with whose knowledge, and where and how. Its first two sentences are
those under which a cast's characters are trained (`prompts/*/cast/system.md`).

- `prompt` (the paper's ICL) adds what is known of the character, as the judges are told it.
- `rag` puts before the question passages looked up for it, and for no other turn.
- `cast` adds nothing: the character's blocks know it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from personae.interview.people import Interviewee
from personae.prompts import LANGUAGES, render
from personae.records import Exchange, InterviewScript, Language, Message, Record
from personae.records.interview import Method

_QUOTES = {'"': '"', "“": "”", "'": "'", "‘": "’", "「": "」", "『": "』", "«": "»"}
# Bounded: a reply may be a page of asterisks.
_HEAD = r"[*_>#\s]{0,9}"
_TAIL = r"[*_]{0,3}\s{0,3}(?:[(（][^()（）\n]{1,40}[)）])?[*_]{0,3}\s{0,3}[:：][*_\s]{0,9}"


class Setting(Record):
    """Where an interview takes place that says nothing of it.

    Attributes:
        labels: what an interviewer model may write before its words.
    """

    location: str
    status: str
    labels: tuple[str, ...]


@cache
def setting(language: Language) -> Setting:
    """The default location and status (appendix B.2)."""
    file = files("personae.prompts").joinpath(language, "interviews", "setting.toml")
    return Setting.from_dict(tomllib.loads(file.read_text("utf-8")), path=str(file))


def place_of(script: InterviewScript) -> tuple[str, str]:
    """Location and status of a script; the default ones where it has none."""
    default = setting(script.language)
    return script.location.strip() or default.location, script.status.strip() or default.status


def looked_up(person: Interviewee, asked: str, past: Sequence[Exchange] = ()) -> tuple[str, ...]:
    """The passages that the method `rag` puts before a question.

    Those that fit the question; places that are left, those that fit the character's exchange
    before it ("And then?" finds nothing by itself). Where nothing at all fits, the first passage,
    which is all that the released code ever gives.
    """
    before = [f"{one.asked}\n{one.answer}" for one in past if one.character == person.name][-1:]
    return person.index.find(asked, *before) or person.passages[:1]


def character_messages(
    method: Method,
    script: InterviewScript,
    person: Interviewee,
    past: Sequence[Exchange],
    asked: str,
    passages: Sequence[str] = (),
) -> tuple[Message, ...]:
    """What a character is told for its next answer.

    Its own earlier answers are the assistant's. What others were asked and answered in between
    stands, under their names, before the character's next question. So all but the last message is
    the same at its next turn, but for passages.

    Args:
        past: the exchanges so far, everybody's; all of them were held.
        passages: see `looked_up`.
    """
    language = script.language
    location, status = place_of(script)
    messages = render(
        "interviews/meta",
        language,
        name=person.name,
        profile=person.profile if method == "prompt" else "",
        looked_up=method == "rag",
        location=location,
        status=status,
        others=[name for name in script.characters if name != person.name],
    )
    others: list[Exchange] = []
    for one in past:
        if one.character == person.name:
            messages += _question(language, one.asked or "", others, ())
            messages += (Message(role="assistant", content=one.answer or ""),)
            others = []
        else:
            others.append(one)
    return messages + _question(language, asked, others, passages)


def _question(
    language: Language, asked: str, others: Sequence[Exchange], passages: Sequence[str]
) -> tuple[Message, ...]:
    return render(
        "interviews/question", language, asked=asked, others=others, passages=list(passages)
    )


def interviewer_messages(
    script: InterviewScript, people: Mapping[str, Interviewee], past: Sequence[Exchange]
) -> tuple[Message, ...]:
    """What an interviewer is told for its next question: its own words are the assistant's.

    Each turn it is told the turn's number, and in a transfer dialogue whose turn it is.

    Args:
        people: by name; all whom the script asks.
        past: the exchanges so far; all of them were held.
    """
    language = script.language
    location, status = place_of(script)
    several = len(script.characters) > 1
    messages = render(
        "interviews/interviewer",
        language,
        turns=len(script.turns),
        people=[people[name] for name in script.characters],
        topic=script.topic,
        location=location,
        status=status,
    )
    before: Exchange | None = None
    for number, turn in enumerate(script.turns[: len(past) + 1], 1):
        messages += render(
            "interviews/turn",
            language,
            before=before,
            turn=number,
            turns=len(script.turns),
            several=several,
            name=turn.character,
        )
        if number <= len(past):
            before = past[number - 1]
            messages += (Message(role="assistant", content=before.asked or ""),)
    return messages


def own_words(text: str, names: Sequence[str] = ()) -> str:
    """An interviewer's words without what models put around them; empty where nothing is left.

    Taken off are a label before them ("Interviewer:"), quotation marks around the whole, and all
    that follows a line in which it speaks for somebody else.

    Args:
        names: of the characters.
    """
    labels = _labels()
    said = re.sub(rf"\A{_HEAD}(?:{labels}){_TAIL}", "", text.strip(), flags=re.IGNORECASE)
    other = "|".join([labels, *(re.escape(name) for name in names)])
    said = re.split(rf"\n{_HEAD}(?:{other}){_TAIL}", said, maxsplit=1, flags=re.IGNORECASE)[0]
    said = said.strip()
    closing = _QUOTES.get(said[:1])
    if closing and len(said) > 1 and said.endswith(closing) and closing not in said[1:-1]:
        said = said[1:-1].strip()
    return said


@cache
def _labels() -> str:
    """The labels of both languages, as the alternatives of a pattern."""
    every = {label for language in LANGUAGES for label in setting(language).labels}
    return "|".join(re.escape(label) for label in sorted(every, key=lambda one: (-len(one), one)))
