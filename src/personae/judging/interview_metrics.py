"""What an interview is judged on (Neeko, section 4): eight metrics, each from 1 to 7.

Seven for an interview with one character, Trans for a dialogue in which the character changes.
Steps and criteria are our own words after appendix B.3, in English and Chinese, in
`prompts/LANGUAGE/interview_rating/rubrics/*.toml`; the paper describes only the ends of its scales.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

from pydantic import Field

from personae.prompts import LANGUAGES, prompt_hash
from personae.records.base import Record, content_hash
from personae.records.benchmark import Language, NotBlank
from personae.records.interview import InterviewKind

SEVEN = ("CB", "CU", "VK", "RK", "HK", "Rel", "Stab")
"""Character Behavior, Character Utterance, Virtual Knowledge, Real Knowledge, Hallucinatory
Knowledge (7 is free of it), Relevance, Stability: the columns of Table 1, whose mean is its AVG."""

STABILITY = "Stab"
TRANSFER = "Trans"

METRICS = (*SEVEN, TRANSFER)

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "character": ("CB", "CU"),
    "knowledge": ("VK", "RK", "HK"),
    "dialogue": ("Rel", "Stab", "Trans"),
}
"""The dimensions of sections 4.1 to 4.3."""

LOWEST, HIGHEST = 1, 7

_PAPERS_NAMES = {"hallucinatory knowledge": "HK", "avoiding hallucination": "HK"}
"""What the paper calls a metric, where judges are told another name for clearness."""

PROMPT = "interview_rating/metric"
TRANSFER_PROMPT = "interview_rating/transfer"


class InterviewMetric(Record):
    """A metric as judges are told it.

    Attributes:
        steps: what a judge goes through, in order, before it scores.
        criteria: `criteria[0]` is what 1 means, `criteria[6]` what 7 means.
    """

    key: NotBlank
    name: NotBlank
    description: NotBlank
    steps: tuple[NotBlank, ...] = Field(min_length=2)
    criteria: tuple[NotBlank, ...] = Field(min_length=HIGHEST, max_length=HIGHEST)


def metrics_for(kind: InterviewKind) -> tuple[str, ...]:
    """The keys of the metrics that an interview of a kind is judged on, in the paper's order."""
    return (TRANSFER,) if kind == "transfer" else SEVEN


@cache
def load_interview_metric(key: str, language: Language) -> InterviewMetric:
    """A metric of `METRICS`.

    Raises:
        KeyError: there is no such metric.
    """
    if key not in METRICS:
        raise KeyError(f"there is no metric {key}; there are {', '.join(METRICS)}")
    folder = files("personae.prompts").joinpath(language, "interview_rating", "rubrics")
    file = folder.joinpath(f"{key}.toml")
    content = tomllib.loads(file.read_text("utf-8"))
    criteria = content.pop("criteria")
    scores = range(LOWEST, HIGHEST + 1)
    return InterviewMetric.from_dict(
        {"key": key, "criteria": [criteria.pop(str(score)) for score in scores], **content},
        path=str(file),
    )


def parse_interview_metric(name: str) -> str:
    """The key of a metric, from its key ("Stab." too) or its full name in either language.

    Raises:
        ValueError: it is none.
    """
    wanted = " ".join(name.replace("_", " ").casefold().split()).rstrip(".")
    if wanted in _PAPERS_NAMES:
        return _PAPERS_NAMES[wanted]
    for key in METRICS:
        names = {key, *(load_interview_metric(key, language).name for language in LANGUAGES)}
        if wanted in {n.casefold() for n in names}:
            return key
    raise ValueError(f"{name!r} is no metric of an interview; there are {', '.join(METRICS)}")


def interview_rubric_hash(language: Language) -> str:
    """SHA-256 (64 hex digits) over all that a judge is told beside the interview.

    Audits are found by it (with judge and language), as by `rubrics.rubric_hash`.
    """
    return content_hash(
        {
            "prompt": prompt_hash(PROMPT, language),
            "transfer_prompt": prompt_hash(TRANSFER_PROMPT, language),
            "metrics": [load_interview_metric(key, language).to_dict() for key in METRICS],
        }
    )
