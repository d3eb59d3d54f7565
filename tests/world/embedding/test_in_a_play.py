"""A play whose characters remember by meaning, and its replay with nobody to ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from personae.errors import ReplayMissError
from personae.play_stage import play_scenes
from personae.session import Options
from personae.world.scene_file import write_scenes
from tests.models.stub import Answer, Request, StubEndpoint
from tests.test_play_stage import TEMPLE, WORLD


def by_length(request: Request) -> Answer:
    rows = [
        {"index": i, "embedding": [len(text), 100]} for i, text in enumerate(request.body["input"])
    ]
    return Answer({"data": rows})


async def test_a_replay_recalls_by_the_vectors_of_the_run(
    tmp_path: Path, endpoint: StubEndpoint
) -> None:
    endpoint.ask(by_length)
    scenes, run = tmp_path / "scenes.jsonl", tmp_path / "run"
    write_scenes((TEMPLE,), scenes)
    embedder = endpoint.model_id
    done = await play_scenes(scenes, run, WORLD, WORLD, rounds=3, embedder=embedder)
    recalled = [m for play in done.plays for event in play.events for m in event.recalled]
    assert recalled
    assert any(0 < m.relevance < 1 for m in recalled)
    texts = [text for request in endpoint.requests for text in request.body["input"]]
    assert len(texts) == len(set(texts))
    await endpoint.stop()
    again = await play_scenes(
        scenes, run, WORLD, WORLD, rounds=3, embedder=embedder, options=Options(replay=True)
    )
    assert again.plays == done.plays
    (run / "vectors.sqlite").unlink()
    with pytest.raises(ReplayMissError, match="no vector"):
        await play_scenes(
            scenes, run, WORLD, WORLD, rounds=3, embedder=embedder, options=Options(replay=True)
        )
