"""`personae cast eval` from a cast that was trained to its folder of figures."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from personae.cast.add import add_character
from personae.cast.base import LoadedBase, load_base
from personae.cast.plan import TrainPlan
from personae.cast.rows import write_rows
from personae.cast.scores import read_lines
from personae.cast_eval_stage import evaluate_cast
from personae.cast_stage import train_cast
from personae.cli import main
from personae.errors import InputError, UsageError
from personae.records import Character
from personae.records.cast import CastRow, CastTurn
from personae.records.cast_scores import CastScores, DialogueScore, LiftScore
from personae.session import read_manifest
from tests.cast.conftest import write_tiny_model

torch.set_num_threads(1)

VOICES = {"Ada Byron": "engine numbers weave ", "Bob": "fish sea boat "}
PLAN = TrainPlan(rank=2, alpha=4.0, epochs=6, lr=2e-2, shared_lr=2e-2, warmup=0, max_tokens=512)


def talk(number: int, who: str, said: str, file: str = "held.jsonl", **more: Any) -> CastRow:
    return CastRow(
        characters=(who,),
        turns=(CastTurn(text=f"What is it, {number}?"), CastTurn(speaker=who, text=said)),
        source=f"{file}, line {number}",
        **more,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base, a cast that was trained on it, and held-out dialogues."""
    folder = tmp_path_factory.mktemp("eval")
    write_tiny_model(folder / "tiny")
    rows = [
        talk(2 * n + k, who, voice * 2 + str(n), "train.jsonl")
        for n in range(4)
        for k, (who, voice) in enumerate(VOICES.items(), 1)
    ]
    write_rows(rows, folder / "train.jsonl")
    cards = [Character(name=who, description=f"{who} says {v}.") for who, v in VOICES.items()]
    train_cast(
        [folder / "train.jsonl"], str(folder / "tiny"), folder / "cast", plan=PLAN, cards=cards
    )
    held = [
        talk(2 * n + k, who, voice * 2 + str(10 + n))
        for n in range(3)
        for k, (who, voice) in enumerate(VOICES.items(), 1)
    ]
    held.append(
        CastRow(
            characters=("Ada Byron", "Bob"),
            turns=tuple(
                CastTurn(speaker=who, text=text)
                for who, text in (
                    (None, "Ada?"),
                    ("Ada Byron", "engine weave"),
                    (None, "Bob?"),
                    ("Bob", "boat"),
                )
            ),
            source="held.jsonl, line 7",
        )
    )
    held.append(talk(8, "Zoe", "I am not of them."))
    write_rows(held, folder / "held.jsonl")
    return folder


@pytest.fixture(scope="module")
def base(made: Path) -> LoadedBase:
    return load_base(str(made / "tiny"), dtype="float32", device="cpu")


def test_a_cast_is_scored_beside_its_base(made: Path, base: LoadedBase, tmp_path: Path) -> None:
    found = evaluate_cast(made / "cast", [made / "held.jsonl"], tmp_path / "run", base=base)
    scores = found.scores
    cast, alone = scores.methods
    assert (cast.method, alone.method) == ("cast", "base")
    assert scores.held_out.rows == 8
    assert (scores.held_out.dialogues, scores.held_out.switches) == (8, 1)
    assert scores.held_out.left_out == {"Zoe": 1}
    assert (scores.chance, scores.dtype, scores.device) == (0.5, "float32", "cpu")
    assert cast.measures["nll"].mean < alone.measures["nll"].mean - 0.1  # type: ignore[operator]  # both are there
    assert cast.measures["margin"].mean > 0.05  # type: ignore[operator]  # as above
    assert alone.measures["margin"].reason == "cannot_tell"
    assert (cast.parameters, cast.active, alone.parameters) == (3 * 2 * 2048, 2 * 2 * 2048, 0)
    (difference,) = [d for d in scores.differences if d.metric == "nll"]
    assert (difference.method, difference.other, difference.seeds) == ("cast", "base", ())
    assert scores.consumption == ()  # nothing to compare
    # What is on disk is what was given back.
    run = tmp_path / "run"
    on_disk = CastScores.from_dict(json.loads((run / "scores.json").read_text("utf-8")))
    assert on_disk == scores
    assert read_lines(run / "results.jsonl") == found.lines
    assert read_manifest(run).status == "done"
    assert "the base alone" in (run / "report.html").read_text("utf-8")


