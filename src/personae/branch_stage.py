"""The stage `personae play --from-round`: a play that shares an earlier one's first rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from personae.errors import InputError, UsageError
from personae.models.registry import Registry, model_scheme
from personae.play_stage import SCENES, PlayedScenes, play_scenes, read_plays
from personae.prompts import names, prompt_hash
from personae.records import Backend, Event, Manifest, Play, Scene, content_hash
from personae.session import Options, read_manifest
from personae.stages import seeded
from personae.world.branching import Branching, Cast, cast_in
from personae.world.engine import PAPER_SAMPLING, PERSONAE_SAMPLING
from personae.world.scene_file import read_scenes

BRANCHES = "branches"


@dataclass(frozen=True)
class Branch:
    """A branch before it is played: what it takes over, and who plays from its round on."""

    parent: Path
    manifest: Manifest
    scenes: tuple[Scene, ...]
    only: tuple[str, ...]
    rounds: int
    taken: Branching
    cast: Cast

    @property
    def inside(self) -> Path:
        """Its place within the earlier run, the same whenever the same is asked for."""
        asked = [self.taken.to_dict(), self.cast.to_dict(), self.rounds, list(self.only)]
        asked[0] = {k: v for k, v in self.taken.to_dict().items() if k != "parent"}
        short = content_hash(asked)[:8]
        return self.parent / BRANCHES / f"from-{self.taken.from_round}-{short}"


def plan_branch(
    parent: Path,
    from_round: int,
    *,
    characters: str | None = None,
    narrator: str | None = None,
    by_name: Mapping[str, str] | None = None,
    only: Sequence[str] = (),
    rounds: int | None = None,
    trust_scripts: bool = True,
) -> Branch:
    """What a branch of a play run would be; nothing is asked or written.

    Args:
        parent: the run to leave.
        from_round: the first round that is played anew; one after the last goes on.
        characters, narrator, by_name: who plays from then on; who is not named stays as he was.
        only: scenes of the run; none means all.
        rounds: how many at most, those taken over included; default: as many as the run.
        trust_scripts: whether scripts that the run's manifest names may be run.

    Raises:
        InputError: there is no such run, or it is damaged.
        UsageError: it is no play, was not played that far, or was played with other prompts.
    """
    was = read_manifest(parent)
    if was.kind != "play":
        raise UsageError(f"{parent} is a run of {was.kind!r}; only a play can be branched")
    _check_unchanged(parent, was)
    casts = _casts(parent, was)
    if from_round < 1:
        raise UsageError("--from-round counts from 1")
    rounds = rounds if rounds is not None else _rounds(parent, was)
    if from_round > rounds:
        raise UsageError(
            f"--from-round {from_round} is after the last of {rounds} rounds: nothing would be "
            "played. Give --rounds to go on for longer"
        )
    plays = read_plays(parent)
    scenes = _chosen(parent, only)
    _check_played(parent, plays, scenes, from_round)
    there = {c.name for scene in scenes for c in scene.characters}
    before = cast_in(casts, from_round)
    cast = Cast(
        from_round=from_round,
        characters=characters or before.characters,
        by_name={
            **{name: model for name, model in before.by_name.items() if name in there},
            **(by_name or {}),
        },
        narrator=narrator or before.narrator,
    )
    earlier = tuple(c for c in casts if c.from_round < from_round) or casts[:1]
    named = {characters, narrator, *(by_name or {}).values()}
    for model_id in (m for c in (*earlier, cast) for m in c.ids if m not in named):
        if not trust_scripts and model_scheme(model_id) == "scripted":
            raise UsageError(
                f"{parent} uses {model_id}: going on from it may execute that file; "
                "look at it, then add --trust-scripts"
            )
    taken = Branching(
        parent=str(parent),
        plays=content_hash([play.to_dict() for play in plays]),
        from_round=from_round,
        casts=earlier,
    )
    return Branch(parent, was, scenes, tuple(only), rounds, taken, cast)


async def branch(
    planned: Branch,
    out: Path,
    *,
    heard: Callable[[Scene, Event], None] | None = None,
    seat: Callable[[str], Backend] | None = None,
    options: Options | None = None,
    registry: Registry | None = None,
) -> PlayedScenes:
    """Play a branch (`personae play RUN --from-round N`); the earlier run stays as it is.

    Args:
        out: the run directory of the branch, a play run like any other.

    Raises:
        ReplayMissError: the earlier run's journal does not hold its rounds.
        See also `play_stage.play_scenes`.
    """
    was, cast = planned.manifest, planned.cast
    return await play_scenes(
        planned.parent / SCENES,
        out,
        cast.characters,
        cast.narrator,
        only=planned.only,
        by_name=cast.by_name,
        rounds=planned.rounds,
        protocol=was.protocol,
        language=was.language,
        embedder=was.arguments.get("embedder"),
        seed=was.seed,
        heard=heard,
        branch=planned.taken,
        seat=seat,
        options=options,
        registry=registry,
    )


def _casts(parent: Path, was: Manifest) -> tuple[Cast, ...]:
    """Who played, by the rounds they began in; the run may be a branch itself."""
    try:
        narrators, branched = was.models["narrator"], was.arguments.get("branch")
        taken = None if branched is None else Branching.from_dict(branched)
        last = Cast.from_dict(
            {
                "from_round": 1 if taken is None else taken.from_round,
                "characters": was.arguments["characters"],
                "by_name": was.arguments["by_name"],
                "narrator": narrators[0],
            }
        )
    except (KeyError, IndexError, InputError) as error:
        raise InputError(
            f"does not say who played ({error})", path=parent / "manifest.json"
        ) from None
    return (*(() if taken is None else taken.casts), last)


def _rounds(parent: Path, was: Manifest) -> int:
    rounds = was.arguments.get("rounds")
    if type(rounds) is not int:
        raise InputError("does not say how many rounds", path=parent / "manifest.json")
    return rounds


def _check_unchanged(parent: Path, was: Manifest) -> None:
    """Calls are found again by their content: it must be what this version would ask."""
    language = was.language
    prompts = {f"{language}/{n}": prompt_hash(n, language) for n in names(language, "world")}
    sampling = PAPER_SAMPLING if was.protocol == "paper" else PERSONAE_SAMPLING
    now = {role: seeded(one, was.seed).to_dict() for role, one in sampling.items()}
    for what, same in (("prompts", prompts == was.prompts), ("sampling", now == was.sampling)):
        if not same:
            version = was.versions.get("personae", "another version")
            raise UsageError(
                f"{parent} was played with other {what} than this version's (Personae {version}), "
                "so its rounds cannot be taken over. Play the scenes anew"
            )


def _chosen(parent: Path, only: Sequence[str]) -> tuple[Scene, ...]:
    scenes = read_scenes(parent / SCENES)
    known = {scene.id for scene in scenes}
    for wanted in only:
        if wanted not in known:
            raise UsageError(
                f"{parent} played no scene {wanted!r}; it played: {', '.join(sorted(known)[:20])}"
            )
    return tuple(scene for scene in scenes if not only or scene.id in only)


def _check_played(
    parent: Path, plays: Sequence[Play], scenes: Sequence[Scene], from_round: int
) -> None:
    by_id = {play.scene.id: play for play in plays}
    for scene in scenes:
        play = by_id.get(scene.id)
        if play is None or play.scene_hash != scene.hash:
            raise InputError(
                f"holds no play of the scene {scene.id!r} as it stands in {SCENES}",
                path=parent / "plays.jsonl",
                mend="Go on with that run first: personae resume",
            )
        if play.concluded and play.rounds < from_round:
            raise UsageError(
                f"the scene {scene.id!r} was concluded in round {play.rounds} of {parent}, so "
                f"there is no round {from_round} to play anew. Give an earlier --from-round, or "
                "choose other scenes with --scene"
            )
        if play.rounds < from_round - 1:
            raise UsageError(
                f"{parent} has played {play.rounds} rounds of the scene {scene.id!r}, so there is "
                f"nothing to go on from in round {from_round}. Give an earlier --from-round"
                + ("" if play.complete else ", or go on with that run first: personae resume")
            )
