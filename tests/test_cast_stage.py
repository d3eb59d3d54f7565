"""`train_cast`: from dialogues and a base to a cast on disk, through kills, repeats and bad input."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from personae.cast.history import read_history
from personae.cast.plan import TRAINING, TrainPlan
from personae.cast.store import Cast, attach, read_cast
from personae.cast.training import read_training
from personae.cast_stage import CHECKPOINT, read_cast_answers, train_cast
from personae.errors import InputError, UsageError
from personae.journal.flow import NoWatcher
from personae.records import Call, Character, Message, Sampling
from personae.records.cast import CastAnswer

torch.set_num_threads(1)

PLAN = TrainPlan(rank=2, alpha=4.0, epochs=8, warmup=0, max_tokens=512, batch_rows=2)
RATES = {"lr": 2e-2, "shared_lr": 2e-2}
LINES = {"Ada": "engine numbers weave", "Bob": "fish sea boat"}


def card(name: str, voice: str) -> Character:
    return Character(
        name=name,
        description=f"{name} says {voice}, and says it often.",
        mes_example=f"<START>\n{{{{user}}}}: Who are you?\n{{{{char}}}}: {voice}.",
    )


CARDS = [card(name, voice) for name, voice in LINES.items()]


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def talk(name: str, *said: str, **more: Any) -> dict[str, Any]:
    turns = [t for one in said for t in ({"text": "And?"}, {"speaker": name, "text": one})]
    return {"characters": [name], "turns": turns, "source": "notes, line 1", **more}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return lines(
        tmp_path / "talks.jsonl",
        *(talk(n, f"{v} {k}", source=f"talks, line {k}", licence="CC-BY-4.0")
          for k in range(1, 4) for n, v in LINES.items()),
    )  # fmt: skip


def same_blocks(one: Cast, other: Cast) -> bool:
    assert one.tensors.keys() == other.tensors.keys()
    return all(np.array_equal(one.tensors[name], other.tensors[name]) for name in one.tensors)


class Stops(NoWatcher):
    """Raises at the n-th step of a stage, as Ctrl-C or a full disk would."""

    def __init__(self, stage: str, at: int, error: BaseException) -> None:
        self._at, self._error, self._stage = at, error, stage

    def step(self, stage: str) -> None:
        self._at -= stage == self._stage
        if self._at == 0:
            raise self._error


# What is learnt --------------------------------------------------------------------------------


def test_a_cast_is_made_of_cards_and_dialogues_and_says_where_every_block_comes_from(
    data: Path, tiny_base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "cast"
    done = train_cast([*CARDS, data], str(tiny_base), out, plan=PLAN, rates=RATES, licence="MIT")
    cast = read_cast(out)
    assert done.cast.manifest == cast.manifest
    assert cast.names == ("Ada", "Bob")
    assert [block.name for block in cast.manifest.blocks] == ["shared", "Ada", "Bob"]
    assert cast.character("Bob").weights == {"shared": 1.0, "Bob": 1.0}
    assert cast.cards["Bob"].description == CARDS[1].description
    assert cast.gate is None
    shared, ada, _ = cast.manifest.blocks
    # The dialogues state their licence; the cards state none, so they have the one given.
    assert {(s.source, s.licence, s.rows) for s in ada.data} == {
        ("card of Ada", "MIT", 1), ("talks", "CC-BY-4.0", 3),
    }  # fmt: skip
    assert sum(source.rows for source in shared.data) == 8
    assert all(block.loss is not None and block.loss[1] < block.loss[0] for block in (shared, ada))
    assert np.abs(cast.tensors["B.model.layers.0.self_attn.q_proj"]).max(axis=(1, 2)).min() > 0
    assert not (out / TRAINING / CHECKPOINT).exists()
    assert "<svg" in (out / TRAINING / "loss.svg").read_text("utf-8")
    plan, rows = read_training(out)
    assert list(rows) == done.data.rows
    assert (plan.lr, plan.shared_lr, plan.rank) == (2e-2, 2e-2, 2)
    assert read_history(out / TRAINING / "history.jsonl") == done.history
    document = done.document()
    assert json.loads(json.dumps(document)) == document
    assert [c["rows"] for c in document["characters"]] == [4, 4]
    assert document["characters"][0]["licences"] == {"MIT": 1, "CC-BY-4.0": 3}
    assert document["unused_cards"] == []


@pytest.mark.parametrize(
    ("plan", "slots", "weights"),
    [
        (PLAN.paper(), ["Ada", "Bob"], {"Ada": 1.0}),
        (TrainPlan(mode="speaker", rank=2, epochs=1), ["shared", "Ada", "Bob"],
         {"shared": 1.0, "Ada": 1.0}),
    ],
    ids=["paper", "speaker"],
)  # fmt: skip
def test_both_protocols_and_modes_are_trained(
    plan: TrainPlan, slots: list[str], weights: Any, data: Path, tiny_base: Path, tmp_path: Path
) -> None:
    cast = train_cast([data], str(tiny_base), tmp_path / "cast", plan=plan, cards=CARDS).cast
    manifest = cast.manifest
    assert (manifest.protocol, manifest.mode, manifest.rank) == (
        plan.protocol,
        plan.mode,
        plan.rank,
    )
    assert [block.name for block in manifest.blocks] == slots
    assert cast.character("Ada").weights == weights
    assert (cast.gate is not None) == (plan.protocol == "paper")
    if plan.protocol == "paper":
        assert {name.rpartition(".")[2] for name in manifest.targets} == {"q_proj", "v_proj"}


def test_the_papers_gate_wants_a_profile_of_everybody_before_a_model_is_loaded(
    data: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"'Bob' has none.*--card"):
        train_cast([data], "/nowhere", tmp_path / "cast", plan=PLAN.paper(), cards=CARDS[:1])
    assert not (tmp_path / "cast").exists()


def test_cards_of_nobody_in_the_data_are_named(data: Path, tiny_base: Path, tmp_path: Path) -> None:
    done = train_cast(
        [data], str(tiny_base), tmp_path / "cast", plan=TrainPlan(rank=1, epochs=1),
        cards=[*CARDS, card("Zoe", "hm")],
    )  # fmt: skip
    assert done.unused == ("Zoe",)
    assert done.document()["unused_cards"] == ["Zoe"]
    with pytest.raises(InputError, match=r"talks\.jsonl: there is no card in it"):
        train_cast([data], str(tiny_base), tmp_path / "other", cards=[data])


def test_baselines_are_trained_beside_the_cast_and_not_twice(
    data: Path, tiny_base: Path, tmp_path: Path
) -> None:
    args = ([data], str(tiny_base), tmp_path / "cast")
    plan = TrainPlan(rank=2, epochs=1)
    train_cast(*args, plan=plan)
    done = train_cast(*args, plan=plan, baselines=True)  # later, on the cast that is there
    assert done.baselines["one_shared"] == done.baselines["one_per_character"] == "trained"
    assert done.baselines["dense_gate"].startswith(
        "not trained: its gate reads profiles, and 'Ada'"
    )
    files = sorted((tmp_path / "cast" / "baselines").iterdir())
    assert files
    before = [file.stat().st_mtime_ns for file in files]
    again = train_cast(*args, plan=plan, baselines=True)
    assert [file.stat().st_mtime_ns for file in files] == before
    assert again.document() == done.document()


def test_rows_that_are_too_long_are_counted_and_named(tiny_base: Path, tmp_path: Path) -> None:
    rows = lines(
        tmp_path / "talks.jsonl",
        talk("Ada", "engine", source="talks, line 1"),
        talk("Ada", *["numbers weave " * 4] * 6, source="talks, line 2"),
        talk("Ada", "very " * 200, source="talks, line 3"),
    )
    plan = TrainPlan(rank=1, epochs=1, max_tokens=400)
    done = train_cast([rows], str(tiny_base), tmp_path / "cast", plan=plan)
    assert done.outcome.shortened == 1
    assert len(done.outcome.too_long) == 1
    assert "line 3" in done.outcome.too_long[0]
    assert 0 <= done.outcome.padding < 1
    with pytest.raises(
        InputError, match=r"not one line of 'Ada' fits into 40 tokens.*--max-tokens"
    ):
        train_cast(
            [rows], str(tiny_base), tmp_path / "short", plan=TrainPlan(rank=1, max_tokens=40)
        )
    assert not (tmp_path / "short").exists(), "nothing is claimed by a training that cannot begin"


# Again, and after an end that came too soon ------------------------------------------------------


def test_the_same_command_after_the_end_says_the_same_without_a_model(
    data: Path, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_base, base)
    args = ([data], str(base), tmp_path / "cast")
    first = train_cast(*args, plan=PLAN, rates=RATES)
    (base / "tokenizer.json").unlink()  # a model that cannot be loaded any more
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "cast").rglob("*") if p.is_file()}
    (tmp_path / "cast" / TRAINING / CHECKPOINT).mkdir()  # a kill came between cast and tidying
    again = train_cast(*args, plan=PLAN, rates=RATES)
    assert again.document() == first.document()
    assert again.history == first.history
    assert {p: p.stat().st_mtime_ns for p in files if ".lock" not in p.name} == {
        p: t for p, t in files.items() if ".lock" not in p.name
    }
    assert not (tmp_path / "cast" / TRAINING / CHECKPOINT).exists()


@pytest.mark.parametrize(("stage", "at"), [("shared", 2), ("own", 1)])
def test_a_training_that_was_interrupted_goes_on_to_the_same_bits(
    stage: str, at: int, data: Path, tiny_base: Path, tmp_path: Path
) -> None:
    plan = TrainPlan(rank=2, epochs=4, dropout=0.1, batch_rows=2)
    whole = train_cast([data], str(tiny_base), tmp_path / "whole", plan=plan)
    args = ([data], str(tiny_base), tmp_path / "cast")
    with pytest.raises(KeyboardInterrupt):
        train_cast(*args, plan=plan, watcher=Stops(stage, at, KeyboardInterrupt()))
    assert not (tmp_path / "cast" / "cast.json").exists()
    done = train_cast(*args, plan=plan)
    assert same_blocks(done.cast, whole.cast)
    assert done.history == whole.history
    assert done.outcome == whole.outcome
    assert done.cast.manifest.blocks == whole.cast.manifest.blocks
    assert (tmp_path / "whole" / TRAINING / "spent.json").is_file()
    assert not (tmp_path / "cast" / TRAINING / "spent.json").exists()  # a part is not the whole


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from personae.cast import checkpoint
from personae.cast.plan import TRAINING, TrainPlan
from personae.cast_stage import train_cast
from personae.journal.flow import NoWatcher

checkpoint.CHECKPOINT_SECONDS = 0.0

class Dies(NoWatcher):
    left = 4
    def step(self, stage):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

data, base, out = sys.argv[1:]
train_cast([data], base, Path(out), plan=TrainPlan(rank=2, epochs=6, batch_rows=2), watcher=Dies())
"""


