"""The stage `personae play`: from scenes and models to plays, in a run directory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from personae.earlier import begin_branch, earlier_rounds
from personae.errors import InputError, OutputError, UsageError
from personae.journal.client import Plan
from personae.journal.flow import each
from personae.models.registry import Registry, model_scheme
from personae.records import (
    Backend,
    Call,
    Character,
    Event,
    Language,
    Model,
    Play,
    Reply,
    Scene,
)
from personae.records.files import read_jsonl
from personae.records.trajectory import Protocol
from personae.session import CAST, MANIFEST, Options, Run, new_manifest, open_run, read_manifest
from personae.stages import seeded, write_results
from personae.world.branching import Branching, Cast, cast_in
from personae.world.cast import CardInPlay, find_cards, players, read_cards, write_cards
from personae.world.embedding import Embedder, make_embedder
from personae.world.engine import (
    DEFAULT_ROUNDS,
    PAPER_SAMPLING,
    PERSONAE_SAMPLING,
    Played,
    PlayPlan,
    play_scene,
)
from personae.world.memory import MemoryStream
from personae.world.observe import plain
from personae.world.scene_file import read_scenes, write_scenes

SCENES = "scenes.jsonl"
CARDS = "cards.jsonl"
PLAYS = "plays.jsonl"
VECTORS = "vectors.sqlite"
TYPICAL_TEXT = 160
"""Characters of a text in a reply, where a dry run invents one."""


@dataclass(frozen=True)
class PlayedScenes:
    """What `play_scenes` leaves; in a dry run no plays."""

    run: Path
    plays: tuple[Play, ...]
    plan: Plan | None


def read_plays(path: Path) -> tuple[Play, ...]:
    """The plays of a run directory, or of its plays.jsonl.

    Raises:
        InputError: there is none, or a line is no play.
    """
    file = path / PLAYS if path.is_dir() else path
    return tuple(
        Play.from_dict(line, path=file, place=f"line {number}") for number, line in read_jsonl(file)
    )


async def play_scenes(
    scenes: Path | Sequence[Scene],
    out: Path,
    characters: str,
    narrator: str,
    *,
    only: Sequence[str] = (),
    by_name: Mapping[str, str] | None = None,
    rounds: int = DEFAULT_ROUNDS,
    protocol: Protocol = "personae",
    language: Language | None = None,
    embedder: str | None = None,
    seed: int = 0,
    heard: Callable[[Scene, Event], None] | None = None,
    branch: Branching | None = None,
    seat: Callable[[str], Backend] | None = None,
    options: Options | None = None,
    registry: Registry | None = None,
) -> PlayedScenes:
    """Play scenes (`personae play`); leaves `scenes.jsonl` and `plays.jsonl` in the run.

    Args:
        scenes: a scene file, or the records.
        out: the run directory.
        characters: the model that plays whoever has none of its own; `cast:DIR` plays each
            character through the block of that name.
        only: the ids of the scenes to play; none means all.
        by_name: models of single characters.
        rounds: how many at most.
        language: of the prompts; default: that of the scenes.
        embedder: adds closeness of meaning to the recall of memories (docs/memory.md).
        heard: is told each event as it happens.
        branch: takes the rounds before one from an earlier play (`branch_stage.branch`).
        seat: makes the backend of a `person:NAME`, who plays a character or narrates.

    Raises:
        UsageError: an unknown scene or character, scenes of two languages, a character whom the
            cast has not, other wrong arguments.
        InputError: a file cannot be used.
        StoppedEarlyError: a cap or Ctrl-C; call again to go on. What was played stands in
            plays.jsonl with `complete` false.
    """
    options = options or Options()
    source = scenes if isinstance(scenes, Path) else None
    found = _chosen(read_scenes(scenes) if isinstance(scenes, Path) else scenes, only, source)
    cards = _cards(found, source)
    by_name = dict(by_name or {})
    _check(found, by_name, rounds, source)
    names = list(dict.fromkeys(c.name for scene in found for c in scene.characters))
    if options.live:  # better noticed before a run directory is there
        unused = make_embedder(embedder, timeout=options.timeout)
        if unused is not None:
            await unused.close()
    spoken = language or _language(found)
    sampling = PAPER_SAMPLING if protocol == "paper" else PERSONAE_SAMPLING
    sampling = {role: seeded(s, seed) for role, s in sampling.items()}
    last = Cast(
        from_round=1 if branch is None else branch.from_round,
        characters=characters,
        by_name=by_name,
        narrator=narrator,
    )
    casts = tuple(
        _each_by_name(c, names) for c in (*(() if branch is None else branch.casts), last)
    )
    players_of_all = [m for c in reversed(casts) for m in _players(c, names)]
    if seat is not None:
        registry = registry or Registry(timeout=options.timeout)
        registry.register("person", seat)
    manifest = new_manifest(
        "play",
        {
            "character": list(dict.fromkeys(players_of_all)),
            "narrator": list(dict.fromkeys(cast.narrator for cast in reversed(casts))),
        },
        spoken,
        room="world",
        seed=seed,
        protocol=protocol,
        sampling={role: s.to_dict() for role, s in sampling.items()},
        arguments={
            "scenes": _named(source, out),
            "only": list(only),
            "characters": characters,
            "by_name": by_name,
            "rounds": rounds,
            "embedder": embedder,
            "branch": None if branch is None else branch.to_dict(),
            "cwd": str(Path.cwd()),
        },
        made_from=(
            *(scene.hash for scene in found),
            *(card.hash for card in cards),
            *(() if branch is None else (branch.plays,)),
        ),
    )
    begin = None if branch is None else partial(begin_branch, branch, VECTORS)
    async with open_run(out, manifest, options, registry=registry, begin=begin) as run:
        if options.live:
            write_scenes(found, out / SCENES)
            if cards:
                write_cards(cards, out / CARDS)
        store = None if run.dry else out / VECTORS
        vectors = make_embedder(
            None if run.dry else embedder,
            store=store,
            replay=options.replay,
            timeout=options.timeout,
        )
        plan = PlayPlan(
            characters=lambda name, now: cast_in(casts, now).of(name),
            narrator=lambda now: cast_in(casts, now).narrator,
            rounds=rounds,
            protocol=protocol,
            language=spoken,
            sampling=sampling,
            memory=partial(_memory, spoken, vectors),
            heard=heard,
        )
        try:
            by_card = {card.card: card.character for card in cards}
            with earlier_rounds(run, branch, spoken) as model:
                plays = await play_in(run, found, plan, by_card, model)
        finally:
            if vectors is not None:
                await vectors.close()
        return PlayedScenes(out, () if run.dry else plays, run.plan)


async def play_in(
    run: Run,
    scenes: Sequence[Scene],
    plan: PlayPlan,
    cards: Mapping[str, Character],
    model: Model | None = None,
) -> tuple[Play, ...]:
    """Play in an open run, many scenes at once, and write its plays.jsonl.

    Args:
        cards: by the reference that a scene has.
        model: who is asked; default: the run's client.

    Raises:
        StoppedEarlyError: a cap or Ctrl-C; plays.jsonl holds what there is.
    """
    model = model or run.client
    if run.dry:
        model = Fullest(model)

    async def one(scene: Scene) -> Played:
        brought = players(scene, cards, plan.language, run.manifest.seed)
        return await play_scene(model, scene, plan, brought)

    done = await each(
        scenes, one, stage="play", window=run.options.window, watcher=run.options.watcher
    )
    plays = tuple(played.play for played in done)
    stopped = next((played.stopped for played in done if played.stopped is not None), None)
    if run.options.live:
        if stopped is None:
            write_results(plays, run.path / PLAYS)
        else:
            with contextlib.suppress(OutputError):  # the stop is what the user must hear of
                write_results(plays, run.path / PLAYS)
    if stopped is not None:
        raise stopped
    return plays


class Fullest:
    """A dry run's model: every act is open and affects somebody, so that no play has more calls.

    Its texts are as long as those of a play usually are, since they stand in later prompts.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    async def ask(self, call: Call) -> Reply:
        """The reply, made to lead to as many calls as any."""
        reply = await self._model.ask(call)
        if reply.reused or call.reply_schema is None or not isinstance(reply.value, dict):
            return reply  # what the journal holds is known, and needs no guess
        properties = call.reply_schema.body["properties"]
        value = {
            name: (given * TYPICAL_TEXT)[:TYPICAL_TEXT]
            if isinstance(given, str) and "enum" not in properties[name]
            else given
            for name, given in reply.value.items()
        }
        if "manner" in properties:
            value |= {"manner": "open", "to": []}
        if "affected" in properties:
            value["affected"] = properties["affected"]["enum"][0]
        if "changes" in properties:
            value["changes"] = []
        return reply.model_copy(update={"value": value})


