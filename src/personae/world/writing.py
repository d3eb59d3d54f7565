"""Scenes in three stages: a screenwriter writes, a director refines, a reviewer lets it pass.

CharacterBox, section 3.1 ("LLMs as screenwriter, director, evaluator") and section 6.5, Table 4.
Scenes are *extracted* from passages of a book, or *generated*: invented for the people of a
passage, or for a group out of a cast of cards.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from pydantic import Field

from personae.journal.flow import Watcher, each
from personae.prompts import render
from personae.prompts.scene_schemas import GENDERS, review_schema, scene_schema
from personae.records import (
    Call,
    Environment,
    Failure,
    Language,
    Message,
    Model,
    Record,
    Reply,
    ReplySchema,
    Sampling,
    Scene,
    SceneCharacter,
    Secret,
    Shortfall,
)
from personae.records.scene import Origin
from personae.records.similarity import Distinct, normalised
from personae.world.sources import Source, Supply

Method: TypeAlias = Literal["single", "three_stages"]
Criterion: TypeAlias = Literal["creativity", "coherence", "conformity", "detail"]
FaultCode: TypeAlias = Literal["ungrounded", "twice", "unknown_knower", "blank"]
Cause: TypeAlias = Literal["rejected", "unusable", "duplicate", "no_scene", "failed"]

METHODS: tuple[Method, ...] = ("single", "three_stages")
CRITERIA: tuple[Criterion, ...] = ("creativity", "coherence", "conformity", "detail")
LOWEST = 3
THRESHOLD = 3.5
ROUNDS = 3
TRIES = 3  # sources tried for each scene that is wanted, before giving up
TAKEN = 20  # scenes that a prompt names as already there

_HAN = re.compile("[\u3400-\u9fff]")
_WORD = "[^\\W\u3400-\u9fff]"  # a letter or digit that Chinese text sets off
_ARTICLE = re.compile("^(?:the|an?)(?: |$)")

WRITER_SAMPLING = Sampling(temperature=0.9, top_p=0.9, max_tokens=2000)
DIRECTOR_SAMPLING = Sampling(temperature=0.7, top_p=0.9, max_tokens=2000)
REVIEWER_SAMPLING = Sampling(temperature=0.0, max_tokens=1500)


def criteria(origin: Origin) -> tuple[Criterion, ...]:
    """What a scene is scored on. The creativity of a scene from a book is the book's (Table 4)."""
    return CRITERIA if origin == "generated" else CRITERIA[1:]


# What is written, and what became of it -------------------------------------------------------


class Fault(Record):
    """Why code refuses a draft, whatever a reviewer would say.

    Attributes:
        code: `ungrounded`: a name that does not stand in the passage; `twice`: a name of two
            characters; `unknown_knower`: who knows a secret and is not there; `blank`.
        value: the name, or what is blank.
    """

    code: FaultCode
    value: str


class Review(Record):
    """One verdict of the reviewer.

    Attributes:
        scores, reasons: by criterion; scores 1 to 5.
        changes: what the reviewer wants changed.
        flag: the reviewer's own word on whether to accept.
        accepted: what the rule says (`Rule`): the flag alone is not enough.
    """

    round: int = Field(ge=0)
    scores: dict[Criterion, int]
    reasons: dict[Criterion, str]
    changes: tuple[str, ...] = ()
    flag: bool
    accepted: bool


class Attempt(Record):
    """What came of one attempt at a scene: a line of reviews.jsonl or rejected.jsonl of a run.

    Attributes:
        unit: the source and how often it was used: `passage-12.0`, `Alice+Ada.1`.
        scene: the scene as it last was; None where no draft could be used.
        reviews: all verdicts, in order.
        faults: what code refused in the last draft.
        failures: replies that could not be had, in order.
        cause: why there is no scene; None for an accepted one. `rejected`: by the reviewer in
            every round; `unusable`: refused by code; `duplicate`: nearly one that was accepted;
            `no_scene`: the writer finds none in the passage; `failed`: no reply could be had.
    """

    unit: str
    origin: Origin
    method: Method = "three_stages"
    writer: str
    director: str | None = None
    reviewer: str | None = None
    scene: Scene | None = None
    reviews: tuple[Review, ...] = ()
    faults: tuple[Fault, ...] = ()
    failures: tuple[Failure, ...] = ()
    cause: Cause | None = None


