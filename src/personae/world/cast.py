"""From a scene's references to cards, and from cards to what characters bring into the play."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from personae.characters.macros import STRANGER, expand
from personae.characters.prompt import lore, lore_texts, plain_name, profile
from personae.characters.starter import card_named
from personae.records import (
    Character,
    Language,
    Record,
    Scene,
    SceneCharacter,
    Secret,
    content_hash,
)
from personae.records.files import read_jsonl, write_atomically
from personae.world.engine import Player

_LEAD: Mapping[Language, str] = {"en": "{name}: ", "zh": "{name}："}


class CardSecret(Secret):
    """A secret out of a card, told among those of others.

    A card says "he" or "she" of its own character. Whoever else knows the secret, the narrator and
    judges must be told who that is.

    Attributes:
        lead: names the card's character as the scene does; empty where the fact does.
    """

    lead: str = ""

    @property
    def line(self) -> str:
        """As a prompt tells it."""
        return self.lead + self.fact


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
    bare = not (scene.event.strip() or scene.environment.description.strip())
    for one in scene.characters:
        character = cards.get(one.card or "")
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
            secrets=_secrets(scene, one, cards, language, seed),
            lore=_lore(character, user, seed),
        )
    return found


def _secrets(
    scene: Scene,
    one: SceneCharacter,
    cards: Mapping[str, Character],
    language: Language,
    seed: int,
) -> tuple[CardSecret, ...]:
    """A card's secrets with those of the scene who know them, under the scene's names.

    One that nobody in the scene knows is left out: the narrator could only let it slip.
    """
    character = cards[one.card or ""]
    called = _called(scene, one, cards)
    found: list[CardSecret] = []
    for secret in character.ours.secrets:
        knowing = {called[plain_name(n)] for n in secret.known_by if plain_name(n) in called}
        if knowing:
            fact = expand(
                secret.fact,
                char=character.called,
                user=STRANGER[language],
                seed=seed,
                pick_seed=seed,
            ).strip()
            names = tuple(c.name for c in scene.characters if c.name in knowing)
            lead = "" if one.name in fact else _LEAD[language].format(name=one.name)
            found.append(CardSecret(fact=fact, known_by=names, lead=lead))
    return tuple(found)


def _called(scene: Scene, one: SceneCharacter, cards: Mapping[str, Character]) -> dict[str, str]:
    """Whom a card means by a name: itself, then who is called so in the scene, then by a card.

    A stranger's card may give itself any name, and shall not come to secrets by it: a name that two
    cards bear means neither.
    """
    by_card: dict[str, set[str]] = {}
    for other in scene.characters:
        card = cards.get(other.card or "")
        for name in (card.name, card.called) if card else ():
            by_card.setdefault(plain_name(name), set()).add(other.name)
    own = cards[one.card or ""]
    return {
        **{name: min(bearers) for name, bearers in by_card.items() if len(bearers) == 1},
        **{plain_name(other.name): other.name for other in scene.characters},
        **{plain_name(name): one.name for name in (own.name, own.called)},
    }


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