def test_baselines_are_trained_once_a_seed_and_compared_seed_by_seed(
    made: Path, base: LoadedBase, tmp_path: Path
) -> None:
    args = (made / "cast", [made / "held.jsonl"], tmp_path / "run")
    found = evaluate_cast(*args, baselines=True, seeds=2, base=base)
    seeds = {m.method: m.seeds for m in found.scores.methods}
    assert seeds == {
        "cast": (),
        "retrained": (0, 1),
        "base": (),
        "icl": (),
        "rag": (),
        "one_shared": (0, 1),
        "one_shared_active": (0, 1),
        "one_per_character": (0, 1),
        "dense_gate": (0, 1),
    }
    of_nll = {d.other: d for d in found.scores.differences if d.metric == "nll"}
    assert {d.method for d in of_nll.values()} == {"retrained"}
    assert of_nll["base"].seeds == of_nll["one_shared"].seeds == (0, 1)
    assert "few_seeds" in found.scores.notes
    # The cast's seed is 0: training it again gives the cast back, line by line.
    by_method: dict[Any, list[Any]] = {}
    for line in found.lines:
        if isinstance(line, DialogueScore):
            by_method.setdefault((line.method, line.seed), []).append(line.nll)
    assert by_method["retrained", 0] == pytest.approx(by_method["cast", None], rel=1e-5)
    assert by_method["retrained", 1] != pytest.approx(by_method["cast", None], rel=1e-5)
    table = {one.method: one for one in found.scores.consumption}
    assert list(table) == ["model_each", "one_shared", "one_per_character", "dense_gate", "cast"]
    assert table["one_shared"].parameters == table["cast"].parameters
    assert table["one_shared"].training_seconds.how == "measured"
    assert table["model_each"].training_seconds.value is None
    file = tmp_path / "run" / "baselines" / "one_shared-0.safetensors"
    assert table["one_shared"].stored.value == file.stat().st_size
    # Once more: nothing is trained or scored again, and nothing changes.
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run" / "baselines").iterdir()}
    again = evaluate_cast(*args, baselines=True, seeds=2, base=base)
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert again.lines == found.lines
    assert again.scores == found.scores
    # A call that asks for less takes nothing away.
    assert evaluate_cast(*args, base=base).scores == found.scores


def test_the_answers_of_cast_and_base_are_lifted_where_that_is_asked_for(
    made: Path, base: LoadedBase, tmp_path: Path
) -> None:
    args = (made / "cast", [made / "held.jsonl"], tmp_path / "run")
    assert evaluate_cast(*args, base=base).scores.methods[0].measures["lift"].reason == "not_run"
    found = evaluate_cast(*args, base=base, lift=True)
    lines = [line for line in found.lines if isinstance(line, LiftScore)]
    assert [line.method for line in lines].count("cast") == 8
    assert {line.question for line in lines} >= {"What is it, 1?", "Ada?"}
    lift = found.scores.methods[0].measures["lift"]
    there = [line.lift for line in lines if line.method == "cast" and line.lift is not None]
    assert lift.n == len(there)
    assert lift.missing == 1 - len(there) / 8
    assert evaluate_cast(*args, base=base, lift=True).lines == found.lines  # not asked again


def test_what_the_cast_keeps_is_not_trained_again(
    made: Path, base: LoadedBase, tmp_path: Path
) -> None:
    cast = tmp_path / "cast"
    shutil.copytree(made / "cast", cast)
    train_cast(
        [made / "train.jsonl"], str(made / "tiny"), cast, plan=PLAN, baselines=True,
        cards=[Character(name=who, description=f"{who} says {v}.") for who, v in VOICES.items()],
    )  # fmt: skip
    found = evaluate_cast(cast, [made / "held.jsonl"], tmp_path / "run", baselines=True, base=base)
    assert not (tmp_path / "run" / "baselines").exists()
    assert {m.method: m.seeds for m in found.scores.methods}["one_shared"] == (0,)
    assert "one_seed" in found.scores.notes
    (ours,) = [one for one in found.scores.consumption if one.method == "cast"]
    assert ours.training_seconds.how == "measured"  # as `cast train` measured it


@pytest.mark.parametrize(
    "plan",
    [replace(PLAN.paper(), epochs=1, rank=2), replace(PLAN, mode="speaker", epochs=1, rank=2)],
    ids=["paper", "speaker"],
)
def test_casts_of_both_protocols_and_modes_are_compared(
    made: Path, base: LoadedBase, tmp_path: Path, plan: TrainPlan
) -> None:
    cards = [Character(name=who, description=f"{who} says {v}.") for who, v in VOICES.items()]
    cast = tmp_path / "cast"
    train_cast([made / "train.jsonl"], str(made / "tiny"), cast, plan=plan, cards=cards)
    found = evaluate_cast(cast, [made / "held.jsonl"], tmp_path / "run", baselines=True, base=base)
    assert len(found.scores.methods) == 8
    assert not [line for line in found.lines if line.failure is not None]
    assert {line.tokens for line in found.lines if line.kind != "lift"} != {None}
    by_method = {m.method: m for m in found.scores.methods}
    assert all(m.measures["nll"].n == 8 for m in by_method.values())
    blocks = 2 if plan.protocol == "paper" else 3
    ours, shared = by_method["cast"], by_method["one_shared"]
    assert ours.parameters == shared.parameters
    assert ours.active == ours.parameters // blocks * (blocks - 1 if blocks == 3 else 1)  # type: ignore[operator]  # it is there
    assert ("layouts" in found.scores.notes) == (plan.mode == "speaker")


