"""A character at play: what it believes, remembers and plans, and how it is asked to act.

BDI agents with a memory (CharacterBox, section 3.2 and appendix D.2). An agent hears of the world
through `perceive` alone, and its prompts are made of that, of its own card and of its `View`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from personae.prompts import render
from personae.prompts.world_schemas import act_schema, belief_schema, plan_schema
from personae.records import (
    Beliefs,
    Call,
    Event,
    Failure,
    Language,
    Memorised,
    Message,
    Model,
    ReplySchema,
    Sampling,
    SceneCharacter,
)
from personae.records.call import Refusing, is_person
from personae.world.observe import View, plain, told
from personae.world.seat import seat
from personae.world.state import RefusedError

Value = TypeVar("Value")

Manner = Literal["open", "whisper"]

MOST_ASKED_OF_A_PERSON = 20
MOST_RECALLED = 6
RECENT_ENOUGH = 4
"""How many of the last perceived lines make the query of a recall."""

AFFECTED, SEED, ADDRESSED, OWN, BELIEF, WITNESSED = 0.9, 0.8, 0.7, 0.6, 0.5, 0.3
"""Importance by rule (0 to 1): what touched the character, how it was before the play, what was
said to it, what it did and was, what it believed, what it merely saw. Park et al. 2023 ask a model
for each memory; those were 36 % of the released code's calls, and their answers were never used."""


class Memory(Protocol):
    """What an agent needs of its memory (`personae.world.memory.MemoryStream`)."""

    def add(self, text: str, *, step: int, kind: str, importance: float) -> object:
        """Remember a text of a round."""
        ...

    async def recall(self, query: str, *, now: int, limit: int) -> tuple[Memorised, ...]:
        """The memories that matter most now, best first."""
        ...


@dataclass(frozen=True)
class Act:
    """What a character does on its turn, or in answer to another."""

    action: str = ""
    speech: str = ""
    manner: Manner = "open"
    to: tuple[str, ...] = ()
    plan: str = ""


@dataclass(frozen=True)
class Answered(Generic[Value]):
    """What came of one question: a value or why there is none, and what was recalled for it."""

    value: Value | None
    failure: Failure | None = None
    recalled: tuple[Memorised, ...] = ()


async def ask_checked(
    model: Model, call: Call, language: Language, read: Callable[[Any], Value]
) -> Answered[Value]:
    """Ask, and once more with the reason if what came back cannot stand.

    A reply that breaks its schema has had its repair exchange already (the client's); `read` checks
    what a schema cannot say, and raises `RefusedError`. A person is asked until it can stand, or
    nearly.
    """
    asked, first, person = call, "", is_person(call.model)
    refused: list[Call] = []
    for left in reversed(range(MOST_ASKED_OF_A_PERSON if person else 2)):
        reply = await model.ask(asked)
        if not reply.ok:
            return Answered(None, reply.failure)
        try:
            return Answered(read(reply.value))
        except RefusedError as error:
            problem = str(error)
        refused.append(asked)
        if not left:
            why = f"{first}; after being asked again: {problem}"
            failure = Failure(cause="refused", detail=why)
            if isinstance(model, Refusing):  # what is recorded as failed, resuming asks again
                await model.refuse(refused, failure)
            return Answered(None, failure)
        first = first or problem
        said = Message(role="assistant", content=reply.text or "")
        again = (*asked.messages, said, *render("repair", language, problem=problem))
        meta = {**call.meta, "problem": problem} if person else call.meta
        asked = call.model_copy(update={"messages": again, "meta": meta})
    raise AssertionError("the last refusal has returned")


def no_lore(_heard: Sequence[str]) -> str:
    """A character without a lorebook."""
    return ""