@dataclass(frozen=True)
class Rule:
    """When a reviewed scene is accepted: all of these hold.

    The reviewer's flag says so; no criterion is below `lowest`; the mean over the criteria is at
    least `mean`.
    """

    lowest: int = LOWEST
    mean: float = THRESHOLD

    def accepts(self, scores: Mapping[Criterion, int], flag: bool) -> bool:
        """Whether a scene with these scores is accepted."""
        return (
            flag
            and min(scores.values()) >= self.lowest
            and sum(scores.values()) / len(scores) >= self.mean
        )


# One scene ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WritePlan:
    """Who writes, and when a scene is good enough.

    Attributes:
        rounds: most attempts of each stage at one scene.
        rehearsal: nothing is checked and every scene passes its first review, so that a dry run
            counts the fewest calls that the scenes can take.
    """

    writer: str
    director: str
    reviewer: str
    language: Language = "en"
    rounds: int = ROUNDS
    rule: Rule = Rule()
    writer_sampling: Sampling = WRITER_SAMPLING
    director_sampling: Sampling = DIRECTOR_SAMPLING
    reviewer_sampling: Sampling = REVIEWER_SAMPLING
    rehearsal: bool = False


Draft: TypeAlias = dict[str, Any]


@dataclass
class _Desk:
    """One attempt under way: what there is of the scene and what stood in its way."""

    model: Model
    plan: WritePlan
    source: Source
    origin: Origin
    use: int
    taken: tuple[str, ...] = ()
    draft: Draft | None = None
    lacks: bool = False
    faults: tuple[Fault, ...] = ()
    wishes: tuple[str, ...] = ()
    failures: list[Failure] = field(default_factory=list)
    reviews: list[Review] = field(default_factory=list)

    @property
    def unit(self) -> str:
        return f"{self.source.key}.{self.use}"

    async def write(self, number: int) -> bool:
        """The screenwriter's draft; False where there is none that can be used."""
        plan = self.plan
        extracts = self.origin == "extracted"
        reply = await self._ask(
            "screenwriter",
            plan.writer,
            render(
                "scenes/extract" if extracts else "scenes/invent",
                plan.language,
                **self._material,
                slots=len(self.source.names),
                taken=list(self.taken),
                faults=list(self.faults),
            ),
            scene_schema(plan.language, self.source.names, may_lack=extracts),
            plan.writer_sampling,
            number,
        )
        if not reply.ok:
            return False
        if reply.value["scene"] is None:
            self.lacks = True
            return False
        return self._take(reply.value["scene"])

    async def direct(self, number: int) -> bool:
        """The director's version in place of the draft; False where it cannot be used."""
        assert self.draft is not None
        plan = self.plan
        names = tuple(c["name"] for c in self.draft["characters"])
        reply = await self._ask(
            "director",
            plan.director,
            render(
                "scenes/direct",
                plan.language,
                **self._material,
                slots=len(names),
                scene=_shown(self.draft),
                wishes=list(self.wishes),
                faults=list(self.faults),
            ),
            scene_schema(plan.language, names),
            plan.director_sampling,
            number,
        )
        return reply.ok and self._take(reply.value["scene"])

    async def review(self, number: int, round_: int, reviewer: str | None = None) -> Review | None:
        """The reviewer's verdict; None where it could not be had."""
        assert self.draft is not None
        plan, wanted = self.plan, criteria(self.origin)
        reply = await self._ask(
            "reviewer",
            reviewer or plan.reviewer,
            render(
                "scenes/review",
                plan.language,
                **self._material,
                origin=self.origin,
                criteria=list(wanted),
                scene=_shown(self.draft),
            ),
            review_schema(wanted),
            plan.reviewer_sampling,
            number,
        )
        if not reply.ok:
            return None
        scores = {name: reply.value[name]["score"] for name in wanted}
        flag = reply.value["accept"]
        return Review(
            round=round_,
            scores=scores,
            reasons={name: reply.value[name]["reason"].strip() for name in wanted},
            changes=tuple(c.strip() for c in reply.value["changes"] if c.strip()),
            flag=flag,
            accepted=plan.rehearsal or plan.rule.accepts(scores, flag),
        )

    def send_back(self, review: Review) -> None:
        """What the director is told: the changes, and why a score is below the threshold."""
        low = [
            review.reasons[name]
            for name, score in review.scores.items()
            if score < self.plan.rule.mean
        ]
        self.wishes = (*review.changes, *low) or tuple(review.reasons.values())
        self.faults = ()

    def attempt(self, cause: Cause | None, method: Method) -> Attempt:
        """The attempt as it is recorded."""
        three = method == "three_stages"
        usable = self.draft is not None and not self.plan.rehearsal
        return Attempt(
            unit=self.unit,
            origin=self.origin,
            method=method,
            writer=self.plan.writer,
            director=self.plan.director if three else None,
            reviewer=self.plan.reviewer if three else None,
            scene=self._scene(three=three) if usable else None,
            reviews=tuple(self.reviews),
            faults=self.faults,
            failures=tuple(self.failures),
            cause=cause,
        )

    @property
    def _cast(self) -> list[str]:
        return [m.told for m in self.source.group]

    @property
    def _material(self) -> dict[str, Any]:
        passage = self.source.passage
        return {"passage": None if passage is None else passage.text, "cast": self._cast}

    async def _ask(
        self,
        role: str,
        who: str,
        messages: tuple[Message, ...],
        schema: ReplySchema,
        sampling: Sampling,
        number: int,
    ) -> Reply:
        reply = await self.model.ask(
            Call(
                role=role,
                model=who,
                messages=messages,
                reply_schema=schema,
                sampling=sampling,
                # A source that is used again is asked anew, even if nothing else has changed.
                repeat=self.use * (self.plan.rounds + 1) + number,
                meta={
                    "stage": "scenes",
                    "scene": self.unit,
                    "origin": self.origin,
                    "round": number,
                },
            )
        )
        if reply.failure is not None:
            self.failures.append(reply.failure)
        return reply

    def _take(self, value: Draft) -> bool:
        draft = _stripped(value)
        if isinstance(draft["characters"], dict):
            draft["characters"] = list(draft["characters"].values())
        if self.plan.rehearsal:
            self.draft = draft
            return True
        self.faults = tuple(faults_of(draft, self.source))
        if self.faults:
            return False
        self.draft = draft
        return True

    def _scene(self, *, three: bool) -> Scene:
        assert self.draft is not None
        draft, plan, source = self.draft, self.plan, self.source
        genders = GENDERS[plan.language]
        cards = {m.name: m.card for m in source.group}
        made = [f"written by {plan.writer}"]
        if three:
            made += [f"directed by {plan.director}", f"reviewed by {plan.reviewer}"]
        return Scene(
            id=self.unit,
            title=source.title,
            language=plan.language,
            origin=self.origin,
            event=draft["event"],
            environment=Environment(
                time=draft["time"], location=draft["location"], description=draft["description"]
            ),
            characters=tuple(
                SceneCharacter(
                    name=c["name"],
                    description=c["description"],
                    gender=genders[c["gender"]],
                    position=c["position"],
                    state=c["state"],
                    goal=c["goal"] or None,
                    card=cards.get(c["name"]),
                )
                for c in draft["characters"]
            ),
            secrets=tuple(
                Secret(fact=s["fact"], known_by=tuple(dict.fromkeys(s["known_by"])))
                for s in draft["secrets"]
            ),
            plot=draft["plot"],
            source="; ".join([source.said, *made] if source.said else made),
        )


