"""The cast of the demo: trained once, asked once, and left alone where nothing may be written.

The rest of the demo is tested in tests/test_cli.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
import torch

from personae.cast.store import read_cast
from personae.cast_stage import ANSWERS, read_cast_answers
from personae.cli import main
from personae.demo import CAST_TOKENS, demo
from personae.errors import StoppedEarlyError
from personae.journal.flow import NoWatcher
from personae.models.prices import load_prices
from personae.reports import render
from personae.reports.gather import gather
from personae.session import Options, read_manifest
from tests.reports.page import Page
from tests.test_cli import GYM

torch.set_num_threads(1)


def files(folder: Path) -> dict[Path, int]:
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def made(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo whose cast was trained over the tiny base."""
    out = tmp_path_factory.mktemp("demo") / "run"
    asyncio.run(demo(out, GYM, base=str(tiny_base)))
    return out


def test_two_characters_are_trained_and_each_is_asked_with_and_without_its_block(
    made: Path,
) -> None:
    cast = read_cast(made / "cast")
    assert cast.names == ("Sherlock Holmes", "Don Quixote")
    for name in cast.names:
        block = next(b for b in cast.manifest.blocks if b.name == name)
        assert block.tokens > 0
        assert {source.licence for source in block.data} == {"Apache-2.0"}
    trained = sum(block.tokens for block in cast.manifest.blocks)
    assert trained >= 2 * CAST_TOKENS
    answers = read_cast_answers(made)
    assert [(a.character, a.block) for a in answers] == [
        ("Sherlock Holmes", "Sherlock Holmes"), ("Sherlock Holmes", None),
        ("Don Quixote", "Don Quixote"), ("Don Quixote", None),
    ]  # fmt: skip
    assert len({a.question for a in answers}) == 1
    assert all((a.answer is None) != (a.missing is None) for a in answers)


def test_the_page_shows_the_answers_of_both_blocks_and_of_the_model_alone(made: Path) -> None:
    page = Page(render(gather([made], prices=load_prices())))
    assert "Two characters, each in its own block" in page.text
    assert page.text.count("through its block") == page.text.count("the model alone") == 2
    assert read_cast_answers(made)[0].question in page.text


def test_a_demo_that_is_run_again_neither_trains_nor_asks_again(
    made: Path, tiny_base: Path
) -> None:
    before, answers = files(made / "cast"), (made / ANSWERS).read_bytes()

    class Silent(NoWatcher):
        begun: list[str] = []

        def begin(self, stage: str, total: int) -> None:
            self.begun.append(stage)

    asyncio.run(demo(made, GYM, base=str(tiny_base), options=Options(watcher=Silent())))
    assert not {"shared", "own"} & set(Silent.begun)
    assert {p: t for p, t in files(made / "cast").items() if p.name != ".lock"} == {
        p: t for p, t in before.items() if p.name != ".lock"
    }
    assert (made / ANSWERS).read_bytes() == answers


def test_a_replay_and_a_dry_run_train_nothing(made: Path, tiny_base: Path, tmp_path: Path) -> None:
    before = files(made)
    asyncio.run(demo(made, GYM, base=str(tiny_base), options=Options(replay=True)))
    assert set(files(made)) >= set(before)
    assert files(made / "cast") == {
        p: t for p, t in before.items() if p.is_relative_to(made / "cast")
    }
    asyncio.run(demo(tmp_path / "dry", GYM, base=str(tiny_base), options=Options(dry_run=True)))
    assert not (tmp_path / "dry").exists()


def test_ctrl_c_ends_a_training_between_two_steps_and_the_demo_goes_on_from_there(
    tiny_base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"

    class Presses(NoWatcher):
        pressed = False

        def step(self, stage: str) -> None:
            if stage == "shared" and not self.pressed:
                self.pressed = True
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(StoppedEarlyError):
        asyncio.run(demo(out, GYM, base=str(tiny_base), options=Options(watcher=Presses())))
    assert read_manifest(out).status == "stopped"
    assert (out / "cast" / "training" / "checkpoint" / "state.json").is_file()
    assert not (out / "cast" / "cast.json").exists()
    asyncio.run(demo(out, GYM, base=str(tiny_base)))
    assert len(read_cast_answers(out)) == 4
    assert read_manifest(out).status == "done"


def test_a_model_without_weights_at_hand_trains_nothing_and_its_page_has_no_cast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    assert main(["demo", "--model", GYM, "--out", str(out), "--json"]) == 0
    json.loads(capsys.readouterr().out)
    assert not (out / "cast").exists()
    assert not (out / ANSWERS).exists()
    assert "each in its own block" not in (out / "report.html").read_text("utf-8")
