"""An old checkpoint of Neeko, gate and all, says as a cast what it said as it was."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from personae.cast.neeko import import_neeko
from personae.cast.store import attach, read_cast
from personae.errors import InputError, UsageError

R, E, ALPHA, D = 6, 3, 32, 10
ROLES = ("Beethoven", "Caesar")


@pytest.fixture
def checkpoint(tiny_base: Path, tmp_path: Path) -> Path:
    """What `save_pretrained` of the released code leaves: here in safetensors."""
    import torch
    from safetensors.torch import save_file

    folder = tmp_path / "20240203140411"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {
                "base_model_name_or_path": "Llama-2-7b-hf", "bias": "none", "fan_in_fan_out": False,
                "gating": "Dense", "inference_mode": True, "init_lora_weights": True,
                "layers_pattern": None, "layers_to_transform": None, "lora_alpha": ALPHA,
                "lora_dropout": 0.1, "modules_to_save": None, "num_moe": E, "peft_type": "MOELORA",
                "r": R, "revision": None, "target_modules": ["q_proj", "v_proj"],
                "task_type": "CAUSAL_LM",
            }
        )
    )  # fmt: skip
    torch.manual_seed(4)
    state = {}
    for layer in range(2):
        for module, out in (("q_proj", 64), ("v_proj", 32)):
            key = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            state[f"{key}.lora_A.weight"] = torch.randn(R, 64) / 8
            state[f"{key}.lora_B.weight"] = torch.randn(out, R) / 8
            state[f"{key}.gating.linear_layer.weight"] = torch.randn(E, D)
    save_file(state, folder / "adapter_model.safetensors")
    return folder


@pytest.fixture
def embeddings(tmp_path: Path) -> dict[str, Path]:
    """As embd_roles.py saves them: a tensor that is still in a graph."""
    import torch

    torch.manual_seed(5)
    made = {}
    for role in ROLES:
        made[role] = tmp_path / f"{role}.pth"
        torch.save((torch.randn(D, requires_grad=True) * 1).reshape(-1), made[role])
    return made


def logits_of_the_release(tiny_base: Path, checkpoint: Path, embedding: Any, ids: Any) -> Any:
    """The forward pass as the released code computes it: all blocks, then the gate, then the sum."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32)
    state = load_file(checkpoint / "adapter_model.safetensors")

    def hook(key: str) -> Any:
        def add(_module: Any, inputs: tuple[Any, ...], result: Any) -> Any:
            (x,) = inputs
            batch, length, _ = x.shape
            after_a = (x @ state[f"{key}.lora_A.weight"].T).reshape(batch, length, E, R // E)
            b = state[f"{key}.lora_B.weight"].T.reshape(E, R // E, -1)
            after_b = torch.einsum("blkr,krm->blkm", after_a, b)
            gate = (embedding[None] @ state[f"{key}.gating.linear_layer.weight"].T).softmax(-1)
            return result + (after_b * gate[:, None, :, None]).sum(-2) * (ALPHA / (R // E))

        return add

    for name, module in model.named_modules():
        if name.endswith(("q_proj", "v_proj")):
            module.register_forward_hook(hook(f"base_model.model.{name}"))
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize("as_trained", [False, True])
def test_an_imported_role_speaks_as_it_did(
    tiny_base: Path,
    checkpoint: Path,
    embeddings: dict[str, Path],
    tmp_path: Path,
    as_trained: bool,
) -> None:
    import torch

    from personae.cast.base import load_base

    torch.set_num_threads(1)
    out = tmp_path / "cast"
    import_neeko(checkpoint, embeddings, out, base=str(tiny_base), as_trained=as_trained)
    cast = read_cast(out)
    base = load_base(str(tiny_base), dtype="float32")
    stack = attach(base, cast)
    ids = torch.arange(3, 43)[None]
    said = []
    for role in ROLES:
        vector = torch.load(embeddings[role], weights_only=True).detach()
        theirs = logits_of_the_release(
            tiny_base, checkpoint, vector.flip(0) if as_trained else vector, ids
        )
        with torch.no_grad(), stack.speaking(stack.weights([cast.character(role).weights])):
            ours = base.model(ids).logits
        assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()
        said.append(ours)
    assert (said[0] - said[1]).abs().max() > 1e-3
    assert cast.manifest.protocol == "paper"
    assert (cast.manifest.rank, cast.manifest.alpha) == (R, E * ALPHA)


def test_the_bin_of_old_and_arrays_of_numpy_say_the_same(
    tiny_base: Path, checkpoint: Path, embeddings: dict[str, Path], tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file

    first = import_neeko(checkpoint, embeddings, tmp_path / "one", base=str(tiny_base))
    safe = checkpoint / "adapter_model.safetensors"
    torch.save(load_file(safe), checkpoint / "adapter_model.bin")
    safe.unlink()
    arrays = {}
    for role, file in embeddings.items():
        arrays[role] = file.with_suffix(".npy")
        np.save(arrays[role], torch.load(file, weights_only=True).detach().numpy()[None])
    second = import_neeko(checkpoint, arrays, tmp_path / "two", base=str(tiny_base))

    assert first.manifest.blocks_sha256 == second.manifest.blocks_sha256


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("pwned"),))


@pytest.mark.parametrize("which", ["checkpoint", "embedding"])
def test_a_pickle_that_would_run_something_is_refused(
    tiny_base: Path,
    checkpoint: Path,
    embeddings: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    which: str,
) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    file = embeddings["Caesar"] if which == "embedding" else checkpoint / "adapter_model.bin"
    if which == "checkpoint":
        (checkpoint / "adapter_model.safetensors").unlink()
    torch.save({"x": Evil()}, file)

    with pytest.raises(InputError, match=f"{file.name}: not tensors alone"):
        import_neeko(checkpoint, embeddings, tmp_path / "cast", base=str(tiny_base))
    assert not (tmp_path / "pwned").exists()
    assert not (tmp_path / "cast").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "LORA"}, "type 'LORA', and Neeko's are MOELORA"),
        ({"num_moe": 4}, "does not fall into 4 blocks"),
        ({"r": 12}, r"lora_A has the shape \[6, 64\], and adapter_config.json says 12"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"lora_alpha": "many"}, "lora_alpha"),
    ],
)
def test_a_configuration_that_is_not_neekos_is_refused(
    tiny_base: Path,
    checkpoint: Path,
    embeddings: dict[str, Path],
    tmp_path: Path,
    changes: dict[str, Any],
    said: str,
) -> None:
    file = checkpoint / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    with pytest.raises(InputError, match=said):
        import_neeko(checkpoint, embeddings, tmp_path / "cast", base=str(tiny_base))


