"""The play loop: Algorithm 1 of CharacterBox, and the default protocol that wastes nothing.

A round: the characters are grouped by place; groups play at once, the turns of a group one after
the other in the scene's order, so that nobody acts on a stale scene. What a group does is put
together at the end of the round in the order of turns, whatever ran first, and who goes to another
place arrives then; so a replay is exact.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from personae.errors import StoppedEarlyError
from personae.journal.flow import each
from personae.records import (
    Event,
    Failure,
    Language,
    Memorised,
    Model,
    Play,
    Sampling,
    Scene,
    Secret,
    WorldState,
)
from personae.records.call import is_person
from personae.records.trajectory import EventKind, Protocol
from personae.world.agents import Act, Agent, Answered, Memory, no_lore
from personae.world.narrator import Influence, Narrator, Turn
from personae.world.observe import view, witnesses
from personae.world.state import (
    Bounds,
    Patch,
    apply_patch,
    first_state,
    labels,
    move,
    moves,
    place_label,
    together,
)

Item = TypeVar("Item")
Value = TypeVar("Value")

DEFAULT_ROUNDS = 3

PAPER_SAMPLING = {
    "character": Sampling(temperature=0.5, max_tokens=1024),
    "narrator": Sampling(temperature=0.5, max_tokens=1024),
}
"""The paper names none; the released configuration has 0.5 for both."""
PERSONAE_SAMPLING = {
    "character": Sampling(temperature=0.8, top_p=0.95, max_tokens=1024),
    "narrator": Sampling(temperature=0.3, max_tokens=1536),
}
"""Characters shall differ, a world shall be consistent."""

END = -1
"""The turn of what happens at the end of a round, and before the first."""


@dataclass(frozen=True)
class Player:
    """What a character brings to the scene beside what the scene says of it.

    Attributes:
        profile: its card as prompt text.
        secrets: of its card, with the names that the scene uses.
        lore: what its lorebook gives for what it has perceived, oldest first.
    """

    profile: str = ""
    secrets: tuple[Secret, ...] = ()
    lore: Callable[[Sequence[str]], str] = no_lore


@dataclass(frozen=True)
class PlayPlan:
    """How scenes are played.

    Attributes:
        characters: who plays a character in a round, by (name, round).
        narrator: who narrates a round.
        memory: makes the memory of a character; None plays without.
        heard: is told each event as it happens, in the order of its happening.
    """

    characters: Callable[[str, int], str]
    narrator: Callable[[int], str]
    rounds: int = DEFAULT_ROUNDS
    protocol: Protocol = "personae"
    language: Language = "en"
    sampling: Mapping[str, Sampling] = field(default_factory=lambda: PERSONAE_SAMPLING)
    memory: Callable[[], Memory] | None = None
    heard: Callable[[Scene, Event], None] | None = None


@dataclass(frozen=True)
class Played:
    """A play, and what stopped it where it did not come to its end."""

    play: Play
    stopped: StoppedEarlyError | None = None


@dataclass
class _Group:
    """The characters at one place during one round.

    Attributes:
        state: as this group has left it so far; what others do elsewhere is not in it.
        story: what any of them perceived before this round.
    """

    place: str
    names: tuple[str, ...]
    state: WorldState
    story: tuple[Event, ...]
    bounds: Bounds
    turns: list[_Turn] = field(default_factory=list)
    concluded: bool | None = None


async def play_scene(
    model: Model, scene: Scene, plan: PlayPlan, players: Mapping[str, Player] | None = None
) -> Played:
    """Play a scene until the narrator calls it concluded or the rounds are over.

    Args:
        players: what characters bring, by name; who is absent brings nothing.

    Raises:
        TransportError: no later call could fare better.
        ReplayMissError: a replay misses a call.
    """
    return await _World(model, scene, plan, players or {}).play()


class _World:
    """One scene under way."""

    def __init__(
        self, model: Model, scene: Scene, plan: PlayPlan, players: Mapping[str, Player]
    ) -> None:
        self.model, self.scene, self.plan = model, scene, plan
        self.state = first_state(scene)
        self.names = tuple(c.name for c in scene.characters)
        self.labels = labels(scene)
        self.paper = plan.protocol == "paper"
        self.events: list[Event] = []
        self.going: dict[str, str] = {}
        brought = {name: players.get(name, Player()) for name in self.names}
        secrets = (*scene.secrets, *(s for p in brought.values() for s in p.secrets))
        self.secrets = tuple(dict.fromkeys(secrets))
        self.narrator = Narrator(
            scene,
            plan.language,
            plan.sampling["narrator"],
            plan.narrator,
            self.secrets,
            inline=not self.paper,
        )
        self.agents = {
            c.name: Agent(
                scene.id,
                scene.event,
                c,
                plan.language,
                plan.sampling["character"],
                partial(plan.characters, c.name),
                profile=brought[c.name].profile,
                secrets=tuple(s.line for s in self.secrets if c.name in s.known_by),
                lore=brought[c.name].lore,
                memory=None if plan.memory is None else plan.memory(),
            )
            for c in scene.characters
        }

    async def play(self) -> Played:
        """The whole scene."""
        opening = Event(
            round=0,
            turn=END,
            kind="opening",
            text=self.scene.event,
            perceived_by=self.names,
            state=self.state,
        )
        self.events.append(opening)
        self.heard(opening)
        played, concluded = 0, False
        stopped: StoppedEarlyError | None = None
        try:
            for now in range(1, self.plan.rounds + 1):
                concluded = await self._round(now)
                played = now
                if concluded or now == self.plan.rounds:
                    break
                await self._beliefs(now)
        except StoppedEarlyError as error:
            stopped = error
        play = Play(
            scene=self.scene,
            scene_hash=self.scene.hash,
            language=self.plan.language,
            protocol=self.plan.protocol,
            narrator=self.plan.narrator(self.plan.rounds),
            models={n: self.plan.characters(n, self.plan.rounds) for n in self.names},
            rounds=played,
            concluded=concluded,
            complete=stopped is None,
            events=tuple(self.events),
        )
        return Played(play, stopped)

    # A round ----------------------------------------------------------------------------------

    async def _round(self, now: int) -> bool:
        """All turns of a round; whether the narrator calls the story concluded."""
        grouped = together(self.state)
        groups = [
            _Group(
                place,
                names,
                self.state,
                tuple(e for e in self.events if set(names) & set(e.perceived_by)),
                Bounds(names, place=place, places=self.labels, alone=len(grouped) == 1),
            )
            for place, names in grouped.items()
        ]

        async def take_turns(group: _Group) -> None:
            for name in group.names:
                group.turns.append(_Turn(self, group, name, now))
                await group.turns[-1].play()

        try:
            await self.all(groups, take_turns)
        finally:
            # Stopped or not: what was played is kept, in the order of turns.
            self._put_together([turn for group in groups for turn in group.turns])
        self._arrive(now)
        if not self.paper:
            concluded = all(group.concluded for group in groups)
        else:  # after the last round nobody would read the answer
            concluded = now < self.plan.rounds and await self._asked_if_concluded(now)
        if concluded:
            narrator = self.plan.narrator(now)
            self._add(Event(round=now, turn=END, kind="concluded", model=narrator))
        return concluded

    def _put_together(self, turns: Sequence[_Turn]) -> None:
        """The events of all turns in their order, and with each patch the whole state."""
        for turn in sorted(turns, key=lambda t: t.index):
            patches = iter(turn.patches)
            for event in turn.events:
                if event.kind == "update":
                    patch, bounds = next(patches)
                    self.state = apply_patch(self.state, patch, bounds)
                    self.going |= moves(patch, bounds)
                    self.events.append(event.model_copy(update={"state": self.state}))
                else:
                    self.events.append(event)

    def _arrive(self, now: int) -> None:
        """Who was on the way is there; all at both places see it."""
        before, going, self.going = self.state, self.going, {}
        if not going:
            return
        self.state = move(before, going)
        for name in (n for n in self.names if n in going):
            places = {before.characters[name].place, going[name]}
            seen = tuple(
                n
                for n in self.names
                if {before.characters[n].place, self.state.characters[n].place} & places
            )
            self._add(
                Event(
                    round=now,
                    turn=END,
                    kind="update",
                    actor=name,
                    text=place_label(going[name]),
                    perceived_by=seen,
                    state=self.state,
                )
            )

    async def _asked_if_concluded(self, now: int) -> bool:
        everyone = Bounds(self.names, places=self.labels)
        turn = Turn(
            now, self.names[0], self.names, self.names, self.state, tuple(self.events), (), everyone
        )
        done = await self.narrator.concluded(self.model, turn)
        if done.failure is not None:
            self._add(_failure(None, now, END, "concluded", done.failure, self.plan.narrator(now)))
        return bool(done.value)

    async def _beliefs(self, now: int) -> None:
        """What all believe after a round; all at once. A person is not asked."""

        async def one(name: str) -> list[Event]:
            agent, seen = self.agents[name], view(self.scene, self.state, name)
            if not self.paper:
                steps = {"belief": await agent.believe(self.model, seen, now)}
            else:
                steps = {"self_belief": await agent.believe_in_self(self.model, seen, now)}
                steps["env_belief"] = await agent.believe_in_environment(self.model, seen, now)
            who = self.plan.characters(name, now)
            return [
                Event(
                    round=now,
                    turn=END,
                    kind="belief",
                    actor=name,
                    perceived_by=(name,),
                    recalled=done.recalled,
                    beliefs=done.value,
                    model=who,
                )
                if done.failure is None
                else _failure(name, now, END, step, done.failure, who)
                for step, done in steps.items()
            ]

        minds = [n for n in self.names if not is_person(self.plan.characters(n, now))]
        for events in await self.all(minds, one):
            for event in events:
                self._add(event, deliver=False)

    # Small parts ------------------------------------------------------------------------------

    async def all(
        self, items: Sequence[Item], work: Callable[[Item], Awaitable[Value]]
    ) -> list[Value]:
        """All at once; those under way come to their end before an error is raised."""
        return await each(items, work, window=max(1, len(items)))

    def deliver(self, events: Sequence[Event]) -> None:
        """Tell those who perceive them, and whoever watches the play."""
        for event in events:
            for name in event.perceived_by:
                self.agents[name].perceive(event)
            self.heard(event)

    def heard(self, event: Event) -> None:
        """Tell whoever watches the play."""
        if self.plan.heard is not None:
            self.plan.heard(self.scene, event)

    def _add(self, event: Event, *, deliver: bool = True) -> None:
        self.events.append(event)
        if deliver:
            self.deliver([event])
        else:
            self.heard(event)


class _Turn:
    """One character's turn under way.

    Attributes:
        hearers: who can perceive what happens: the group, after a whisper its parties.
        events: of this turn so far; updates get their state when the round is put together.
    """

    def __init__(self, world: _World, group: _Group, actor: str, now: int) -> None:
        self.world, self.group, self.actor, self.now = world, group, actor, now
        self.index = world.names.index(actor)
        self.hearers = group.names
        self.events: list[Event] = []
        self.patches: list[tuple[Patch, Bounds]] = []

    async def play(self) -> None:
        """Act, influence, reaction, result, and what changes by them."""
        act, recalled = await self._act()
        if act is None:
            return
        if act.manner == "whisper":
            self.hearers = witnesses(self.group.names, sure=(self.actor, *act.to))
        done = self._draft(self.actor, act, ("action", "speech"), recalled, self.actor, *act.to)
        told = await self.world.narrator.influence(self.world.model, self._seen_by_narrator())
        if told.value is None:
            self._settle(done)
            self._fail(None, "influence", told.failure)
            return
        named = told.value.perceived_by
        if told.value.affected is not None:  # is told of the act and of its effect (section 3.2)
            named = (*named, told.value.affected)
        self._settle(done, named)
        self._change(told.value.patch)
        self.group.concluded = told.value.concluded
        if told.value.affected is not None:
            await self._interaction(told.value.affected, told.value)
        elif self.world.paper:
            await self._updates(self.actor)

    async def _act(self) -> tuple[Act | None, tuple[Memorised, ...]]:
        agent, model, now = self.world.agents[self.actor], self.world.model, self.now
        seen = view(self.world.scene, self.group.state, self.actor)
        if not self.world.paper:
            done = await agent.act(model, seen, now)
            self._fail(self.actor, "act", done.failure)
            return done.value, done.recalled
        planned = await agent.make_plan(model, seen, now)
        self._fail(self.actor, "plan", planned.failure)
        acted = await agent.action(model, seen, now)
        self._fail(self.actor, "action", acted.failure)
        action = "" if acted.value is None else acted.value.action
        spoken = await agent.dialogue(model, seen, now, action)
        self._fail(self.actor, "dialogue", spoken.failure)
        said = spoken.value or Act()
        recalled = acted.recalled or spoken.recalled
        if not action and not said.speech:
            if acted.failure is None and spoken.failure is None:
                nothing = Failure(cause="nothing", detail="neither an action nor a speech came")
                self._fail(self.actor, "act", nothing)
            return None, recalled
        return Act(action, said.speech, said.manner, said.to), recalled

    async def _interaction(self, other: str, influence: Influence) -> None:
        """The affected character reacts at once; the narrator says what comes of it."""
        world, model = self.world, self.world.model
        touched = self._event(
            "influence", influence.text, to=(other,), affected=other, perceived_by=(other,)
        )
        self.events.append(touched)
        world.deliver([touched])
        whispered = self._whispered
        done = await world.agents[other].react(
            model,
            view(world.scene, self.group.state, other),
            self.now,
            influence=influence.text,
            whispered=whispered,
            speech=not world.paper,
        )
        self._fail(other, "reaction", done.failure)
        reacted = slice(len(self.events), len(self.events))
        if done.value is not None:
            act = done.value
            if whispered:
                act = replace(act, manner="whisper", to=self._but(other))
            elif act.manner == "whisper":
                self.hearers = witnesses(self.hearers, sure=(other, *act.to))
            reacted = self._draft(
                other, act, ("reaction", "speech"), done.recalled, self.actor, other, *act.to
            )
        sure = witnesses(self.hearers, sure=(self.actor, other))
        came = await world.narrator.result(model, self._seen_by_narrator(), other, sure)
        if came.value is None:
            self._settle(reacted)
            self._fail(None, "result", came.failure)
            return
        self._settle(reacted, came.value.perceived_by)
        private = self._whispered
        result = self._event(
            "result",
            came.value.text,
            to=self.hearers if private else (),
            manner="whisper" if private else "open",
            perceived_by=self.hearers
            if private
            else witnesses(self.hearers, named=came.value.perceived_by, sure=sure),
        )
        self.events.append(result)
        world.deliver([result])
        self._change(came.value.patch)
        if came.value.concluded is not None:
            self.group.concluded = came.value.concluded
        if world.paper:
            await self._updates(*sure)

    async def _updates(self, *whom: str) -> None:
        """The narrator's updates of characters, then of the environment (`paper`, lines 10-14)."""
        narrator, model = self.world.narrator, self.world.model
        turn = self._seen_by_narrator()

        async def one(who: str) -> Answered[Patch]:
            return await narrator.update(model, turn, who)

        for done in await self.world.all(whom, one):
            self._fail(None, "update", done.failure)
            self._change(done.value)
        if turn.bounds.visible:  # a whisper changes nothing around: there is nothing to ask
            around = await narrator.environment(model, self._seen_by_narrator())
            self._fail(None, "environment", around.failure)
            self._change(around.value)

    # Small parts ------------------------------------------------------------------------------

    @property
    def _whispered(self) -> bool:
        return self.hearers != self.group.names

    def _but(self, name: str) -> tuple[str, ...]:
        return tuple(n for n in self.hearers if n != name)

    def _event(self, kind: EventKind, text: str, **fields: Any) -> Event:
        """An event of this turn; the narrator's, unless an actor is given."""
        who = fields.get("actor")
        answered = self.world.plan
        model = answered.narrator(self.now) if who is None else answered.characters(who, self.now)
        return Event(round=self.now, turn=self.index, kind=kind, text=text, model=model, **fields)

    def _draft(
        self,
        actor: str,
        act: Act,
        kinds: tuple[EventKind, EventKind],
        recalled: tuple[Memorised, ...],
        *sure: str,
    ) -> slice:
        """The events of an act, known for now to those who surely perceive it; where they stand."""
        first = len(self.events)
        for kind, text in zip(kinds, (act.action, act.speech), strict=True):
            if text:
                self.events.append(
                    self._event(
                        kind,
                        text,
                        actor=actor,
                        to=act.to,
                        manner=act.manner,
                        recalled=recalled,
                        perceived_by=witnesses(self.hearers, sure=sure),
                    )
                )
        return slice(first, len(self.events))

    def _settle(self, drafted: slice, named: Sequence[str] = ()) -> None:
        """The act as those perceive it whom the narrator names beside those who surely do."""
        self.events[drafted] = [
            e
            if e.manner == "whisper"
            else e.model_copy(
                update={
                    "perceived_by": witnesses(self.group.names, named=named, sure=e.perceived_by)
                }
            )
            for e in self.events[drafted]
        ]
        self.world.deliver(self.events[drafted])

    def _change(self, patch: Patch | None) -> None:
        """Apply a patch that the narrator's checks have let through."""
        bounds = self._bounds()
        if patch is None:
            return
        after = apply_patch(self.group.state, patch, bounds)
        if after == self.group.state and not moves(patch, bounds):
            return  # a narrator may well say what already is
        self.group.state = after
        self.patches.append((patch, bounds))
        self.events.append(self._event("update", "", state=self.group.state))
        self.world.heard(self.events[-1])

    def _bounds(self) -> Bounds:
        if not self._whispered:
            return self.group.bounds
        return replace(self.group.bounds, names=self.hearers, visible=False, places=())

    def _seen_by_narrator(self) -> Turn:
        before = [e for turn in self.group.turns if turn is not self for e in turn.events]
        return Turn(
            self.now,
            self.actor,
            self.group.names,
            self.hearers,
            self.group.state,
            (*self.group.story, *before),
            tuple(self.events),
            self._bounds(),
        )

    def _fail(self, actor: str | None, step: str, failure: Failure | None) -> None:
        """Record why there is nothing, where there is nothing."""
        if failure is None:
            return
        plan = self.world.plan
        model = plan.narrator(self.now) if actor is None else plan.characters(actor, self.now)
        self.events.append(_failure(actor, self.now, self.index, step, failure, model))
        self.world.heard(self.events[-1])


def _failure(
    actor: str | None, now: int, turn: int, step: str, failure: Failure, model: str
) -> Event:
    return Event(
        round=now, turn=turn, kind="failure", actor=actor, text=step, failure=failure, model=model
    )
