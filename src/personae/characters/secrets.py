"""What the cards of those who are together keep secret, and who of them knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from personae.characters.macros import STRANGER, expand
from personae.characters.prompt import plain_name
from personae.records import Character, Language, Secret

_LEAD: Mapping[Language, str] = {"en": "{name}: ", "zh": "{name}："}


class CardSecret(Secret):
    """A secret out of a card, told among those of others.

    A card says "he" or "she" of its own character. Whoever else knows the secret, the narrator and
    judges must be told who that is.

    Attributes:
        lead: names the card's character as the company does; empty where the fact does.
    """

    lead: str = ""

    @property
    def line(self) -> str:
        """As a prompt tells it."""
        return self.lead + self.fact


def card_secrets(
    company: Mapping[str, Character | None],
    owner: str,
    *,
    language: Language,
    seed: int,
    aliases: Mapping[str, Sequence[str]] | None = None,
) -> tuple[CardSecret, ...]:
    """A card's secrets with those of the company who know them, under the company's names.

    One that nobody there knows is left out: a narrator could only let it slip.

    Args:
        company: who is there, by name; None has no card.
        owner: whose card, one of them.
        language: of the lead.
        seed: decides chance in macros.
        aliases: further names, by name.

    Raises:
        InputError: `extensions.personae` of the card is malformed.
    """
    character = company[owner]
    if character is None:
        return ()
    called = _called(company, owner, character, aliases or {})
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
            names = tuple(name for name in company if name in knowing)
            lead = "" if owner in fact else _LEAD[language].format(name=owner)
            found.append(CardSecret(fact=fact, known_by=names, lead=lead))
    return tuple(found)


def _called(
    company: Mapping[str, Character | None],
    owner: str,
    own: Character,
    aliases: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Whom a card means by a name: itself, then who is called so there, then by a card.

    A stranger's card may give itself any name, and shall not come to secrets by it: a name that two
    bear means neither.
    """
    borne: dict[str, set[str]] = {}
    for other, card in company.items():
        names = (card.name, card.called) if card else ()
        for name in (*names, *aliases.get(other, ())):
            borne.setdefault(plain_name(name), set()).add(other)
    return {
        **{name: min(bearers) for name, bearers in borne.items() if len(bearers) == 1},
        **{plain_name(other): other for other in company},
        **{plain_name(name): owner for name in (own.name, own.called)},
    }
