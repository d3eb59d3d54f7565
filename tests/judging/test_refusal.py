from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from personae.judging.refusal import (
    _CHINESE,
    _ENGLISH,
    _applies,
    _normal,
    is_refusal,
    refusal_reasons,
)

LABELLED = [
    json.loads(line)
    for line in (Path(__file__).parent / "refusals.jsonl").read_text("utf-8").splitlines()
]

# Measured with these rules (docs/statistics.md): one refusal missed and one answer wrongly flagged,
# both English and both in the held-out part; nothing else.
FLOORS = {
    ("dev", "en"): (1.0, 1.0),
    ("dev", "zh"): (1.0, 1.0),
    ("final", "en"): (0.95, 0.95),
    ("final", "zh"): (1.0, 1.0),
}


def test_the_labelled_answers_are_many_of_both_kinds_and_languages() -> None:
    assert len(LABELLED) == 177
    assert len({a["text"] for a in LABELLED}) == len(LABELLED)
    assert Counter(a["split"] for a in LABELLED) == {"dev": 107, "final": 70}
    kinds = Counter((a["language"], a["refusal"]) for a in LABELLED)
    assert set(kinds) == {("en", True), ("en", False), ("zh", True), ("zh", False)}
    assert min(kinds.values()) >= 30


@pytest.mark.parametrize(("split", "language"), FLOORS)
def test_precision_and_recall_are_no_worse_than_recorded(split: str, language: str) -> None:
    answers = [a for a in LABELLED if (a["split"], a["language"]) == (split, language)]
    flagged = [a for a in answers if is_refusal(a["text"])]
    right = sum(a["refusal"] for a in flagged)
    precision, recall = FLOORS[split, language]
    assert right / len(flagged) >= precision
    assert right / sum(a["refusal"] for a in answers) >= recall


@pytest.mark.parametrize(
    "answer",
    [
        "As an AI language model, I do not have personal experiences.",
        "AS AN AI LANGUAGE MODEL, I DO NOT HAVE PERSONAL EXPERIENCES.",
        "As an **AI** language model,\n\nI do\nnot have personal experiences.",
        "Ａｓ ａｎ ＡＩ language model， I do not have personal experiences.",
        "作为一个 AI 语言模型，我没有个人经历。",
    ],
)
def test_case_width_markup_and_line_breaks_hide_no_refusal(answer: str) -> None:
    assert is_refusal(answer)


@pytest.mark.parametrize("job", ["researcher", "and robotics engineer", "ethicist", "artist"])
def test_a_person_who_works_on_ai_is_no_model(job: str) -> None:
    assert not is_refusal(f"As an AI {job}, I don't have time for that.")


def test_a_refusal_is_found_at_the_start_and_at_the_end_of_a_long_answer() -> None:
    story = "The wind rose and we reefed the main. " * 500
    refusal = "I'm an AI assistant and cannot continue."
    assert is_refusal(f"{refusal} {story}")
    assert is_refusal(f"{story} {refusal}")
    assert not is_refusal(story)


def test_the_rule_that_flags_an_answer_is_named() -> None:
    (reason,) = refusal_reasons("I cannot role-play as a racist character.")
    assert reason == "declines to take the role"
    assert refusal_reasons("Aye, captain.") == ()


@pytest.mark.parametrize("answer", ["", " ", "\0\ufffd", "😀" * 10, "\ud800"])
def test_odd_texts_are_no_refusals(answer: str) -> None:
    assert not is_refusal(answer)


@pytest.mark.parametrize(
    "part", ["i can't ", "as an ai ", '"', '"x ', "我不能", "作为一个", "i'm designed to ", "a"]
)
def test_an_endless_answer_is_judged_by_its_ends(part: str) -> None:
    assert not is_refusal(part * 100_000)
    assert is_refusal("I'm an AI and I can't answer that. " + part * 100_000)


def test_no_rule_s_hints_hide_what_its_pattern_would_find() -> None:
    halves = [a["text"][: len(a["text"]) // 2] for a in LABELLED]
    crossed = [a + b["text"] for a, b in zip(halves, reversed(LABELLED), strict=True)]
    for text in [a["text"] for a in LABELLED] + crossed:
        for rules, normal in zip((_ENGLISH, _CHINESE), _normal(text), strict=True):
            for rule in rules:
                assert _applies(rule, normal) == _applies(rule._replace(hints=()), normal)
