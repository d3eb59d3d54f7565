"""What a prompt may say of a character, in any room: its card as text, its lore, its secrets.

`creator_notes`, `tags`, `creator` and the like never get in (Character Card V2 forbids it), nor do
`system_prompt` and `post_history_instructions`: those are written to take the place of a chat
program's own instructions, and the rooms of this program need theirs. A secret gets in only where
`known_by` names the character, and stands apart from the rest.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from personae.characters.lorebook import Activation, Fired, activate
from personae.characters.macros import expand
from personae.prompts import render
from personae.records import Character, Language, Persona, content_hash
from personae.records.base import Record
from personae.records.tokens import estimate_tokens

LORE_TOKENS = 2_000
EXAMPLE_TOKENS = 400
# Who `{{user}}` is in a persona's description, which is read by many and spoken to nobody.
SOMEBODY: dict[Language, str] = {"en": "the user", "zh": "对方"}

_ENDED = re.compile(r"[.!?…。！？:：,，;；][\"'”’」』)）]*$")
_START = re.compile(r"<START>", re.IGNORECASE)


class ExampleLine(Record):
    """One line of an example conversation.

    Attributes:
        speaker: the name that stands before it; empty where the card names none.
        own: whether the character says it.
    """

    speaker: str
    own: bool
    text: str


class Profile(Record):
    """What a prompt may say of a character; all macros are filled in.

    Attributes:
        name: what it is called, the nickname where there is one.
        scenario: where the card's own story begins; empty unless asked for.
        examples: conversations, each as its lines.
        lore: what the lorebook gives for what was heard.
        lore_before, lore_after: the same as texts, to stand before and behind the description.
        secrets: what it knows and not everyone does.
    """

    language: Language
    name: str
    description: str = ""
    personality: str = ""
    scenario: str = ""
    voice: str = ""
    examples: tuple[tuple[ExampleLine, ...], ...] = ()
    lore: Activation = Activation()
    lore_before: tuple[str, ...] = ()
    lore_after: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The card as prompt text: the same for a whole play, so without lore and secrets."""
        return self._text(before=(), after=())

    @property
    def text_with_lore(self) -> str:
        """The card as prompt text with the lore around the description."""
        return self._text(before=self.lore_before, after=self.lore_after)

    def _text(self, **lore: tuple[str, ...]) -> str:
        fields: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("name", "description", "personality", "scenario", "voice", "examples")
        }
        return render("characters/profile", self.language, **fields, **lore)[0].content


def profile(
    character: Character,
    *,
    language: Language,
    user: str,
    seed: int,
    heard: Sequence[str] = (),
    turn: int = 0,
    with_scenario: bool = False,
    aliases: Collection[str] = (),
    lore_budget: int | None = LORE_TOKENS,
    example_budget: int = EXAMPLE_TOKENS,
    greeting_index: int | None = None,
    before: Collection[int] | None = None,
) -> Profile:
    """What a prompt may say of a character now.

    All but the lore depends on neither `heard` nor `turn`.

    Args:
        language: of the headings; the card's texts stay as they are.
        user: whom it talks to, for `{{user}}`.
        seed: decides chance (`{{random:}}`, `{{pick:}}`, entries with a probability).
        heard, turn, greeting_index, before: see `personae.characters.lorebook.activate`.
        with_scenario: whether the card's own scenario holds. A scene brings another.
        aliases: further names that secrets may call it by (the one that a scene uses).
        lore_budget: tokens for all lore; None for no limit but the book's.
        example_budget: tokens for all examples: those of the card first, then its `dialogue`.

    Raises:
        InputError: `extensions.personae` of the card is malformed.
    """
    ours = character.ours

    def filled(text: str) -> str:
        return expand(text, char=character.called, user=user, seed=seed, pick_seed=seed).strip()

    found = lore(
        character, heard, user=user, seed=seed, turn=turn, budget=lore_budget,
        greeting_index=greeting_index, before=before,
    )  # fmt: skip
    lore_before, lore_after = lore_texts(found, messages=len(heard))
    known = {plain_name(name) for name in (character.name, character.called, *aliases)}
    conversations = [
        tuple(line.model_copy(update={"text": filled(line.text)}) for line in block)
        for block in example_conversations(character, user)
    ]
    return Profile(
        language=language,
        name=character.called,
        description=filled(character.description),
        personality=filled(character.personality),
        scenario=filled(character.scenario) if with_scenario else "",
        voice=filled(ours.voice),
        examples=tuple(_within(conversations, example_budget)),
        lore=found,
        lore_before=lore_before,
        lore_after=lore_after,
        secrets=tuple(
            filled(secret.fact)
            for secret in ours.secrets
            if any(plain_name(name) in known for name in secret.known_by)
        ),
    )


