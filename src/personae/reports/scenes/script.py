"""A play as a script that people read: turns, who perceived what, and the state beside it.

Nothing is decided here that the play does not hold: a line says only who perceived it where not
all did, a change is the difference between two states as the play recorded them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from personae.judging.metrics import Kind
from personae.records import Beliefs, Event, Memorised, Play, WorldState
from personae.world.state import together

CHARACTER_FIELDS = ("place", "position", "state")
ENVIRONMENT_FIELDS = ("time", "location", "description")

Called = Callable[[Kind, str], str]

_ACTS = frozenset({"action", "speech", "reaction"})


@dataclass(frozen=True)
class Line:
    """One thing that happened, as the script shows it.

    Attributes:
        kind: the event's; a character that goes to another place is `arrival`.
        actor: None is the narrator.
        perceived: who perceived it; None where all did who were present. A whisper always says.
        recalled: shown once an act, with its last line.
        model: who answered, where it is not who plays (or narrates) the play.
        step, cause, detail: of a failure.
    """

    kind: str
    text: str
    actor: str | None = None
    to: tuple[str, ...] = ()
    whisper: bool = False
    affected: str | None = None
    perceived: tuple[str, ...] | None = None
    recalled: tuple[Memorised, ...] = ()
    model: str | None = None
    step: str = ""
    cause: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Change:
    """A field of the state that is another than it was.

    Attributes:
        who: the character; None is the scene itself.
        where: the place whose surroundings changed (`aspect` is then `surroundings`).
        before: empty where there was nothing.
    """

    aspect: str
    before: str
    after: str
    who: str | None = None
    where: str | None = None


@dataclass(frozen=True)
class Turn:
    """One character's turn, or the end of a round (`actor` None), with the state beside it.

    Attributes:
        place: where it happened, and `present` who was there; None where all characters are at one
            place.
        changes: what this turn changed.
        state: the whole state at its end, with the fields that it changed; None where it changed
            nothing.
    """

    actor: str | None
    lines: tuple[Line, ...]
    changes: tuple[Change, ...]
    state: WorldState | None
    place: str | None = None
    present: tuple[str, ...] = ()

    @property
    def changed(self) -> frozenset[tuple[str | None, str | None, str]]:
        """The changed fields, by (character, place, aspect)."""
        return frozenset((c.who, c.where, c.aspect) for c in self.changes)


@dataclass(frozen=True)
class Believed:
    """What a character believes after a round, and what it remembered for it."""

    name: str
    beliefs: Beliefs
    recalled: tuple[Memorised, ...]


@dataclass(frozen=True)
class Round:
    """A round of the play."""

    number: int
    turns: tuple[Turn, ...]
    beliefs: tuple[Believed, ...]


@dataclass(frozen=True)
class Script:
    """A play to be read.

    Attributes:
        names: the characters in the scene's order.
        opening: the state at the beginning.
        told: what is told before the first round, beside the scene's event.
    """

    play: Play
    names: tuple[str, ...]
    opening: WorldState | None
    told: tuple[Line, ...]
    rounds: tuple[Round, ...]

    @property
    def places(self) -> bool:
        """Whether characters are at several places at any time."""
        states = [self.opening, *(t.state for r in self.rounds for t in r.turns)]
        return any(len(_places(state)) > 1 for state in states if state is not None)

    @property
    def size(self) -> int:
        """Characters of text, roughly: what the script adds to a page."""
        events = self.play.events
        states = sum(1 for r in self.rounds for t in r.turns if t.state is not None)
        return (
            sum(len(e.text) for e in events)
            + sum(len(m.text) for e in events for m in e.recalled)
            + states * (0 if self.opening is None else len(self.opening.to_json()))
        )


def script_of(play: Play, called: Called = lambda _kind, model: model) -> Script:
    """The script of a play.

    Args:
        called: what the play calls a model that an event names (`RatedRun.name`).
    """
    opening = next((e.state for e in play.events if e.state is not None), None)
    told = tuple(
        _line(e, play, called, _names(play))
        for e in play.events
        if e.round < 1 and e.kind != "belief" and e.text.strip() not in ("", play.scene.event)
    )
    state, rounds = opening, []
    for number in sorted({e.round for e in play.events if e.round > 0}):
        events = [e for e in play.events if e.round == number]
        turns = []
        for part in _turns(e for e in events if e.kind != "belief"):
            turn = _turn(part, play, called, state)
            state = turn.state or state
            turns.append(turn)
        beliefs = tuple(
            Believed(e.actor or "", e.beliefs or Beliefs(), e.recalled)
            for e in events
            if e.kind == "belief"
        )
        rounds.append(Round(number, tuple(turns), _joined(beliefs)))
    return Script(play, _names(play), opening, told, tuple(rounds))


def changes(before: WorldState, after: WorldState) -> Iterator[Change]:
    """What is another in a state than it was, characters first."""
    for name, now in after.characters.items():
        was = before.characters.get(name)
        for aspect in CHARACTER_FIELDS:
            old = "" if was is None else str(getattr(was, aspect))
            new = str(getattr(now, aspect))
            if old != new:
                yield Change(aspect, old, new, who=name)
    for aspect in ENVIRONMENT_FIELDS:
        old, new = (str(getattr(s.environment, aspect)) for s in (before, after))
        if old != new:
            yield Change(aspect, old, new)
    for place, new in after.places.items():
        old = before.places.get(place, "")
        if old != new:
            yield Change("surroundings", old, new, where=place)


def _names(play: Play) -> tuple[str, ...]:
    return tuple(c.name for c in play.scene.characters)


def _places(state: WorldState) -> set[str]:
    return {one.place for one in state.characters.values()}


def _turns(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Events of a round in their order, cut where another turn begins."""
    part: list[Event] = []
    for event in events:
        if part and part[-1].turn != event.turn:
            yield part
            part = []
        part.append(event)
    if part:
        yield part


