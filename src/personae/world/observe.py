"""Who perceives what, and what a character's prompt may hold.

This is code, not a request to a model: a narrator that names too many witnesses is cut down here,
and a character's prompt is filled in from its `View` and its own memory, which hold nothing that it
did not perceive or know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from personae.prompts import quoted, render
from personae.records import Event, Language, Play, Scene, Secret, WorldState
from personae.world.state import labels, place_label, together

ACTS = frozenset({"action", "speech", "reaction"})
ACT_STEPS = frozenset({"act", "action", "dialogue", "reaction"})
"""The steps whose failure is an act that is missing."""

_STORY = frozenset({"action", "speech", "influence", "reaction", "result"})
_LEAST_FACT = 6
_LEAST_WHISPER = 12


@dataclass(frozen=True)
class Other:
    """What anyone can see and know of another character at the same place."""

    name: str
    description: str
    gender: str | None
    position: str


@dataclass(frozen=True)
class View:
    """All of the world that one character may see now."""

    name: str
    position: str
    state: str
    time: str
    location: str
    description: str
    place: str | None
    surroundings: str
    others: tuple[Other, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The others at the place."""
        return tuple(o.name for o in self.others)


def view(scene: Scene, state: WorldState, name: str) -> View:
    """What a character can see: its own state, and what is visible at its place."""
    own = state.characters[name]
    near = together(state)[own.place]
    return View(
        name=name,
        position=own.position,
        state=own.state,
        time=state.environment.time,
        location=state.environment.location,
        description=state.environment.description,
        place=place_label(own.place) if labels(scene) else None,
        surroundings=state.places.get(own.place, ""),
        others=tuple(
            Other(c.name, c.description, c.gender, state.characters[c.name].position)
            for c in scene.characters
            if c.name in near and c.name != name
        ),
    )


def witnesses(
    present: Sequence[str], *, named: Iterable[str] = (), sure: Iterable[str] = ()
) -> tuple[str, ...]:
    """Who perceives an event: those named or sure to, of those who can at all, in their order.

    Args:
        present: those who can: at the place, or, of a whisper, its parties.
        named: by the narrator.
        sure: actor and addressees.
    """
    wanted = {*named, *sure}
    return tuple(name for name in present if name in wanted)


def plain(name: str) -> str:
    """A name as it can stand in the middle of a sentence of a prompt: one line, no tags."""
    return " ".join(quoted(name, "n").removeprefix("<n>").removesuffix("</n>").split())


def story(events: Iterable[Event]) -> tuple[Event, ...]:
    """What a story tells: what was done, said and came of it, and who went where."""
    return tuple(e for e in events if e.kind in _STORY or (e.kind == "update" and e.actor))


def told(event: Event, language: Language) -> str:
    """An event as one line of a story, the same for all who perceive it."""
    return _told(event.kind, event.manner, event.actor, event.to, event.text, language)


@lru_cache(maxsize=8192)  # each stands in many prompts
def _told(
    kind: str,
    manner: str,
    actor: str | None,
    to: tuple[str, ...],
    text: str,
    language: Language,
) -> str:
    (message,) = render(
        "world/event",
        language,
        kind=kind,
        manner=manner,
        actor=None if actor is None else plain(actor),
        to=tuple(plain(name) for name in to),
        text=" ".join(text.split()),
    )
    return message.content


def given_away(
    text: str, readers: Iterable[str], secrets: Sequence[Secret], events: Sequence[Event]
) -> str | None:
    """Why a narrator's text must not reach these readers; None if it may.

    A secret, or the words of a whisper, told word for word to someone who neither knows it nor has
    perceived it in the events so far. What is given away in other words is not found.
    """
    said = _bare(text)
    whispers = [e for e in events if e.manner == "whisper" and e.kind in ACTS]
    hidden = [(_bare(s.fact), s.known_by, s.fact, _LEAST_FACT) for s in secrets]
    hidden += [(_bare(e.text), e.perceived_by, e.text, _LEAST_WHISPER) for e in whispers]
    for fact, knowing, words, least in hidden:
        if _weight(fact) < least or fact not in said:
            continue
        for reader in readers:
            if reader not in knowing and not any(
                reader in e.perceived_by and fact in _bare(e.text) for e in events
            ):
                return f"this gives away to {reader!r} what only others know: {words[:200]!r}"
    return None


@lru_cache(maxsize=4096)
def _bare(text: str) -> str:
    """Letters and digits alone, so that quotation marks and line breaks hide nothing."""
    return "".join(c for c in text.casefold() if c.isalnum())


def _weight(bare: str) -> int:
    """Length in letters; a Chinese character counts for three."""
    return sum(3 if ord(c) > 0x2E80 else 1 for c in bare)


def acts_missing(play: Play, name: str) -> float | None:
    """The share (0 to 1) of a character's acts that could not be had; None if it had none to do.

    An act is a turn of its own or a reaction in another's turn. It is missing if nothing of it came
    (`paper` asks for action and speech one by one).
    """
    had: set[tuple[int, int]] = set()
    lost: set[tuple[int, int]] = set()
    for event in play.events:
        if event.actor == name and event.kind in ACTS:
            had.add((event.round, event.turn))
        elif event.actor == name and event.kind == "failure" and event.text in ACT_STEPS:
            lost.add((event.round, event.turn))
    asked = had | lost
    return len(lost - had) / len(asked) if asked else None