def _shown(draft: Draft) -> str:
    return json.dumps(draft, ensure_ascii=False, indent=1)


def _stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stripped(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_stripped(v) for v in value]
    return value.strip() if isinstance(value, str) else value


def faults_of(draft: Draft, source: Source) -> list[Fault]:
    """What code refuses in a draft; reviewers are not asked about it.

    Args:
        draft: as `scene_schema` has it, its characters as a list.
        source: in whose passage, if it has one, every name must stand.
    """
    found = [
        Fault(code="blank", value=key)
        for key in ("event", "time", "location", "description")
        if not draft[key]
    ]
    given = [c["name"] for c in draft["characters"]]
    found += [Fault(code="blank", value="name") for name in given if not name]
    found += [
        Fault(code="twice", value=n) for n, times in Counter(given).items() if times > 1 and n
    ]
    if source.passage is not None:
        text = normalised(source.passage.text)
        found += [
            Fault(code="ungrounded", value=n)
            for n in dict.fromkeys(given)
            if n and not _occurs(n, text)
        ]
    for secret in draft["secrets"]:
        if not secret["fact"]:
            found.append(Fault(code="blank", value="secrets"))
        found += [
            Fault(code="unknown_knower", value=n or "?")
            for n in secret["known_by"]
            if n not in given
        ]
    return found


