"""From a scene's references to cards, and from cards to what characters bring into the play."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from personae.characters.macros import STRANGER
from personae.characters.prompt import lore, lore_texts, profile
from personae.characters.secrets import card_secrets
from personae.characters.starter import card_named
from personae.records import (
    Character,
    Language,
    Record,
    Scene,
    content_hash,
)
from personae.records.files import read_jsonl, write_atomically
from personae.world.engine import Player


class CardInPlay(Record):
    """One line of cards.jsonl: a card that a run's scenes refer to, as it was when first played.

    Attributes:
        card: the reference, as the scene has it.
    """

    card: str
    character: Character

    @property
    def hash(self) -> str:
        """SHA-256 over the card's content."""
        return content_hash(self.character.to_dict())


def find_cards(scenes: Iterable[Scene], folder: Path) -> tuple[CardInPlay, ...]:
    """The cards that scenes refer to, each once.

    Args:
        folder: where the scene file lies; paths are relative to it.

    Raises:
        InputError: a card is not there or cannot be read; a path is absolute.
    """
    wanted = dict.fromkeys(c.card for scene in scenes for c in scene.characters if c.card)
    return tuple(CardInPlay(card=card, character=card_named(card, folder)) for card in wanted)


def write_cards(cards: Sequence[CardInPlay], path: Path) -> None:
    """Keep the cards beside the scenes, so that a run can be resumed and replayed without them.

    Raises:
        OutputError: the file cannot be written.
    """
    write_atomically(path, (card.to_json() + "\n" for card in cards))


def read_cards(path: Path) -> tuple[CardInPlay, ...]:
    """The cards that a run kept.

    Raises:
        InputError: the file is absent, or a line is no card.
    """
    return tuple(
        CardInPlay.from_dict(line, path=path, place=f"line {number}")
        for number, line in read_jsonl(path)
    )


def players(
    scene: Scene, cards: Mapping[str, Character], language: Language, seed: int
) -> dict[str, Player]:
    """What the characters of a scene bring, by name; for one play, since lore remembers.

    A card's own scenario holds only where the scene says nothing of event and surroundings.

    Args:
        cards: by reference.
        seed: decides chance in macros and lorebooks.

    Raises:
        InputError: `extensions.personae` of a card is malformed.
    """
    found: dict[str, Player] = {}
    on_stage = {one.name: cards.get(one.card or "") for one in scene.characters}
    bare = not (scene.event.strip() or scene.environment.description.strip())
    for one in scene.characters:
        character = on_stage[one.name]
        if character is None:
            continue
        user = STRANGER[language]
        text = profile(
            character,
            language=language,
            user=user,
            seed=seed,
            with_scenario=bare,
            aliases=(one.name,),
        ).text
        found[one.name] = Player(
            profile=text,
            secrets=card_secrets(on_stage, one.name, language=language, seed=seed),
            lore=_lore(character, user, seed),
        )
    return found


def _lore(character: Character, user: str, seed: int) -> Callable[[Sequence[str]], str]:
    """What the lorebook gives for what was heard; it knows what it has given before."""
    before: set[int] = set()
    turn = 0

    def drawn(heard: Sequence[str]) -> str:
        nonlocal turn
        if character.character_book is None:
            return ""
        found = lore(character, heard, user=user, seed=seed, turn=turn, before=before)
        before.update(found.matched)
        turn += 1
        first, last = lore_texts(found, messages=len(heard))
        return "\n".join((*first, *last))

    return drawn
