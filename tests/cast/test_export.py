"""What leaves the house is what runs in it: stock PEFT, and the launch of vLLM."""

import itertools
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from personae.cast.export import (
    VLLM_RANKS,
    adapter_of,
    export_gguf,
    export_peft,
    export_vllm,
    is_non_commercial,
    vllm_rank,
)
from personae.cast.store import Cast, read_cast, write_cast
from personae.errors import InputError, UsageError
from personae.records import Character
from personae.records.cast import BaseModelRef, Block, CastCharacter, CastManifest, DataSource

# Stock PEFT asks transformers under the name that it had before.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

FREE = DataSource(source="cards.jsonl", licence="CC0-1.0", rows=4)
BOUND = DataSource(source="plays|<b>x</b>.jsonl", licence="CC BY-NC 4.0", rows=7)
UNKNOWN = DataSource(source="found.jsonl", rows=2)
BLOCKS = (
    Block(name="shared", data=(FREE,)),
    Block(name="Ada", data=(FREE,)),
    Block(name="孙悟空", data=(BOUND,)),
    Block(name="Eve", data=(UNKNOWN,)),
)
CHARACTERS = (
    CastCharacter(name="Ada", weights={"shared": 1, "Ada": 1}),
    CastCharacter(name="孙悟空", weights={"孙悟空": 1}),
    CastCharacter(name="Fay", how="fuse", weights={"shared": 1, "Ada": 0.7, "孙悟空": -0.3}),
    CastCharacter(name="Eve", how="expand", weights={"shared": 1, "Ada": 0.5, "Eve": 1}),
    CastCharacter(name="Pia", how="profile", weights={"shared": 1, "Ada": 0}),
)


@pytest.fixture(scope="module")
def made(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Cast]:
    """A base, a stack over it, and the stack's cast; no block is zero; alpha is no whole number."""
    import torch

    from personae.cast.base import load_base
    from personae.cast.stacked import StackedLoRA

    torch.set_num_threads(1)
    base = load_base(str(tiny_base))
    stack = StackedLoRA(base.model, [b.name for b in BLOCKS], rank=3, alpha=5.3)
    drawn = np.random.default_rng(0)
    state = {
        name: drawn.normal(size=tensor.shape, scale=0.2).astype(np.float32)
        for name, tensor in stack.state().items()
    }
    stack.load_state(state)
    cast = write_cast(
        tmp_path_factory.mktemp("cast"),
        base=base.ref,
        rank=3,
        alpha=5.3,
        blocks=BLOCKS,
        characters=CHARACTERS,
        tensors=state,
        cards={"Pia": Character(name="Pia", description="Pia keeps the lighthouse of Skerry.")},
    )
    return base, stack, cast


def hand_cast(**manifest: Any) -> Cast:
    """Two blocks of rank 1 on one module of 2 x 2, small enough to multiply by hand."""
    fields = {
        "version": "0",
        "base": BaseModelRef(id="there", sha256="0" * 64, architecture="llama"),
        "rank": 1,
        "alpha": 3,
        "targets": ("m",),
        "blocks": (Block(name="shared"), Block(name="x")),
        "characters": (
            CastCharacter(name="x", weights={"shared": 2, "x": -0.5}),
            CastCharacter(name="mute", weights={"x": 0}),
        ),
        "blocks_sha256": "0" * 64,
    }
    tensors = {
        "A.m": np.array([[[1, 2]], [[3, 4]]], np.float32),
        "B.m": np.array([[[5], [6]], [[7], [8]]], np.float32),
    }
    manifest_of = CastManifest.from_dict(
        json.loads(CastManifest.model_validate(fields | manifest).to_json())
    )
    nobody: Any = None  # nothing here routes
    return Cast(Path("cast"), manifest_of, tensors, router=nobody, cards={})


def test_blocks_are_joined_side_by_side_with_the_weight_in_b() -> None:
    adapter = adapter_of(hand_cast(), "x")

    assert adapter.a["m"].tolist() == [[1, 2], [3, 4]]
    assert adapter.b["m"].tolist() == [[10, -3.5], [12, -4]]
    assert (adapter.rank, adapter.alpha) == (2, 6)  # alpha / rank stays 3
    # 3 * (2 * [5, 6]^T [1, 2] - 0.5 * [7, 8]^T [3, 4])
    update = adapter.alpha / adapter.rank * adapter.b["m"] @ adapter.a["m"]
    assert update.tolist() == [[-1.5, 18], [0, 24]]


