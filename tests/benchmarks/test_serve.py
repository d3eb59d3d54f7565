"""The benchmark of the server counts what it was told, and failures as failures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.benchmarks.loading import load
from tests.serve.scripted import ScriptedEngine, served

bench = load("serve")


def reading(**more: Any) -> Any:
    nothing = {"first": None, "seconds": None, "tokens": None, "prompt": None}
    common = {"kind": bench.OURS, "clients": 2, "wave": 0, "character": "Alice"}
    return bench.Reading(**{**common, **nothing, **more})


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(n) for n in range(1, 21)]
    assert bench.percentile(values, 0.5) == 11
    assert bench.percentile(values, 0.95) == 20
    assert bench.percentile([3.0], 0.95) == 3


def test_a_waves_rate_is_its_tokens_over_its_seconds() -> None:
    wave = bench.Wave(bench.OURS, 2, 4.0, (reading(tokens=24), reading(tokens=12), reading()))
    assert wave.rate == 9


async def test_an_answer_is_timed_and_its_tokens_are_the_servers() -> None:
    async with served(ScriptedEngine(bench.NAMES)) as here, aiohttp.ClientSession() as client:
        common = {"kind": bench.OURS, "clients": 1, "wave": 0, "character": "Alice"}
        found = await bench.ask(client, here.url, common, seed=1, tokens=24)
        failed = await bench.ask(
            client, here.url, {**common, "character": "Nobody"}, seed=1, tokens=24
        )
    prompt = bench.prompt_of(1)
    assert found.error is None
    assert found.text.split() == prompt.split()
    assert found.tokens == len(prompt.split())
    assert 0 < found.first <= found.seconds
    assert failed.error.startswith("404: ")
    assert failed.tokens is None


async def test_clients_ask_different_characters_different_things() -> None:
    engine = ScriptedEngine(bench.NAMES)
    async with served(engine) as here:
        wave = await bench.wave(bench.OURS, here.url, 8, 2, number=0, tokens=24)
    assert len(wave.readings) == 16
    assert {r.error for r in wave.readings} == {None}
    assert sorted({m.model for m in engine.heard}) == sorted(bench.NAMES)
    assert len({m.messages[-1].content for m in engine.heard}) == 16


def test_a_failed_answer_is_counted_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    good = reading(first=0.5, seconds=1.0, tokens=10)
    waves = [bench.Wave(bench.OURS, 2, 2.0, (good, reading(error="503")))]
    bench.table(waves)
    row = capsys.readouterr().out.splitlines()[3]
    assert row == "| 2 | ours | 5.0 | 1.00 | 0.500 s | 0.500 s | 1 | 1 |"


def test_a_record_holds_every_reading(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    waves = [bench.Wave(bench.OURS, 2, 2.0, (reading(first=0.5, seconds=1.0, tokens=10),))]
    bench.record(file, argparse.Namespace(tokens=24, record=file), waves)
    document = json.loads(file.read_text("utf-8"))
    assert document["waves"][0]["tokens_per_second"] == 5.0
    assert document["waves"][0]["readings"][0]["first"] == 0.5
    assert document["machine"]["cores"]
