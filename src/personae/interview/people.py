"""Who is interviewed: characters from cards, and what is known of them.

What judges are told of a character (`Interviewee.profile`) is what the method `prompt` tells the
character itself, word for word: a judge can check all that was said to it. It holds the card's
text, the secrets that the character itself knows, and as much of a longer profile as has room. What
a card holds for people (`creator_notes`) or for chat programs (`system_prompt`) is in none of this
(`personae.characters.prompt`), nor are secrets that others keep from the character.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from personae.characters.card import read_character
from personae.characters.decorators import parse_decorators
from personae.characters.importers import (
    CARD_ENDINGS,
    PROFILE_KEY,
    characters_of,
    import_neeko,
)
from personae.characters.macros import STRANGER, expand
from personae.characters.prompt import example_conversations, plain_name, profile
from personae.characters.starter import SCHEME, starter
from personae.errors import InputError
from personae.interview.retrieval import Passages
from personae.prompts import render
from personae.records import Character, Language
from personae.records.files import files_of
from personae.records.tokens import estimate_tokens

PROFILE_TOKENS = 2_000
"""Of what judges are told: 8,000 Latin or 3,000 Chinese characters.

Every card of the starter cast has room in it, and beside it a dialogue in the embedded model's
context.
"""
SHORT_TOKENS = 80
UNIT_TOKENS = 200
"""Of one passage for retrieval; a longer paragraph is cut at its sentences."""
MAX_NAME = 200
MAX_WORD = 40

_HEADING = re.compile(r"#{1,6}\s+(.+)")
_PARAGRAPHS = re.compile(r"\n[ \t\u3000]*\n\s*")
# What has a full stop and ends no sentence: initials, "c.", "Dr.", "Mrs.", "no.".
_SENTENCE = re.compile(
    r"(?<!\b\w)(?<!\b[DMSJ][rst])(?<!\bMrs)(?<!\b[Nn]o)(?<!\b[Cc]a)(?<!\bvs)[.!?…][)\]’”\"']?\s+(?=[^a-z\s])"
    r"|[。！？][”」』’]?"
)
_SEED = 0  # of macros; a character is the same person in every run


@dataclass(frozen=True)
class Interviewee:
    """A character who can be interviewed.

    Attributes:
        name: as the card has it; unique among those who are interviewed together.
        profile: what judges are told, and the character itself under `prompt`.
        short: a line or two, for interviewers and writers of questions; no secrets.
        passages: what is known of it in pieces, for retrieval: all of the longer profile (or the
            description), personality, voice, lore, example conversations, its own secrets.
        source: the file, or `starter:ID`.
        language: of headings, and of the questions that passages are looked up for.
    """

    name: str
    card: Character
    profile: str
    short: str
    passages: tuple[str, ...]
    source: str
    language: Language = "en"

    @cached_property
    def index(self) -> Passages:
        """Its passages, to be searched."""
        return Passages(self.passages, self.language)


def read_interviewees(paths: Sequence[Path | str], language: Language) -> tuple[Interviewee, ...]:
    """Characters from cards (JSON, PNG, CHARX), folders, `starter:ID`, and profiles `wiki_*.txt`.

    A profile is as Neeko publishes it: "# Full Name", then paragraphs under headings. A folder may
    hold cards, profiles, or both.

    Args:
        language: of the interviews; the cards' own texts stay as they are.

    Raises:
        InputError: a file that is neither card nor profile, a folder without any, nobody of that
            starter id, a card that says nothing, or two characters of one name.
    """
    found: dict[str, Interviewee] = {}
    for path in paths:
        for source, card in _characters(path, language):
            made = interviewee(card, language, source=source)
            other = found.setdefault(plain_name(made.name), made)
            if other is not made:
                raise InputError(
                    f"the same name as in {other.source}: {made.name}",
                    path=source,
                    mend="Leave one of them, or rename one: answers are told apart by the name",
                )
    if not found:
        raise InputError("nobody to interview", mend="Give --characters CARD...")
    return tuple(found.values())


def _characters(path: Path | str, language: Language) -> Iterator[tuple[str, Character]]:
    """The characters that one argument means, each with where it is from."""
    if str(path).startswith(SCHEME):
        yield str(path), starter(str(path))
        return
    path = Path(path)
    if not os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises without permission)
        if path.suffix.lower() == ".txt":
            yield str(path), import_neeko(path, language=language)[0]
        else:
            yield str(path), read_character(path)
        return
    root = Path(os.path.realpath(path))
    cards = any(True for ending in CARD_ENDINGS for _ in files_of(path, ending, root))
    profiles = [f for f in files_of(path, ".txt", root) if f.name.startswith("wiki_")]
    if not cards and not profiles:
        raise InputError(
            f"holds no card and no profile (no {', '.join(CARD_ENDINGS)} and no wiki_*.txt file)",
            path=path,
            mend="Give cards, or a folder of them",
        )
    if cards:
        yield from ((str(file), card) for file, card in characters_of(path))
    for file in profiles:
        yield str(file), import_neeko(file, language=language)[0]


def interviewee(card: Character, language: Language, *, source: str = "") -> Interviewee:
    """What is known of a character, from its card.

    Args:
        source: where the card is from; for errors, and kept.

    Raises:
        InputError: the card says nothing of the character, its name or its secrets are longer than
            can be used, or what Personae keeps in it is malformed.
    """
    name = " ".join(card.name.split())
    if len(name) > MAX_NAME:
        raise InputError(
            f"a name of {len(name):,} characters (at most {MAX_NAME})", path=source or None
        )
    told = profile(card, language=language, user=STRANGER[language], seed=_SEED)
    longer = _longer(card, source)
    spent = sum(estimate_tokens(f"{secret}\n") for secret in told.secrets)
    if spent > PROFILE_TOKENS // 2:
        raise InputError(
            f"secrets of about {spent:,} tokens (at most {PROFILE_TOKENS // 2:,})",
            path=source or None,
            place="extensions.personae.secrets",
        )
    text, left = _within(_paragraphs(told.text_with_lore), PROFILE_TOKENS - spent)
    if not text:
        raise InputError(
            f"the card says nothing of {name}", path=source or None, mend="Describe the character"
        )
    known = set(_paragraphs(card.description))
    more, _ = _within([p for p in longer if p not in known], left)
    shown = render(
        "interviews/profile",
        language,
        name=name,
        text="\n\n".join(text),
        secrets=told.secrets,
        more=more,
    )[0].content
    return Interviewee(
        name=name,
        card=card,
        profile=shown,
        short=_short(told.description or told.personality or told.text_with_lore),
        passages=tuple(dict.fromkeys(_units(card, longer, told.secrets, language))),
        source=source,
        language=language,
    )


# Texts -------------------------------------------------------------------------------------------


def _longer(card: Character, source: str) -> tuple[str, ...]:
    """The paragraphs and headings of the profile that a card was made of; empty without one."""
    kept = card.extensions.get(PROFILE_KEY, [])
    if not isinstance(kept, list) or not all(isinstance(part, str) for part in kept):
        raise InputError(
            "not a list of paragraphs",
            path=source or None,
            place=f"extensions.{PROFILE_KEY}",
            mend="Import the profile again, or take it out of the card",
        )
    return tuple(part.strip() for part in kept if part.strip())


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in _PARAGRAPHS.split(text) if part.strip()]


def _within(parts: Sequence[str], tokens: int) -> tuple[tuple[str, ...], int]:
    """Whole paragraphs while there is room, "…" where some had none, and the tokens left.

    Of one that would leave half of the room or more empty there is as much as fits: many cards are
    a title and a single paragraph.
    """
    kept: list[str] = []
    left = tokens
    for part in parts:
        cost = estimate_tokens(f"{part}\n\n")
        if cost > left:
            if 0 < tokens <= 2 * left:
                kept.append(_beginning(part, left))
            return (*kept, "…") if kept else (), 0
        kept.append(part)
        left -= cost
    return tuple(kept), left


def _beginning(text: str, tokens: int) -> str:
    """As much of a text as fits, to the end of a word where there is one near."""
    longest = min(len(text), 4 * tokens + 4)  # a character is no less than a quarter of a token
    fits = range(1, longest + 1)
    end = bisect_right(fits, tokens, key=lambda end: estimate_tokens(f"{text[:end]}\n\n"))
    cut = text.rfind(" ", max(0, end - MAX_WORD), end + 1)
    return text[: cut if cut > 0 else max(1, end)].rstrip()


def _short(text: str) -> str:
    """The first sentences, as many whole ones as fit; of a first one that is too long a part."""
    first, *more = _packed(" ".join(text.split()), SHORT_TOKENS)
    ended = not more or first.endswith((".", "!", "?", "…", "。", "！", "？", "”", "」", "』"))
    return first if ended else f"{first}…"


def _units(
    card: Character, longer: Sequence[str], secrets: Sequence[str], language: Language
) -> Iterator[str]:
    """What is known of a character, in pieces of at most about `UNIT_TOKENS` tokens."""
    user = STRANGER[language]

    def filled(text: str) -> str:
        return expand(text, char=card.called, user=user, seed=_SEED, pick_seed=_SEED).strip()

    heading = ""
    for part in longer or _paragraphs(filled(card.description)):
        title = _HEADING.fullmatch(part)
        if title:
            heading = title[1].strip()
        else:
            yield from _pieces(part, heading)
    for text in (card.personality, card.ours.voice):
        for part in _paragraphs(filled(text)):
            yield from _pieces(part)
    for keys, content in _lore(card):
        for part in _paragraphs(filled(content)):
            lacking = [key for key in keys if key.casefold() not in part.casefold()]
            yield from _pieces(part, ", ".join(lacking))
    for block in example_conversations(card, user):
        lines = "\n".join(f"{one.speaker}: {filled(one.text)}".removeprefix(": ") for one in block)
        yield from _pieces(lines)
    yield from secrets


def _lore(card: Character) -> Iterator[tuple[tuple[str, ...], str]]:
    """The entries that can fire at all: keys in plain words, and what is told."""
    for entry in card.character_book.entries if card.character_book else ():
        decorated = parse_decorators(entry.content)
        if entry.enabled and not decorated.dont_activate:
            plain = () if entry.use_regex else tuple(k for k in entry.keys if k.strip("/ ") == k)
            yield plain, decorated.text


def _pieces(text: str, heading: str = "") -> Iterator[str]:
    """A paragraph in pieces, each under the heading: it says what they are about."""
    above = f"{heading}\n" if heading else ""
    yield from (above + piece for piece in _packed(text, UNIT_TOKENS))


def _packed(text: str, tokens: int) -> list[str]:
    """A text in pieces of at most so many tokens: whole sentences, or parts of one too long."""
    found: list[str] = []
    start = begin = spent = 0
    for end in (*(mark.end() for mark in _SENTENCE.finditer(text)), len(text)):
        cost = estimate_tokens(text[begin:end]) + 1  # with what rounding may hide
        if begin > start and spent + cost > tokens:
            found.append(text[start:begin])
            start, spent = begin, 0
        first = start
        while cost > tokens and _above(text, start, end, tokens):
            # A character is no more than a token; a space is the better place to cut at.
            cut = text.rfind(" ", start + tokens // 2, start + tokens) + 1 or start + tokens
            found.append(text[start:cut])
            start = cut
        if start > first:
            spent, cost = 0, estimate_tokens(text[start:end]) + 1
        begin, spent = end, spent + cost
    found.append(text[start:])
    return [piece.strip() for piece in found if piece.strip()] or [""]


def _above(text: str, start: int, end: int, tokens: int) -> bool:
    """Whether a part has more tokens; a character is no less than a quarter of one."""
    return end - start > 4 * tokens + 4 or estimate_tokens(text[start:end]) > tokens