def _cards(scenes: Sequence[Scene], source: Path | None) -> tuple[CardInPlay, ...]:
    """The cards of the scenes; a run that has a copy of the scenes has copies of these too."""
    folder = Path.cwd() if source is None else source.parent
    if source is not None and source.name == SCENES and (folder / MANIFEST).is_file():
        wanted = {c.card for scene in scenes for c in scene.characters if c.card}
        kept = read_cards(folder / CARDS) if (folder / CARDS).is_file() else ()
        if wanted == {card.card for card in kept} & wanted:
            return tuple(card for card in kept if card.card in wanted)
    return find_cards(scenes, folder)


def _named(source: Path | None, out: Path) -> str | None:
    """The scene file that a run was first given; it is resumed from the copy it keeps."""
    if source is not None and source.resolve() == (out / SCENES).resolve():
        named: str | None = read_manifest(out).arguments.get("scenes")
        return named
    return None if source is None else str(source)


def _memory(language: Language, embedder: Embedder | None) -> MemoryStream:
    return MemoryStream(language, embedder=embedder)


def _chosen(scenes: Sequence[Scene], only: Sequence[str], path: Path | None) -> tuple[Scene, ...]:
    if not scenes:
        raise InputError("holds no scene", path=path)
    if not only:
        return tuple(scenes)
    known = {scene.id for scene in scenes}
    for wanted in only:
        if wanted not in known:
            raise UsageError(
                f"there is no scene {wanted!r}; there are: {', '.join(sorted(known)[:20])}"
            )
    return tuple(scene for scene in scenes if scene.id in set(only))