@dataclass
class Agent:
    """One character in one scene.

    Attributes:
        character: its part of the scene.
        profile: its card as prompt text; empty without one.
        secrets: the facts that it knows.
        lore: what its lorebook gives for what it has perceived, oldest first.
        model_in: who answers for it in a round.
        memory: holds all that has left the prompt; None remembers nothing else.
    """

    scene_id: str
    event: str
    character: SceneCharacter
    language: Language
    sampling: Sampling
    model_in: Callable[[int], str]
    profile: str = ""
    secrets: tuple[str, ...] = ()
    lore: Callable[[Sequence[str]], str] = no_lore
    memory: Memory | None = None
    beliefs: Beliefs = field(default_factory=Beliefs)
    plan: str = ""
    _recent: list[tuple[Event, str]] = field(default_factory=list)
    _heard: list[str] = field(default_factory=list)
    _since: int = 0
    _body: tuple[str, int] | None = None

    @property
    def name(self) -> str:
        """As the scene calls it."""
        return self.character.name

    # What reaches it ---------------------------------------------------------------------------

    def perceive(self, event: Event) -> None:
        """Take in an event.

        Raises:
            ValueError: the event is none of its business; nothing has been taken in.
        """
        if self.name not in event.perceived_by:
            raise ValueError(f"{self.name!r} did not perceive this event")
        if event.kind == "opening":  # stands in every prompt
            return
        line = told(event, self.language)
        self._recent.append((event, line))
        self._heard.append(line)

    def _remember(self, text: str, step: int, kind: str, importance: float) -> None:
        """What leaves the prompt enters the memory, and nothing stands in both."""
        if self.memory is not None and text.strip():
            self.memory.add(text, step=step, kind=kind, importance=importance)

    def _weight(self, event: Event) -> float:
        if event.actor == self.name:
            return OWN
        if event.affected == self.name:
            return AFFECTED
        return ADDRESSED if self.name in event.to else WITNESSED

    def _look(self, view: View, now: int) -> None:
        """Remember how it was itself, once that has changed."""
        body = " ".join(" ".join(part.split()) for part in (view.position, view.state) if part)
        if self._body is not None and self._body[0] != body:
            was, since = self._body
            kind, importance = ("observation", OWN) if since else ("seed", SEED)
            how = Event(round=since, turn=-1, kind="action", actor=self.name, text=was)
            self._remember(told(how, self.language) if was else "", since, kind, importance)
            self._body = (body, now)
        elif self._body is None:
            self._body = (body, 0)

    async def _recall(self, now: int) -> tuple[Memorised, ...]:
        if self.memory is None:
            return ()
        last = [line for _, line in self._recent[-RECENT_ENOUGH:]]
        query = "\n".join(last) or self.event or self.name
        return await self.memory.recall(query, now=now, limit=MOST_RECALLED)

    # What it is asked --------------------------------------------------------------------------

    async def act(self, model: Model, view: View, now: int) -> Answered[Act]:
        """Plan, act and speak, in one reply (protocol `personae`)."""
        done: Answered[Act] = await self._ask(
            model,
            "act",
            view,
            now,
            act_schema(view.names, plan=not is_person(self.model_in(now))),
            lambda value: read_act(value, view),
        )
        if done.value is not None:
            self.plan = done.value.plan
        return done

    async def make_plan(self, model: Model, view: View, now: int) -> Answered[str]:
        """Plan before acting (protocol `paper`, "Plan and perform action").

        A person's plans are its own business, and so are its beliefs.
        """
        if is_person(self.model_in(now)):
            self._turn_begins()
            return Answered("")
        done: Answered[str] = await self._ask(
            model, "plan", view, now, plan_schema(), lambda value: _filled(value["plan"])
        )
        if done.value is not None:
            self.plan = done.value
        return done

    async def action(self, model: Model, view: View, now: int) -> Answered[Act]:
        """One observable action (protocol `paper`, appendix D.2)."""
        return await self._ask(
            model,
            "action",
            view,
            now,
            act_schema(view.names, speech=False, whispers=False),
            lambda value: read_act(value, view),
        )

    async def dialogue(self, model: Model, view: View, now: int, action: str) -> Answered[Act]:
        """What it says with the action (protocol `paper`, appendix D.2); it may say nothing."""
        return await self._ask(
            model,
            "dialogue",
            view,
            now,
            act_schema(view.names, action=False),
            lambda value: read_act(value, view, silent=True),
            action=action,
        )

    async def react(
        self,
        model: Model,
        view: View,
        now: int,
        *,
        influence: str,
        whispered: bool,
        speech: bool,
    ) -> Answered[Act]:
        """Answer at once to an act that affects it.

        Args:
            influence: how the act touches it.
            whispered: the act was a whisper, and so is the reaction.
            speech: whether a reaction may speak (not under `paper`, appendix D.2).
        """
        return await self._ask(
            model,
            "reaction",
            view,
            now,
            act_schema(view.names, speech=speech, whispers=speech and not whispered),
            lambda value: read_act(value, view),
            influence=influence,
            whispered=whispered,
            speech=speech,
        )

    async def believe(self, model: Model, view: View, now: int) -> Answered[Beliefs]:
        """Beliefs of self and of the environment, in one reply (protocol `personae`)."""
        fields = ("belief", "desire", "intention", "environment")
        return await self._believe(model, "belief", view, now, fields)

    async def believe_in_self(self, model: Model, view: View, now: int) -> Answered[Beliefs]:
        """Belief, desire and intention (protocol `paper`, appendix D.2)."""
        return await self._believe(
            model, "self_belief", view, now, ("belief", "desire", "intention")
        )

    async def believe_in_environment(self, model: Model, view: View, now: int) -> Answered[Beliefs]:
        """What it makes of others and of the scene (protocol `paper`, appendix D.2)."""
        return await self._believe(model, "env_belief", view, now, ("environment",))

    async def _believe(
        self, model: Model, step: str, view: View, now: int, fields: tuple[str, ...]
    ) -> Answered[Beliefs]:
        done: Answered[Beliefs] = await self._ask(
            model,
            step,
            view,
            now,
            belief_schema(*fields),
            lambda value: self.beliefs.model_copy(
                update={field: _filled(value[field]) for field in fields}
            ),
        )
        if done.value is not None:
            old = [getattr(self.beliefs, field) for field in fields]
            text = " ".join(" ".join(part.split()) for part in old if part)
            self._remember(text, now - 1, "belief", BELIEF)
            self.beliefs = done.value
        return done

    async def _ask(
        self,
        model: Model,
        step: str,
        view: View,
        now: int,
        schema: ReplySchema,
        read: Callable[[Any], Value],
        **values: object,
    ) -> Answered[Value]:
        if step in _BEGINS_A_TURN:
            self._turn_begins()
        self._look(view, now)
        recalled = await self._recall(now)
        who, told_all = self.model_in(now), {**self._values(view, recalled), **values}
        call = Call(
            role="character",
            model=who,
            messages=render(f"world/{step}", self.language, **told_all),
            reply_schema=schema,
            sampling=self.sampling,
            meta={
                "scene": self.scene_id,
                "character": self.name,
                "round": now,
                "step": step,
                **(
                    seat("character", self.language, step=step, **told_all)
                    if is_person(who)
                    else {}
                ),
            },
        )
        done = await ask_checked(model, call, self.language, read)
        return Answered(done.value, done.failure, recalled)

    def _turn_begins(self) -> None:
        """Keep in the prompt what happened since its last turn began; remember what is older."""
        for event, line in self._recent[: self._since]:
            own = event.kind if event.kind in ("speech", "reaction") else "action"
            kind = own if event.actor == self.name else "observation"
            self._remember(line, event.round, kind, self._weight(event))
        del self._recent[: self._since]
        self._since = len(self._recent)

    def _values(self, view: View, recalled: tuple[Memorised, ...]) -> Mapping[str, object]:
        """What every prompt of a character is filled in with."""
        return {
            "name": plain(self.name),
            "event": self.event,
            "character": self.character,
            "profile": self.profile,
            "secrets": self.secrets,
            "view": view,
            "beliefs": self.beliefs,
            "plan": self.plan,
            "lore": self.lore([self.event, *self._heard, _surroundings(view)]),
            "memories": [m.text for m in recalled],
            "recent": [line for _, line in self._recent],
        }


_BEGINS_A_TURN = frozenset({"act", "plan"})


def read_act(value: Mapping[str, Any], view: View, *, silent: bool = False) -> Act:
    """An act out of a reply that meets its schema.

    Args:
        silent: whether saying nothing is an answer.

    Raises:
        RefusedError: nothing is done or said.
    """
    action, speech = value.get("action", "").strip(), value.get("speech", "").strip()
    to = tuple(name for name in view.names if name in value.get("to", ()))
    if not action and not speech and not silent:
        raise RefusedError("nothing is done and nothing is said; give an action or a speech")
    done = bool(action or speech)
    return Act(
        action=action,
        speech=speech,
        manner="whisper" if done and value.get("manner") == "whisper" else "open",
        to=to if done else (),
        plan=value.get("plan", "").strip(),
    )


def _surroundings(view: View) -> str:
    """What lies before the eyes, for a lorebook's keys."""
    parts = (view.time, view.location, view.place, view.description, view.surroundings)
    return "\n".join(part for part in parts if part)


def _filled(text: str) -> str:
    if not text.strip():
        raise RefusedError("a text is blank")
    return text.strip()
