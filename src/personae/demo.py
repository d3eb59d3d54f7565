"""The demo: two characters interviewed, judged, lifted and put into a scene, all by one model.

Then two of the starter cast are trained for a minute, each in its own block, and asked the same.

One character's questions are built live, and what a small examiner could not write is shown as a
shortfall; the other's come from the benchmark file that ships with the package, and so does what
the scene begins with. Nothing else is canned.
"""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

from personae.audit_stage import audit_in
from personae.cast.layout import messages_for, system_text
from personae.cast.plan import TrainPlan
from personae.cast_stage import ANSWERS, train_cast
from personae.characters.starter import SCHEME, starter
from personae.data import demo_file, load_environments
from personae.errors import StoppedEarlyError
from personae.interview.benchmark_file import read_benchmark, write_benchmark
from personae.interview.build import (
    EXAMINER_SAMPLING,
    EXEMPLAR_SAMPLING,
    BuildPlan,
    build_benchmark,
    write_exemplars,
)
from personae.interview.evaluate import ANSWER_SAMPLING, EvalPlan
from personae.interview.personas import read_personas
from personae.journal.client import Client
from personae.journal.flow import Watcher
from personae.judging.answers import answers_of_results
from personae.judging.audit import (
    LEAST_PAIRS,
    ORDERS,
    WORSE,
    build_cases,
    choose,
)
from personae.judging.judge import JUDGE_SAMPLING
from personae.judging.lift import PREFIX, is_lift
from personae.judging.rubrics import rubric_hash
from personae.models.registry import Registry
from personae.play_stage import play_in
from personae.records import Benchmark, Call, Sampling
from personae.records.cast import BASE, CastAnswer, CastTurn
from personae.records.files import read_text
from personae.session import (
    BENCHMARK,
    RESULTS,
    Options,
    Run,
    new_manifest,
    open_run,
    prompt_hashes,
)
from personae.stages import Evaluated, evaluate_in, seeded, write_results
from personae.world.engine import PERSONAE_SAMPLING, PlayPlan
from personae.world.memory import MemoryStream
from personae.world.scene_file import read_scenes

AUDIT_GROUPS = (*WORSE, *ORDERS)
ENVIRONMENTS_OFFERED = 12
"""A small examiner chooses better, and much sooner, from twelve names than from 150."""
SHORT = 64
EXAMPLE = 36
"""Tokens of an answer, and of an example: the demo has to end within minutes on two cores."""
VERDICT = 96
CAST = ("sherlock-holmes", "don-quixote")
TRAINING = ("torch", "transformers", "gguf")
"""Of the extra `train`: without them no cast is trained."""
CAST_TOKENS = 2_400
"""Supervised tokens of each character that its training takes: about a minute on two cores."""
TURN = 112
"""Tokens of a verdict, and of what a character or the narrator says in the scene."""


