"""The manifest of a run: what was run, with what, made from what."""

from __future__ import annotations

from typing import Any, Literal

from personae.records.base import Record
from personae.records.benchmark import Language


class Manifest(Record):
    """`manifest.json` of a run directory.

    Attributes:
        kind: the stage: `eval`, `audit`, `bench build`, `bench exemplify`, `demo`.
        arguments: the command's arguments by name; enough to run it again (`personae resume`).
        models: the model ids by role (`model`, `judge`, `examiner`, `exemplars`).
        sampling: the sampling by role, as sent.
        prompts: SHA-256 of each prompt template used, by `language/name`.
        rubric_hash: SHA-256 of the rubric set that judges were given.
        benchmark_hash: the content hash of the benchmark of this run.
        made_from: content hashes of the artefacts this run was made from.
        versions: of Personae, Python and the engines used.
        status: `stopped` is resumable.

    """

    format: Literal[1] = 1
    kind: str
    arguments: dict[str, Any]
    models: dict[str, tuple[str, ...]]
    sampling: dict[str, dict[str, Any]] = {}
    protocol: Literal["paper", "personae"] = "personae"
    language: Language = "en"
    seed: int = 0
    prompts: dict[str, str] = {}
    rubric_hash: str | None = None
    benchmark_hash: str | None = None
    made_from: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    created: str
    status: Literal["running", "done", "stopped", "failed"] = "running"
    notes: tuple[str, ...] = ()
