"""What a character is: the content of a card, and what Personae keeps beside it.

Character Card V2 and V3 name the fields; Personae's own live in the card's `extensions` under the
key `personae` (see `PersonaeExtension`), so that a card of ours is a card everywhere.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from personae.records.base import Record
from personae.records.benchmark import Language, NotBlank

JSON = Any


class Secret(Record):
    """A fact and who knows it; whoever is not named does not."""

    fact: NotBlank
    known_by: tuple[NotBlank, ...]

    @property
    def line(self) -> str:
        """As a prompt tells it."""
        return self.fact


class DialogueTurn(Record):
    """One exchange that shows the voice: what is said to the character, and its reply."""

    user: NotBlank
    character: NotBlank


class PersonaeExtension(Record):
    """What Personae keeps in a card under `extensions.personae`.

    Attributes:
        language: the character's first language.
        voice: how the character speaks and writes: register, rhythm, habits, what it never says.
        secrets: facts and who knows them. They reach the prompts of those only.
        dialogue: exchanges in the character's own words; material for examples and training.
    """

    language: Language | None = None
    voice: str = ""
    secrets: tuple[Secret, ...] = ()
    dialogue: tuple[DialogueTurn, ...] = ()


class LoreEntry(Record):
    """One entry of a lorebook (Character Card V3, "Lorebook").

    `extra` holds the fields that this record does not know, as they were found.
    """

    keys: tuple[str, ...] = ()
    content: str = ""
    extensions: dict[str, JSON] = {}
    enabled: bool = True
    insertion_order: int | float = 0
    case_sensitive: bool | None = None
    use_regex: bool = False
    constant: bool | None = None
    name: str | None = None
    priority: int | float | None = None
    id: int | str | None = None
    comment: str | None = None
    selective: bool | None = None
    secondary_keys: tuple[str, ...] | None = None
    position: Literal["before_char", "after_char"] | None = None
    extra: dict[str, JSON] = {}


class Lorebook(Record):
    """What a character or a world knows, drawn into the prompt where its keys occur."""

    name: str | None = None
    description: str | None = None
    scan_depth: int | None = Field(default=None, ge=0)
    token_budget: int | None = Field(default=None, ge=0)
    recursive_scanning: bool | None = None
    extensions: dict[str, JSON] = {}
    entries: tuple[LoreEntry, ...] = ()
    extra: dict[str, JSON] = {}


class Asset(Record):
    """A file that belongs to a card (V3): where it is and what it is for."""

    type: str
    uri: str
    name: str
    ext: str


class Character(Record):
    """A character, as a card of any version describes it.

    Field names are those of Character Card V3; a V1 or V2 card leaves the newer ones at their
    defaults. `creator_notes` is for people and never reaches a prompt. `extra` holds unknown fields
    of the card's `data`, `outer` those beside it, so that a round trip loses nothing.

    Attributes:
        spec: the version that the card was read in.
    """

    spec: Literal["v1", "v2", "v3"] = "v3"
    spec_version: str | None = None
    name: NotBlank
    description: str = ""
    personality: str = ""
    scenario: str = ""
    first_mes: str = ""
    mes_example: str = ""
    creator_notes: str = ""
    system_prompt: str = ""
    post_history_instructions: str = ""
    alternate_greetings: tuple[str, ...] = ()
    group_only_greetings: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    creator: str = ""
    character_version: str = ""
    nickname: str | None = None
    creator_notes_multilingual: dict[str, str] | None = None
    source: tuple[str, ...] | None = None
    creation_date: int | float | None = None
    modification_date: int | float | None = None
    assets: tuple[Asset, ...] | None = None
    character_book: Lorebook | None = None
    extensions: dict[str, JSON] = {}
    extra: dict[str, JSON] = {}
    outer: dict[str, JSON] = {}

    @property
    def called(self) -> str:
        """What `{{char}}` stands for: the nickname where there is one (V3); a blank one is none."""
        return self.nickname if self.nickname and self.nickname.strip() else self.name

    @property
    def ours(self) -> PersonaeExtension:
        """What Personae keeps in the card.

        Raises:
            InputError: `extensions.personae` is there and is something else.
        """
        return PersonaeExtension.from_dict(
            self.extensions.get("personae", {}), place="extensions.personae"
        )