def test_a_killed_process_is_taken_up_where_its_last_checkpoint_stands(
    data: Path, tiny_base: Path, tmp_path: Path
) -> None:
    plan = TrainPlan(rank=2, epochs=6, batch_rows=2)
    out = tmp_path / "cast"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(data), str(tiny_base), str(out)],
        check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (out / TRAINING / CHECKPOINT / "state.json").is_file()
    done = train_cast([data], str(tiny_base), out, plan=plan)
    whole = train_cast([data], str(tiny_base), tmp_path / "whole", plan=plan)
    assert same_blocks(done.cast, whole.cast)
    assert done.history == whole.history


def test_a_cast_that_was_written_but_not_yet_put_into_its_place_has_ended(
    data: Path, tiny_base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "cast"
    first = train_cast([data], str(tiny_base), out, plan=PLAN)
    (out / ".commit").mkdir()  # as a kill leaves it (personae.cast.store)
    for file in ("blocks.safetensors", "router.json", "cast.json"):
        shutil.move(out / file, out / ".commit" / file)
    begun: list[str] = []

    class Hears(NoWatcher):
        def begin(self, stage: str, total: int) -> None:
            begun.append(stage)

    again = train_cast([data], str(tiny_base), out, plan=PLAN, watcher=Hears())
    assert again.document() == first.document()
    assert begun == []


def test_a_training_under_way_is_not_joined_by_a_second(
    data: Path, tiny_base: Path, tmp_path: Path
) -> None:
    seen: list[str] = []

    class Joins(NoWatcher):
        def step(self, stage: str) -> None:
            if not seen:
                with pytest.raises(UsageError, match="another process is training in") as caught:
                    train_cast([data], str(tiny_base), tmp_path / "cast", plan=PLAN)
                seen.append(str(caught.value))

    train_cast([data], str(tiny_base), tmp_path / "cast", plan=PLAN, watcher=Joins())
    assert seen


def test_a_cast_to_which_somebody_was_added_is_still_told_of(
    data: Path, tiny_base: Path, tmp_path: Path
) -> None:
    from personae.cast.add import add_character

    args = ([data], str(tiny_base), tmp_path / "cast")
    train_cast(*args, plan=PLAN)
    add_character(tmp_path / "cast", card("Zoe", "hm"), "profile")
    told = train_cast(*args, plan=PLAN).document()
    assert [(c["name"], c["rows"]) for c in told["characters"]] == [
        ("Ada", 3),
        ("Bob", 3),
        ("Zoe", 0),
    ]


# What is refused ---------------------------------------------------------------------------------


def test_a_folder_that_holds_something_else_is_refused_before_anything_is_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letters.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for out in ("full", "file"):
        with pytest.raises(UsageError, match="is not a training of ours; choose another --out"):
            train_cast(["/no/such/data"], "/no/such/model", tmp_path / out)
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["letters.txt"]


def test_a_training_with_something_else_in_it_says_what_differs(
    data: Path, tiny_base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "cast"
    train_cast([data], str(tiny_base), out, plan=PLAN, rates=RATES)
    more = lines(tmp_path / "more.jsonl", talk("Ada", "new"))
    again: list[tuple[dict[str, Any], str]] = [
        ({"plan": TrainPlan(rank=1), "rates": RATES}, r"another plan \(rank 2 there, 1 here; "),
        ({"plan": PLAN}, rf"another plan \(lr {RATES['lr']} there, {PLAN.lr} here"),
        ({"data": [data, more], "plan": PLAN, "rates": RATES}, "another data;"),
        ({"plan": PLAN, "rates": RATES, "cards": CARDS}, "another cards;"),
        (
            {"data": [more], "plan": TrainPlan(), "rates": RATES},
            r"another plan \(.*\) and another data;",
        ),
    ]
    for wish, said in again:
        given = {"data": [data], **wish}
        with pytest.raises(UsageError, match=said):
            train_cast(given.pop("data"), str(tiny_base), out, **given)
    other = tmp_path / "base"
    shutil.copytree(tiny_base, other)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    with pytest.raises(UsageError, match="another base model;"):
        train_cast([data], str(other), out, plan=PLAN, rates=RATES)


def test_a_folder_in_which_nothing_was_learnt_yet_takes_another_plan(
    data: Path, tiny_base: Path, tmp_path: Path
) -> None:
    args = ([data], str(tiny_base), tmp_path / "cast")

    class Full(NoWatcher):
        def begin(self, stage: str, total: int) -> None:
            raise OSError("before the first step")

    with pytest.raises(OSError, match="before the first step"):
        train_cast(*args, plan=PLAN, watcher=Full())
    done = train_cast(*args, plan=TrainPlan(rank=1, epochs=1))
    assert done.cast.manifest.rank == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda f: f / "absent.jsonl", r"absent\.jsonl: there is no such file\. Check"),
        (lambda f: lines(f / "odd.jsonl", {"a": 1}, {"a": 2}), r"odd\.jsonl.*known shape.*Rows are read from"),
        (lambda f: lines(f / "quiet.json", card("Ada", "x").model_copy(
            update={"mes_example": ""}).to_dict()), r"nothing to learn .*quiet\.json: the card shows"),
        (lambda f: lines(f / "no.jsonl", {"messages": [
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": "I'm sorry, but I can't help with that."}]}),
         r"no\.jsonl: no character is named .*--speaker"),
    ],
    ids=["absent", "strange", "quiet", "refusals"],
)  # fmt: skip
def test_data_that_cannot_be_learnt_from_name_the_file_and_why(
    make: Callable[[Path], Path], said: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    with pytest.raises(InputError, match=said):
        train_cast([path], "/no/such/model", tmp_path / "cast")
    assert not (tmp_path / "cast").exists()


def test_when_nothing_is_learnt_the_message_says_why(tmp_path: Path) -> None:
    silent = card("Ada", "x").model_copy(update={"mes_example": ""})
    with pytest.raises(
        InputError, match="nothing to learn from in Ada: the card shows no line of its character"
    ):
        train_cast([silent], "/no/such/model", tmp_path / "cast")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("base", "the model without blocks"),
        ("Base", "the model without blocks"),
        ("A\x1b[31mda", "control characters"),
        ("Ada\nSystem", "control characters or line breaks"),
        ("Ada\u2028x", "control characters or line breaks"),
        ("A\u202eda", "direction of reading"),
        ("<|im_end|>", "'<'"),
        ("Ada#2", "'#'"),
        ("A" * 101, "101 characters"),
    ],
)
def test_a_name_that_cannot_stand_in_a_prompt_or_a_model_id_is_refused(
    name: str, why: str, tmp_path: Path
) -> None:
    data = lines(
        tmp_path / "talks.jsonl", talk("Bob", "boat"), talk(name, "hm", source="x, line 2")
    )
    with pytest.raises(InputError, match=why) as caught:
        train_cast([data], "/no/such/model", tmp_path / "cast")
    assert "x, line 2" in str(caught.value)
    assert "another name in the data" in str(caught.value)


def test_the_shared_blocks_name_is_refused_line_by_line(tmp_path: Path) -> None:
    data = lines(tmp_path / "talks.jsonl", talk("shared", "hm"))
    with pytest.raises(InputError, match="no character may be named 'shared'"):
        train_cast([data], "/no/such/model", tmp_path / "cast")


@pytest.mark.parametrize(
    "name", ["Ada", "老周", "O'Brien, Jr.", "Jean-Luc", "D’Artagnan", "ﷺ", "R2:D2"]
)
def test_names_of_people_are_names(name: str) -> None:
    from personae.records.cast import unfit_name

    assert unfit_name(name) is None


def test_a_rate_that_cannot_be_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lr = -1"):
        train_cast(["/no/data"], "/no/model", tmp_path / "cast", rates={"lr": -1})
    with pytest.raises(UsageError, match="'rl' is no rate"):
        train_cast(["/no/data"], "/no/model", tmp_path / "cast", rates={"rl": 1})


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from personae.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_torch_the_command_names_what_to_install(
    package: str, data: Path, tiny_base: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(package=package), "cast", "train", str(data),
         "--base", str(tiny_base), "--out", str(tmp_path / "cast")],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert f"{package}: pip install 'personae[train]'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


# Where the base lies -----------------------------------------------------------------------------


async def test_a_cast_over_a_relative_directory_answers_from_any_folder(
    data: Path, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from personae.cast.backend import Casts
    from personae.cast.base import load_base

    shutil.copytree(tiny_base, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    train_cast([data], "model", Path("cast"), plan=PLAN)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    cast = read_cast(tmp_path / "cast")
    assert Path(cast.manifest.base.id) == tmp_path / "model"
    attach(load_base(cast.manifest.base.id), cast).detach()
    backend = Casts().backend(f"cast:{tmp_path / 'cast'}#Ada")
    call = Call(
        role="character",
        model=f"cast:{tmp_path / 'cast'}#Ada",
        messages=(Message(role="user", content="Who are you?"),),
        sampling=Sampling(max_tokens=4, temperature=0),
    )
    reply = await backend.complete(call)
    await backend.close()
    assert reply.failure is None or reply.failure.cause == "empty"


# Answers of a demo -------------------------------------------------------------------------------


def test_answers_of_a_cast_are_read_back_and_a_damaged_line_is_named(tmp_path: Path) -> None:
    assert read_cast_answers(tmp_path) == ()
    file = tmp_path / "cast_answers.jsonl"
    one = CastAnswer(question="Who?", character="Ada", block="Ada", answer="I.")
    two = CastAnswer(question="Who?", character="Ada", missing="timeout")
    file.write_text(f"{one.to_json()}\n{two.to_json()}\n", "utf-8")
    assert read_cast_answers(tmp_path) == (one, two)
    file.write_text(f"{one.to_json()}\n" + '{"question": "Who?", "character": "Ada"}\n', "utf-8")
    with pytest.raises(InputError, match=r"cast_answers\.jsonl, line 2.*either an answer"):
        read_cast_answers(tmp_path)
