"""Rating trajectories (CharacterBox, section 3.3) and narrators (section 6.5).

A trajectory is the scene, the character, and in order what it observed and did. A judge writes a
critique of the whole first, then scores each metric with the critique in its prompt: one call a
metric, so that no score leans on another. All calls of a judge over one trajectory begin with the
same words (rules, scene, character, trajectory), so that a server computes them once. A critique
that cannot be had leaves its metrics missing: a score without one would be another measure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from personae.judging.judge import verdict_fields
from personae.judging.metrics import CRITIQUES, KEYS, RATINGS, Kind, load_metric
from personae.prompts import render
from personae.prompts.rating_schemas import critique_schema, rating_schema
from personae.records import (
    Call,
    Event,
    Failure,
    Language,
    Model,
    Play,
    RatingRow,
    Sampling,
    Secret,
    WorldState,
)
from personae.records.scene import Scene, SceneCharacter
from personae.records.trajectory import Protocol
from personae.world.observe import ACTS, acts_missing, view

RATING_SAMPLING = Sampling(temperature=0.0, max_tokens=2048)
"""Judges at temperature 0, as for single answers."""

NARRATIONS = frozenset({"influence", "result", "update"})
"""Kinds of events that a narrator is rated by."""

_PRIVATE = frozenset({"belief", "failure", "concluded"})
"""Kinds that no trajectory shows: what was thought, what could not be had, how it was ended."""

_OF_CHARACTERS = ("position", "state", "place")
_AROUND = ("time", "location", "description")

Seat = tuple[str, int]
"""A judge and its repeat number."""


@dataclass(frozen=True)
class Line:
    """One thing that was done, said or told; `actor` None is the narrator.

    Attributes:
        affected: whom an influence or a change is about; None is the scene itself.
        aspect: what changed: `position`, `state`, `place`, `time`, `location`, `description` or
            `surroundings`; `text` is what it is now.
    """

    kind: str
    text: str
    actor: str | None = None
    to: tuple[str, ...] = ()
    whisper: bool = False
    affected: str | None = None
    aspect: str | None = None


@dataclass(frozen=True)
class Entry:
    """What stands between two tags of the prompt: an observation, or what is judged (`own`)."""

    own: bool
    round: int
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Case:
    """What a judge is shown of one play: a character's trajectory, or the narrator's work.

    Attributes:
        unit_id: scene, character and model; for a narrator scene and model.
        character: None for a narrator.
        profile: what the character was told of itself beside its line in the scene.
        secrets: what it knew and not everyone did; for a narrator all of them.
        model: who played (or narrated). Stands in rows, never in a prompt.
        acts_missing: share (0 to 1) of its acts that could not be had; of a narrator, of the turns
            that lack an answer.
    """

    unit_id: str
    scene: Scene
    language: Language
    entries: tuple[Entry, ...]
    model: str
    narrator: str
    character: SceneCharacter | None = None
    profile: str = ""
    secrets: tuple[Secret, ...] = ()
    acts_missing: float = 0.0

    @property
    def kind(self) -> Kind:
        """Whether a character or a narrator is rated."""
        return "narrator" if self.character is None else "characters"

    @property
    def title(self) -> str:
        """The work that the scene belongs to."""
        return self.scene.title

    @property
    def others(self) -> tuple[SceneCharacter, ...]:
        """The scene's other characters."""
        return tuple(c for c in self.scene.characters if c is not self.character)

    @property
    def acts(self) -> tuple[Entry, ...]:
        """The entries that are judged."""
        return tuple(entry for entry in self.entries if entry.own)


@dataclass(frozen=True)
class Known:
    """What a character knew by the cards beside its line in the scene, as the play put it to it."""

    profile: str = ""
    secrets: tuple[Secret, ...] = ()


def unit_id(play: Play, name: str) -> str:
    """The id of one character's trajectory, shared by all its judges and by people's ratings."""
    return f"{play.scene.id}#{name}@{play.models[name]}"


def narrator_unit_id(play: Play) -> str:
    """The id of the narrator's work in one play."""
    return f"{play.scene.id}#@{play.narrator}"


def trajectory_of(play: Play, name: str, known: Known | None = None) -> Case:
    """The trajectory of one character: tau = {E, c, o1, a1, ...} of section 3.3.

    It observed the events that it perceived, and what changed of the state that it can see. Beliefs
    and plans are not part of it: nobody in the scene perceives them. A reply that could not be had
    leaves nothing (it is counted in `acts_missing`).

    Raises:
        KeyError: no character of the scene has that name, or nobody played it.
    """
    known = known or Known()
    character = next((c for c in play.scene.characters if c.name == name), None)
    if character is None:
        raise KeyError(f"there is no {name!r} in the scene {play.scene.id!r}")
    told = [s for s in play.scene.secrets if name in s.known_by]

    def seen(before: WorldState, after: WorldState) -> Iterator[Line]:
        return _seen_changes(play.scene, before, after, name)

    perceived = {id(e) for e in play.seen_by(name)}
    return Case(
        unit_id=unit_id(play, name),
        scene=play.scene,
        language=play.language,
        entries=_entries(
            [
                (event.actor == name and line.kind in ACTS, event, line)
                for event, line in _lines(play, seen)
                if id(event) in perceived or line.aspect is not None
            ]
        ),
        model=play.models[name],
        narrator=play.narrator,
        character=character,
        profile=known.profile,
        secrets=tuple(dict.fromkeys([*told, *known.secrets])),
        acts_missing=acts_missing(play, name) or 0.0,
    )


