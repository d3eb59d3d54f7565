"""GGUF headers: what is read, and that a hostile one is an error and not a crash."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from personae.errors import InputError
from personae.models.local.header import Header, read_header


def test_the_header_tells_context_cache_size_control_tokens_and_template(
    make_gguf: Callable[..., Path],
) -> None:
    header = Header(read_header(make_gguf(general__name="Tiny")))
    assert (header.architecture, header.name, header.context) == ("llama", "Tiny", 2048)
    # 3 layers x 2 key-value heads x (16 + 16) wide x 2 bytes; 64 / 4 heads = 16
    assert header.kv_bytes == 3 * 2 * 32 * 2
    assert header.control == ("<|im_start|>", "<|im_end|>", "</s>")
    assert header.eos == "<|im_end|>"
    assert header.bos == ""
    assert header.template is not None
    assert header.tensor_types == {0, 3}


def test_it_reads_what_the_gguf_package_reads(make_gguf: Callable[..., Path]) -> None:
    from gguf import GGUFReader

    path = make_gguf()
    reader = GGUFReader(str(path))
    theirs = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    ours = read_header(path)
    del ours["personae.tensor_types"]
    assert ours == theirs


def test_a_file_without_a_chat_template_has_none() -> None:
    assert Header({}).template is None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 10_000), flip=st.integers(0, 10_000), by=st.integers(0, 255))
def test_a_cut_or_altered_header_is_read_or_refused(
    tmp_path: Path, make_gguf: Callable[..., Path], cut: int, flip: int, by: int
) -> None:
    body = bytearray(make_gguf().read_bytes())
    body = body[: max(1, cut % len(body))]
    body[flip % len(body)] ^= by
    path = tmp_path / "altered.gguf"
    path.write_bytes(body)
    with contextlib.suppress(InputError):
        assert isinstance(read_header(path), dict)


@pytest.mark.parametrize(
    ("keys", "rest"),
    [
        (1 << 60, b""),  # as many keys as atoms
        (1, struct.pack("<Q", 1 << 60)),  # a name that runs past the end
        (1, struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 1 << 40)),  # an array of a trillion numbers
        (1, struct.pack("<Q1sIIQ", 1, b"k", 9, 9, 4)),  # an array of arrays
        (1, struct.pack("<Q1sI", 1, b"k", 77)),  # an unknown type
    ],
)
def test_a_header_that_claims_too_much_is_refused(tmp_path: Path, keys: int, rest: bytes) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, keys) + rest)
    with pytest.raises(InputError, match="not a usable GGUF"):
        read_header(path)
