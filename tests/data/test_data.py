"""Shipped data: complete, the same in both languages, and readable by those who use it."""

import re

import pytest

from personae.data import AuditKind, demo_file, load_audit_texts, load_environments
from personae.interview.benchmark_file import read_benchmark
from personae.interview.personas import read_personas
from personae.prompts import LANGUAGES
from personae.records.benchmark import Language, Task

both = pytest.mark.parametrize("language", LANGUAGES)

HAN = re.compile(r"[\u4e00-\u9fff]")


@both
def test_the_pool_holds_150_different_environments(language: Language) -> None:
    pool = load_environments(language)
    assert len(pool) == len(set(pool)) == 150
    assert all(name == name.strip() != "" for name in pool)
    assert all(bool(HAN.search(name)) == (language == "zh") for name in pool)


def test_the_two_pools_stand_in_the_same_order() -> None:
    pairs = dict(zip(load_environments("en"), load_environments("zh"), strict=True))
    assert pairs["Wedding"] == "婚礼"
    assert pairs["Quidditch Match"] == "魁地奇比赛"
    assert pairs["Foggy Conditions"] == "雾天"
    assert pairs["Flower Shop"] == "花店"
    for english, chinese in pairs.items():
        assert ("(" in english) == ("（" in chinese)
        assert ("/" in english) == ("/" in chinese)


@both
@pytest.mark.parametrize(("kind", "count"), [("generic", 20), ("refusal", 20), ("order", 10)])
def test_the_audit_texts_are_there_and_distinct(
    kind: AuditKind, count: int, language: Language
) -> None:
    texts = load_audit_texts(kind, language)
    assert len(texts) == len(set(texts)) == count
    assert all(text.strip() for text in texts)
    assert all(bool(HAN.search(text)) == (language == "zh") for text in texts)


@both
def test_every_order_names_the_score_it_wants(language: Language) -> None:
    assert all("5" in text for text in load_audit_texts("order", language))


@both
def test_the_orders_try_to_break_out_of_their_quotation_in_the_language_of_the_prompt(
    language: Language,
) -> None:
    texts = load_audit_texts("order", language)
    assert any({"en": "</response>", "zh": "</回答>"}[language] in text for text in texts)
    assert any("<|im_end|>" in text for text in texts)
    assert any(text.startswith("{") for text in texts)


def test_the_demo_benchmark_has_one_character_and_a_question_with_exemplars_per_task() -> None:
    with demo_file("demo_benchmark.jsonl") as path:
        benchmark = read_benchmark(path)
    assert benchmark.language == "en"
    assert benchmark.has_exemplars
    assert [question.task for question in benchmark.questions] == list(Task)
    (person,) = benchmark.personas
    chosen = benchmark.environments[person.id]
    assert [question.environment for question in benchmark.questions] == list(chosen)
    assert set(chosen) <= set(load_environments("en"))


def test_the_lengths_of_the_demo_exemplars_do_not_give_their_scores_away() -> None:
    with demo_file("demo_benchmark.jsonl") as path:
        benchmark = read_benchmark(path)
    for question in benchmark.questions:
        assert question.exemplars is not None
        lengths = [len(text) for text in question.exemplars]
        assert max(lengths) < 1.4 * min(lengths), question.task


def test_the_demo_asks_one_other_character_live() -> None:
    with demo_file("demo_benchmark.jsonl") as path:
        (ours,) = read_benchmark(path).personas
    with demo_file("demo_personas.txt") as path:
        (other,) = read_personas(path)
    assert other.description != ours.description
