from __future__ import annotations

import json

import pytest

from personae.models.complaints import decode


@pytest.mark.parametrize(
    "body",
    [b'{"a": "\\ud83d"}', b"\xef\xbb\xbf{}", b'{"a": 1, "a": 2}', b'{"a": [1.5, -0, 1e3]}', b"7"],
)
def test_a_body_means_what_the_json_module_reads_in_it(body: bytes) -> None:
    assert decode(body) == json.loads(body)


@pytest.mark.parametrize(
    "body", [b"", b'{"choices": [', b"[" * 100_000, b'"\xff"', b"<html>", b"9" * 5000]
)
def test_what_is_no_json_is_nothing(body: bytes) -> None:
    assert decode(body) is None
