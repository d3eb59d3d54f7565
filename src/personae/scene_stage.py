"""The stage `personae scene write`: from a book or a cast to scenes, in a run beside the file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from personae.errors import InputError, UsageError
from personae.journal.client import Plan
from personae.judging.writers import Comparison, summarise
from personae.models.registry import Registry
from personae.records import Character, Language, Record, Shortfall, content_hash
from personae.records.files import write_atomically
from personae.records.language import written_in
from personae.records.scene import Origin
from personae.session import Options, new_manifest, open_run
from personae.stages import run_beside, seeded
from personae.world.book import FEWEST_TOKENS, PASSAGE_TOKENS, passages, read_book
from personae.world.scene_file import write_scenes
from personae.world.sources import BookSupply, CastSupply, Member, Supply
from personae.world.writing import (
    DIRECTOR_SAMPLING,
    REVIEWER_SAMPLING,
    ROUNDS,
    THRESHOLD,
    WRITER_SAMPLING,
    Rule,
    WritePlan,
    Written,
    compare_writers,
    craft_scenes,
)

KIND = "scene write"
REVIEWS = "reviews.jsonl"
REJECTED = "rejected.jsonl"
COMPARISON_ROWS = "comparison.jsonl"
COMPARISON = "comparison.json"

MOST_TOLD = 6_000  # characters of a card's description that a writer is given


@dataclass(frozen=True)
class WroteScenes:
    """What `write` leaves: the scenes, what was rejected, where; or a dry run's plan."""

    path: Path
    run: Path
    rule: Rule
    written: Written
    plan: Plan | None


@dataclass(frozen=True)
class ComparedWriters:
    """What `compare` leaves; `scenes` were delivered, by whomever.

    Attributes:
        shortfall: of sources, where book or cast has fewer than were asked for.
    """

    path: Path
    run: Path
    scenes: int
    shortfall: Shortfall | None
    comparison: Comparison
    plan: Plan | None


@dataclass(frozen=True)
class Stuff:
    """What scenes are to be made from.

    Attributes:
        supply: makes a fresh supply of its sources.
        made_from: content hashes of the book or of the cards.
    """

    language: Language
    origin: Origin
    supply: Callable[[], Supply]
    made_from: tuple[str, ...]


def read_stuff(
    out: Path,
    book: Path | None,
    cast: Path | None,
    *,
    language: Language | None = None,
    title: str | None = None,
    origin: Origin | None = None,
    chunk_tokens: int = PASSAGE_TOKENS,
    overlap: int | None = None,
    seed: int = 0,
) -> Stuff:
    """A book, a folder of cards, or the starter cast, ready to be handed out.

    Args:
        out: the scene file; references to cards are relative to it.
        language: None takes that of the book or of most cards; English for the starter cast.
        title: of the scenes; None takes the name of the file or folder.
        origin: of scenes from a book; None extracts them.

    Raises:
        UsageError: wrong arguments.
        InputError: the book or a card cannot be read; fewer than two characters; two of one name.
    """
    if chunk_tokens < FEWEST_TOKENS:
        raise UsageError(f"--chunk-tokens counts from {FEWEST_TOKENS}")
    if overlap is not None and not 0 <= overlap < chunk_tokens / 2:
        raise UsageError("--overlap is less than half of --chunk-tokens")
    if book is not None and cast is not None:
        raise UsageError("--book and --cast exclude each other")
    if book is not None:
        text = read_book(book)
        found = passages(text, tokens=chunk_tokens, overlap=overlap)
        name = title or book.stem
        said = f"{book.name}, passages of {chunk_tokens} tokens"
        return Stuff(
            language or written_in(p.text for p in found),
            origin or "extracted",
            lambda: BookSupply(name, found, said),
            (content_hash(text),),
        )
    if origin == "extracted":
        raise UsageError("scenes are extracted from a book: give --book FILE")
    people = _cards(cast, out.parent) if cast is not None else _starters(language or "en")
    if len(people) < 2:
        raise InputError("a scene needs two characters at the least", path=cast)
    members = [member for _, member, _ in people]
    ((usual, _),) = Counter(tongue for _, _, tongue in people).most_common(1)
    name = title or (cast.resolve().name if cast is not None else "starter")
    return Stuff(
        language or usual,
        "generated",
        lambda: CastSupply(name, members, seed),
        tuple(sorted(digest for digest, _, _ in people)),
    )


_Person = tuple[str, Member, Language]


