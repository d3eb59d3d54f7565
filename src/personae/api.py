"""The Python API: the stages behind a sync door, for scripts and notebooks.

Each function does what the command of the same name does and takes the same arguments; paths may
be strings. `Options` holds how a run is carried out (caps, concurrency, dry run, replay).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from personae.interview import benchmark_file, importers
from personae.journal.flow import run_sync
from personae.models import Registry
from personae.models.prices import load_prices
from personae.records import (
    Audit,
    Backend,
    Benchmark,
    Call,
    Character,
    Language,
    Message,
    Reply,
    Sampling,
    Scene,
)
from personae.session import all_schemes
from personae.stages import Built, Evaluated
from personae.stages import build as build_stage
from personae.stages import evaluate_benchmark as evaluate_stage
from personae.stages import exemplify as exemplify_stage

if TYPE_CHECKING:
    from personae.interview_stage import Interviewed
    from personae.play_stage import PlayedScenes
    from personae.rate_stage import Rated

PathLike = Path | str


def ask(
    model: str | Backend,
    prompt: str,
    *,
    system: str | None = None,
    sampling: Sampling | None = None,
) -> Reply:
    """Put one question to a model, without a journal.

    Raises:
        UsageError: no such model id.
        TransportError: the exchange failed.
    """

    async def once() -> Reply:
        backend = all_schemes(Registry())(model) if isinstance(model, str) else model
        told = (Message(role="system", content=system),) if system else ()
        try:
            return await backend.complete(
                Call(
                    role="character",
                    model=model if isinstance(model, str) else backend.endpoint,
                    messages=(*told, Message(role="user", content=prompt)),
                    sampling=sampling or Sampling(),
                )
            )
        finally:
            await backend.close()

    return run_sync(once())


def read_benchmark(path: PathLike) -> Benchmark:
    """Read a benchmark file; see `personae.interview.benchmark_file.read_benchmark`."""
    return benchmark_file.read_benchmark(Path(path))


def write_benchmark(benchmark: Benchmark, path: PathLike) -> None:
    """Write a benchmark file, whole or not at all."""
    benchmark_file.write_benchmark(benchmark, Path(path))


def import_personagym(folder: PathLike, rubrics: PathLike | None = None) -> Benchmark:
    """PersonaGym's published questions; see `personae.interview.importers.import_personagym`."""
    return importers.import_personagym(Path(folder), None if rubrics is None else Path(rubrics))


def build(out: PathLike, examiner: str, **arguments: Any) -> Built:
    """Build a benchmark; see `personae.stages.build`."""
    for name in ("personas", "environments"):
        if isinstance(arguments.get(name), str):
            arguments[name] = Path(arguments[name])
    return run_sync(build_stage(Path(out), examiner, **arguments))


def exemplify(source: PathLike, out: PathLike, writer: str, **arguments: Any) -> Built:
    """Add exemplars to a benchmark; see `personae.stages.exemplify`."""
    return run_sync(exemplify_stage(Path(source), Path(out), writer, **arguments))


def evaluate(
    benchmark: Benchmark | PathLike,
    out: PathLike,
    *,
    models: Sequence[str],
    judges: Sequence[str],
    **arguments: Any,
) -> Evaluated:
    """Evaluate models on a benchmark; see `personae.stages.evaluate_benchmark`."""
    source = Path(benchmark) if isinstance(benchmark, str) else benchmark
    return run_sync(evaluate_stage(source, Path(out), models, judges, **arguments))


def audit(
    answers: Sequence[PathLike], judges: Sequence[str], out: PathLike, **arguments: Any
) -> Sequence[Audit]:
    """Audit judges of answers, plays or interviews; see `personae.audits.audit_any`."""
    from personae.audits import audit_any

    return run_sync(audit_any([Path(a) for a in answers], judges, Path(out), **arguments)).audits


def read_character(path: PathLike) -> Character:
    """Read a character card; see `personae.characters.card.read_character`."""
    from personae.characters.card import read_character as read

    return read(Path(path))


def starter(name: str) -> Character:
    """A character of the starter cast (`sherlock-holmes`); see `personae.characters.starter`."""
    from personae.characters.starter import starter as found

    return found(name)


def starter_scenes(language: Language | None = None) -> tuple[Scene, ...]:
    """The scenes that come with the starter cast."""
    from personae.characters.starter import starter_scenes as scenes

    return tuple(scenes(language))


def read_scenes(path: PathLike) -> tuple[Scene, ...]:
    """Read a scene file; see `personae.world.scene_file.read_scenes`."""
    from personae.world.scene_file import read_scenes as read

    return read(Path(path))


def play(
    scenes: Sequence[Scene] | PathLike,
    out: PathLike,
    *,
    characters: str,
    narrator: str,
    **arguments: Any,
) -> PlayedScenes:
    """Play scenes; see `personae.play_stage.play_scenes`."""
    from personae.play_stage import play_scenes

    source = Path(scenes) if isinstance(scenes, str) else scenes
    return run_sync(play_scenes(source, Path(out), characters, narrator, **arguments))


def rate(run: PathLike, judges: Sequence[str], **arguments: Any) -> Rated:
    """Have judges rate what was played; see `personae.rate_stage.rate`."""
    from personae.rate_stage import rate as rate_stage

    return run_sync(rate_stage(Path(run), judges, **arguments))


def interview_characters(
    characters: Sequence[PathLike],
    out: PathLike,
    *,
    models: Sequence[str],
    judges: Sequence[str],
    questions: Sequence[PathLike] = (),
    **arguments: Any,
) -> Interviewed:
    """Interview characters; see `personae.interview_stage.interview`."""
    from personae.interview_stage import interview as stage

    asked = [Path(q) for q in questions]
    return run_sync(stage(characters, Path(out), models, judges, questions=asked, **arguments))


def import_interviews(
    files: Sequence[PathLike], out: PathLike, judges: Sequence[str] = (), **arguments: Any
) -> Interviewed:
    """Published interviews as a run; see `personae.interview_stage.import_interviews`."""
    from personae.interview_stage import import_interviews as stage

    return run_sync(stage([Path(f) for f in files], Path(out), judges, **arguments))


def report(*runs: PathLike, audits: Sequence[PathLike] = ()) -> dict[str, Any]:
    """The document of `personae report --json`; also writes the page into the first run."""
    from personae.reports import report_document, write_html
    from personae.reports.gather import gather
    from personae.reports.interviews import (
        are_interview_runs,
        gather_interviews,
        interviews_report,
        write_interviews_html,
    )
    from personae.reports.scenes import (
        are_play_runs,
        gather_plays,
        plays_document,
        write_plays_html,
    )
    from personae.session import REPORT

    folders, beside = [Path(run) for run in runs], [Path(a) for a in audits]
    if are_play_runs(folders):
        plays = gather_plays(folders, audits=beside, prices=load_prices())
        write_plays_html(plays, folders[0] / REPORT, plays.manifests[0].language)
        return plays_document(plays)
    if are_interview_runs(folders):
        held = gather_interviews(folders, audits=beside, prices=load_prices())
        write_interviews_html(held, folders[0] / REPORT, held.manifests[0].language)
        return interviews_report(held)
    data = gather(folders, audits=beside, prices=load_prices())
    write_html(data, folders[0] / REPORT, data.manifests[0].language)
    return report_document(data)
