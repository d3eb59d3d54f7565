"""Personae: describe, question, play, judge, improve and serve a character.

The same things as the commands, as a few lines of Python::

    from personae import evaluate, report

    run = evaluate("bench.jsonl", "runs/first", models=["local"], judges=["lift:local"])
    print(report("runs/first")["models"][0]["persona_score"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Benchmark",
    "Call",
    "Character",
    "Message",
    "Options",
    "PersonaeError",
    "Play",
    "Registry",
    "Reply",
    "Scene",
    "ScriptedModel",
    "ask",
    "audit",
    "build",
    "evaluate",
    "exemplify",
    "import_interviews",
    "import_personagym",
    "interview_characters",
    "play",
    "rate",
    "read_benchmark",
    "read_character",
    "read_scenes",
    "report",
    "starter",
    "starter_scenes",
    "write_benchmark",
]

_HOMES = {
    "Benchmark": "personae.records",
    "Call": "personae.records",
    "Character": "personae.records",
    "Message": "personae.records",
    "Options": "personae.session",
    "PersonaeError": "personae.errors",
    "Play": "personae.records",
    "Registry": "personae.models",
    "Reply": "personae.records",
    "Scene": "personae.records",
    "ScriptedModel": "personae.models",
    "ask": "personae.api",
    "audit": "personae.api",
    "build": "personae.api",
    "evaluate": "personae.api",
    "exemplify": "personae.api",
    "import_interviews": "personae.api",
    "import_personagym": "personae.api",
    "interview_characters": "personae.api",
    "play": "personae.api",
    "rate": "personae.api",
    "read_benchmark": "personae.api",
    "read_character": "personae.api",
    "read_scenes": "personae.api",
    "report": "personae.api",
    "starter": "personae.api",
    "starter_scenes": "personae.api",
    "write_benchmark": "personae.api",
}

if TYPE_CHECKING:
    from personae.api import (
        ask,
        audit,
        build,
        evaluate,
        exemplify,
        import_interviews,
        import_personagym,
        interview_characters,
        play,
        rate,
        read_benchmark,
        read_character,
        read_scenes,
        report,
        starter,
        starter_scenes,
        write_benchmark,
    )
    from personae.errors import PersonaeError
    from personae.models import Registry, ScriptedModel
    from personae.records import Benchmark, Call, Character, Message, Play, Reply, Scene
    from personae.session import Options


def __getattr__(name: str) -> Any:
    """Import a public name on its first use: `import personae` alone stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'personae' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
