"""A play as it happens, line by line, for people who watch it or have a seat in it.

Whoever has a character's seat sees what that character perceives, and no more: the events whose
`perceived_by` names it, its own state, and what is visible at its place (`observe.view`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from rich.text import Text

from personae.records import Event, Language, Scene, WorldState
from personae.records.shown import clean
from personae.world.observe import View, told, view
from personae.world.state import place_label, together

MOST_SHOWN = 2_000
"""Characters of one text of a model; more would push what matters off the screen."""

_STYLES = {
    "speech": "bold",
    "influence": "cyan",
    "result": "cyan",
    "update": "green",
    "belief": "dim",
    "failure": "red",
}


@lru_cache(maxsize=2)
def _words(language: Language) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(f"live.{language}.toml").read_text("utf-8"))


@dataclass
class _Known:
    """What has been shown of one scene."""

    state: WorldState
    round: int = 0


class LiveView:
    """Told each event of plays (`PlayPlan.heard`), says those that its audience may see.

    Args:
        say: shows one line.
        seats: the characters whose seats people have; none of them sees what all do not, so with
            several every event that any of them perceives is shown. None watches everything.
        language: of the words around; default: the scene's.
        several: whether more scenes than one are played, so that each line says whose it is.
    """

    def __init__(
        self,
        say: Callable[[Text], None],
        *,
        seats: Iterable[str] | None = None,
        language: Language | None = None,
        several: bool = False,
    ) -> None:
        self._say = say
        self._seats = None if seats is None else frozenset(seats)
        self._language = language
        self._several = several
        self._known: dict[str, _Known] = {}

    def hear(self, scene: Scene, event: Event) -> None:
        """Show an event of a play, as far as the audience may see it."""
        language = self._language or scene.language
        words = _words(language)
        if event.kind == "opening":
            assert event.state is not None
            self._known[scene.id] = _Known(event.state)
            for line, style in self._opening(scene, event.state, words):
                self._line(scene, line, style)
            return
        known = self._known[scene.id]
        if event.round > known.round:
            known.round = event.round
            self._line(scene, f"── {words['round'].format(n=event.round)} ──", "bold blue")
        place = self._place(scene, known.state, event)
        for line in self._lines(scene, known, event, words, language):
            self._line(scene, place + line, _STYLES.get(event.kind, ""))
        if event.state is not None:
            known.state = _merged(scene, known.state, event)

    def _lines(
        self,
        scene: Scene,
        known: _Known,
        event: Event,
        words: dict[str, Any],
        language: Language,
    ) -> Iterator[str]:
        """The lines of one event; none if it is not for the audience."""
        if event.kind == "concluded":
            yield words["concluded"]
        elif event.kind == "failure":
            if self._seats is None or event.actor in self._seats:
                cause = "" if event.failure is None else f"{event.failure.cause}: "
                cause += "" if event.failure is None else event.failure.detail
                who = event.actor or words["narrator"]
                yield words["failure"].format(who=who, step=event.text, cause=_short(cause))
        elif event.kind == "update" and event.actor is None:
            after = _merged(scene, known.state, event)
            yield from self._changes(scene, known.state, after, words)
        elif self._seats is not None and self._seats.isdisjoint(event.perceived_by):
            return
        elif event.kind == "belief":
            if self._seats is None and event.beliefs is not None and event.beliefs.intention:
                yield words["intention"].format(who=event.actor, text=event.beliefs.intention)
        else:
            yield told(event, language)

    def _opening(
        self, scene: Scene, state: WorldState, words: dict[str, Any]
    ) -> Iterator[tuple[str, str]]:
        names = [scene.title, scene.id] if scene.title else [scene.id]
        yield " · ".join(names), "bold"
        if scene.event:
            yield scene.event, "bold"
        around = state.environment
        for key, text in (("time", around.time), ("location", around.location)):
            if text:
                yield words[key].format(text=text), ""
        if around.description:
            yield around.description, ""
        if self._seats is None:
            for one in scene.characters:
                at = state.characters[one.name]
                where = f" [{place_label(at.place)}]" if len(together(state)) > 1 else ""
                parts = " · ".join(p for p in (one.description, at.position, at.state) if p)
                yield words["one"].format(who=one.name + where, text=parts), "dim"
            return
        for name in (c.name for c in scene.characters if c.name in self._seats):
            seen = view(scene, state, name)
            yield words["you"].format(who=name), "bold"
            for key, text in (("position", seen.position), ("state", seen.state)):
                if text:
                    yield words[key].format(who=name, text=text), ""
            if not seen.others:
                yield words["alone"], ""
            for other in seen.others:
                parts = " · ".join(p for p in (other.description, other.position) if p)
                yield words["one"].format(who=other.name, text=parts), "dim"

    def _changes(
        self, scene: Scene, before: WorldState, after: WorldState, words: dict[str, Any]
    ) -> Iterator[str]:
        """What is different now, as far as the audience can see it."""
        if self._seats is not None:
            lines = [
                line
                for name in after.characters
                if name in self._seats
                for line in _seen(view(scene, before, name), view(scene, after, name), words)
            ]
            yield from dict.fromkeys(lines)
            return
        for name, now in after.characters.items():
            was = before.characters[name]
            for key in ("position", "state"):
                text = getattr(now, key)
                if text != getattr(was, key):
                    yield words[key].format(who=name, text=text)
        yield from _around(before, after, words)
        for place, text in after.places.items():
            if text != before.places.get(place):
                yield words["surroundings"].format(place=place_label(place), text=text)

    def _place(self, scene: Scene, state: WorldState, event: Event) -> str:
        """Where it happens, to those who see more than one place."""
        if self._seats is not None or event.turn < 0 or len(together(state)) < 2:
            return ""
        actor = scene.characters[event.turn].name
        return f"[{place_label(state.characters[actor].place)}] "

    def _line(self, scene: Scene, text: str, style: str) -> None:
        head = f"{scene.id} | " if self._several else ""
        self._say(Text(_short(head + text), style=style))


def _seen(before: View, after: View, words: dict[str, Any]) -> Iterator[str]:
    """What one character notices of a change of the state."""
    for key in ("position", "state"):
        if getattr(after, key) != getattr(before, key):
            yield words[key].format(who=after.name, text=getattr(after, key))
    was = {other.name: other.position for other in before.others}
    for other in after.others:
        if other.position != was.get(other.name):
            yield words["position"].format(who=other.name, text=other.position)
    yield from _around(before, after, words)
    if after.surroundings != before.surroundings:
        yield words["surroundings_here"].format(text=after.surroundings)


def _around(before: View | WorldState, after: View | WorldState, words: Any) -> Iterator[str]:
    """Time, location and description, where they are new."""
    for key in ("time", "location", "description"):
        was, now = (
            getattr(one.environment if isinstance(one, WorldState) else one, key)
            for one in (before, after)
        )
        if was != now:
            yield words[key].format(text=now)


def _merged(scene: Scene, before: WorldState, event: Event) -> WorldState:
    """The state after an event of a turn: others elsewhere may have changed theirs meanwhile."""
    assert event.state is not None
    if event.turn < 0:
        return event.state
    place = before.characters[scene.characters[event.turn].name].place
    here = together(before)[place]
    return WorldState(
        environment=event.state.environment,
        places={**before.places, **{k: v for k, v in event.state.places.items() if k == place}},
        characters={
            name: event.state.characters[name] if name in here else one
            for name, one in before.characters.items()
        },
    )


def _short(text: str) -> str:
    flat = " ".join(clean(text).split())
    return flat if len(flat) <= MOST_SHOWN else flat[: MOST_SHOWN - 1].rstrip() + "…"
