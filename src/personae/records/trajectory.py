"""What a play leaves behind (CharacterBox, section 3.3: E, c, o1, a1, o2, a2, ...)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from personae.records.base import Record
from personae.records.benchmark import Language
from personae.records.call import Failure
from personae.records.scene import Environment, Scene

Protocol = Literal["paper", "personae"]

EventKind = Literal[
    "opening",  # what the scene says at the start
    "action",  # what a character does on its turn
    "speech",  # what it says with it
    "influence",  # how an act touches the character it affects most (narrator)
    "reaction",  # what that character does at once
    "result",  # what comes of act and reaction (narrator)
    "update",  # a change of the typed state (narrator)
    "belief",  # what a character believes after a round
    "concluded",  # the narrator calls the story concluded
    "failure",  # a reply that could not be had; nothing stands in its place
]


class Memorised(Record):
    """A memory as it was recalled for one prompt, with the parts of its score (each 0 to 1)."""

    text: str
    round: int
    kind: str
    score: float
    relevance: float
    recency: float
    importance: float


class Beliefs(Record):
    """What a character holds true and wants (BDI; section 3.2, appendix D.2)."""

    belief: str = ""
    desire: str = ""
    intention: str = ""
    environment: str = ""


class CharacterState(Record):
    """The typed state of one character, which only patches of the narrator change.

    Attributes:
        place: the part of the scene within which one perceives each other.
        position: where it is there; seen by all at the place.
        state: body and mind; known to the character itself and to the narrator.
    """

    place: str = ""
    position: str = ""
    state: str = ""


class WorldState(Record):
    """The state of the world: the environment, and every character by name.

    `places` holds what is to be perceived at a place where that differs from the environment.
    """

    environment: Environment
    places: dict[str, str] = {}
    characters: dict[str, CharacterState]


class Event(Record):
    """One thing that happened.

    Attributes:
        round: from 1; 0 is before the first.
        turn: whose turn of the round it belongs to, from 0; -1 is the end of a round.
        actor: who did it; None is the narrator.
        to: who was addressed.
        manner: `whisper` is perceived by `to` alone, whatever a narrator says.
        perceived_by: who perceived it, the actor included. A prompt of a character holds no other
            events than those it perceived.
        affected: the character that an influence names.
        recalled: the memories that stood in the prompt which this came from.
        beliefs: what the actor believes from now on (kind `belief`).
        state: the whole state after this event (kinds `opening` and `update`).
        model: who answered.
        failure: why there is nothing (kind `failure`); `text` then names the step that failed.
    """

    round: int = Field(ge=0)
    turn: int = Field(ge=-1)
    kind: EventKind
    actor: str | None = None
    text: str = ""
    to: tuple[str, ...] = ()
    manner: Literal["open", "whisper"] = "open"
    perceived_by: tuple[str, ...] = ()
    affected: str | None = None
    recalled: tuple[Memorised, ...] = ()
    beliefs: Beliefs | None = None
    state: WorldState | None = None
    model: str | None = None
    failure: Failure | None = None


class Play(Record):
    """One line of plays.jsonl: a scene as it was played.

    Attributes:
        models: who played, by character name; the narrator's stands in `narrator`. In a branch,
            who played from the branching round on.
        rounds: how many were played.
        concluded: the narrator called the story concluded, before the rounds were over.
        complete: every round was played to its end; False where a cap or Ctrl-C came before.
    """

    scene: Scene
    scene_hash: str
    language: Language
    protocol: Protocol
    narrator: str
    models: dict[str, str]
    rounds: int = Field(ge=0)
    concluded: bool = False
    complete: bool = True
    events: tuple[Event, ...] = ()

    def seen_by(self, name: str) -> tuple[Event, ...]:
        """The trajectory of one character: what it did and what it perceived, in order."""
        return tuple(e for e in self.events if name in e.perceived_by)


class RatingRow(Record):
    """One line of a rating's results.jsonl: a character's trajectory on one metric by one judge.

    `unit_id` names scene, character and model, so all judges and metrics of a trajectory share it;
    ratings by people use the same ids. `score` null with `failure` set is missing, never 0.

    Attributes:
        metric: KA, BA, EE, PT, IM, AD or BC (section 3.3); QUALITY, QUANTITY, RELATION or MANNER
            for a narrator (section 6.5), whose row then has no `character`.
        title: of the scene; extracted and generated scenes are compared title by title.
        model: who played the character (or narrated).
        narrator: the narrator's model.
        critique: the judge's critique of the whole trajectory, which its score was given after.
        justification: its reason for this score (null under the protocol `paper`).
        failure: why there is no score: `critique: ...` where the critique could not be had,
            `no_acts` where there is nothing to rate.
        alone: the scene has one character only; such scenes are kept apart.
        origin: of the scene, extracted or generated.
        acts_missing: share (0 to 1) of the character's own acts that could not be had; of a
            narrator, of the turns that lack an answer of it.
    """

    unit_id: str
    scene_id: str
    language: Language
    origin: Literal["extracted", "generated"]
    title: str = ""
    character: str | None
    model: str
    narrator: str
    judge: str
    metric: str
    score: int | None = Field(ge=1, le=5)
    failure: Failure | None
    critique: str | None = None
    justification: str | None = None
    alone: bool = False
    acts_missing: float = Field(default=0, ge=0, le=1)
    repeat: int = 0