def _cards(folder: Path, beside: Path) -> list[_Person]:
    from personae.characters.importers import characters_of

    seen: dict[str, Path] = {}
    people = []
    for file, character in characters_of(folder):
        name = character.name.strip()
        if name in seen:
            raise InputError(
                f"{name!r} is in {seen[name].name} already",
                path=file,
                mend="Leave one card of the two in the folder",
            )
        seen[name] = file
        card = Path(os.path.relpath(file.resolve(), beside.resolve())).as_posix()
        people.append(_person(character, card))
    return people


def _starters(language: Language) -> list[_Person]:
    from personae.characters.starter import SCHEME, starter_cast

    return [
        _person(character, f"{SCHEME}{name}")
        for name, character in starter_cast(language).items()
        if not name.startswith("disc-")  # types, made for a scene of their own (appendix C)
    ]


def _person(character: Character, card: str) -> _Person:
    from personae.characters.macros import STRANGER, expand

    parts = (character.description, character.personality)
    tongue = character.ours.language or written_in(parts)
    name = character.name.strip()
    texts = [
        expand(part, char=character.called, user=STRANGER[tongue], seed=0).strip() for part in parts
    ]
    told = "\n\n".join([name, *filter(None, texts)])
    return content_hash(character.to_dict()), Member(name, told[:MOST_TOLD], card), tongue


async def write(
    out: Path,
    writer: str,
    wanted: int,
    *,
    director: str | None = None,
    reviewer: str | None = None,
    book: Path | None = None,
    cast: Path | None = None,
    language: Language | None = None,
    title: str | None = None,
    origin: Origin | None = None,
    chunk_tokens: int = PASSAGE_TOKENS,
    overlap: int | None = None,
    max_rounds: int = ROUNDS,
    threshold: float = THRESHOLD,
    seed: int = 0,
    options: Options | None = None,
    registry: Registry | None = None,
) -> WroteScenes:
    """Have scenes written in three stages (`personae scene write`); its run is `OUT.run`.

    Accepted scenes go to `out`, if there are any; their reviews to reviews.jsonl of the run, all
    other attempts with their reasons to rejected.jsonl.

    Args:
        out: the scene file to write.
        writer: the screenwriter; director and reviewer are the same model unless given.
        wanted: how many scenes.
        book, cast: a text file, or a folder of cards; neither takes the starter cast.
        threshold: least mean of a scene's scores (see `Rule`).

    Raises:
        UsageError: wrong arguments.
        InputError: a file cannot be used.
        StoppedEarlyError: a cap; call again to go on.
    """
    options = options or Options()
    _check(wanted, max_rounds, threshold)
    stuff = read_stuff(
        out, book, cast, language=language, title=title, origin=origin,
        chunk_tokens=chunk_tokens, overlap=overlap, seed=seed,
    )  # fmt: skip
    plan = WritePlan(
        writer=writer,
        director=director or writer,
        reviewer=reviewer or writer,
        language=stuff.language,
        rounds=max_rounds,
        rule=Rule(mean=threshold),
        rehearsal=options.dry_run,
        **_samplings(seed),
    )
    manifest = new_manifest(
        KIND,
        {
            "screenwriter": [plan.writer],
            "director": [plan.director],
            "reviewer": [plan.reviewer],
        },
        stuff.language,
        room="scenes",
        seed=seed,
        sampling=_sampling_dicts(plan),
        arguments={
            "compare": False,
            "out": str(out),
            "n": wanted,
            **_stuff_arguments(book, cast, title, origin, chunk_tokens, overlap),
            "max_rounds": max_rounds,
            "threshold": threshold,
        },
        made_from=stuff.made_from,
    )
    path = run_beside(out)
    async with open_run(path, manifest, options, registry=registry) as run:
        written = await craft_scenes(
            run.client,
            plan,
            stuff.supply(),
            wanted,
            origin=stuff.origin,
            window=options.window,
            watcher=options.watcher,
        )
        if options.live:
            _write_lines(path / REVIEWS, written.accepted)
            _write_lines(path / REJECTED, written.rejected)
        if not run.dry and written.scenes:
            write_scenes(written.scenes, out)
        return WroteScenes(out, path, plan.rule, written, run.plan)