def narration_of(play: Play, known: Sequence[Known] = ()) -> Case:
    """All that was done in a play, with the narrator's answers as what is judged.

    Args:
        known: what the characters know; a narrator knows all their secrets.
    """
    secrets = [*play.scene.secrets, *(secret for one in known for secret in one.secrets)]
    return Case(
        unit_id=narrator_unit_id(play),
        scene=play.scene,
        language=play.language,
        entries=_entries(
            [
                (event.actor is None and line.kind in NARRATIONS, event, line)
                for event, line in _lines(play, _all_changes)
            ]
        ),
        model=play.narrator,
        narrator=play.narrator,
        secrets=tuple(dict.fromkeys(secrets)),
        acts_missing=_narrations_missing(play),
    )


def cases_of(
    plays: Sequence[Play],
    kind: Kind = "characters",
    known: Mapping[tuple[str, str], Known] | None = None,
) -> list[Case]:
    """Everything that is to be rated, in the order of plays and of the scene's characters.

    Args:
        known: by scene id and character name.
    """
    known = known or {}
    if kind == "narrator":
        return [
            narration_of(
                play,
                [known.get((play.scene.id, c.name), Known()) for c in play.scene.characters],
            )
            for play in plays
        ]
    return [
        trajectory_of(play, c.name, known.get((play.scene.id, c.name)))
        for play in plays
        for c in play.scene.characters
    ]


Changes = Callable[[WorldState, WorldState], Iterator[Line]]


def _lines(play: Play, changes: Changes) -> Iterator[tuple[Event, Line]]:
    """The events of a play that can be told, in order; a change of state is what changed.

    Who goes elsewhere finds there what is to be seen, and is seen. All of a round arrive at once.
    """
    state: WorldState | None = None
    for event, following in zip(play.events, (*play.events[1:], None), strict=True):
        if event.state is not None and not _arrives(event):
            if event.kind == "update" and state is not None:
                for line in changes(state, event.state):
                    yield event, line
            state = event.state
        if event.kind not in _PRIVATE and event.text.strip():
            yield (
                event,
                Line(
                    kind=event.kind,
                    text=event.text,
                    actor=event.actor,
                    to=event.to,
                    whisper=event.manner == "whisper",
                    affected=event.affected,
                ),
            )
        if _arrives(event) and not (following is not None and _arrives(following)):
            if state is not None and event.state is not None:
                for line in changes(state, event.state):
                    if line.aspect != "place":  # has been told, as going there
                        yield event, line
            state = event.state


def _arrives(event: Event) -> bool:
    """Whether somebody is at another place from now on."""
    return event.kind == "update" and event.actor is not None


def _seen_changes(scene: Scene, before: WorldState, after: WorldState, name: str) -> Iterator[Line]:
    """What a character can see of a change."""
    was, now = view(scene, before, name), view(scene, after, name)
    for aspect in ("position", "state", "place", *_AROUND, "surroundings"):
        text = getattr(now, aspect)
        if text and text != getattr(was, aspect):
            who = name if aspect in _OF_CHARACTERS else None
            yield Line("update", text, affected=who, aspect=aspect)
    positions = {o.name: o.position for o in was.others}
    for other in now.others:
        if other.position and other.position != positions.get(other.name):
            yield Line("update", other.position, affected=other.name, aspect="position")


def _all_changes(before: WorldState, after: WorldState) -> Iterator[Line]:
    for name, now in after.characters.items():
        was = before.characters[name]
        for aspect in _OF_CHARACTERS:
            text = getattr(now, aspect)
            if text and text != getattr(was, aspect):
                yield Line("update", text, affected=name, aspect=aspect)
    for aspect in _AROUND:
        text = getattr(after.environment, aspect)
        if text and text != getattr(before.environment, aspect):
            yield Line("update", text, aspect=aspect)
    for place, text in after.places.items():
        if text and text != before.places.get(place):
            yield Line("update", text, affected=place or None, aspect="surroundings")


def _entries(told: Sequence[tuple[bool, Event, Line]]) -> tuple[Entry, ...]:
    """Observations of a round that follow one another are one entry; acts are one a turn."""
    found: list[Entry] = []
    last: int | None = None
    for own, event, line in told:
        turn = event.turn if own else None
        if found and (found[-1].own, found[-1].round, last) == (own, event.round, turn):
            found[-1] = replace(found[-1], lines=(*found[-1].lines, line))
        else:
            found.append(Entry(own, event.round, (line,)))
        last = turn
    return tuple(found)


