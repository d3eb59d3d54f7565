"""Who answers a request, and what that one is told: the same for every engine.

Nothing here knows how words are made; a cast's directory without its blocks is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from personae.cast.bearers import Bearers
from personae.cast.dialogue import system_for
from personae.cast.layout import messages_for
from personae.cast.store import MANIFEST, Cast
from personae.characters.secrets import CardSecret, card_secrets
from personae.errors import BadRequestError, InputError
from personae.prompts import LANGUAGES, render
from personae.records import Character, Language, Message
from personae.records.base import content_hash
from personae.records.cast import CastCharacter, CastManifest, CastTurn, Routed
from personae.records.language import written_in
from personae.serve.engine import AUTO, ChatWanted, ServedCharacter
from personae.serve.visibility import Line, as_turns, known, perceived, read_lines

_ROUTES = 512  # instructions whose route is remembered
_BY_NAME = ("name", "spelling")


@dataclass(frozen=True)
class Told:
    """What one character is told before it answers, and nothing that it did not perceive.

    Attributes:
        character: who answers.
        system: the system message: the chat's or the cast's own, and what is secret.
        turns: what was said, by whom; None is the person, or whoever else is not of the cast.
    """

    character: str
    system: str
    turns: tuple[CastTurn, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        """The same as messages of a chat whose assistant is the character (mode `full`)."""
        return messages_for(self.turns, self.character, self.system, "full")


class Voices:
    """The characters of a cast as a server speaks for them.

    Args:
        cast: its blocks are not looked at.

    Raises:
        InputError: `extensions.personae` of a card is malformed; a character is called `auto`.
    """

    def __init__(self, cast: Cast) -> None:
        self.cast = cast
        characters = cast.manifest.characters
        self._bearers = Bearers(characters)
        if taken := self._bearers.spelt(AUTO):
            raise InputError(
                f"{taken[0]!r} goes by the name {AUTO!r}, by which requests are routed, and could "
                "not be asked",
                path=cast.path / MANIFEST,
                mend="Give the character another name",
            )
        company = {one.name: cast.cards.get(one.name) for one in characters}
        aliases = {one.name: one.aliases for one in characters}
        self._secrets: dict[Language, tuple[CardSecret, ...]] = {
            language: tuple(
                secret
                for name in company
                for secret in card_secrets(
                    company, name, language=language, seed=0, aliases=aliases
                )
            )
            for language in LANGUAGES
        }
        self._routes: dict[str, Routed] = {}
        self._served = tuple(
            ServedCharacter(one.name, about(cast.manifest, one, cast.cards.get(one.name)))
            for one in characters
        )

    def told(self, wanted: ChatWanted) -> Told:
        """Who answers a request, and what that one is told.

        Raises:
            BadRequestError: nobody is meant, or nobody certain; it cannot be told who perceived or
                said something.
        """
        lines = read_lines(wanted.messages, self._bearers)
        character = self._auto(lines) if wanted.model == AUTO else self.named(wanted.model)
        seen = perceived(lines, character)
        language = written_in(line.text for line in seen)
        given, turns = as_turns(seen, character)
        system = system_for(self.cast, character, language, given)
        if secrets := self._known(wanted, character, language):
            (message,) = render("serve/secrets", language, secrets=secrets)
            system = f"{system}\n\n{message.content}"
        return Told(character, system, turns)

    def named(self, name: str) -> str:
        """The character that a request's model names: by name, or an alias; case does not count.

        Raises:
            BadRequestError: there is none, or there are several.
        """
        found = self._bearers.spelt(name)
        if len(found) == 1:
            return found[0]
        if found:
            raise BadRequestError(f"{name[:100]!r} may be {' or '.join(found)}: give the name")
        raise BadRequestError(f"there is no character {name[:100]!r}; there are {self._names}")

    def served(self) -> tuple[ServedCharacter, ...]:
        """The characters, with what may be told of them."""
        return self._served

    @property
    def _names(self) -> str:
        return ", ".join(self._bearers.names)

    def _known(self, wanted: ChatWanted, character: str, language: Language) -> tuple[str, ...]:
        """The secrets that a character knows: of its cast's cards, then of the chat."""
        own = (s.line for s in self._secrets[language] if character in s.known_by)
        chat = (s.line for s in known(wanted.secrets, character, self._bearers))
        return tuple(dict.fromkeys(" ".join(line.split()) for line in (*own, *chat)))

    # Routing --------------------------------------------------------------------------------------

    def _auto(self, lines: Sequence[Line]) -> str:
        """Who is asked for: whom the system messages name, else the person's last message.

        Some chat programs put all members of a group into the first system messages, and behind
        the dialogue one that says whose turn it is: that one counts first. Who has not heard the
        last message does not answer it, whomever it speaks of.
        """
        said = [n for n, line in enumerate(lines) if line.role != "system"]
        first = said[0] if said else len(lines)
        before = "\n".join(line.text for line in lines[:first] if line.role == "system")
        behind = lines[-1] if lines and lines[-1].role == "system" and said else None
        asked = next(
            (x for x in reversed(lines) if x.role == "user" and not x.of_cast and x.text.strip()),
            None,
        )
        heard = None if asked is None else asked.perceived_by
        previous = next(
            (
                line.speaker
                for line in reversed(lines)
                if line.of_cast and (heard is None or line.speaker in heard)
            ),
            None,
        )
        system = self._route(before) if before.strip() else None
        turn = None if behind is None else self._route(behind.text)
        for routed in (turn, system):
            if routed is not None and routed.decision == "accept" and routed.by in _BY_NAME:
                return _role(routed)
        if heard is not None and len(heard) == 1:
            return min(heard)
        user = None if asked is None else self._route(asked.text, previous)
        if heard is not None and user is not None and user.role not in (None, *heard):
            if previous is not None:
                return previous
            user = None
        if user is not None and user.decision == "accept" and user.by != "profile":
            return _role(user)
        for routed in (system, user):
            if routed is not None and routed.decision == "accept":
                return _role(routed)
        how = "name one as `model`, or in a system message"
        for routed in (user, system):
            if routed is not None and routed.decision == "ask":
                raise BadRequestError(
                    f"perhaps {routed.role} is asked for ({routed.confidence:.2f}), and perhaps "
                    f"not; there are {self._names}: {how}"
                )
        raise BadRequestError(f"nobody of the cast is asked for; there are {self._names}: {how}")

    def _route(self, text: str, previous: str | None = None) -> Routed:
        if previous is not None:
            return self.cast.route(text, previous=previous)
        key = content_hash(text)  # the texts themselves may be long
        found = self._routes.get(key)
        if found is None:
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            found = self._routes[key] = self.cast.route(text)
        return found