def test_an_embedding_of_another_width_is_refused(
    tiny_base: Path, checkpoint: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "Newton.npy", np.ones(D + 1))

    with pytest.raises(InputError, match=r"Newton.npy: 11 numbers, and the gate of .* takes 10"):
        import_neeko(
            checkpoint, {"Newton": tmp_path / "Newton.npy"}, tmp_path / "c", base=str(tiny_base)
        )
    with pytest.raises(UsageError, match="at least one"):
        import_neeko(checkpoint, {}, tmp_path / "c", base=str(tiny_base))


def test_an_embedding_that_is_no_vector_is_refused(
    tiny_base: Path, checkpoint: Path, tmp_path: Path
) -> None:
    for number, array in enumerate(
        (np.ones((2, 5)), np.array(["a"] * D), np.full(D, np.nan), np.array([{}], dtype=object))
    ):
        file = tmp_path / f"{number}.npy"
        np.save(file, array)
        with pytest.raises(InputError, match=f"{number}.npy"):
            import_neeko(checkpoint, {"x": file}, tmp_path / "c", base=str(tiny_base))


def test_an_embedding_whose_header_claims_more_than_there_is_is_refused(
    tiny_base: Path, checkpoint: Path, tmp_path: Path
) -> None:
    file = tmp_path / "vast.npy"
    with file.open("wb") as opened:
        header = {"descr": "<f4", "fortran_order": False, "shape": (10**14,)}
        np.lib.format.write_array_header_1_0(opened, header)
        opened.write(bytes(64))
    with pytest.raises(InputError, match=r"vast\.npy: no array"):
        import_neeko(checkpoint, {"x": file}, tmp_path / "c", base=str(tiny_base))
