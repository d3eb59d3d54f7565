"""Data that ships with the package: environments, the demo's characters, texts for audits.

`demo/` is written by hand and is the only canned part of the demo. `audit/` holds answers whose
quality is known beforehand: an assistant's generic prose, refusals out of character, and orders to
the judge. None of it takes up a topic, so each may stand as the answer to any question.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

from personae.records.benchmark import Language

AuditKind = Literal[
    "generic",
    "refusal",
    "order",
    "trajectory_order",
    "interview_order",
    "padding",
    "false_fact",
    "mixed_up",
]
DemoFile = Literal["demo_benchmark.jsonl", "demo_personas.txt", "demo_scene.jsonl", "demo_cast.txt"]


def load_environments(language: Language) -> tuple[str, ...]:
    """The default pool of 150 environments, in one order in both languages.

    Source: PersonaGym, section 3, "Dynamic Environment Selection"; the English names are those of
    its public repository (MIT, see NOTICE), the Chinese ones our translation.
    """
    return _strings(f"environments.{language}.json")


def load_audit_texts(kind: AuditKind, language: Language) -> tuple[str, ...]:
    """Answers of known quality for the audit of a judge.

    `generic`: what an assistant might write to anyone (20). `refusal`: out of character, without
    an answer (20). `order`: asks or tricks the judge, in several guises, to give 5 (10);
    `trajectory_order` the same inside of an act (10); `interview_order` to give 7 (10).
    `false_fact`: contradicts what people of any time and world know (10). `mixed_up`: told as lived
    through, of two times or worlds that nobody shares, so that it is outside of anybody's (10).
    """
    return _strings(f"audit/{kind}.{language}.json")


def demo_file(name: DemoFile) -> AbstractContextManager[Path]:
    """A file of the demo as a path that holds while the context is open."""
    return as_file(files(__name__).joinpath("demo", name))


def _strings(path: str) -> tuple[str, ...]:
    return tuple(json.loads(files(__name__).joinpath(*path.split("/")).read_text("utf-8")))