def _role(routed: Routed) -> str:
    assert routed.role is not None  # where it accepts
    return routed.role


def about(
    manifest: CastManifest, character: CastCharacter, card: Character | None
) -> dict[str, Any]:
    """What may be told of a character to whoever can ask it.

    `licences` are those of the data that its blocks learnt from, `sources_without_licence` how many
    others there are; `trained_tokens` are of a block of its own, None where it has none;
    `languages` is None where nobody knows. Files are not named.
    """
    from personae.cast.add import licences_of

    licences, unknown = licences_of(manifest, character.name)
    own = next((b for b in manifest.blocks if b.name == character.name), None)
    speaks = own is not None and bool(character.weights.get(own.name))
    return {
        "aliases": list(character.aliases),
        "how": character.how,
        "mode": manifest.mode,
        "languages": None if card is None else [card.ours.language or _language(card)],
        "licences": list(licences),
        "sources_without_licence": len(unknown),
        "base_licence": manifest.base.licence,
        "trained_tokens": own.tokens if own is not None and speaks else None,
    }


def _language(card: Character) -> Language:
    return written_in([card.description, card.personality, card.first_mes, card.mes_example])


def gained(old: CastManifest, cast: Cast) -> tuple[str, ...]:
    """Who is of a cast that was not when it was read before; all others are as they were.

    Args:
        old: the manifest of then.
        cast: as it was read now.

    Raises:
        InputError: the cast has changed otherwise.
    """
    new = cast.manifest
    changed = next(
        (
            field
            for field in ("base", "mode", "protocol", "rank", "alpha", "targets")
            if getattr(old, field) != getattr(new, field)
        ),
        None,
    )
    what = None if changed is None else f"its {changed} is another one"
    for one in old.characters:
        if what is None and new.of(one.name) != one:
            how = "gone" if new.of(one.name) is None else "not who it was"
            what = f"{one.name!r} is {how}"
    blocks = {block.name: block for block in new.blocks}
    for block in old.blocks:
        if what is None and blocks.get(block.name) != block:
            what = f"the block {block.name!r} is not what it was"
    if what is not None:
        raise changed_otherwise(cast, what)
    return tuple(one.name for one in new.characters if old.of(one.name) is None)


def changed_otherwise(cast: Cast, what: str) -> InputError:
    """A cast has not only gained characters since the server began."""
    return InputError(
        f"the cast has changed since the server began, and not by new characters alone: {what}",
        path=cast.path / MANIFEST,
        mend="Start the server anew",
    )
