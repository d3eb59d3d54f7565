"""What the sampler asks of llama.cpp's server, and when it tells it to stop."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest

from personae.models.local.sampler import Sampler


class Engine:
    """Stands where xllamacpp's server stands: it writes until it is told to stop."""

    def __init__(self, _parameters: Any) -> None:
        self.written = 0
        self.go: queue.Queue[None] = queue.Queue()

    def handle_chat_completions(self, body: dict[str, Any], hear: Callable[[Any], bool]) -> None:
        for n in range(body["max_tokens"]):
            self.go.get()
            self.written += 1
            finish = "length" if n + 1 == body["max_tokens"] else None
            if hear({"choices": [{"finish_reason": finish, "delta": {"content": f"{n} "}}]}):
                return
        hear({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": n + 1}})


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> Sampler:
    import xllamacpp

    monkeypatch.setattr(xllamacpp, "Server", Engine)
    return Sampler({"path": "x.gguf", "context": 64, "slots": 1, "threads": 1, "adapters": []})


def request(number: int, most: int) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": most}
    return {"id": number, "body": body, "lora": {}, "stream": True}


def test_pieces_come_before_the_answer_that_they_add_up_to(sampler: Sampler) -> None:
    told: queue.Queue[dict[str, Any]] = queue.Queue()
    sampler.submit(request(1, 2), told.put)
    for _ in range(2):
        sampler._server.go.put(None)
    found = [told.get(timeout=30) for _ in range(3)]
    assert found[:2] == [{"piece": "0 "}, {"piece": "1 "}]
    assert found[2]["ok"]["choices"] == [
        {"message": {"content": "0 1 "}, "finish_reason": "length"}
    ]


def test_a_stream_that_nobody_waits_for_ends_with_its_next_token(sampler: Sampler) -> None:
    told: queue.Queue[dict[str, Any]] = queue.Queue()
    sampler.submit(request(1, 1000), told.put)
    engine: Any = sampler._server
    engine.go.put(None)
    assert told.get(timeout=30) == {"piece": "0 "}
    sampler.cancel(1)
    engine.go.put(None)
    assert told.get(timeout=30) == {"piece": "1 "}
    assert "error" in told.get(timeout=30)
    assert engine.written == 2
    sampler.submit(request(2, 1), told.put)  # its place is free
    engine.go.put(None)
    assert told.get(timeout=30) == {"piece": "0 "}
    assert "ok" in told.get(timeout=30)
