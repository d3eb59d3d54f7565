"""Interviews with characters (Neeko, sections 4 and 5): what is asked, said and scored."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from personae.records.base import Record, content_hash
from personae.records.benchmark import Language, NotBlank
from personae.records.call import Failure

InterviewKind = Literal["single", "multi", "transfer"]
InterviewMode = Literal["single", "live", "replayed", "unknown"]
Method = Literal["prompt", "rag", "cast", "imported"]

JSON = Any


class ScriptTurn(Record):
    """One turn as it is set before anybody is asked.

    Attributes:
        character: who is asked.
        asked: the interviewer's words; None are the interviewer's to find.
    """

    character: NotBlank
    asked: NotBlank | None = None


class InterviewScript(Record):
    """What is asked, the same for all models and methods.

    Attributes:
        id: unique in a run; answers to the same script are compared side by side.
        kind: one question, an interview with one character, or one in which the character changes.
        topic: what it is about; a live interviewer leads with it.
        topic_id: as Neeko's files number topics.
        tempting: it means to draw the character out of its role.
        location, status: where the character is and how it is there (appendix B.2).
        source: file and place that it is from, or who wrote it.
        extra: what an imported file says beside it, as it was found.
    """

    id: NotBlank
    kind: InterviewKind
    language: Language = "en"
    topic: str = ""
    topic_id: str = ""
    tempting: bool = False
    location: str = ""
    status: str = ""
    turns: tuple[ScriptTurn, ...] = Field(min_length=1)
    source: str = ""
    extra: dict[str, JSON] = {}

    @model_validator(mode="after")
    def _turns_are_of_the_kind(self) -> InterviewScript:
        if self.kind == "single" and (len(self.turns) != 1 or self.turns[0].asked is None):
            raise ValueError("a single question is one turn, and says what is asked")
        if self.kind != "transfer" and len(self.characters) != 1:
            raise ValueError("only in a transfer dialogue the character changes")
        if any(t.asked is None for t in self.turns) and not self.topic.strip():
            raise ValueError("a live interviewer needs a topic")
        return self

    @property
    def characters(self) -> tuple[str, ...]:
        """Who is asked, in order of first appearance."""
        return tuple(dict.fromkeys(turn.character for turn in self.turns))

    @property
    def mode(self) -> InterviewMode:
        """How the interviewer's words come about."""
        if self.kind == "single":
            return "single"
        return "live" if any(turn.asked is None for turn in self.turns) else "replayed"

    @property
    def hash(self) -> str:
        """SHA-256 over all that decides what is asked (not source and extra)."""
        kept = self.to_dict()
        return content_hash({k: v for k, v in kept.items() if k not in ("source", "extra")})


class Exchange(Record):
    """One turn as it was held.

    Attributes:
        asked: the interviewer's words; None where they could not be had.
        answer: the character's. One that cannot stand for it (it holds the prompt, say) is kept as
            it was found, with `failure` saying so.
        failure: why there is no usable answer.
        passages: what a method of retrieval put before the question.
    """

    character: NotBlank
    asked: str | None
    answer: str | None
    failure: Failure | None = None
    passages: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _nothing_has_a_reason(self) -> Exchange:
        if self.failure is None and (self.asked is None or not (self.answer or "").strip()):
            raise ValueError("where words are missing, `failure` says why")
        return self


class Interview(Record):
    """One line of interviews.jsonl: a script as one model held it by one method.

    Attributes:
        id: script, model and method; all judges and metrics of an interview share it.
        script_id, kind, topic, ...: of its script.
        mode: how the interviewer's words came about: `single` question, `live`, `replayed` (fixed
            beforehand), or `unknown` of a published dialogue.
        model: who plays the characters; `cast:DIR` under `prompt` and `rag` is its base alone.
        interviewer: the live interviewer's model.
        source: file and place, of an imported one.
        extra: what an imported file says beside it, as it was found.
    """

    id: NotBlank
    script_id: NotBlank
    kind: InterviewKind
    mode: InterviewMode
    method: Method
    model: NotBlank
    interviewer: str | None = None
    language: Language
    topic: str = ""
    topic_id: str = ""
    tempting: bool = False
    location: str = ""
    status: str = ""
    exchanges: tuple[Exchange, ...] = Field(min_length=1)
    source: str = ""
    extra: dict[str, JSON] = {}

    @property
    def characters(self) -> tuple[str, ...]:
        """Who was asked, in order of first appearance."""
        return tuple(dict.fromkeys(one.character for one in self.exchanges))

    @property
    def failure(self) -> Failure | None:
        """Why it cannot be scored: the first failure in it."""
        return next((one.failure for one in self.exchanges if one.failure is not None), None)


class InterviewProfile(Record):
    """One line of profiles.jsonl: what judges are told of a character.

    Attributes:
        text: its card as text.
        source: the card's path or `starter:ID`.
    """

    name: NotBlank
    text: NotBlank
    source: str = ""


class InterviewRow(Record):
    """One line of an interview run's results.jsonl: one interview on one metric by one judge.

    `score` null with `failure` set is missing, never 0.

    Attributes:
        interview_id: the unit; ratings by people use the same ids.
        characters: who was asked.
        metric: CB, CU, VK, RK, HK, Rel, Stab, or Trans for transfer dialogues (section 4).
        failure: why there is no score: `answer: CAUSE` where a turn could not be had or used.
        reasoning: the judge's steps, written before its score.
        turn_scores: under Stab how well each turn is in character, 1 to 7, in order.
        turns: how many the interview has.
        repeat: 0, 1, ... for repeated verdicts of one judge.
    """

    interview_id: NotBlank
    script_id: NotBlank
    kind: InterviewKind
    mode: InterviewMode
    method: Method
    model: NotBlank
    language: Language
    characters: tuple[NotBlank, ...] = Field(min_length=1)
    topic: str = ""
    topic_id: str = ""
    tempting: bool = False
    turns: int = Field(ge=1)
    judge: NotBlank
    metric: NotBlank
    score: int | None = Field(ge=1, le=7)
    failure: Failure | None
    reasoning: str | None = None
    turn_scores: tuple[int, ...] = ()
    repeat: int = 0

    @model_validator(mode="after")
    def _scored_or_missing(self) -> InterviewRow:
        if (self.score is None) == (self.failure is None):
            raise ValueError("a row has a score, or `failure` says why it has none")
        if any(not 1 <= score <= 7 for score in self.turn_scores):
            raise ValueError("a turn's score is from 1 to 7")
        return self
