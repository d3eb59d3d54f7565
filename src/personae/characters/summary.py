"""What a card holds, in short: for people who look at it, and for programs that ask."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from personae.characters.card import Card, Container
from personae.characters.lint import Tokens, lint, tokens_of
from personae.characters.reading import Finding, Version
from personae.errors import InputError
from personae.records.base import Record
from personae.records.benchmark import Language
from personae.records.shown import clean

EXCERPT = 300


class BookSummary(Record):
    """A lorebook in numbers of entries."""

    name: str
    entries: int
    enabled: int
    constant: int


class CardSummary(Record):
    """What a card holds. Texts are cut at 300 characters and fit to be shown.

    Attributes:
        called: what `{{char}}` stands for.
        alternate_greetings, group_only_greetings: how many.
        overrides: which of system_prompt and post_history_instructions the card has.
        assets: as `type/name.ext`.
        files: in the archive of a CHARX, `card.json` not counted.
        extensions: their names.
        language, voice, secrets, dialogue: what Personae keeps in the card; secrets and dialogue
            are counts, null where `extensions.personae` cannot be read.
        errors, hints: how many `character lint` has.
    """

    file: str
    container: Container
    version: Version
    name: str
    called: str
    description: str
    personality: str
    scenario: str
    first_mes: str
    creator_notes: str
    creator: str
    character_version: str
    tags: tuple[str, ...]
    alternate_greetings: int
    group_only_greetings: int
    overrides: tuple[Literal["system_prompt", "post_history_instructions"], ...]
    lorebook: BookSummary | None
    assets: tuple[str, ...]
    files: int
    extensions: tuple[str, ...]
    language: Language | None
    voice: str
    secrets: int | None
    dialogue: int | None
    tokens: Tokens
    errors: int
    hints: int


class LintReport(Record):
    """What is to be said of a card; errors first."""

    file: str
    container: Container
    version: Version
    tokens: Tokens
    errors: int
    hints: int
    findings: tuple[Finding, ...]


class NotExpressed(Record):
    """Something that the written form cannot express, and where it is kept."""

    place: str
    message: str


class Conversion(Record):
    """A card that was written in another form.

    Attributes:
        was: the version that was read.
        to: the version that was asked for.
    """

    file: str
    was: Version
    out: str
    to: Literal["v1", "v2", "v3", "charx"]
    not_expressed: tuple[NotExpressed, ...]


def excerpt(text: str) -> str:
    """The beginning of a text, fit to be shown."""
    text = clean(text.strip())
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1].rstrip() + "…"


def plain(finding: Finding) -> Finding:
    """The finding with texts fit to be shown."""
    return Finding(level=finding.level, place=clean(finding.place), message=clean(finding.message))


def lint_report(card: Card, file: Path) -> LintReport:
    """All that is to be said of a card."""
    findings = tuple(plain(finding) for finding in lint(card))
    errors = sum(finding.level == "error" for finding in findings)
    return LintReport(
        file=clean(str(file)),
        container=card.container,
        version=card.version,
        tokens=tokens_of(card.character),
        errors=errors,
        hints=len(findings) - errors,
        findings=findings,
    )


def summary(card: Card, file: Path) -> CardSummary:
    """What a card holds."""
    character, book = card.character, card.character.character_book
    report = lint_report(card, file)
    try:
        ours = character.ours
    except InputError:  # `lint` says so, and its errors are counted here
        ours = None
    return CardSummary(
        file=report.file,
        container=card.container,
        version=card.version,
        name=clean(character.name),
        called=clean(character.called),
        description=excerpt(character.description),
        personality=excerpt(character.personality),
        scenario=excerpt(character.scenario),
        first_mes=excerpt(character.first_mes),
        creator_notes=excerpt(character.creator_notes),
        creator=clean(character.creator),
        character_version=clean(character.character_version),
        tags=tuple(map(clean, character.tags)),
        alternate_greetings=len(character.alternate_greetings),
        group_only_greetings=len(character.group_only_greetings),
        overrides=(
            *(("system_prompt",) if character.system_prompt else ()),
            *(("post_history_instructions",) if character.post_history_instructions else ()),
        ),
        lorebook=None
        if book is None
        else BookSummary(
            name=clean(book.name or ""),
            entries=len(book.entries),
            enabled=sum(entry.enabled for entry in book.entries),
            constant=sum(bool(entry.constant) for entry in book.entries),
        ),
        assets=tuple(clean(f"{a.type}/{a.name}.{a.ext}") for a in character.assets or ()),
        files=len(card.charx.members) - 1 if card.charx else 0,
        extensions=tuple(map(clean, character.extensions)),
        language=ours and ours.language,
        voice=excerpt(ours.voice) if ours else "",
        secrets=None if ours is None else len(ours.secrets),
        dialogue=None if ours is None else len(ours.dialogue),
        tokens=report.tokens,
        errors=report.errors,
        hints=report.hints,
    )