async def demo(
    out: Path,
    model: str = "local",
    *,
    base: str | None = None,
    seed: int = 0,
    options: Options | None = None,
    registry: Registry | None = None,
) -> Evaluated:
    """Two characters x five tasks x one question and a scene, by one model in every role.

    Args:
        base: the model that the cast is trained over (`cast.base.load_base`); None: `local` where
            that is the model and the extra `train` is installed, else no cast is trained.

    Raises:
        StoppedEarlyError: a cap or Ctrl-C; call again to go on.
        WeightsError: the embedded model's weights cannot be had.
    """
    options = options or Options()
    with demo_file("demo_benchmark.jsonl") as path:
        shipped = read_benchmark(path)
    with demo_file("demo_personas.txt") as path:
        people = read_personas(path)
    with demo_file("demo_scene.jsonl") as path:
        scenes = read_scenes(path)
    pool = load_environments("en")
    plan = BuildPlan(
        examiner=model,
        pool=pool[:: len(pool) // ENVIRONMENTS_OFFERED][:ENVIRONMENTS_OFFERED],
        questions=1,
        most_environments=2,
        sampling=seeded(EXAMINER_SAMPLING, seed).model_copy(update={"max_tokens": SHORT}),
    )
    writer = seeded(EXEMPLAR_SAMPLING, seed).model_copy(update={"max_tokens": 5 * EXAMPLE})
    answering = seeded(ANSWER_SAMPLING, seed).model_copy(update={"max_tokens": SHORT})
    judging = seeded(JUDGE_SAMPLING, seed).model_copy(update={"max_tokens": VERDICT})
    acting = {
        role: seeded(how, seed).model_copy(update={"max_tokens": TURN})
        for role, how in PERSONAE_SAMPLING.items()
    }
    lift = PREFIX + model
    manifest = new_manifest(
        "demo",
        {"model": [model], "judge": [model, lift], "examiner": [model], "exemplars": [model]},
        seed=seed,
        sampling={
            "model": answering.to_dict(),
            "judge": judging.to_dict(),
            "examiner": plan.sampling.to_dict(),
            "exemplars": writer.to_dict(),
            **{f"scene {role}": how.to_dict() for role, how in acting.items()},
        },
        arguments={"model": model, "cwd": str(Path.cwd())},
        rubric_hash=rubric_hash("en"),
        made_from=(shipped.hash, *(scene.hash for scene in scenes)),
        notes=(
            f"{shipped.personas[0].description} - this character's questions and examples come "
            "from the benchmark file that ships with the package (data/demo/demo_benchmark.jsonl); "
            "the scene's beginning comes from data/demo/demo_scene.jsonl; "
            "everything else on this page was written by the model just now. Its tokens and time "
            "count the scene too.",
        ),
    )
    manifest = manifest.model_copy(
        update={"prompts": {**manifest.prompts, **prompt_hashes("en", "world")}}
    )
    async with open_run(out, manifest, options, registry=registry) as run:
        watcher = options.watcher
        live = await build_benchmark(run.client, plan, people, watcher=watcher)
        live = await write_exemplars(run.client, live, model, sampling=writer, watcher=watcher)
        # Before the interview, whose prompts the audit goes on with in the engine's caches.
        scene = PlayPlan(
            characters=lambda _name, _now: model,
            narrator=lambda _now: model,
            rounds=1,
            sampling=acting,
            memory=lambda: MemoryStream("en"),
        )
        await play_in(run, scenes, scene, {})
        bench = _both(live, shipped)
        run.manifest = run.manifest.model_copy(update={"benchmark_hash": bench.hash})
        what = EvalPlan(
            models=(model,), judges=(model, lift), sampling=answering, judge_sampling=judging
        )
        if options.live:
            write_benchmark(bench, out / BENCHMARK)
        rows = await evaluate_in(run, bench, what)
        # The judge of verdicts, on the answers just given, against the groups that decide.
        found = answers_of_results(rows, bench, out / RESULTS)
        own = choose(found.answers, LEAST_PAIRS, seed)
        await audit_in(
            run,
            [judge for judge in what.judges if not is_lift(judge)],
            build_cases(own, found.answers, "en", groups=AUDIT_GROUPS, seed=seed),
            found,
            language="en",
            sampling=judging,
            groups=AUDIT_GROUPS,
            seed=seed,
        )
        base = base or (model if model == "local" and _can_train() else None)
        if options.live and base is not None:
            await _cast(run, base, answering)
        return Evaluated(out, tuple(rows), run.plan)


def _can_train() -> bool:
    return all(importlib.util.find_spec(package) is not None for package in TRAINING)


class _Heeding:
    """A watcher through which a run that was told to stop ends a training between two steps."""

    def __init__(self, watcher: Watcher, client: Client) -> None:
        self._watcher, self._client = watcher, client

    def begin(self, stage: str, total: int) -> None:
        self._watcher.begin(stage, total)

    def step(self, stage: str) -> None:
        self._watcher.step(stage)
        if self._client.stopped is not None:
            raise StoppedEarlyError(self._client.stopped)


async def _cast(run: Run, base: str, sampling: Sampling) -> None:
    """Two characters in blocks of their own, and one question to both and to the base."""
    folder = run.path.resolve() / "cast"  # a part of the calls, which a resumed run looks up
    plan = TrainPlan(tokens_per_role=CAST_TOKENS, batch_rows=2, seed=run.manifest.seed)
    cards = [SCHEME + name for name in CAST]
    await asyncio.to_thread(
        train_cast,
        cards,
        base,
        folder,
        plan=plan,
        watcher=_Heeding(run.options.watcher, run.client),
    )
    with demo_file("demo_cast.txt") as path:
        question = read_text(path).strip()

    async def ask(name: str, through: str) -> CastAnswer:
        reply = await run.client.ask(
            Call(
                role="character",
                model=f"cast:{folder}#{through}",
                messages=messages_for(
                    [CastTurn(text=question)], name, system_text(name, "en"), "full"
                ),
                sampling=sampling,
                meta={"character": name},
            )
        )
        return CastAnswer(
            question=question,
            character=name,
            block=None if through == BASE else through,
            answer=reply.text if reply.ok else None,
            missing=None if reply.failure is None else reply.failure.cause,
        )

    names = [starter(name).name for name in CAST]
    asked = [ask(name, through) for name in names for through in (name, BASE)]
    write_results(await asyncio.gather(*asked), run.path / ANSWERS)


def _both(live: Benchmark, shipped: Benchmark) -> Benchmark:
    """The characters of both, the shipped one last."""
    return live.model_copy(
        update={
            "made_by": {**live.made_by, "shipped": shipped.personas[0].id},
            "made_from": (shipped.hash,),
            "environments": {**live.environments, **shipped.environments},
            "personas": (*live.personas, *shipped.personas),
            "questions": (*live.questions, *shipped.questions),
        }
    )
