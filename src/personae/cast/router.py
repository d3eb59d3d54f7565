"""Who is wanted by a free instruction: a name first, then the profiles, then a calibrated decision.

The router of issue C2, in the place of Neeko's gate (section 3.2; that one is in `cast.gate`). It
stands outside of the model and chooses once a turn:

1. Whose name it gives: exact, an alias, a part of a name, or a misspelt one (`cast.names`).
2. Otherwise, whose profile it describes (`cast.profiles`).
3. Whether that suffices: accept, ask, or reject as a stranger (`cast.calibrate`).

A route by name depends on names alone, so that a new character changes no old one's, unless it
bears the same name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from personae.cast.calibrate import (
    FALSE_ACCEPT,
    LOST,
    Calibration,
    Example,
    check_features,
    default_calibration,
    fit_calibration,
    probability,
)
from personae.cast.names import (
    Mention,
    NameBook,
    Target,
    Token,
    clean,
    described_in,
    names_of,
    others_in,
    target_of,
    tokens,
    words,
)
from personae.cast.profiles import (
    Profiles,
    asked_terms,
    identity_of,
    kin_of,
    pieces_of,
    terms_of,
)
from personae.errors import InputError, UsageError
from personae.records import Character, Language, Record
from personae.records.cast import Routed
from personae.records.language import written_in

FORMAT = "personae-router/1"
MAX_ROLES = 10_000
NEIGHBOURS = 3
MISSPELT = 0.9
"""Confidence in a name with a letter amiss where hardly anything else can be meant."""
_QUOTED = re.compile(r"[“《「『]([^”》」』]+)")
_CALLED = re.compile(
    r"(?:\b(?:called|named|as|is)\s|叫|称|号|名为|就是|即)[“\"'他她]*$", re.IGNORECASE
)


class RoleProfile(Record):
    """What the router knows of a role.

    Attributes:
        names: its name and all others that are as good.
        pieces: all that its card says, in pieces.
        identity: what it is: tags and first sentences.
        description: the card's.
        kin: what its card calls others.
        others: their names.
    """

    names: tuple[str, ...] = Field(min_length=1)
    pieces: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    description: str = ""
    kin: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


class RouterFile(Record):
    """What router.json holds."""

    format: Literal["personae-router/1"]
    roles: dict[str, RoleProfile] = Field(min_length=1, max_length=MAX_ROLES)
    calibration: Calibration


@dataclass(frozen=True)
class Evidence:
    """What the profiles say of an instruction.

    Attributes:
        role: whose profile fits best.
        features: of the decision, in the order of `FEATURES`.
        scores: of each role, BM25.
    """

    role: str
    features: tuple[float, ...]
    scores: tuple[float, ...]


class Router:
    """Finds the role that an instruction asks for.

    Args:
        roles: what is known of each role.
        calibration: how evidence becomes a decision; None takes the one that ships.

    Raises:
        UsageError: there is no role.
    """

    def __init__(
        self, roles: Mapping[str, RoleProfile], *, calibration: Calibration | None = None
    ) -> None:
        if not roles:
            raise UsageError("a router needs a character")
        self._profiles = dict(roles)
        self.calibration = calibration or default_calibration()
        check_features(self.calibration)
        self._names = NameBook(
            {role: one.names for role, one in roles.items()},
            [name for one in roles.values() for name in one.others],
        )
        self._index = Profiles(
            {role: one.pieces for role, one in roles.items()},
            {role: one.identity for role, one in roles.items()},
            {role: (one.description,) for role, one in roles.items()},
            {role: one.kin for role, one in roles.items()},
        )
        self._text = "\n".join(piece for one in roles.values() for piece in one.pieces)

    @classmethod
    def from_characters(
        cls,
        characters: Mapping[str, Character],
        aliases: Mapping[str, Sequence[str]] | None = None,
        *,
        calibration: Calibration | None = None,
    ) -> Router:
        """A router for characters by role.

        Args:
            aliases: further names, by role.
            calibration: None takes the one that ships.

        Raises:
            UsageError: there is no character, or an alias is of a role that there is not.
            InputError: `extensions.personae` of a card is malformed.
        """
        aliases = aliases or {}
        strange = [role for role in aliases if role not in characters]
        if strange:
            raise UsageError(f"aliases for {strange[0]!r}, who is not of the cast")
        roles = {
            role: profile_of(one, tuple(aliases.get(role, ()))) for role, one in characters.items()
        }
        return cls(roles, calibration=calibration)

    def with_role(self, role: str, character: Character, aliases: Sequence[str] = ()) -> Router:
        """The same router with one more role.

        Raises:
            UsageError: the role is there already.
        """
        if role in self._profiles:
            raise UsageError(f"the cast has {role!r} already")
        more = {**self._profiles, role: profile_of(character, tuple(aliases))}
        return Router(more, calibration=self.calibration)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles, in their order."""
        return tuple(self._profiles)

    def pieces(self, role: str) -> tuple[str, ...]:
        """All that a role's card says, in pieces."""
        return self._profiles[role].pieces

    def to_dict(self) -> dict[str, Any]:
        """What router.json holds."""
        file = RouterFile(format=FORMAT, roles=self._profiles, calibration=self.calibration)
        return file.to_dict()

    @classmethod
    def from_dict(cls, value: Any, *, path: object = None) -> Router:
        """The router of a router.json.

        Raises:
            InputError: it is none; names file and place.
        """
        file = RouterFile.from_dict(value, path=path)
        return cls(file.roles, calibration=file.calibration)

    def route(self, instruction: str, *, previous: str | None = None) -> Routed:
        """Who an instruction asks for.

        Args:
            instruction: any text; beyond 4,000 characters the beginning counts.
            previous: who has been playing. What asks for nobody goes on with that role, and what
                only mentions another does too.

        Raises:
            UsageError: `previous` is not of the cast.
        """
        if previous is not None and previous not in self._profiles:
            raise UsageError(f"the cast has no {previous!r}: {', '.join(self.roles)}")
        text = clean(instruction)
        language = written_in([text])
        found = tokens(text)
        target = target_of(text, found, language)
        mentions = self._names.mentions(text, found, target)
        named = self._by_name(text, found, target, mentions, previous)
        if named is not None:
            return named
        if previous is not None and not target.switch:
            return _certain(previous, by="dialogue")
        misspelt = self._misspelt(text, found, target)
        if misspelt is not None:
            return misspelt
        judged = self._by_profile(text, found, self._whom(text, found, target, language), language)
        strange = target.bare and (target.proper or target.plays)
        if previous is None:
            mentioned = {role for m in mentions for role in m.roles}
            if judged.decision == "reject" and len(mentioned) == 1 and not strange:
                (role,) = mentioned  # "the cat that Alice owned"
                return Routed(
                    decision="ask",
                    role=role,
                    confidence=judged.confidence,
                    weights=judged.weights,
                    by="name",
                )
            return judged
        if judged.decision == "accept" or strange:
            return judged
        return _certain(previous, by="dialogue")

    def neighbours(self, text: str, count: int = NEIGHBOURS) -> dict[str, float]:
        """The roles whose profiles are nearest to a text (an instruction, a stranger's profile).

        Their BM25, best first, summing to 1: the weights of a fusion. {} where nothing of the text
        is in any profile.
        """
        scores, _ = self._index.fit(asked_terms(text))
        return self._weights(scores, count)

    def evidence(self, instruction: str) -> Evidence:
        """What the profiles say of an instruction, names left aside."""
        text = clean(instruction)
        language = written_in([text])
        found = tokens(text)
        target = target_of(text, found, language)
        return self._evidence(text, found, self._whom(text, found, target, language), language)

    def calibrated(
        self, examples: Sequence[Example], *, false_accept: float = FALSE_ACCEPT, lost: float = LOST
    ) -> Router:
        """The same router with a decision fitted to `implied` and `unknown` examples.

        Raises:
            UsageError: they are too few for the rates.
        """
        used = [one for one in examples if one.kind in {"implied", "unknown"}]
        seen = [self.evidence(one.text) for one in used]
        fitted = fit_calibration(
            [one.features for one in seen],
            [a.role == b.role for a, b in zip(used, seen, strict=True)],
            [one.role is not None for one in used],
            [written_in([one.text]) for one in used],
            false_accept=false_accept,
            lost=lost,
        )
        return Router(self._profiles, calibration=fitted)

    # By name --------------------------------------------------------------------------------------

    def _by_name(
        self,
        text: str,
        found: Sequence[Token],
        target: Target,
        mentions: Sequence[Mention],
        previous: str | None,
    ) -> Routed | None:
        """The one who is named and meant; None where no name tells."""
        meant = [m for m in mentions if m.addressed or self._introduced(text, found, m, target)]
        first = [m for m in meant if m.start <= target.start < m.end]
        roles = dict.fromkeys(role for m in first or meant for role in m.roles)
        if len(roles) > 1 and previous in roles:
            del roles[previous]  # "Thank you, Alice. Mr Holmes, your turn."
        if not roles and previous is None and not (target.bare and target.proper):
            aside = [m for m in mentions if 0 <= target.start <= m.start and not target.pronoun]
            if target.bare or not aside:  # not "the cat that Alice owned"
                roles = dict.fromkeys(role for m in mentions for role in m.roles)
        if not roles:
            return None
        known = list(roles)
        if len(known) == 1:
            return _certain(known[0])
        scores, _ = self._index.fit(asked_terms(text))
        best = max(known, key=lambda role: scores[self.roles.index(role)])
        return Routed(
            decision="ask",
            role=best,
            confidence=1 / len(known),
            weights={role: 1 / min(len(known), NEIGHBOURS) for role in known[:NEIGHBOURS]},
            by="name",
        )

    @staticmethod
    def _introduced(text: str, found: Sequence[Token], mention: Mention, target: Target) -> bool:
        """Whether a description ends in the name, or says that somebody is called so."""
        if mention.start < target.start or target.start < 0:
            return False
        if mention.end == target.end and not (target.bare and found[mention.start].text.isascii()):
            return True  # "the poet Li Qingzhao"; but "ever met Ada Lovelace" asks for nobody
        return bool(_CALLED.search(text[: found[mention.start].start]))

    def _misspelt(self, text: str, found: Sequence[Token], target: Target) -> Routed | None:
        if not target.bare or target.end <= target.start:
            return None
        spelt = text[found[target.start].start : found[target.end - 1].end]
        near = self._names.nearest(spelt)
        if near is None or spelt in self._text:  # 诸葛瑾 is a brother, not a slip
            return None
        role, certain = near
        return Routed(
            decision="accept" if certain else "ask",
            role=role,
            confidence=MISSPELT if certain else 0.5,
            weights={role: 1.0},
            by="spelling",
        )

    @staticmethod
    def _whom(text: str, found: Sequence[Token], target: Target, language: Language) -> Target:
        """The one who is wanted, or else whom the text speaks of."""
        return target if target.text else described_in(text, found, language)

    # By profile -----------------------------------------------------------------------------------

    def _by_profile(
        self, text: str, found: Sequence[Token], target: Target, language: Language
    ) -> Routed:
        seen = self._evidence(text, found, target, language)
        score = self.calibration.score(seen.features)
        accept, ask = (
            bounds.get(language, max(bounds.values()))
            for bounds in (self.calibration.accept, self.calibration.ask)
        )
        nothing = max(seen.scores) <= 0
        decision: Literal["accept", "ask", "reject"] = (
            "reject" if nothing or score <= ask else "accept" if score > accept else "ask"
        )
        if decision == "accept" and target.start < 0:
            decision = "ask"  # it speaks of somebody's world, and asks for nobody
        strange = target.bare and target.proper  # a name, and nobody's of the cast
        if strange:
            decision, score = "reject", min(score, ask)
        return Routed(
            decision=decision,
            role=None if decision == "reject" else seen.role,
            confidence=0.0 if nothing else probability(score),
            weights=self._weights(np.asarray(seen.scores), NEIGHBOURS),
            by="name" if strange else "profile",
        )

    def _weights(self, scores: Any, count: int) -> dict[str, float]:
        order = [int(n) for n in np.argsort(-scores, kind="stable")[:count] if scores[n] > 0]
        total = sum(float(scores[n]) for n in order)
        return {self.roles[n]: float(scores[n]) / total for n in order}

    def _evidence(
        self, text: str, found: Sequence[Token], target: Target, language: Language
    ) -> Evidence:
        index = self._index
        chinese = language == "zh"
        scores, held = index.fit(asked_terms(target.text if chinese and target.text else text))
        order = np.argsort(-scores, kind="stable")
        best = int(order[0])
        second = float(scores[order[1]]) if len(order) > 1 else 0.0
        second_held = float(held[order[1]]) if len(order) > 1 else 0.0
        top = float(scores[best])
        fits = index.is_a(target.head, best)
        another = fits < 1 and index.of_another(target.head, best)
        whole = chinese and target.text in self._text
        other = self._names.is_other(found[max(target.start, 0) : max(target.end, 0)])
        described = (  # 蜀汉丞相: a title that stands like a name
            chinese and not target.proper and fits > 0 and not another
            and len(target.text) >= 4 and not whole
        )  # fmt: skip
        features = {
            "held": float(held[best]),
            "evidence": float(np.log1p(top)),
            "margin": (top - second) / top if top > 0 else 0.0,
            "bare": float(other or (target.bare and not described)),
            "proper": float(other or target.proper),
            "is_a": float(fits == 1 and not other),
            "lead": float(held[best]) - second_held,
            "of_another": float(another),
            "unsaid": float(fits < 0 and not another),
            "described": float(fits == 0.5 and not another),
            "strange": self._missing(_names_in(text, found, chinese=chinese), best),
            "modifiers": self._missing(target.modifiers, best),
            "chinese": float(chinese),
        }
        return Evidence(self.roles[best], tuple(features.values()), tuple(scores.tolist()))

    def _missing(self, said: Sequence[str], role: int) -> float:
        """The share of terms that are not in a role's profile, 0 where there are none."""
        terms = [term for word in said for term in terms_of(word)]
        return sum(not self._index.holds(t, role) for t in terms) / len(terms) if terms else 0.0


def profile_of(character: Character, aliases: Sequence[str] = ()) -> RoleProfile:
    """What the router keeps of a card.

    Raises:
        InputError: `extensions.personae` of the card is malformed.
    """
    names = names_of(character, aliases)
    if not names:
        raise InputError(
            f"the name {character.name[:40]!r} has no letter to be found by, or is too long",
            mend="Give an alias",
        )
    return RoleProfile(
        names=names,
        pieces=pieces_of(character),
        identity=identity_of(character),
        description=character.description,
        kin=kin_of(character),
        others=others_in(character),
    )


def _certain(role: str, by: Literal["name", "dialogue"] = "name") -> Routed:
    return Routed(decision="accept", role=role, confidence=1.0, weights={role: 1.0}, by=by)


def _names_in(text: str, found: Sequence[Token], *, chinese: bool) -> list[str]:
    """Names and titles in an instruction, wherever they stand: capitals; in Chinese, quotations."""
    if chinese:
        return _QUOTED.findall(text)
    known = words("en")
    return [t.text for t in found[1:] if t.capital and t.low not in known["lead"]]
