"""The narrator: the world model that says what comes of an act and how the state changes.

CharacterBox, section 3.2 and appendix D.1. The narrator knows all. What it answers is checked
against the bounds of its patch and against what its readers may know; what cannot stand is asked
for once more, then it is a recorded failure and the state stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from personae.prompts import render
from personae.prompts.world_schemas import (
    concluded_schema,
    environment_schema,
    influence_schema,
    result_schema,
    update_schema,
)
from personae.records import (
    Call,
    Event,
    Language,
    Model,
    ReplySchema,
    Sampling,
    Scene,
    Secret,
    WorldState,
)
from personae.records.call import is_person
from personae.world.agents import Answered, Value, ask_checked
from personae.world.observe import given_away, plain, story, told
from personae.world.seat import seat
from personae.world.state import (
    Bounds,
    CharacterPatch,
    Patch,
    RefusedError,
    check_patch,
    place_label,
    read_patch,
)

MOST_TOLD = 60
"""Events of the story that a narrator's prompt holds; older ones leave it in halves, so that the
beginning of the prompt stays the same from call to call."""


@dataclass(frozen=True)
class Influence:
    """What the narrator says of an act.

    Attributes:
        perceived_by: whom it names as witnesses.
        affected: whom the act touches most; None if nobody.
        patch: changes that come with it (protocol `personae`).
        concluded: None where it was not asked.
    """

    perceived_by: tuple[str, ...] = ()
    affected: str | None = None
    text: str = ""
    patch: Patch = field(default_factory=Patch)
    concluded: bool | None = None


@dataclass(frozen=True)
class Result:
    """What comes of an act and the reaction to it."""

    text: str
    perceived_by: tuple[str, ...] = ()
    patch: Patch = field(default_factory=Patch)
    concluded: bool | None = None


@dataclass(frozen=True)
class Turn:
    """What a narrator needs to know of the turn that it is asked about.

    Attributes:
        group: the characters at the place, in the scene's order.
        hearers: those who can perceive what happens: the group, or the parties of a whisper.
        story: the events so far that anyone of the group perceived.
        now: those of this turn.
    """

    round: int
    actor: str
    group: tuple[str, ...]
    hearers: tuple[str, ...]
    state: WorldState
    story: tuple[Event, ...]
    now: tuple[Event, ...]
    bounds: Bounds

    @property
    def whispered(self) -> bool:
        """Whether what happens is for some ears only."""
        return self.hearers != self.group


@dataclass
class Narrator:
    """The narrator of one scene.

    Attributes:
        secrets: of the scene and of all cards.
        inline: changes and the conclusion come with the replies (protocol `personae`); else they
            are asked for one by one (`paper`).
    """

    scene: Scene
    language: Language
    sampling: Sampling
    model_in: Callable[[int], str]
    secrets: tuple[Secret, ...]
    inline: bool
    _hidden: tuple[Secret, ...] = field(init=False)

    def __post_init__(self) -> None:
        """What a text must not give away: the secrets, and a goal as its owner's secret."""
        goals = (
            Secret(fact=c.goal, known_by=(c.name,))
            for c in self.scene.characters
            if c.goal and c.goal.strip()
        )
        self._hidden = (*self.secrets, *goals)

    async def influence(self, model: Model, turn: Turn) -> Answered[Influence]:
        """How an act touches whom; who perceives it."""
        others = tuple(n for n in turn.hearers if n != turn.actor)
        if not others and not self.inline:
            return Answered(Influence())  # there is nobody to be affected, and nothing to ask
        named = () if turn.whispered else others

        def read(value: dict[str, Any]) -> Influence:
            affected = value.get("affected", turn.actor)
            text = value.get("influence", "").strip()
            found = Influence(
                perceived_by=tuple(value.get("perceived_by", ())),
                affected=None if affected == turn.actor else affected,
                text=text,
                patch=self._patch(value, turn),
                concluded=value.get("concluded"),
            )
            if found.affected is not None:
                if not text:
                    raise RefusedError(f"say how the act touches {affected!r}")
                self._check_told(text, (found.affected,), turn)
            return found

        return await self._ask(
            model,
            "influence",
            turn,
            influence_schema(
                turn.actor,
                named,
                others,
                turn.bounds if self.inline else None,
                concludes=self.inline,
            ),
            read,
            others=[plain(n) for n in others],
            inline=self.inline,
        )

    async def result(
        self, model: Model, turn: Turn, affected: str, sure: tuple[str, ...]
    ) -> Answered[Result]:
        """What comes of act and reaction, and who perceives it.

        Args:
            affected: who reacted, or would have.
            sure: those who perceive the result in any case.
        """

        def read(value: dict[str, Any]) -> Result:
            text = value["result"].strip()
            if not text:
                raise RefusedError("the result is blank")
            found = Result(
                text=text,
                perceived_by=tuple(value.get("perceived_by", ())),
                patch=self._patch(value, turn),
                concluded=value.get("concluded"),
            )
            named = turn.hearers if turn.whispered else (*found.perceived_by, *sure)
            self._check_told(text, [n for n in turn.hearers if n in named], turn)
            return found

        return await self._ask(
            model,
            "result",
            turn,
            result_schema(
                () if turn.whispered else tuple(n for n in turn.hearers if n not in sure),
                turn.bounds if self.inline else None,
                concludes=self.inline,
            ),
            read,
            others=[plain(n) for n in turn.hearers if n not in sure],
            affected=plain(affected),
            inline=self.inline,
        )

    async def update(self, model: Model, turn: Turn, who: str) -> Answered[Patch]:
        """Position and state of one character after the turn (protocol `paper`)."""

        def read(value: dict[str, Any]) -> Patch:
            patch = Patch(characters=(CharacterPatch(who=who, **value),))
            return self._checked(patch, turn)

        return await self._ask(
            model,
            "update",
            turn,
            update_schema(turn.bounds),
            read,
            meta={"whom": who},
            who=plain(who),
        )

    async def environment(self, model: Model, turn: Turn) -> Answered[Patch]:
        """The environment after the turn (protocol `paper`, line 14 of Algorithm 1)."""
        return await self._ask(
            model,
            "environment",
            turn,
            environment_schema(turn.bounds),
            lambda value: self._checked(read_patch(value), turn),
        )

    async def concluded(self, model: Model, turn: Turn) -> Answered[bool]:
        """Whether the story is concluded (protocol `paper`, line 2 of Algorithm 1)."""
        return await self._ask(
            model, "concluded", turn, concluded_schema(), lambda value: bool(value["concluded"])
        )

    def _patch(self, value: dict[str, Any], turn: Turn) -> Patch:
        return self._checked(read_patch(value), turn) if self.inline else Patch()

    def _checked(self, patch: Patch, turn: Turn) -> Patch:
        check_patch(patch, turn.bounds)
        everyone = tuple(c.name for c in self.scene.characters)
        for one in patch.characters:
            self._check_told(one.state, (one.who,), turn)
            self._check_told(one.position, everyone, turn)
        for text in (*patch.environment.to_dict().values(), patch.surroundings):
            self._check_told(text, everyone, turn)
        return patch

    def _check_told(self, text: str, readers: Sequence[str], turn: Turn) -> None:
        if text.strip():
            reason = given_away(text, readers, self._hidden, (*turn.story, *turn.now))
            if reason is not None:
                raise RefusedError(reason)

    async def _ask(
        self,
        model: Model,
        step: Literal["influence", "result", "update", "environment", "concluded"],
        turn: Turn,
        schema: ReplySchema,
        read: Callable[[dict[str, Any]], Value],
        meta: dict[str, str | int] | None = None,
        **values: object,
    ) -> Answered[Value]:
        who, told_all = self.model_in(turn.round), {**self._values(turn, step), **values}
        call = Call(
            role="narrator",
            model=who,
            messages=render(f"world/{step}", self.language, **told_all),
            reply_schema=schema,
            sampling=self.sampling,
            meta={
                "scene": self.scene.id,
                "character": turn.actor,
                "round": turn.round,
                "step": step,
                **(meta or {}),
                **(self._seat(turn, step, told_all) if is_person(who) else {}),
            },
        )
        return await ask_checked(model, call, self.language, read)

    def _seat(self, turn: Turn, step: str, values: dict[str, object]) -> dict[str, str | int]:
        place = place_label(turn.bounds.place)  # whoever goes nowhere is there
        return {**seat("narrator", self.language, step=step, **values), "place": place}

    def _values(self, turn: Turn, step: str) -> dict[str, object]:
        earlier, people = _last(story(turn.story)), turn.state.characters
        values: dict[str, object] = {
            "event": self.scene.event,
            "characters": self.scene.characters,
            "secrets": self.secrets,
            "story": [told(event, self.language) for event in earlier],
            "environment": turn.state.environment,
            "surroundings": turn.state.places.get(turn.bounds.place, ""),
            "here": [
                (name, people[name], place_label(people[name].place) if turn.bounds.places else "")
                for name in turn.group
            ],
            "elsewhere": [
                (name, place_label(one.place))
                for name, one in people.items()
                if name not in turn.group
            ],
            "bounds": turn.bounds,
        }
        if step != "concluded":
            values["actor"] = plain(turn.actor)
            values["now"] = [told(event, self.language) for event in story(turn.now)]
            values["whispered"] = turn.whispered
            values["hearers"] = [plain(n) for n in turn.hearers]
        return values


def _last(events: tuple[Event, ...]) -> tuple[Event, ...]:
    if len(events) <= MOST_TOLD:
        return events
    half = MOST_TOLD // 2
    return events[(len(events) - half) // half * half :]