def _occurs(name: str, text: str) -> bool:
    """Whether a name stands in a normalised text: as a word, or in Chinese as it is."""
    wanted = _ARTICLE.sub("", normalised(name))
    if not wanted:
        return False
    if _HAN.search(wanted):
        return wanted in text
    return re.search(rf"(?<!{_WORD}){re.escape(wanted)}(?!{_WORD})", text) is not None


async def _single_pass(desk: _Desk) -> Cause | None:
    """A draft that code accepts; None, or why there is none."""
    for number in range(desk.plan.rounds):
        if await desk.write(number):
            return None
        if desk.lacks:
            return "no_scene"
    return "unusable" if desk.faults else "failed"


async def _three_stages(desk: _Desk) -> Cause | None:
    """Draft, direction, review, until the reviewer lets it pass or the rounds are over.

    A stage whose reply cannot be used is asked again in the next round; what is sent back goes to
    the director. Returns None for an accepted scene, or why there is none.
    """
    cause = await _single_pass(desk)
    if cause is not None:
        return cause
    directed = False
    for number in range(desk.plan.rounds):
        if not directed:
            directed = await desk.direct(number)
            if not directed:
                continue
        review = await desk.review(number, number)
        if review is None:
            continue
        desk.reviews.append(review)
        if review.accepted:
            return None
        desk.send_back(review)
        directed = False
    if desk.faults:
        return "unusable"
    return "rejected" if desk.reviews else "failed"


