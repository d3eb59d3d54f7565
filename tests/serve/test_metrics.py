"""What is counted, read back by the parser of Prometheus' own client."""

from __future__ import annotations

from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from personae.serve.engine import Finished
from personae.serve.metrics import ONE_MODEL, OUTCOMES, PATHS, Metrics


def counts(page: bytes) -> dict[tuple[str, ...], float]:
    """Samples by their name and their labels' values, in the labels' order."""
    return {
        (s.name, *(s.labels[k] for k in sorted(s.labels))): s.value
        for family in text_string_to_metric_families(page.decode())
        for s in family.samples
    }


def metrics(*names: str) -> Metrics:
    return Metrics(lambda: names, {"engine_busy": ("Busy", lambda: 3)})


def test_an_answer_is_counted_by_who_gave_it_and_how_it_ended() -> None:
    made = metrics("Ada", "武松")
    meter = made.answer("auto")
    meter.character = "武松"
    meter.piece()
    meter.piece()
    meter.ended("stop", Finished("x", "stop", tokens_in=5, tokens_out=2, cached=3))
    made.answer("Ada").ended("client_gone")
    found = counts(made.page())
    assert found["personae_answers_total", "武松", "stop"] == 1
    assert found["personae_answers_total", "Ada", "client_gone"] == 1
    assert found["personae_tokens_total", "武松", "prompt"] == 5
    assert found["personae_tokens_total", "武松", "completion"] == 2
    assert found["personae_tokens_total", "武松", "cached"] == 3
    assert found["personae_answer_seconds_count",] == 1
    assert found["personae_first_piece_seconds_count",] == 1
    assert found["personae_engine_busy",] == 3


def test_tokens_that_nobody_counted_are_not_counted_as_none() -> None:
    made = metrics("Ada")
    made.answer("Ada").ended("stop", Finished("x", "stop"))
    assert not any(key[0] == "personae_tokens_total" for key in counts(made.page()))


def test_strangers_cannot_make_labels() -> None:
    made = metrics("Ada")
    for n in range(200):
        made.answer(f"nobody {n}").ended("refused")
        made.request(f"METHOD{n}", f"/path/{n}", 404)
        made.request("GET", f"{ONE_MODEL}{n}", 404)
    made.answer("auto").ended("timeout")
    found = counts(made.page())
    assert found["personae_answers_total", "other", "refused"] == 200
    assert found["personae_http_requests_total", "other", "other", "404"] == 200
    assert found["personae_http_requests_total", "GET", "/v1/models/{id}", "404"] == 200
    assert found["personae_answers_total", "auto", "timeout"] == 1
    assert len([key for key in found if key[0] == "personae_http_requests_total"]) == 2


def test_every_app_counts_for_itself_and_nothing_is_counted_globally() -> None:
    one, other = metrics("Ada"), metrics("Ada")
    one.request("GET", "/health", 200)
    assert ("personae_http_requests_total", "GET", "/health", "200") in counts(one.page())
    assert ("personae_http_requests_total", "GET", "/health", "200") not in counts(other.page())
    assert not [f.name for f in REGISTRY.collect() if f.name.startswith("personae")]


def test_paths_and_outcomes_are_few() -> None:
    assert len(PATHS) + len(OUTCOMES) < 20