def _check(
    scenes: Sequence[Scene], by_name: Mapping[str, str], rounds: int, path: Path | None
) -> None:
    if rounds < 1:
        raise UsageError("--rounds counts from 1")
    for scene in scenes:
        for one in scene.characters:
            if plain(one.name) != one.name:  # a model would name it as it reads it
                raise InputError(
                    f"the name {one.name!r} cannot stand in a sentence",
                    path=path,
                    place=f"scene {scene.id}",
                    mend="Write it on one line, with single spaces and no angle brackets",
                )
    names = {c.name for scene in scenes for c in scene.characters}
    for name in by_name:
        if name not in names:
            raise UsageError(
                f"--character or --as names {name!r}, who is in none of the scenes; "
                f"there are: {', '.join(sorted(names)[:20])}"
            )


def _each_by_name(cast: Cast, names: Sequence[str]) -> Cast:
    """The same players, with `cast:DIR` pinned to each character whom it plays.

    Raises:
        UsageError: that cast has no such character.
    """
    whole = {
        name: model
        for name in names
        if model_scheme(model := cast.of(name)) == CAST and "#" not in model
    }
    if not whole:
        return cast
    from personae.cast.backend import pinned

    fixed = {name: pinned(model, [name])[name] for name, model in whole.items()}
    return cast.model_copy(update={"by_name": {**cast.by_name, **fixed}})


def _players(cast: Cast, names: Sequence[str]) -> list[str]:
    """The models of a cast's characters; the one for all of them only where it plays somebody."""
    own = list(cast.by_name.values())
    if model_scheme(cast.characters) == CAST and all(name in cast.by_name for name in names):
        return own
    return [cast.characters, *own]


def _language(scenes: Sequence[Scene]) -> Language:
    languages = {scene.language for scene in scenes}
    if len(languages) > 1:
        raise UsageError(
            "the scenes are in two languages and a run has one: choose with --scene, or force one "
            "with --lang"
        )
    return next(iter(languages))