def _turn(events: Sequence[Event], play: Play, called: Called, before: WorldState | None) -> Turn:
    after = next((e.state for e in reversed(events) if e.state is not None), None)
    names, number = _names(play), events[0].turn
    actor = names[number] if 0 <= number < len(names) else None
    place, present = _where(actor, names, before)
    told = [e for e in events if not (e.kind == "update" and e.actor is None)]
    lines = [_line(e, play, called, present) for e in told]
    return Turn(
        actor=actor,
        lines=tuple(_each_memory_once(lines)),
        changes=() if after is None or before is None else tuple(changes(before, after)),
        state=after,
        place=place,
        present=present if place is not None else (),
    )


def _where(
    actor: str | None, names: tuple[str, ...], state: WorldState | None
) -> tuple[str | None, tuple[str, ...]]:
    """The place of a turn and who is there; None and all where they are at one place."""
    if actor is None or state is None or actor not in state.characters:
        return None, names
    if len(_places(state)) < 2:
        return None, names
    place = state.characters[actor].place
    return place, tuple(n for n in names if n in together(state)[place])


def _line(event: Event, play: Play, called: Called, present: Sequence[str]) -> Line:
    usual = play.narrator if event.actor is None else play.models.get(event.actor)
    kind: Kind = "narrator" if event.actor is None else "characters"
    model = None if event.model is None else called(kind, event.model)
    failure = event.failure
    to_all = event.kind in ("failure", "concluded") or (
        event.manner != "whisper" and set(event.perceived_by) == set(present)
    )
    return Line(
        kind="arrival" if event.kind == "update" else event.kind,
        text=event.text,
        actor=event.actor,
        to=event.to,
        whisper=event.manner == "whisper",
        affected=event.affected,
        perceived=None if to_all else event.perceived_by,
        recalled=event.recalled,
        model=None if model == usual else model,
        step=event.text if failure is not None else "",
        cause="" if failure is None else failure.cause,
        detail="" if failure is None else failure.detail,
    )


def _each_memory_once(lines: Sequence[Line]) -> Iterator[Line]:
    """Action and speech of one act come from one prompt, and recalled the same."""
    for i, line in enumerate(lines):
        after = lines[i + 1] if i + 1 < len(lines) else None
        repeated = (
            after is not None
            and line.kind in _ACTS
            and after.kind == "speech"
            and (after.actor, after.recalled) == (line.actor, line.recalled)
        )
        yield replace(line, recalled=()) if repeated else line


def _joined(found: Sequence[Believed]) -> tuple[Believed, ...]:
    """One entry a character: `paper` asks for belief in itself and in its surroundings apart."""
    by_name: dict[str, Believed] = {}
    for one in found:
        was = by_name.get(one.name)
        if was is None:
            by_name[one.name] = one
            continue
        merged = {**was.beliefs.to_dict()}
        merged |= {key: text for key, text in one.beliefs.to_dict().items() if text}
        memories = tuple(dict.fromkeys([*was.recalled, *one.recalled]))
        by_name[one.name] = Believed(one.name, Beliefs(**merged), memories)
    return tuple(by_name.values())
