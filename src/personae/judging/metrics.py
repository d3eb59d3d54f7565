"""What a trajectory is rated on (CharacterBox, section 3.3), and a narrator (section 6.5).

Seven metrics in three dimensions for a character, four maxims (after Grice) for a narrator, each
from 1 to 5. The criteria of every score are our own words, in English and Chinese, in
`prompts/LANGUAGE/rating/rubrics/*.toml`; the paper describes 1, 3 and 5 for people (appendix G).
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal

from personae.prompts import LANGUAGES, prompt_hash
from personae.records.base import Record, content_hash
from personae.records.benchmark import Language, NotBlank
from personae.records.trajectory import Protocol

Kind = Literal["characters", "narrator"]

METRICS = ("KA", "BA", "EE", "PT", "IM", "AD", "BC")
"""Knowledge Accuracy, Behavioral Accuracy, Emotional Expression, Personality Traits, Immersion,
Adaptability, Behavioral Coherence."""

MAXIMS = ("QUALITY", "QUANTITY", "RELATION", "MANNER")

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "fidelity": ("KA", "BA"),
    "human_likeness": ("EE", "PT"),
    "consistency": ("IM", "AD", "BC"),
}
"""Character fidelity, human-likeness, consistency: the dimensions of section 3.3."""

KEYS: dict[Kind, tuple[str, ...]] = {"characters": METRICS, "narrator": MAXIMS}

CRITIQUES: dict[Kind, str] = {
    "characters": "rating/critique",
    "narrator": "rating/narrator_critique",
}
RATINGS: dict[Kind, str] = {"characters": "rating/metric", "narrator": "rating/narrator_metric"}


class Metric(Record):
    """A metric as judges are told it: `criteria[0]` is what 1 means, `criteria[4]` what 5 means."""

    key: NotBlank
    name: NotBlank
    description: NotBlank
    criteria: tuple[NotBlank, NotBlank, NotBlank, NotBlank, NotBlank]


@cache
def load_metric(key: str, language: Language) -> Metric:
    """A metric of `METRICS` or `MAXIMS`.

    Raises:
        KeyError: there is no such metric.

    """
    if key not in METRICS + MAXIMS:
        raise KeyError(f"there is no metric {key}; there are {', '.join(METRICS + MAXIMS)}")
    file = files("personae.prompts").joinpath(language, "rating", "rubrics", f"{key}.toml")
    content = tomllib.loads(file.read_text("utf-8"))
    criteria = content.pop("criteria")
    return Metric.from_dict(
        {"key": key, "criteria": [criteria.pop(str(score)) for score in range(1, 6)], **content},
        path=str(file),
    )


def parse_metric(name: str) -> str:
    """The key of a metric, from its key or its full name in either language.

    Raises:
        ValueError: it is none.

    """
    wanted = " ".join(name.replace("_", " ").casefold().split())
    for key in METRICS + MAXIMS:
        names = {key, *(load_metric(key, language).name for language in LANGUAGES)}
        if wanted in {n.casefold() for n in names}:
            return key
    raise ValueError(f"{name!r} is no metric of a trajectory; there are {', '.join(METRICS)}")


def rating_hash(language: Language, protocol: Protocol, kind: Kind = "characters") -> str:
    """SHA-256 (64 hex digits) over all that a judge is told beside the trajectory.

    Audits are found by it (with judge and language), as by `rubrics.rubric_hash`.
    """
    return content_hash(
        {
            "critique_prompt": prompt_hash(CRITIQUES[kind], language),
            "rating_prompt": prompt_hash(RATINGS[kind], language),
            "metrics": [load_metric(key, language).to_dict() for key in KEYS[kind]],
            "protocol": protocol,
        }
    )
