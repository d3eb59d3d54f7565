"""`personae eval --model cast:DIR`, `personae play --characters cast:DIR`: whole runs of a cast."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from personae.cast.store import Cast
from personae.cli import main
from personae.errors import UsageError
from personae.journal.store import Journal
from personae.play_stage import play_scenes
from personae.records import Environment, Scene, SceneCharacter, Task
from personae.session import JOURNAL, Options, read_manifest
from personae.stages import build, evaluate_benchmark
from tests.cast.serving import NAMES, small_cast

ADA, WU = NAMES
SCRIPTS = Path(__file__).parents[1] / "scripts"
GYM, WORLD = f"scripted:{SCRIPTS / 'gym.py'}", f"scripted:{SCRIPTS / 'world.py'}"
ENGINE = Scene(
    id="inn/1",
    title="The inn",
    event="A tiger has been seen on the ridge.",
    environment=Environment(time="evening", location="inn", description="A low room."),
    characters=(
        SceneCharacter(name=ADA, description="A countess.", position="at the table"),
        SceneCharacter(name="wu song", description="A traveller.", position="at the door"),
    ),
)


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path) -> Cast:
    """Over the tiny base with a context that a scene's prompts, byte by byte, fit into."""
    base = tmp_path_factory.mktemp("bases") / "wide"
    shutil.copytree(tiny_base, base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 32768}))
    return small_cast(tmp_path_factory.mktemp("casts") / "cast", base, seed=2)


async def benchmark(tmp_path: Path) -> Path:
    out = tmp_path / "bench.jsonl"
    people = tmp_path / "people.txt"
    people.write_text("\n".join((*NAMES, "Napoleon Bonaparte")), encoding="utf-8")
    await build(out, GYM, personas=people, questions=1, tasks=[Task.EXPECTED_ACTION])
    return out


async def test_each_persona_of_a_benchmark_is_answered_by_its_own_block(
    cast: Cast, tmp_path: Path
) -> None:
    model = f"cast:{cast.path}"
    bench = await benchmark(tmp_path)
    short = {"max_tokens": 12}
    run = tmp_path / "run"
    await evaluate_benchmark(
        bench, run, [model], [f"lift:{model}#base"], no_exemplars=True, sampling=short
    )
    with Journal(run / JOURNAL, read_only=True) as journal:
        answers = [(call, reply) for call, reply in journal.items() if call.role == "character"]
        lifts = [reply for call, reply in journal.items() if call.role == "lift"]
    served = {
        next(name for name in (*NAMES, "Napoleon") if name in call.messages[0].content): reply
        for call, reply in answers
    }
    assert [served[name].served_model for name in NAMES] == [f"cast#{name}" for name in NAMES]
    failure = served["Napoleon"].failure
    assert failure is not None
    assert failure.cause == "bad_request"
    assert "personae cast add" in failure.detail
    assert lifts
    assert all(reply.ok and reply.served_model == "cast#base" for reply in lifts)
    assert read_manifest(run).versions[model]


async def test_a_run_does_not_go_on_with_a_cast_that_has_changed(
    cast: Cast, tmp_path: Path, tiny_base: Path
) -> None:
    model = f"cast:{small_cast(tmp_path / 'cast', tiny_base, seed=2).path}#{ADA}"
    bench = await benchmark(tmp_path)
    arguments = (bench, tmp_path / "run", [model], [GYM])
    short = {"max_tokens": 4}
    await evaluate_benchmark(*arguments, no_exemplars=True, sampling=short)
    await evaluate_benchmark(*arguments, no_exemplars=True, sampling=short)
    small_cast(tmp_path / "cast", tiny_base, seed=3)
    with pytest.raises(UsageError, match=r"the cast cast:.*would differ"):
        await evaluate_benchmark(*arguments, no_exemplars=True, sampling=short)


async def test_a_scene_is_played_by_the_cast_each_character_through_its_own_block(
    cast: Cast, tmp_path: Path
) -> None:
    model = f"cast:{cast.path}"
    run = tmp_path / "run"
    await play_scenes([ENGINE], run, model, WORLD, rounds=1, options=Options(retry_delay=0.0))
    with Journal(run / JOURNAL, read_only=True) as journal:
        items = [(call, reply) for call, reply in journal.items() if call.role == "character"]
    assert {call.model for call, _ in items} == {f"{model}#{name}" for name in NAMES}
    for call, reply in items:
        who = ADA if call.meta["character"] == ADA else WU
        assert call.model == f"{model}#{who}"
        # Random weights write no JSON: what they wrote is kept, and is a failure.
        assert reply.served_model == f"cast#{who}", reply.failure
    assert read_manifest(run).models["character"] == (f"{model}#{ADA}", f"{model}#{WU}")


async def test_whom_the_cast_has_not_stops_a_play_before_it_begins(
    cast: Cast, tmp_path: Path
) -> None:
    stranger = SceneCharacter(name="Lu Zhishen", description="A monk.", position="outside")
    scene = ENGINE.model_copy(update={"characters": (*ENGINE.characters, stranger)})
    model = f"cast:{cast.path}"
    with pytest.raises(UsageError, match=r"Lu Zhishen.*personae cast add.*--character"):
        await play_scenes([scene], tmp_path / "run", model, WORLD, rounds=1)
    assert not (tmp_path / "run").exists()
    await play_scenes(
        [scene], tmp_path / "dry", model, WORLD, by_name={"Lu Zhishen": WORLD}, rounds=1,
        options=Options(dry_run=True),
    )  # fmt: skip


def test_the_command_line_knows_casts_and_refuses_strangers(
    cast: Cast, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = asyncio.run(benchmark(tmp_path))
    asked = ["eval", str(bench), "--judge", GYM, "--out", str(tmp_path / "run"), "--no-exemplars"]
    assert main([*asked, "--model", f"cast:{cast.path}#Lu Zhishen"]) == 2
    assert "Lu Zhishen" in capsys.readouterr().err
    assert main([*asked, "--model", f"cast:{cast.path}#{ADA}", "--dry-run"]) == 0


def test_a_stopped_run_of_a_cast_is_resumed_by_the_command(
    cast: Cast, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = asyncio.run(benchmark(tmp_path))
    run = tmp_path / "run"
    model = f"cast:{cast.path}"
    asked = [
        "eval",
        str(bench),
        "--model",
        model,
        "--judge",
        f"lift:{model}#base",
        "--out",
        str(run),
    ]
    assert main([*asked, "--no-exemplars", "--max-calls", "2", "--max-cost", "1"]) == 3
    capsys.readouterr()
    assert main(["resume", str(run)]) == 0
    with Journal(run / JOURNAL, read_only=True) as journal:
        answers = [reply for call, reply in journal.items() if call.role == "character"]
    assert [reply.ok for reply in answers].count(True) == 2
