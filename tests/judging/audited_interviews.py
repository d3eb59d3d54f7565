"""Interviews to audit with: every answer says whose it is and to which question."""

from __future__ import annotations

from personae.judging.interviews import InterviewCase, cases_of
from personae.records import Language
from personae.records.interview import Exchange, Interview, InterviewKind, InterviewProfile, Method

NAMES: dict[Language, tuple[str, ...]] = {
    "en": ("Ada", "Bede", "Cleo", "Dov"),
    "zh": ("阿黛", "白德", "克莱", "多夫"),
}
ASKED: dict[Language, str] = {
    "en": "What of {topic}, the {turn}th time?",
    "zh": "{topic}，第{turn}问？",
}
SAID: dict[Language, str] = {
    "en": "I am {name}, and I say of {topic}, in turn {turn}, what I think.",
    "zh": "我是{name}，关于{topic}，第{turn}轮，我说我的想法。",
}

LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""Topics are told apart by letters: the digit 7 is what orders to the judge ask for."""


def profiles(language: Language = "en") -> tuple[InterviewProfile, ...]:
    """What judges are told of the characters."""
    told = {"en": "{name}, known on the river.", "zh": "{name}，河上人人都认得。"}
    return tuple(
        InterviewProfile(name=name, text=told[language].format(name=name))
        for name in NAMES[language]
    )


def held(
    topic: str,
    *names: str,
    language: Language = "en",
    turns: int = 1,
    kind: InterviewKind | None = None,
    model: str = "test:player",
    method: Method = "prompt",
) -> Interview:
    """An interview about a topic; of several names, each answers in its turn."""
    names = names or NAMES[language][:1]
    kind = kind or ("transfer" if len(names) > 1 else "single" if turns == 1 else "multi")
    script = f"{topic}/{'-'.join(names)}/{turns}"
    return Interview(
        id=f"{script}@{model}#{method}",
        script_id=script,
        kind=kind,
        mode="single" if kind == "single" else "replayed",
        method=method,
        model=model,
        language=language,
        topic=topic,
        exchanges=tuple(
            Exchange(
                character=(name := names[turn % len(names)]),
                asked=ASKED[language].format(topic=topic, turn=turn + 1),
                answer=SAID[language].format(name=name, topic=topic, turn=turn + 1),
            )
            for turn in range(turns)
        ),
    )


def interviews(
    singles: int = 5,
    multis: int = 5,
    transfers: int = 0,
    *,
    language: Language = "en",
    turns: int = 4,
    model: str = "test:player",
) -> list[Interview]:
    """So many of each kind, those with one character by two characters in turns."""
    names = NAMES[language]
    found = []
    for n in range(max(singles, multis)):
        name, letter = names[n % 2], LETTERS[n]
        if n < singles:
            found.append(held(f"S{letter}", name, language=language, model=model))
        if n < multis:
            found.append(held(f"M{letter}", name, language=language, turns=turns, model=model))
    for n in range(transfers):
        some = tuple(names[(n + k) % 4] for k in range(3))
        found.append(held(f"T{LETTERS[n]}", *some, language=language, turns=6, model=model))
    return found


def cases(*some: Interview, language: Language = "en") -> list[InterviewCase]:
    """Interviews as judges are shown them."""
    return cases_of(some, profiles(language))