async def compare(
    out: Path,
    writers: Sequence[str],
    reviewer: str,
    units: int,
    *,
    book: Path | None = None,
    cast: Path | None = None,
    language: Language | None = None,
    title: str | None = None,
    chunk_tokens: int = PASSAGE_TOKENS,
    overlap: int | None = None,
    max_rounds: int = ROUNDS,
    threshold: float = THRESHOLD,
    seed: int = 0,
    options: Options | None = None,
    registry: Registry | None = None,
) -> ComparedWriters:
    """Compare writers on the four criteria (`personae scene write --compare`; Table 4).

    Every writer makes one scene of each source, by single pass and in three stages; of a book's
    passages one that is extracted and one that is invented, of a cast's groups one that is
    invented. `out` holds all that were delivered, the run comparison.jsonl and comparison.json.

    Args:
        units: how many sources.
        reviewer: scores every scene; it takes no part in the three stages.

    Raises:
        UsageError: wrong arguments.
        InputError: a file cannot be used.
        StoppedEarlyError: a cap; call again to go on.
    """
    options = options or Options()
    _check(units, max_rounds, threshold)
    if len(set(writers)) != len(writers) or not writers:
        raise UsageError("give one --writer or more, each once")
    stuff = read_stuff(
        out, book, cast, language=language, title=title,
        chunk_tokens=chunk_tokens, overlap=overlap, seed=seed,
    )  # fmt: skip
    plan = WritePlan(
        writer=writers[0],
        director=writers[0],
        reviewer=reviewer,
        language=stuff.language,
        rounds=max_rounds,
        rule=Rule(mean=threshold),
        rehearsal=options.dry_run,
        **_samplings(seed),
    )
    manifest = new_manifest(
        KIND,
        {"screenwriter": writers, "reviewer": [reviewer]},
        stuff.language,
        room="scenes",
        seed=seed,
        sampling=_sampling_dicts(plan),
        arguments={
            "compare": True,
            "out": str(out),
            "n": units,
            **_stuff_arguments(book, cast, title, None, chunk_tokens, overlap),
            "max_rounds": max_rounds,
            "threshold": threshold,
        },
        made_from=stuff.made_from,
    )
    sources = stuff.supply().next(units)
    short = None
    if len(sources) < units:
        cause = "the cast has no more groups" if book is None else "the book has no more passages"
        short = Shortfall(what="sources", wanted=units, got=len(sources), cause=cause)
    origins: tuple[Origin, ...] = ("generated",) if book is None else ("extracted", "generated")
    path = run_beside(out)
    async with open_run(path, manifest, options, registry=registry) as run:
        found = await compare_writers(
            run.client,
            plan,
            writers,
            dict.fromkeys(origins, sources),
            window=options.window,
            watcher=options.watcher,
        )
        comparison = summarise(found.rows, reviewer, seed=seed)
        if options.live:
            _write_lines(path / COMPARISON_ROWS, found.rows)
            _write_lines(path / REJECTED, found.rejected)
            text = json.dumps(comparison.to_dict(), ensure_ascii=False, indent=2)
            write_atomically(path / COMPARISON, text + "\n")
        if not run.dry and found.scenes:
            write_scenes(found.scenes, out)
        return ComparedWriters(out, path, len(found.scenes), short, comparison, run.plan)


def _check(wanted: int, max_rounds: int, threshold: float) -> None:
    if wanted < 1 or max_rounds < 1:
        raise UsageError("--n and --max-rounds count from 1")
    if not 1 <= threshold <= 5:
        raise UsageError("--threshold is a mean of scores, from 1 to 5")


def _samplings(seed: int) -> dict[str, Any]:
    return {
        "writer_sampling": seeded(WRITER_SAMPLING, seed),
        "director_sampling": seeded(DIRECTOR_SAMPLING, seed),
        "reviewer_sampling": seeded(REVIEWER_SAMPLING, seed),
    }


def _sampling_dicts(plan: WritePlan) -> dict[str, dict[str, Any]]:
    return {
        "screenwriter": plan.writer_sampling.to_dict(),
        "director": plan.director_sampling.to_dict(),
        "reviewer": plan.reviewer_sampling.to_dict(),
    }


def _stuff_arguments(
    book: Path | None,
    cast: Path | None,
    title: str | None,
    origin: Origin | None,
    chunk_tokens: int,
    overlap: int | None,
) -> Mapping[str, Any]:
    return {
        "book": None if book is None else str(book),
        "cast": None if cast is None else str(cast),
        "title": title,
        "origin": origin,
        "chunk_tokens": chunk_tokens,
        "overlap": overlap,
        "cwd": str(Path.cwd()),
    }


def _write_lines(path: Path, records: Iterable[Record]) -> None:
    write_atomically(path, (record.to_json() + "\n" for record in records))