def _narrations_missing(play: Play) -> float:
    """The share (0 to 1) of the turns of which an answer of the narrator could not be had.

    Of turns and not of answers: one that affects nobody and changes nothing leaves no event.
    """
    turns = {(e.round, e.turn) for e in play.events if e.kind in ACTS}
    lost = {(e.round, e.turn) for e in play.events if e.kind == "failure" and e.actor is None}
    return len(turns & lost) / len(turns) if turns else 0.0


# Asking -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rating:
    """What a judge said of one case on one metric: a score, or why there is none."""

    score: int | None = None
    justification: str | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class CaseRatings:
    """A judge's critique of one case, where there is one, and its rating on each metric."""

    critique: str | None
    by_metric: dict[str, Rating]


def critique_call(
    judge: str,
    case: Case,
    *,
    sampling: Sampling = RATING_SAMPLING,
    repeat: int = 0,
    meta: Mapping[str, str | int] | None = None,
) -> Call:
    """The call that has a whole trajectory criticised, before anything is scored."""
    return Call(
        role="judge",
        model=judge,
        messages=render(CRITIQUES[case.kind], case.language, case=case),
        sampling=sampling,
        reply_schema=critique_schema(),
        repeat=repeat,
        meta={**_meta(case), "step": "critique", **(meta or {})},
    )


def rating_call(
    judge: str,
    case: Case,
    metric: str,
    critique: str,
    *,
    protocol: Protocol = "personae",
    sampling: Sampling = RATING_SAMPLING,
    repeat: int = 0,
    meta: Mapping[str, str | int] | None = None,
) -> Call:
    """The call that has one metric scored, the critique in its prompt.

    Under `personae` the judge justifies its score; under `paper` the critique alone does.
    """
    justified = protocol == "personae"
    return Call(
        role="judge",
        model=judge,
        messages=render(
            RATINGS[case.kind],
            case.language,
            case=case,
            critique=critique,
            metric=load_metric(metric, case.language),
            justified=justified,
        ),
        sampling=sampling,
        reply_schema=rating_schema(justified=justified),
        repeat=repeat,
        meta={**_meta(case), "step": "rating", "metric": metric, **(meta or {})},
    )


def _meta(case: Case) -> dict[str, str | int]:
    found: dict[str, str | int] = {"scene": case.scene.id, "unit": case.unit_id}
    if case.character is not None:
        found["character"] = case.character.name
    return found


async def rate_case(
    model: Model,
    judge: str,
    case: Case,
    *,
    metrics: Sequence[str] | None = None,
    protocol: Protocol = "personae",
    sampling: Sampling = RATING_SAMPLING,
    repeat: int = 0,
    meta: Mapping[str, str | int] | None = None,
) -> CaseRatings:
    """One judge's critique and ratings of one case.

    Args:
        metrics: default: all of the case's kind.
    """
    wanted = tuple(metrics or KEYS[case.kind])
    if not case.acts:
        nothing = Failure(cause="no_acts", detail="there is nothing to rate")
        return CaseRatings(None, dict.fromkeys(wanted, Rating(failure=nothing)))
    first = await model.ask(critique_call(judge, case, sampling=sampling, repeat=repeat, meta=meta))
    if not first.ok:
        assert first.failure is not None
        lacking = Failure(cause=f"critique: {first.failure.cause}", detail=first.failure.detail)
        return CaseRatings(None, dict.fromkeys(wanted, Rating(failure=lacking)))
    critique = str(first.value["critique"])

    async def rated(metric: str) -> Rating:
        reply = await model.ask(
            rating_call(
                judge,
                case,
                metric,
                critique,
                protocol=protocol,
                sampling=sampling,
                repeat=repeat,
                meta=meta,
            )
        )
        return Rating(**verdict_fields(reply))

    ratings = await asyncio.gather(*(rated(metric) for metric in wanted))
    return CaseRatings(critique, dict(zip(wanted, ratings, strict=True)))


async def rate_rows(
    model: Model,
    seat: Seat,
    case: Case,
    *,
    protocol: Protocol = "personae",
    sampling: Sampling = RATING_SAMPLING,
) -> list[RatingRow]:
    """The rows of one judge over one case, one for each metric."""
    judge, repeat = seat
    found = await rate_case(model, judge, case, protocol=protocol, sampling=sampling, repeat=repeat)
    return [
        RatingRow(
            unit_id=case.unit_id,
            scene_id=case.scene.id,
            language=case.language,
            origin=case.scene.origin,
            title=case.scene.title,
            character=None if case.character is None else case.character.name,
            model=case.model,
            narrator=case.narrator,
            judge=judge,
            metric=metric,
            score=rating.score,
            failure=rating.failure,
            critique=found.critique,
            justification=rating.justification,
            alone=len(case.scene.characters) == 1,
            acts_missing=case.acts_missing,
            repeat=repeat,
        )
        for metric, rating in found.by_metric.items()
    ]