def test_an_alpha_that_is_no_whole_number_moves_into_b() -> None:
    adapter = adapter_of(hand_cast(alpha=0.2), "x")

    assert (adapter.rank, adapter.alpha) == (2, 1)
    update = adapter.alpha / adapter.rank * adapter.b["m"] @ adapter.a["m"]
    assert update == pytest.approx(np.array([[-1.5, 18], [0, 24]]) * 0.2 / 3, abs=1e-6)


def test_the_own_block_alone_is_taken_at_its_full_weight() -> None:
    adapter = adapter_of(hand_cast(), "x", own_only=True)

    assert adapter.a["m"].tolist() == [[3, 4]]
    assert adapter.b["m"].tolist() == [[7], [8]]
    with pytest.raises(UsageError, match="'mute' has no block of its own"):
        adapter_of(hand_cast(), "mute", own_only=True)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"characters": (CastCharacter(name="x", weights={"x": 1e39}),)}, "the weights of 'x'"),
        ({"alpha": 1e300}, "alpha"),
    ],
)
def test_numbers_that_no_adapter_holds_are_refused(given: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError, match=rf"cast\.json.*{place}.*that no adapter holds"):
        adapter_of(hand_cast(**given), "x")


def test_a_character_without_blocks_has_nothing_to_export() -> None:
    with pytest.raises(UsageError, match="'mute' speaks through no block"):
        adapter_of(hand_cast(), "mute")


# PEFT --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def peft_dirs(made: tuple[Any, Any, Cast], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return export_peft(made[2], tmp_path_factory.mktemp("out") / "peft")


def stack_logits(base: Any, stack: Any, weights: dict[str, float], ids: Any) -> Any:
    import torch

    with torch.no_grad(), stack.speaking(stack.weights([weights])):
        return base.model(ids).logits


def peft_logits(tiny_base: Path, folder: Path, ids: Any) -> Any:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    plain: Any = AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32)
    model: Any = PeftModel.from_pretrained(plain, folder)
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize("name", [c.name for c in CHARACTERS])
def test_stock_peft_finds_the_logits_of_the_stack(
    made: tuple[Any, Any, Cast], peft_dirs: Any, tiny_base: Path, name: str
) -> None:
    import torch

    base, stack, cast = made
    ids = torch.arange(3, 43)[None]
    ours = stack_logits(base, stack, cast.character(name).weights, ids)
    theirs = peft_logits(tiny_base, peft_dirs.paths[name], ids)
    plain = stack_logits(base, stack, {}, ids)

    assert (ours - plain).abs().max() > 0.05
    assert (ours - theirs).abs().max() < 1e-5 * ours.abs().max()


def test_stock_peft_finds_the_logits_of_an_own_block_alone(
    made: tuple[Any, Any, Cast], tiny_base: Path, tmp_path: Path
) -> None:
    import torch

    base, stack, cast = made
    done = export_peft(cast, tmp_path / "own", own_only=True)
    ids = torch.arange(3, 43)[None]

    assert list(done.paths) == ["Ada", "孙悟空", "Eve"]
    ours = stack_logits(base, stack, {"Eve": 1}, ids)
    theirs = peft_logits(tiny_base, done.paths["Eve"], ids)
    assert (ours - theirs).abs().max() < 1e-5 * ours.abs().max()
    assert any("not the whole character" in note for note in done.notes)


def test_a_cast_of_some_layers_exports_those_and_no_others(tiny_base: Path, tmp_path: Path) -> None:
    import torch

    from personae.cast.base import load_base
    from personae.cast.stacked import StackedLoRA

    base = load_base(str(tiny_base))
    stack = StackedLoRA(base.model, ["Ada"], rank=2, targets=["model.layers.1.mlp.up_proj"])
    state = {name: np.ones_like(tensor) / 50 for name, tensor in stack.state().items()}
    stack.load_state(state)
    cast = write_cast(
        tmp_path / "cast",
        base=base.ref,
        rank=2,
        alpha=16,
        blocks=[Block(name="Ada")],
        characters=[CastCharacter(name="Ada", weights={"Ada": 1})],
        tensors=state,
    )
    done = export_peft(cast, tmp_path / "out")
    ids = torch.arange(3, 43)[None]

    ours = stack_logits(base, stack, {"Ada": 1}, ids)
    assert torch.allclose(peft_logits(tiny_base, done.paths["Ada"], ids), ours, atol=1e-5)


