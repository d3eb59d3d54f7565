"""The eight metrics of interviews, and the hash that audits are found by."""

import re

import pytest

from personae.judging.interview_metrics import (
    DIMENSIONS,
    METRICS,
    SEVEN,
    interview_rubric_hash,
    load_interview_metric,
    metrics_for,
    parse_interview_metric,
)
from personae.prompts import LANGUAGES
from personae.records.benchmark import Language

both = pytest.mark.parametrize("language", LANGUAGES)
every = pytest.mark.parametrize("key", METRICS)


def test_the_dimensions_hold_each_of_the_eight_metrics_once() -> None:
    assert tuple(m for metrics in DIMENSIONS.values() for m in metrics) == METRICS
    assert len(METRICS) == 8


def test_a_transfer_dialogue_is_judged_on_transfer_and_all_others_on_the_seven() -> None:
    assert metrics_for("transfer") == ("Trans",)
    assert metrics_for("single") == metrics_for("multi") == SEVEN
    assert "Trans" not in SEVEN


@both
@every
def test_every_metric_says_what_each_score_from_1_to_7_means(key: str, language: Language) -> None:
    metric = load_interview_metric(key, language)
    assert metric.key == key
    assert len(set(metric.criteria)) == 7
    assert len(metric.steps) >= 3
    is_chinese = any("\u4e00" <= c <= "\u9fff" for c in metric.description)
    assert is_chinese == (language == "zh")
    assert all(any("\u4e00" <= c <= "\u9fff" for c in t) == is_chinese
               for t in (metric.name, *metric.steps, *metric.criteria))  # fmt: skip


@both
def test_a_seven_in_hallucination_is_freedom_from_it(language: Language) -> None:
    metric = load_interview_metric("HK", language)
    free = {"en": "7 is free of it", "zh": "7 表示完全没有"}[language]
    assert free in metric.description
    assert re.search({"en": "^Nothing", "zh": "没有任何"}[language], metric.criteria[6])
    assert re.search({"en": "cannot have", "zh": "不可能有"}[language], metric.criteria[0])


def test_an_unknown_metric_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(KeyError, match="CB, CU, VK, RK, HK, Rel, Stab, Trans"):
        load_interview_metric("XY", "en")
    with pytest.raises(ValueError, match="CB, CU, VK"):
        parse_interview_metric("charm")


@pytest.mark.parametrize(
    ("name", "key"),
    [("HK", "HK"), ("vk", "VK"), ("Rel.", "Rel"), ("stab.", "Stab"), ("TRANS", "Trans"),
     ("Real Knowledge", "RK"), ("virtual_knowledge", "VK"), ("现实知识", "RK"),
     (" character  behavior ", "CB"), ("Hallucinatory Knowledge", "HK")],
)  # fmt: skip
def test_a_metric_goes_by_its_key_and_by_its_name_in_either_language(name: str, key: str) -> None:
    assert parse_interview_metric(name) == key


@both
def test_no_two_metrics_share_a_name(language: Language) -> None:
    assert len({load_interview_metric(key, language).name for key in METRICS}) == 8


def test_each_language_has_rubrics_of_its_own() -> None:
    hashes = {interview_rubric_hash(language) for language in LANGUAGES}
    assert len(hashes) == 2
    assert all(re.fullmatch("[0-9a-f]{64}", h) for h in hashes)
