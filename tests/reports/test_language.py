from __future__ import annotations

import re
import string

import pytest

from personae.judging.audit import GROUPS, THRESHOLDS
from personae.judging.scores import judge_agreement
from personae.records import Estimate, Task
from personae.reports.language import Words, clean, flatten, load_strings

from .sample import make_benchmark, make_rows

EN, ZH = (flatten(load_strings(language)) for language in ("en", "zh"))


def placeholders(phrase: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(phrase) if name}


def test_both_languages_have_the_same_phrases():
    assert set(EN) == set(ZH)


@pytest.mark.parametrize("key", sorted(EN))
def test_a_phrase_asks_for_the_same_values_in_both_languages(key):
    if not key.endswith("_one"):  # a singular may leave its number out
        assert placeholders(EN[key]) == placeholders(ZH[key])
    else:
        whole = placeholders(EN[key.removesuffix("_one")])
        assert placeholders(EN[key]) <= whole
        assert placeholders(ZH[key]) <= whole


def test_the_chinese_phrases_are_chinese():
    plain = {k for k, v in ZH.items() if not re.search("[\u4e00-\u9fff]", v)}
    same = {
        "auc_of", "pairs", "nats", "persona_score", "html_lang", "tasks.PersonaScore", "list_comma",
        "full_stop", "scenes.colon", "scenes.semicolon", "interviews.colon", "interviews.semicolon",
        "interviews.n_of_turn", "term.persona_score", "term.auc", "term.alpha", "term.tokens",
    }  # fmt: skip
    assert plain <= same


@pytest.mark.parametrize("language", ["en", "zh"])
def test_all_tasks_have_a_name(language):
    known = {f"tasks.{task}" for task in Task}
    assert known <= set(EN if language == "en" else ZH)


def test_every_reason_for_no_agreement_is_known():
    rows = make_rows(make_benchmark(people=2), ["m"], ["a", "b"], lost=0)
    same = [r.model_copy(update={"score": 3}) for r in rows]
    apart = [
        r.model_copy(update={"score": None}) if (i // 2 + i) % 2 else r for i, r in enumerate(rows)
    ]
    cases = [
        [],
        [r for r in rows if r.judge == "a"],
        [r.model_copy(update={"judge": "a", "repeat": "ab".index(r.judge)}) for r in rows],
        apart,
        same,
    ]
    reasons = [judge_agreement(case)[1] for case in cases]
    assert len(set(reasons)) == len(cases)
    assert {f"agreement_reason.{reason}" for reason in reasons} <= set(EN)


def test_every_group_and_threshold_of_an_audit_has_a_name():
    names = {f"groups.{group}" for group in GROUPS} | {f"threshold.{name}" for name in THRESHOLDS}
    assert names <= set(EN)


def test_unknown_is_never_written_as_zero():
    words = Words("en")
    for shown in (
        words.usd(None), words.count(None), words.number(None), words.share(None),
        words.duration(None),
    ):  # fmt: skip
        assert shown == "unknown"
    assert words.usd(0.0) == "$0.00"


def test_a_share_that_is_not_zero_never_reads_as_zero_nor_one_that_is_not_all_as_all():
    words = Words("en")
    assert words.share(0.00001) == "<0.1%"
    assert words.share(0.99999) == "99.9%"
    assert (words.share(0.0), words.share(1.0)) == ("0.0%", "100.0%")


def test_a_difference_of_nothing_has_no_sign():
    words = Words("en")
    assert [words.signed(v) for v in (-0.001, 0.0, 0.2, -0.2)] == ["0.00", "0.00", "+0.20", "−0.20"]


def test_below_two_personas_the_words_stand_where_the_interval_would():
    one = Estimate(mean=3.0, low=None, high=None, n=1, missing=0)
    assert Words("en").interval(one) == "no interval below two personas"


def test_one_thing_is_not_named_in_the_plural():
    words = Words("en")
    assert words("n_models", n=1) == "1 model"
    assert words("n_questions", n=5000) == "5,000 questions"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("a\x00\x1b[31mb", "a\ufffd\ufffd[31mb"),
        ("invoice\u202egnp.exe", "invoice[U+202E]gnp.exe"),
        ("line\r\nline\tend", "line\nline\tend"),
        ("שלום, 你好 🎭", "שלום, 你好 🎭"),
    ],
)
def test_text_is_cleaned_to_what_can_be_shown(raw, shown):
    assert clean(raw) == shown


def test_a_cause_says_whether_there_was_anything_to_judge():
    words = Words("en")
    assert words.cause("timeout") == "no answer in time"
    assert words.cause("answer: timeout") == "nothing to judge: no answer in time"
    assert words.cause("some_new_cause") == "some_new_cause"
