"""The model under a cast: what is read, what is refused, what is converted once."""

import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from personae.cast import base as base_module
from personae.cast.base import (
    base_ref,
    check_base,
    dtype_of,
    has_bfloat16,
    is_local,
    load_base,
    local_directory,
    quiet_transformers,
)
from personae.errors import InputError, UsageError, WeightsError
from personae.models.local.weights import sha256_of
from personae.records.cast import BaseModelRef
from tests.cast.tiny_gguf import write_tiny_pair


@pytest.fixture
def copy(tiny_base: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model, to be broken."""
    return Path(shutil.copytree(tiny_base, tmp_path / "model"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERSONAE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


# A directory -------------------------------------------------------------------------------------


def test_a_directory_is_loaded_frozen_and_ready(tiny_base: Path) -> None:
    import torch

    loaded = load_base(str(tiny_base), dtype="float32", device="cpu")

    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.model.dtype == loaded.dtype == torch.float32
    assert loaded.tokenizer.chat_template
    assert loaded.ref == base_ref(str(tiny_base))
    assert load_base(str(tiny_base), dtype=torch.bfloat16).model.dtype == torch.bfloat16


def test_a_model_of_one_file_is_known_by_the_hash_of_that_file(copy: Path) -> None:
    raw = (copy / "model.safetensors").read_bytes()
    ref = base_ref(str(copy))

    assert ref.sha256 == hashlib.sha256(raw).hexdigest()
    assert (ref.id, ref.architecture, ref.licence) == (str(copy), "llama", None)


def test_a_model_of_many_files_is_known_by_the_hash_over_their_hashes(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    for number, content in ((2, b"two"), (1, b"one")):
        (copy / f"model-{number}.safetensors").write_bytes(content)
    both = hashlib.sha256(b"one").hexdigest() + hashlib.sha256(b"two").hexdigest()

    assert base_ref(str(copy)).sha256 == hashlib.sha256(both.encode()).hexdigest()


def test_the_licence_is_that_of_the_model_card(copy: Path) -> None:
    (copy / "README.md").write_text("---\ntags: [x]\nlicense: apache-2.0\n---\nlicense: mit\n")
    assert base_ref(str(copy)).licence == "apache-2.0"
    (copy / "README.md").write_text("A model.\nlicense: mit\n")
    assert base_ref(str(copy)).licence is None


def test_a_reference_needs_no_torch(tiny_base: Path) -> None:
    code = (
        "import sys; from personae.cast.base import base_ref; "
        f"base_ref({str(tiny_base)!r}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


def test_what_is_no_directory_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such directory. Give a Hugging Face model"):
        base_ref(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"there is no config.json"):
        base_ref(str(tmp_path))


def test_weights_that_are_pickles_are_never_read(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")

    for read in (base_ref, load_base):
        with pytest.raises(InputError, match=r"are pickles, which can run code .* safe_serial"):
            read(str(copy))


def test_code_that_a_model_brings_is_never_run(copy: Path) -> None:
    (copy / "evil.py").write_text("raise SystemExit('code of the model was run')\n")
    edit_config(copy, auto_map={"AutoModelForCausalLM": "evil.Model"})

    with pytest.raises(InputError, match="code of its own"):
        load_base(str(copy))


def test_code_that_a_tokenizer_brings_is_never_run(copy: Path) -> None:
    (copy / "evil.py").write_text("raise SystemExit('code of the tokenizer was run')\n")
    file = copy / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config |= {"auto_map": {"AutoTokenizer": ["evil.Slow", "evil.Fast"]}, "tokenizer_class": "Evil"}
    file.write_text(json.dumps(config))

    with contextlib.suppress(InputError):  # transformers may go on with a class that it knows
        load_base(str(copy))
    assert "evil" not in sys.modules


def test_an_adapter_that_lies_beside_a_model_is_not_loaded_with_it(copy: Path) -> None:
    (copy / "adapter_config.json").write_text('{"peft_type": "LORA"}')

    with pytest.raises(InputError, match=r"an adapter beside the model .* Merge it"):
        load_base(str(copy))


@pytest.mark.parametrize("keep", [100, -1])
def test_weights_that_end_early_are_refused(copy: Path, keep: int) -> None:
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])

    with pytest.raises(InputError, match="transformers cannot load this model"):
        load_base(str(copy))


def test_an_architecture_that_transformers_does_not_know_is_refused(copy: Path) -> None:
    edit_config(copy, model_type="dreamt", architectures=["DreamtForCausalLM"])

    with pytest.raises(InputError, match="transformers cannot load"):
        load_base(str(copy))


def test_a_tokenizer_without_a_chat_template_is_refused_unless_one_is_brought(copy: Path) -> None:
    (copy / "chat_template.jinja").unlink()

    with pytest.raises(UsageError, match=r"no chat template.* Take the instruct version"):
        load_base(str(copy))
    assert load_base(str(copy), needs_template=False).tokenizer.chat_template is None


def test_blocks_belong_to_the_weights_that_they_were_trained_on() -> None:
    ours = BaseModelRef(id="local", sha256="a" * 64, architecture="llama")
    moved = BaseModelRef(id="/elsewhere/model", sha256="a" * 64, architecture="llama")
    other = BaseModelRef(id="/other", sha256="b" * 64, architecture="llama")

    check_base(ours, moved)
    with pytest.raises(InputError, match=r"cast.json: .*trained on local .* /other is another"):
        check_base(ours, other, path=Path("cast.json"))


# Types -------------------------------------------------------------------------------------------


def test_bfloat16_is_the_default_exactly_where_the_hardware_has_it() -> None:
    import torch

    cpu = torch.device("cpu")
    expected = torch.bfloat16 if has_bfloat16(cpu) else torch.float32
    assert dtype_of(None, cpu) == expected
    assert dtype_of("float16", cpu) == torch.float16


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="asks Linux for the CPU's flags")
def test_whether_the_cpu_has_bfloat16_is_what_the_kernel_says() -> None:
    import torch

    if not hasattr(torch.cpu, "get_capabilities"):
        pytest.skip("this torch cannot tell")
    flags = Path("/proc/cpuinfo").read_text().split()
    assert has_bfloat16(torch.device("cpu")) == ("avx512_bf16" in flags or "amx_bf16" in flags)


@pytest.mark.parametrize("name", ["int8", "float31", "nn"])
def test_a_type_that_is_none_is_refused(name: str) -> None:
    import torch

    with pytest.raises(UsageError, match="no type of weights"):
        dtype_of(name, torch.device("cpu"))


# Quiet -------------------------------------------------------------------------------------------


def test_loading_says_nothing_and_leaves_the_settings_of_others(
    tiny_base: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_info()
    logging.enable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load_base(str(tiny_base))
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
        with pytest.raises(KeyError), quiet_transformers():
            raise KeyError
        assert logging.get_verbosity() == logging.INFO
        logging.disable_progress_bar()
        with quiet_transformers():
            pass
        assert not logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity(before[0])
        (logging.enable_progress_bar if before[1] else logging.disable_progress_bar)()
    assert capfd.readouterr() == ("", "")


# local -------------------------------------------------------------------------------------------


def test_ids_of_the_embedded_model_are_told_from_directories() -> None:
    assert is_local("local")
    assert is_local("local:some.gguf")
    assert not is_local("./local")
    assert not is_local("localhost")


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_gguf_is_converted_once_and_says_what_its_directory_says(
    kind: str, cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import torch

    torch.set_num_threads(1)
    folder, gguf = write_tiny_pair(tmp_path / kind, kind)
    capfd.readouterr()
    told: list[str] = []
    loaded = load_base(
        f"local:{gguf}", dtype="float32", progress=lambda what, _done, _all: told.append(what)
    )
    original = load_base(str(folder), dtype="float32")
    ids = torch.arange(3, 43)[None]

    with torch.no_grad():
        assert torch.equal(loaded.model(ids).logits, original.model(ids).logits)
    for text in ("The thief, then.", "  two\tspaces 孙悟空 ü", "<|im_end|>"):
        assert loaded.tokenizer(text).input_ids == original.tokenizer(text).input_ids
    assert loaded.tokenizer.chat_template == original.tokenizer.chat_template
    assert loaded.ref == BaseModelRef(
        id=f"local:{gguf}", sha256=sha256_of(gguf), architecture=kind, licence=None
    )
    assert told == [f"converting {kind}.gguf for training, once"]
    assert capfd.readouterr() == ("", "")

    load_base(f"local:{gguf}", progress=lambda what, _done, _all: told.append(what))
    assert len(told) == 1
    (made,) = [p for p in (cache / "bases").iterdir() if p.is_dir()]
    assert base_ref(str(made)).architecture == kind


def test_a_kill_in_a_conversion_leaves_no_half_of_a_directory(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, gguf = write_tiny_pair(tmp_path / "tiny", "llama")
    real = base_module._convert

    def dies(path: Path, folder: Path) -> None:
        real(path, folder)
        (folder / "model.safetensors").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(base_module, "_convert", dies)
        with pytest.raises(KeyboardInterrupt):
            local_directory(f"local:{gguf}")
    stale = cache / "bases" / ".partial-of-a-process-killed-harder"
    stale.mkdir()
    assert [p.name for p in (cache / "bases").iterdir() if p.is_dir()] == [stale.name]

    made = local_directory(f"local:{gguf}")
    assert (made / "model.safetensors").is_file()
    assert not stale.exists()


def test_a_cache_that_cannot_be_written_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, gguf = write_tiny_pair(tmp_path / "tiny", "llama")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERSONAE_CACHE", str(tmp_path / "file"))

    with pytest.raises(WeightsError, match="PERSONAE_CACHE"):
        local_directory(f"local:{gguf}")


def test_a_gguf_that_transformers_cannot_read_is_named(cache: Path, tmp_path: Path) -> None:
    from gguf import GGUFWriter

    file = tmp_path / "strange.gguf"
    writer: Any = GGUFWriter(str(file), "dreamt")
    writer.add_tensor("x", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with pytest.raises(InputError, match=r"strange.gguf: transformers cannot read this GGUF"):
        load_base(f"local:{file}")
    assert not [p for p in (cache / "bases").iterdir() if p.is_dir()]


@pytest.mark.weights
def test_the_embedded_model_is_a_base() -> None:
    from personae.models.local import pull

    try:
        gguf = pull("local")
    except WeightsError as error:
        pytest.skip(f"the embedded model's weights cannot be had: {error}")
    import torch

    torch.set_num_threads(1)
    loaded = load_base("local", dtype="float32")

    assert loaded.ref == BaseModelRef(
        id="local", sha256=sha256_of(gguf), architecture="llama", licence="Apache-2.0"
    )
    assert "<|im_start|>" in loaded.tokenizer.chat_template
    ids = loaded.tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        next_id = int(loaded.model(ids).logits[0, -1].argmax())
    assert loaded.tokenizer.decode([next_id]) == " Paris"