# Many scenes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """What `craft_scenes` leaves.

    Attributes:
        scenes: the accepted ones, numbered `TITLE/ORIGIN/0`, 1, 2 ...; scenes of a book in its
            order.
        accepted: their attempts, in the same order.
        rejected: all other attempts, in the order in which they were made.
        shortfall: None where all were delivered.
    """

    scenes: tuple[Scene, ...]
    accepted: tuple[Attempt, ...]
    rejected: tuple[Attempt, ...]
    shortfall: Shortfall | None


async def craft_scenes(
    model: Model,
    plan: WritePlan,
    supply: Supply,
    wanted: int,
    *,
    origin: Origin,
    window: int = 64,
    watcher: Watcher | None = None,
) -> Written:
    """Have `wanted` scenes written in three stages; fewer with the cause, never more.

    Sources are worked on in waves, all of a wave at once. What a scene may not repeat are those of
    earlier waves, and near-duplicates inside one are refused in its order, so that a replay makes
    the same calls. After `TRIES` sources for each scene that is wanted it gives up; a passage that
    holds no scene does not count as one.
    """
    distinct = Distinct()
    accepted: list[tuple[Source, Attempt]] = []
    rejected: list[Attempt] = []
    uses: Counter[str] = Counter()
    tried, wave = 0, 0

    def taken(source: Source) -> tuple[str, ...]:
        events = [a.scene.event for s, a in accepted if a.scene and supply.near(source, s)]
        return tuple(events[-TAKEN:])

    async def work(desk: _Desk) -> Attempt:
        return desk.attempt(await _three_stages(desk), "three_stages")

    while len(accepted) < wanted and tried < TRIES * wanted:
        sources = supply.next(min(wanted - len(accepted), TRIES * wanted - tried))
        if not sources:
            break
        wave += 1
        desks = [_Desk(model, plan, s, origin, uses[s.key], taken(s)) for s in sources]
        uses.update(s.key for s in sources)
        stage = "scenes" if wave == 1 else f"scenes, wave {wave}"
        done = await each(desks, work, stage=stage, window=window, watcher=watcher)
        if plan.rehearsal:
            return Written((), (), (), None)
        for source, attempt in zip(sources, done, strict=True):
            result = attempt
            if result.cause == "no_scene":
                supply.barren(source)
            else:
                tried += 1
            if result.cause is None and not distinct.add(_gist(result.scene)):
                result = result.model_copy(update={"cause": "duplicate"})
            if result.cause is None:
                accepted.append((source, result))
            else:
                rejected.append(result)
    accepted.sort(key=lambda pair: pair[0].passage.number if pair[0].passage else 0)
    scenes = tuple(
        a.scene.model_copy(update={"id": f"{a.scene.title}/{origin}/{number}"})
        for number, (_, a) in enumerate(accepted)
        if a.scene is not None
    )
    return Written(
        scenes,
        tuple(
            a.model_copy(update={"scene": scene})
            for (_, a), scene in zip(accepted, scenes, strict=True)
        ),
        tuple(rejected),
        _shortfall(wanted, len(scenes), rejected),
    )


def _gist(scene: Scene | None) -> str:
    assert scene is not None
    return "\n".join(
        [scene.event, scene.environment.description, *(c.name for c in scene.characters)]
    )


def _shortfall(wanted: int, got: int, rejected: Sequence[Attempt]) -> Shortfall | None:
    if got >= wanted:
        return None
    causes = Counter(a.cause for a in rejected)
    listed = ", ".join(f"{n} {_SAID[cause]}" for cause, n in causes.most_common() if cause)
    return Shortfall(what="scenes", wanted=wanted, got=got, cause=listed or "no source is left")


_SAID: Mapping[Cause, str] = {
    "rejected": "rejected by the reviewer",
    "unusable": "unusable (see faults)",
    "duplicate": "near-duplicates",
    "no_scene": "passages without a scene",
    "failed": "without a usable reply",
}


# Writers compared -----------------------------------------------------------------------------


class ComparedScene(Record):
    """One source, one writer, one method: a line of comparison.jsonl.

    Attributes:
        scene_id: of the scene that was delivered; None where none was.
        scores, reasons: by the reviewer that all scenes share; null where `cause` is set.
        cause: why there is no score: that of the attempt, or `review_failed`.
    """

    unit: str
    origin: Origin
    method: Method
    writer: str
    reviewer: str
    scene_id: str | None = None
    scores: dict[Criterion, int] | None = None
    reasons: dict[Criterion, str] | None = None
    cause: Cause | Literal["review_failed"] | None = None


@dataclass(frozen=True)
class Compared:
    """What `compare_writers` leaves: all scenes delivered, a row for each attempt, the attempts."""

    scenes: tuple[Scene, ...]
    rows: tuple[ComparedScene, ...]
    rejected: tuple[Attempt, ...]


async def compare_writers(
    model: Model,
    plan: WritePlan,
    writers: Sequence[str],
    sources: Mapping[Origin, Sequence[Source]],
    *,
    window: int = 64,
    watcher: Watcher | None = None,
) -> Compared:
    """The same sources for every writer, by single pass and in three stages (Table 4).

    A writer is its own director and its own reviewer inside the three stages, as the paper's base
    model was; what comes out is scored by `plan.reviewer`, which sees neither writer nor method.
    Both methods begin with the same draft, so that a difference is what direction and review add.
    """
    jobs = [
        (writer, origin, source)
        for origin, some in sources.items()
        for source in some
        for writer in writers
    ]

    async def work(job: tuple[str, Origin, Source]) -> list[tuple[Attempt, ComparedScene]]:
        writer, origin, source = job
        own = replace(plan, writer=writer, director=writer, reviewer=writer)
        found = []
        for method in METHODS:
            desk = _Desk(model, own, source, origin, 0)
            cause = await (_single_pass if method == "single" else _three_stages)(desk)
            attempt = desk.attempt(cause, method)
            row = ComparedScene(
                unit=source.key,
                origin=origin,
                method=method,
                writer=writer,
                reviewer=plan.reviewer,
                cause=cause,
            )
            if cause is None:
                # Not a number that the loop has used: the verdict that let a scene pass is not
                # the one that it is measured by.
                review = await desk.review(plan.rounds, plan.rounds, plan.reviewer)
                place = f"{source.key}@{writer}/{method}"
                if attempt.scene is not None:
                    named = attempt.scene.model_copy(
                        update={"id": f"{source.title}/{origin}/{place}"}
                    )
                    attempt = attempt.model_copy(update={"scene": named})
                    row = row.model_copy(update={"scene_id": named.id})
                row = row.model_copy(
                    update={"cause": "review_failed"}
                    if review is None
                    else {"scores": review.scores, "reasons": review.reasons}
                )
            found.append((attempt, row))
        return found

    done = await each(jobs, work, stage="compared", window=window, watcher=watcher)
    pairs = [pair for some in done for pair in some]
    return Compared(
        tuple(a.scene for a, _ in pairs if a.cause is None and a.scene is not None),
        tuple(row for _, row in pairs),
        tuple(a for a, _ in pairs if a.cause is not None),
    )