def lore(
    character: Character,
    heard: Sequence[str],
    *,
    user: str,
    seed: int,
    turn: int,
    budget: int | None = LORE_TOKENS,
    greeting_index: int | None = None,
    before: Collection[int] | None = None,
) -> Activation:
    """What the character's lorebook gives for what it heard; nothing if it has none.

    `{{random:}}` is drawn anew every turn, `{{pick:}}` is not.
    """
    if character.character_book is None:
        return Activation()
    return activate(
        character.character_book,
        heard,
        budget=budget,
        seed=seed,
        turn=turn,
        greeting_index=greeting_index,
        before=before,
        expand=lambda text: expand(
            text, char=character.called, user=user, seed=f"{seed}/{turn}", pick_seed=seed
        ),
    )


def lore_texts(found: Activation, *, messages: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lore as texts to stand before the character's description, and behind it.

    Where no conversation is at hand into which `@@depth` could insert a text, Character Card V3
    asks for a place of high priority, and for one of low priority where the depth exceeds the
    number of messages: here the end of what stands behind, and the beginning of what stands before.
    """

    def deep(entry: Fired) -> bool:
        return entry.position == "depth" and (entry.depth or 0) > messages

    first = [f.text for f in found.fired if deep(f)]
    near = [f.text for f in found.fired if f.position == "depth" and not deep(f)]
    behind = [
        f.text for f in found.fired if f.position not in ("before_char", "before_desc", "depth")
    ]
    return (*first, *found.texts("before_char", "before_desc")), (*behind, *near)


def persona_line(
    character: Character, *, language: Language | None = None, source: str = ""
) -> Persona:
    """The character as a persona of a benchmark: name, description, personality, voice.

    What its lorebook always tells is in it; scenario, examples and secrets are not: examiners and
    judges read a persona too. The id is readable, and another as soon as the description is.

    Args:
        language: of headings and punctuation; the card's first language where None, else English.
        source: where the card is from.

    Raises:
        InputError: `extensions.personae` of the card is malformed.
    """
    language = language or character.ours.language or "en"
    told = profile(character, language=language, user=SOMEBODY[language], seed=0, example_budget=0)
    whole = render(
        "characters/persona", language, name=character.name, profile=told.text_with_lore
    )[0].content
    mark = "。" if language == "zh" else "."
    parts = (" ".join(part.split()) for part in whole.split("\n\n"))
    description = " ".join(part if _ENDED.search(part) else part + mark for part in parts if part)
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", character.name).casefold())
    slug = "-".join(words)[:48].strip("-")
    return Persona(
        id="-".join(part for part in (slug, content_hash(description)[:6]) if part),
        description=description,
        source=source,
    )


def plain_name(name: str) -> str:
    """What two spellings of one name have in common: case, width and spaces do not count."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


# Examples ----------------------------------------------------------------------------------------


def example_conversations(character: Character, user: str) -> Iterator[tuple[ExampleLine, ...]]:
    """The conversations of `mes_example`, then those of `dialogue`; macros as they stand."""
    for block in _START.split(character.mes_example):
        lines = tuple(_lines(block, character, user))
        if any(line.own for line in lines):
            yield lines
    for turn in character.ours.dialogue:
        yield (
            ExampleLine(speaker=user, own=False, text=turn.user),
            ExampleLine(speaker=character.called, own=True, text=turn.character),
        )


def _lines(block: str, character: Character, user: str) -> Iterator[ExampleLine]:
    """The lines of one conversation; prose that names no speaker is the character's own."""

    def spelt(macro: str, tags: str, *names: str) -> str:
        literal = [re.escape(name) for name in names if name.strip()]
        return "|".join([rf"\{{\{{\s*{macro}\s*\}}\}}", rf"<(?:{tags})>", *literal])

    own = spelt("char", "char|bot", character.name, character.called)
    mark = re.compile(
        rf"^[ \t]*(?:(?P<own>{own})|{spelt('user', 'user', user)})[ \t]*[:：][ \t]*",
        re.IGNORECASE | re.MULTILINE,
    )
    marks = list(mark.finditer(block))
    head = block[: marks[0].start() if marks else len(block)].strip()
    if head:
        yield ExampleLine(speaker="" if marks else character.called, own=not marks, text=head)
    ends = [*(one.start() for one in marks[1:]), len(block)]
    for one, end in zip(marks, ends, strict=False):  # no mark, and there is still an end
        text = block[one.end() : end].strip()
        if text:
            speaker = character.called if one["own"] else user
            yield ExampleLine(speaker=speaker, own=bool(one["own"]), text=text)


def _within(
    conversations: Iterable[tuple[ExampleLine, ...]], budget: int
) -> Iterator[tuple[ExampleLine, ...]]:
    """Conversations until the budget is used up; of one that is too long its first lines."""
    left = budget
    for block in conversations:
        kept: list[ExampleLine] = []
        for line in block:
            cost = estimate_tokens(f"{line.speaker}: {line.text}\n")
            if cost > left:
                break
            left -= cost
            kept.append(line)
        while kept and not kept[-1].own:  # nobody learns a voice from what others say to it
            kept.pop()
        if kept:
            yield tuple(kept)
        if len(kept) < len(block):
            return
