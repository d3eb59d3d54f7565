"""The seven metrics and the four maxims, and the hash that audits are found by."""

from typing import get_args

import pytest

from personae.judging.metrics import (
    DIMENSIONS,
    KEYS,
    MAXIMS,
    METRICS,
    load_metric,
    parse_metric,
    rating_hash,
)
from personae.prompts import LANGUAGES
from personae.records.benchmark import Language
from personae.records.trajectory import Protocol

both = pytest.mark.parametrize("language", LANGUAGES)


def test_the_dimensions_hold_each_of_the_seven_metrics_once() -> None:
    assert tuple(m for metrics in DIMENSIONS.values() for m in metrics) == METRICS
    assert len(METRICS) == 7
    assert len(MAXIMS) == 4


@both
@pytest.mark.parametrize("key", METRICS + MAXIMS)
def test_every_metric_says_what_each_score_means(key: str, language: Language) -> None:
    metric = load_metric(key, language)
    assert metric.key == key
    assert len(set(metric.criteria)) == 5
    is_chinese = any("\u4e00" <= c <= "\u9fff" for c in metric.description)
    assert is_chinese == (language == "zh")


@both
def test_leaving_the_role_is_the_lowest_score_of_every_metric(language: Language) -> None:
    words = {"en": "leaves the role", "zh": "脱离了角色"}
    for key in METRICS:
        metric = load_metric(key, language)
        assert words[language] in metric.criteria[0]
        assert not any(words[language] in criterion for criterion in metric.criteria[1:])


def test_an_unknown_metric_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(KeyError, match="KA, BA"):
        load_metric("XY", "en")
    with pytest.raises(ValueError, match="KA, BA"):
        parse_metric("charm")


@pytest.mark.parametrize(
    ("name", "key"),
    [("KA", "KA"), ("ka", "KA"), ("Knowledge Accuracy", "KA"), ("knowledge_accuracy", "KA"),
     ("知识准确性", "KA"), (" Behavioral  coherence ", "BC"), ("行为一致性", "BC"), ("manner", "MANNER")],
)  # fmt: skip
def test_a_metric_goes_by_its_key_and_by_its_name_in_either_language(name: str, key: str) -> None:
    assert parse_metric(name) == key


def test_names_tell_all_metrics_apart() -> None:
    for language in LANGUAGES:
        names = {load_metric(key, language).name for key in METRICS + MAXIMS}
        assert len(names) == len(METRICS + MAXIMS)


def test_every_rubric_that_judges_may_be_told_has_its_own_hash() -> None:
    hashes = {
        rating_hash(language, protocol, kind)
        for language in LANGUAGES
        for protocol in get_args(Protocol)
        for kind in KEYS
    }
    assert len(hashes) == 8
    assert all(len(h) == 64 for h in hashes)
    assert rating_hash("en", "paper") == rating_hash("en", "paper", "characters")