def test_names_choose_whom_to_export(made: tuple[Any, Any, Cast], tmp_path: Path) -> None:
    done = export_peft(made[2], tmp_path / "out", names=["Fay"])

    assert list(done.paths) == ["Fay"]
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["Fay"]
    with pytest.raises(UsageError, match="no character is named 'Zoe'"):
        export_peft(made[2], tmp_path / "more", names=["Zoe"])
    assert not (tmp_path / "more").exists()


def test_a_directory_that_holds_something_is_not_written_over(
    made: tuple[Any, Any, Cast], tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("")

    with pytest.raises(UsageError, match="is not empty"):
        export_peft(made[2], tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_profile_stands_in_the_system_message_that_goes_along(peft_dirs: Any) -> None:
    profile = (peft_dirs.paths["Pia"] / "system.txt").read_text("utf-8")
    trained = (peft_dirs.paths["Ada"] / "system.txt").read_text("utf-8")

    assert "lighthouse of Skerry" in profile
    assert trained.startswith("You are Ada.")
    assert any(note.startswith("Pia: Nothing was trained") for note in peft_dirs.notes)


# Licences ----------------------------------------------------------------------------------------


def readme(done: Any, name: str) -> str:
    return (done.paths[name] / "README.md").read_text("utf-8")


def test_data_under_a_non_commercial_licence_bind_whoever_speaks_through_them(
    peft_dirs: Any,
) -> None:
    assert "Not for commercial use" in readme(peft_dirs, "孙悟空")
    assert "Not for commercial use" in readme(peft_dirs, "Fay")  # through a weight of -0.3
    assert "Not for commercial use" not in readme(peft_dirs, "Ada")
    assert any(n.startswith("孙悟空, Fay: Not for commercial use") for n in peft_dirs.notes)


def test_data_of_unknown_licence_are_called_unknown(peft_dirs: Any) -> None:
    text = readme(peft_dirs, "Eve")

    assert "Licence of the training data unknown:** found.jsonl" in text
    assert "| Eve | found.jsonl | unknown / 不明 | 2 |" in text
    assert "unknown:**" not in readme(peft_dirs, "Ada")


def test_blocks_whose_data_nobody_recorded_have_no_known_licence(tmp_path: Path) -> None:
    done = export_peft(hand_cast(), tmp_path / "out", names=["x"])

    assert "no source was recorded" in readme(done, "x")
    assert done.notes == ("The licence of the training data is not known.",)


def test_a_strangers_words_are_no_markup(peft_dirs: Any) -> None:
    assert "plays\\|&lt;b&gt;x&lt;/b&gt;.jsonl" in readme(peft_dirs, "孙悟空")


@pytest.mark.parametrize(
    ("licence", "bound"),
    [
        ("CC-BY-NC-4.0", True), ("cc_by_nc_sa_4.0", True), ("CC BY-NC 4.0", True),
        ("Non-commercial research", True), ("research only", True), ("非商业用途", True),
        ("Apache-2.0", False), ("CC-BY-4.0", False), ("MIT", False), ("NCSA", False), (None, False),
    ],
)  # fmt: skip
def test_licences_against_commerce_are_known_by_their_names(
    licence: str | None, bound: bool
) -> None:
    assert is_non_commercial(licence) is bound


def test_a_cast_of_mode_speaker_says_that_a_plain_adapter_is_not_the_same(tmp_path: Path) -> None:
    done = export_peft(hand_cast(mode="speaker"), tmp_path / "out", names=["x"])

    assert any("trained in mode speaker" in note for note in done.notes)
    assert "trained in mode speaker" in readme(done, "x")
    assert "speaker 模式训练" in readme(done, "x")


def test_an_export_is_for_whoever_may_read_a_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        done = export_vllm(hand_cast(), tmp_path / "out", names=["x"])
    finally:
        os.umask(before)
    modes = {p.name: p.stat().st_mode & 0o777 for p in (done.out, *done.out.rglob("*"))}

    programs = {"out", done.paths["x"].name, "serve.sh"}
    assert modes == {name: 0o750 if name in programs else 0o640 for name in modes}


# vLLM --------------------------------------------------------------------------------------------


def test_the_launch_of_vllm_has_room_for_the_whole_cast(
    made: tuple[Any, Any, Cast], tmp_path: Path
) -> None:
    out = tmp_path / 'serve it\'s "here"'
    done = export_vllm(made[2], out)
    fake = tmp_path / "bin" / "vllm"
    fake.parent.mkdir()
    fake.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "print(json.dumps([os.getcwd(), *sys.argv[1:]]))\n"
    )
    fake.chmod(0o755)
    ran = subprocess.run(
        [str(out / "serve.sh"), "--port", "8001"],
        env={"PATH": f"{fake.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    where, *arguments = json.loads(ran.stdout)
    plan = json.loads((out / "serve.json").read_text("utf-8"))

    assert arguments == [*plan["command"][1:], "--port", "8001"]
    assert arguments[:2] == ["serve", made[2].manifest.base.id]
    assert "--enable-lora" in arguments
    value = {a: b for a, b in itertools.pairwise(arguments) if a.startswith("--")}
    assert value["--max-loras"] == value["--max-cpu-loras"] == "5"
    assert value["--max-lora-rank"] == "16"  # Fay and Eve have rank 9
    begin = arguments.index("--lora-modules") + 1
    modules = [json.loads(one) for one in arguments[begin : begin + 5]]
    assert [one["name"] for one in modules] == list(done.paths)
    for one in modules:
        assert (Path(where) / one["path"] / "adapter_config.json").is_file()


def test_the_script_survives_a_name_that_is_shell(tmp_path: Path) -> None:
    name = "x'; touch pwned; '$(id)"
    cast = hand_cast(
        blocks=(Block(name="shared"), Block(name=name)),
        characters=(CastCharacter(name=name, weights={name: 1}),),
    )
    export_vllm(cast, tmp_path / "out")

    script = (tmp_path / "out" / "serve.sh").read_text("utf-8")
    words = shlex.split(script.split("exec ", 1)[1].replace("\\\n", " "))
    assert json.loads(words[words.index("--lora-modules") + 1])["name"] == name


@pytest.mark.parametrize(("rank", "allowed"), [(1, 8), (8, 8), (9, 16), (257, 320), (512, 512)])
def test_the_rank_is_rounded_up_to_one_that_vllm_takes(rank: int, allowed: int) -> None:
    assert vllm_rank(rank) == allowed
    assert allowed in VLLM_RANKS


def test_a_rank_above_all_that_vllm_takes_is_refused() -> None:
    with pytest.raises(UsageError, match="rank 513, and vLLM takes 512"):
        vllm_rank(513)


def test_vllm_cannot_serve_mode_speaker(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="every token"):
        export_vllm(hand_cast(mode="speaker"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# GGUF, as far as it needs no engine (test_gguf_lora has the rest) ----------------------------------


def test_gguf_is_not_written_for_another_base(made: tuple[Any, Any, Cast], tmp_path: Path) -> None:
    cast = made[2]
    other = cast.manifest.base.model_copy(update={"sha256": "1" * 64})
    changed = replace(cast, manifest=cast.manifest.model_copy(update={"base": other}))

    with pytest.raises(InputError, match="is another model"):
        export_gguf(changed, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_gguf_file_has_its_words_beside_it(made: tuple[Any, Any, Cast], tmp_path: Path) -> None:
    done = export_gguf(made[2], tmp_path / "out", names=["Fay", "孙悟空"])

    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "Fay.README.md", "Fay.gguf", "Fay.system.txt",
        "孙悟空.README.md", "孙悟空.gguf", "孙悟空.system.txt",
    ]  # fmt: skip
    words = (tmp_path / "out" / "Fay.README.md").read_text("utf-8")
    assert "--lora Fay.gguf" in words
    assert "PeftModel" not in words
    assert "Not for commercial use" in words
    assert done.paths["Fay"].name == "Fay.gguf"


def test_gguf_of_an_architecture_that_is_not_known_is_refused(
    made: tuple[Any, Any, Cast], tmp_path: Path
) -> None:
    folder = tmp_path / "gpt"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')

    with pytest.raises(UsageError, match=r"for llama and qwen2, and .* is 'gpt2'.*--to peft"):
        export_gguf(made[2], tmp_path / "out", base=str(folder))


def test_a_cast_read_again_exports_the_same_bytes(
    made: tuple[Any, Any, Cast], peft_dirs: Any, tmp_path: Path
) -> None:
    again = export_peft(read_cast(made[2].path), tmp_path / "again")

    for name, folder in peft_dirs.paths.items():
        for file in sorted(p.name for p in folder.iterdir()):
            assert (folder / file).read_bytes() == (again.paths[name] / file).read_bytes()
