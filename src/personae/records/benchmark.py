"""Characters, questions and the benchmark file that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from personae.records.base import Record, canonical_json

Language = Literal["en", "zh"]

FORMAT_OF_HASH = 1
NotBlank = Annotated[str, Field(min_length=1, pattern=r"\S")]


class Task(StrEnum):
    """The five tasks of PersonaGym (paper, section 2), by the paper's names."""

    EXPECTED_ACTION = "Expected Action"
    TOXICITY_CONTROL = "Toxicity Control"
    LINGUISTIC_HABITS = "Linguistic Habits"
    PERSONA_CONSISTENCY = "Persona Consistency"
    ACTION_JUSTIFICATION = "Action Justification"

    @property
    def short(self) -> str:
        """Two letters, as in the paper's Table 1."""
        return "".join(word[0] for word in self.value.split())

    @property
    def slug(self) -> str:
        """Lower case with underscores: file names of prompts and rubrics."""
        return self.value.lower().replace(" ", "_")

    @classmethod
    def parse(cls, name: str) -> Task:
        """Accepts the paper's name, its two letters, the slug, and the public data's "Toxicity".

        Raises:
            ValueError: no task has that name.

        """
        wanted = name.strip().lower().replace("_", " ")
        for task in cls:
            if wanted in (task.value.lower(), task.short.lower()):
                return task
        if wanted == "toxicity":
            return cls.TOXICITY_CONTROL
        raise ValueError(f"no task is called {name!r}; the tasks are {', '.join(cls)}")


class Persona(Record):
    """A character as a benchmark needs it: an id and a description (the term is PersonaGym's)."""

    id: str = Field(min_length=1)
    description: NotBlank
    source: str = ""


class Question(Record):
    """One question to one character; `environment` is None where the source does not say.

    `exemplars` are example responses for the scores 1 to 5, in that order, once per question
    (paper, section 3, "Reasoning Exemplars"); None until they are written.
    """

    id: str = Field(min_length=1)
    persona_id: str = Field(min_length=1)
    task: Task
    environment: str | None = None
    text: NotBlank
    exemplars: tuple[str, str, str, str, str] | None = None


class Rubric(Record):
    """How one task is judged: description and a criterion for each score from 1 to 5."""

    task: Task
    description: NotBlank
    criteria: tuple[str, str, str, str, str]


class Shortfall(Record):
    """What a model was asked for and did not deliver."""

    what: str
    wanted: int = Field(ge=0)
    got: int = Field(ge=0)
    cause: str = ""


class Benchmark(Record):
    """What a run starts from: characters, their questions, exemplars, and the rubric set.

    The file is JSONL: a header line, then a line per character, then a line per question
    (`docs/formats/benchmark.schema.json`).
    """

    language: Language = "en"
    made_by: dict[str, str] = {}
    made_from: tuple[str, ...] = ()
    environments: dict[str, tuple[str, ...]] = {}
    rubrics: tuple[Rubric, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    personas: tuple[Persona, ...] = ()
    questions: tuple[Question, ...] = ()

    @model_validator(mode="after")
    def _ids_are_unique_and_known(self) -> Benchmark:
        people = [p.id for p in self.personas]
        asked = [q.id for q in self.questions]
        for what, ids in (("persona", people), ("question", asked)):
            if len(set(ids)) != len(ids):
                twice = min(i for i in ids if ids.count(i) > 1)
                raise ValueError(f"{what} id {twice!r} stands twice")
        known = set(people)
        for q in self.questions:
            if q.persona_id not in known:
                raise ValueError(f"question {q.id!r} belongs to no persona ({q.persona_id!r})")
        tasks = [r.task for r in self.rubrics]
        if len(set(tasks)) != len(tasks):
            raise ValueError("a task has two rubrics")
        return self

    @cached_property
    def hash(self) -> str:
        """SHA-256 over what decides scores: language, rubrics, characters, questions, exemplars."""
        # Record by record: as one text it would take up more memory than the benchmark itself.
        digest = sha256(canonical_json([FORMAT_OF_HASH, self.language]).encode())
        for records in (self.rubrics, self.personas, self.questions):
            for record in records:
                digest.update(b"\n" + record.to_json().encode())
            digest.update(b"\n")
        return digest.hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, which counts its own hash: pydantic would copy that of the original."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("hash", None)
        return copied

    @property
    def has_exemplars(self) -> bool:
        """Whether every question has its five exemplars."""
        return bool(self.questions) and all(q.exemplars is not None for q in self.questions)
