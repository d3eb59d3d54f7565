"""What the server counts, in the format of Prometheus.

Labels are bounded: a character is one of the cast or `other`, a path one of ours or `other`, an
outcome one of `OUTCOMES`. Each app has a registry of its own; nothing is counted in a global one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from personae.serve.engine import AUTO, Finished

OTHER = "other"
OUTCOMES = (
    "stop", "length", "client_gone", "timeout", "turned_away", "refused", "failed", "cut",
)  # fmt: skip
"""How an answer can end: two good ends; then by the client, the clock, a full queue, a request that
cannot be answered, the engine, a shutdown."""
METHODS = frozenset({"GET", "HEAD", "POST"})
PATHS = frozenset({"/v1/chat/completions", "/v1/models", "/v1/characters", "/health", "/metrics"})
ONE_MODEL = "/v1/models/"
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The counts of one app.

    Args:
        characters: the names that there are now; no other becomes a label.
        gauges: name and help of what is read when asked for.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self,
        characters: Callable[[], Collection[str]],
        gauges: dict[str, tuple[str, Callable[[], float]]],
    ) -> None:
        self._characters = characters
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "personae_http_requests", "Requests", ["method", "path", "status"], registry=registry
        )
        self._answers = Counter(
            "personae_answers",
            "Answers by how they ended",
            ["character", "outcome"],
            registry=registry,
        )
        self._tokens = Counter(
            "personae_tokens",
            "Tokens where the engine counts them; cached ones are among those of the prompt",
            ["character", "kind"],
            registry=registry,
        )
        self._seconds = Histogram(
            "personae_answer_seconds",
            "From a request's arrival to its answer's end",
            buckets=_SECONDS,
            registry=registry,
        )
        self._first = Histogram(
            "personae_first_piece_seconds",
            "From a request's arrival to the first piece of a stream",
            buckets=_SECONDS,
            registry=registry,
        )
        for name, (text, read) in gauges.items():
            Gauge(f"personae_{name}", text, registry=registry).set_function(read)

    def page(self) -> bytes:
        """All of it as text."""
        return generate_latest(self._registry)

    def request(self, method: str, path: str, status: int) -> None:
        """A request is over."""
        if path.startswith(ONE_MODEL):
            path = ONE_MODEL + "{id}"
        elif path not in PATHS:
            path = OTHER
        self._requests.labels(method if method in METHODS else OTHER, path, str(status)).inc()

    def answer(self, asked: str) -> AnswerMeter:
        """An answer has been asked for."""
        return AnswerMeter(self, asked)

    def _label(self, character: str) -> str:
        return character if character == AUTO or character in self._characters() else OTHER


class AnswerMeter:
    """Watches one answer.

    Attributes:
        character: who answers, as far as it is known.
    """

    def __init__(self, metrics: Metrics, asked: str) -> None:
        self._metrics = metrics
        self._began = time.monotonic()
        self._spoken = False
        self.character = asked

    def piece(self) -> None:
        """A piece has come."""
        if not self._spoken:
            self._spoken = True
            self._metrics._first.observe(time.monotonic() - self._began)

    def ended(self, outcome: str, finished: Finished | None = None) -> None:
        """It is over."""
        metrics = self._metrics
        label = metrics._label(self.character)
        metrics._answers.labels(label, outcome).inc()
        if finished is None:
            return
        metrics._seconds.observe(time.monotonic() - self._began)
        for kind, count in (
            ("prompt", finished.tokens_in),
            ("completion", finished.tokens_out),
            ("cached", finished.cached),
        ):
            if count is not None:
                metrics._tokens.labels(label, kind).inc(count)