def test_another_evaluation_in_the_folder_is_not_mixed_with_this_one(
    made: Path, base: LoadedBase, tmp_path: Path
) -> None:
    fewer = [talk(n, "Bob", f"boat {n}") for n in range(1, 3)]
    write_rows(fewer, tmp_path / "fewer.jsonl")
    evaluate_cast(made / "cast", [tmp_path / "fewer.jsonl"], tmp_path / "run", base=base)
    with pytest.raises(InputError, match="another run"):
        evaluate_cast(made / "cast", [made / "held.jsonl"], tmp_path / "run", base=base)
    with pytest.raises(InputError, match="not empty"):
        evaluate_cast(made / "cast", [made / "held.jsonl"], tmp_path, base=base)


def test_a_damaged_file_of_times_is_an_error(made: Path, base: LoadedBase, tmp_path: Path) -> None:
    evaluate_cast(made / "cast", [made / "held.jsonl"], tmp_path / "run", base=base)
    (tmp_path / "run" / "times.json").write_text('{"cast": ["long"]}', "utf-8")
    with pytest.raises(InputError, match=r"times\.json"):
        evaluate_cast(made / "cast", [made / "held.jsonl"], tmp_path / "run", base=base)


def test_dialogues_that_were_trained_on_are_refused(
    made: Path, base: LoadedBase, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="8 of 8 held-out dialogues are among those"):
        evaluate_cast(made / "cast", [made / "train.jsonl"], tmp_path / "run", base=base)


def test_dialogues_that_an_added_character_learnt_from_are_refused(
    made: Path, base: LoadedBase, tmp_path: Path
) -> None:
    shutil.copytree(made / "cast", tmp_path / "cast")
    lines = [talk(n, "the drowned", f"bubbles {n}") for n in range(2)]
    card = Character(name="Zoe", description="Zoe says bubbles.")
    add_character(
        tmp_path / "cast", card, "expand", data=lines, aliases=("the drowned",), plan=PLAN,
        base=base, measured=False,
    )  # fmt: skip
    write_rows([talk(n, "Zoe", f"bubbles {n}") for n in (1, 7)], tmp_path / "held.jsonl")
    with pytest.raises(InputError, match="1 of 2 held-out dialogues are among those"):
        evaluate_cast(tmp_path / "cast", [tmp_path / "held.jsonl"], tmp_path / "run", base=base)


def test_data_without_anybody_of_the_cast_is_an_error(
    made: Path, base: LoadedBase, tmp_path: Path
) -> None:
    write_rows([talk(1, "Zoe", "Hello.")], tmp_path / "zoe.jsonl")
    with pytest.raises(UsageError, match=r"Ada Byron, Bob.*Zoe"):
        evaluate_cast(made / "cast", [tmp_path / "zoe.jsonl"], tmp_path / "run", base=base)


def test_seeds_are_of_trainings_and_count_from_one(
    made: Path, base: LoadedBase, tmp_path: Path
) -> None:
    args = (made / "cast", [made / "held.jsonl"], tmp_path / "run")
    with pytest.raises(UsageError, match="--baselines"):
        evaluate_cast(*args, seeds=3, base=base)
    with pytest.raises(UsageError, match="from 1"):
        evaluate_cast(*args, baselines=True, seeds=0, base=base)
    bare = tmp_path / "bare"
    shutil.copytree(made / "cast", bare)
    shutil.rmtree(bare / "training")
    with pytest.raises(InputError, match="does not keep"):
        evaluate_cast(bare, [made / "held.jsonl"], tmp_path / "run", baselines=True, base=base)


# On the command line


def test_an_evaluation_is_made_resumed_and_reported_on_the_command_line(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    cast, held = str(made / "cast"), str(made / "held.jsonl")
    assert main(["cast", "eval", cast, "--data", held, "--out", str(run), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert [m["method"] for m in first["methods"]] == ["cast", "base"]
    assert first["page"] == str(run / "report.html")
    (run / "scores.json").unlink()
    assert main(["report", str(run)]) == 2
    assert "personae resume" in capsys.readouterr().err
    assert main(["resume", str(run), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["methods"] == first["methods"]
    page = tmp_path / "zh.html"
    assert main(["report", str(run), "--lang", "zh", "--out", str(page)]) == 0
    assert "仅基座" in page.read_text("utf-8")
    assert "the base alone" in (run / "report.html").read_text("utf-8")
    assert main(["report", str(run), "--csv"]) == 2
