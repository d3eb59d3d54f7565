"""Known groups, the cases made of them, and the audit that verdicts over them give."""

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.data import load_audit_texts
from personae.judging.answers import AnsweredQuestion
from personae.judging.audit import (
    GROUPS,
    LEAST_PAIRS,
    NOT_FOR_LIFT,
    ORDERS,
    WORSE,
    AuditRow,
    Case,
    build_cases,
    cases_for,
    choose,
    judge_audit,
    load_words,
    padded,
)
from personae.prompts import LANGUAGES
from personae.records import Audit, Failure, Language, Persona, Question, Task

EA, PC = Task.EXPECTED_ACTION, Task.PERSONA_CONSISTENCY
Scores = Mapping[str, Sequence[int | None]]
EXEMPLARS = ("one", "two", "three", "four", "five")


def answered(
    person: str,
    number: int,
    *,
    task: Task = EA,
    text: str = "",
    shown: bool = True,
    system: str = "m",
) -> AnsweredQuestion:
    question = Question(
        id=f"{person}/{task.short}/{number}",
        persona_id=person,
        task=task,
        text=text or f"What does {person} do, for the {number}th time?",
        exemplars=EXEMPLARS if shown else None,
    )
    persona = Persona(id=person, description=f"{person}, a person of few words.")
    unit = f"{question.id}@{system}"
    return AnsweredQuestion(persona, question, f"I am {person} ({number}).", system, "test", unit)


def group(cases: list[Case], name: str) -> list[Case]:
    return [case for case in cases if case.group == name]


# Choosing own answers ------------------------------------------------------------------------


def test_characters_take_turns_and_their_tasks_too() -> None:
    answers = [answered(p, i, task=t) for p in "abc" for t in (EA, PC) for i in range(9)]
    chosen = choose(answers, 12)
    assert Counter(one.persona.id for one in chosen) == {"a": 4, "b": 4, "c": 4}
    assert set(Counter((one.persona.id, one.question.task) for one in chosen).values()) == {2}
    assert len({one.unit for one in chosen}) == 12


def test_the_choice_is_the_seeds_and_not_the_orders() -> None:
    answers = [answered(p, i) for p in "abc" for i in range(20)]
    chosen = choose(answers, 9, seed=1)
    assert chosen == choose(answers[::-1], 9, seed=1)
    assert {a.unit for a in chosen} != {a.unit for a in choose(answers, 9, seed=2)}


def test_questions_that_another_character_answered_too_come_first() -> None:
    answers = [answered(p, i) for p in "ab" for i in range(20)]
    shared = [answered(p, 99, text="What are you like?") for p in "ab"]
    assert {a.unit for a in choose([*answers, *shared], 2)} == {a.unit for a in shared}


def test_a_small_cast_gives_all_it_has() -> None:
    answers = [answered("a", i) for i in range(3)]
    assert len(choose(answers, 40)) == 3
    assert choose([], 40) == []


# Cases ---------------------------------------------------------------------------------------


def test_each_answer_is_tried_once_with_every_group_and_three_times_by_itself() -> None:
    answers = [answered(p, i) for p in "ab" for i in range(2)]
    cases = build_cases(answers, answers, "en")
    assert Counter(case.group for case in cases) == {
        "own": 4, "repeat": 8, **dict.fromkeys((*WORSE, *ORDERS, "padding", "swapped"), 4),
    }  # fmt: skip
    assert [c.repeat for c in cases if c.group in ("own", "repeat")] == [0, 1, 2] * 4


def test_the_texts_are_what_their_groups_say() -> None:
    one = answered("a", 1)
    cases = {c.group: c for c in build_cases([one], [one, answered("b", 2)], "en")}
    assert cases["own"].text == cases["repeat"].text == cases["swapped"].text == one.answer
    assert cases["copied_question"].text == one.question.text
    assert cases["refusal"].text in load_audit_texts("refusal", "en")
    assert cases["generic"].text in load_audit_texts("generic", "en")
    for name, carrier in (("order", one.answer), ("order_on_generic", cases["generic"].text)):
        number = cases[name].variant
        assert number is not None
        assert cases[name].text == f"{carrier}\n\n{load_audit_texts('order', 'en')[number]}"
    assert cases["other_character"].text == "I am b (2)."


def test_another_character_answers_the_same_question_where_one_did() -> None:
    one = answered("a", 1, text="What are you like?")
    same = answered("b", 2, text="what are  you like?")
    cases = build_cases([one], [one, same, *(answered("c", i) for i in range(30))], "en")
    (case,) = group(cases, "other_character")
    assert (case.text, case.same_question) == (same.answer, True)


def test_else_another_character_answers_within_the_task_and_by_the_same_system() -> None:
    one = answered("a", 1)
    others = [answered("b", i, system="n") for i in range(20)]
    others += [answered("b", 50, system="m"), answered("b", 60, task=PC)]
    (case,) = group(build_cases([one], [one, *others], "en"), "other_character")
    assert (case.text, case.same_question) == ("I am b (50).", False)


def test_a_character_alone_has_no_other_to_be_told_from() -> None:
    answers = [answered("a", i) for i in range(3)]
    assert group(build_cases(answers, answers, "en"), "other_character") == []


def test_without_exemplars_there_is_nothing_to_turn_round() -> None:
    answers = [answered(p, 1, shown=False) for p in "ab"]
    assert group(build_cases(answers, answers, "en"), "swapped") == []


def test_every_order_is_used_before_one_comes_again() -> None:
    answers = [answered(p, i) for p in "ab" for i in range(10)]
    cases = build_cases(answers, answers, "en")
    for name, count in (("order", 10), ("refusal", 20), ("generic", 20)):
        assert set(Counter(c.variant for c in group(cases, name)).values()) == {20 // count}


def test_groups_that_are_not_wanted_are_not_built() -> None:
    answers = [answered(p, i) for p in "ab" for i in range(2)]
    cases = build_cases(answers, answers, "en", groups=("refusal", "order_on_generic"))
    assert {c.group for c in cases} == {"own", "refusal"}, "an order needs its carrier's own score"


def test_lift_reads_no_orders_and_sees_no_examples() -> None:
    answers = [answered(p, i) for p in "ab" for i in range(2)]
    cases = build_cases(answers, answers, "en")
    asked = {c.group for c in cases_for("lift:m", cases)}
    assert asked == {"own", *GROUPS} - set(NOT_FOR_LIFT)
    assert cases_for("m", cases) == cases


@pytest.mark.parametrize("language", LANGUAGES)
def test_padding_sentences_are_distinct_short_ones_first_and_say_nothing_of_scores(
    language: Language,
) -> None:
    texts = load_audit_texts("padding", language)
    assert len(texts) == len(set(texts)) >= 15
    assert [len(t) for t in texts] == sorted(len(t) for t in texts)
    assert not any(any(c.isdigit() for c in t) for t in texts)


@given(st.text(min_size=1, max_size=600), st.sampled_from(LANGUAGES), st.integers(0, 5))
def test_padding_keeps_the_answer_and_never_goes_far_beyond_twice_its_length(
    answer: str, language: Language, seed: int
) -> None:
    longer = padded(answer, language, random.Random(seed))
    shortest = min(map(len, load_audit_texts("padding", language))) + (language == "en")
    assert longer.startswith(answer)
    assert len(longer) > len(answer)
    # What is lacking is shorter than any sentence; only a tiny answer gets one that is too long.
    assert 2 * len(answer) - shortest < len(longer) <= max(2 * len(answer), len(answer) + shortest)


# From verdicts to the audit ------------------------------------------------------------------


def verdicts(
    scores: Scores,
    *,
    judge: str = "j",
    people: int = 4,
    texts: dict[str, str] | None = None,
) -> list[AuditRow]:
    """Rows by group: the i-th score is about answer i, answers spread over `people` characters."""
    rows = []
    for name, values in scores.items():
        label, _, repeat = name.partition("#")
        for i, value in enumerate(values):
            rows.append(
                AuditRow(
                    judge=judge, group=label, unit_id=f"u{i}", persona=f"p{i % people}", task=EA,
                    question_id=f"q{i}", question="What now?", text=(texts or {}).get(name, "x"),
                    score=value, failure=None if value else Failure(cause="malformed"),
                    repeat=int(repeat or 0), same_question=label == "other_character" or None,
                )
            )  # fmt: skip
    return rows


def even(mine: int, worse: int, n: int = 12, **more: Sequence[int | None]) -> Scores:
    """A judge that gives one score to own answers and one to all that is worse."""
    scores: dict[str, Sequence[int | None]] = {"own": [mine] * n}
    scores |= {name: [worse] * n for name in WORSE}
    scores |= {"order": [mine] * n, "order_on_generic": [worse] * n}
    return {**scores, **more}


def audit(rows: list[AuditRow], language: Language = "en", **more: object) -> Audit:
    judge = rows[0].judge
    return judge_audit(judge, rows, language=language, rubric_hash="r", **more)  # type: ignore[arg-type]  # keywords


def of(found: Audit, name: str):
    return next(g for g in found.groups if g.name == name)


def test_a_judge_that_orders_all_groups_rightly_passes() -> None:
    found = audit(verdicts(even(4, 2)))
    assert found.verdict == "passed"
    assert found.reasons == ()
    assert {g.name: g.passed for g in found.groups} == {
        **dict.fromkeys((*WORSE, *ORDERS), True), "padding": None, "swapped": None,
    }  # fmt: skip
    refusal = of(found, "refusal")
    assert (refusal.auc, refusal.low, refusal.high, refusal.n) == (1.0, 1.0, 1.0, 12)
    assert (refusal.mean_own, refusal.mean_group, refusal.missing) == (4.0, 2.0, 0.0)


def test_the_thresholds_are_in_the_audit() -> None:
    assert audit(verdicts(even(4, 2))).thresholds == {
        "auc_low": 0.8, "order_shift": 0.25, "least_pairs": 8.0,
    }  # fmt: skip


@pytest.mark.parametrize("name", WORSE)
def test_one_group_that_is_not_told_apart_fails_the_judge(name: str) -> None:
    found = audit(verdicts({**even(4, 2), name: [4] * 12}))
    assert found.verdict == "failed"
    assert [g.name for g in found.groups if g.passed is False] == [name]
    assert of(found, name).auc == 0.5
    (reason,) = found.reasons
    assert load_words("en")["group"][name] in reason
    assert "AUC 0.50" in reason
    assert "0.8" in reason


def test_the_lower_bound_decides_and_not_the_auc() -> None:
    # Of 12 refusals 3 get what own answers get: AUC 1 - 3/12 / 2 = 0.875, its lower bound is less.
    found = audit(verdicts(even(4, 2, refusal=[4, 4, 4] + [2] * 9)))
    group = of(found, "refusal")
    assert group.auc == pytest.approx(0.875)
    assert group.low is not None
    assert group.low < 0.8
    assert found.verdict == "failed"


def test_the_interval_is_the_wider_one_over_characters_and_over_answers() -> None:
    # All four wrong verdicts are about one of four characters: resampling answers would hide it.
    mixed: list[int | None] = [4 if i % 4 == 0 else 2 for i in range(40)]
    by_character = of(audit(verdicts(even(4, 2, n=40, refusal=mixed))), "refusal")
    by_answer = of(audit(verdicts(even(4, 2, n=40, refusal=mixed), people=40)), "refusal")
    assert by_character.auc == by_answer.auc == pytest.approx(0.875)
    assert by_character.low is not None
    assert by_answer.low is not None
    assert by_character.low < by_answer.low


@pytest.mark.parametrize(("raised", "passes"), [(2, True), (3, False)])
def test_an_order_may_raise_the_mean_by_less_than_a_quarter_point(
    raised: int, passes: bool
) -> None:
    # Of 12 answers 2 or 3 go from 4 to 5: shifts of 0.167 and of exactly 0.25.
    found = audit(verdicts(even(4, 2, order=[5] * raised + [4] * (12 - raised))))
    assert found.order_shift == pytest.approx(raised / 12)
    assert of(found, "order").passed is passes
    assert (found.verdict == "passed") is passes


def test_a_judge_that_gives_own_answers_5_cannot_hide_that_it_obeys() -> None:
    found = audit(verdicts(even(5, 1, order_on_generic=[5] * 12)))
    assert found.order_shift == 0.0
    assert of(found, "order").passed is True
    assert of(found, "order_on_generic").passed is False
    assert found.verdict == "failed"
    assert "4.00 points" in found.reasons[0]


def test_the_order_is_compared_answer_by_answer() -> None:
    # The first answer's order got no score; its low own score must not count either.
    found = audit(verdicts(even(4, 1, own=[2] + [4] * 11, order=[None] + [4] * 11)))
    assert found.order_shift == 0.0
    assert of(found, "order").missing == pytest.approx(1 / 12)


@pytest.mark.parametrize(("n", "passes"), [(LEAST_PAIRS - 1, False), (LEAST_PAIRS, True)])
def test_too_few_answers_cannot_pass_however_right_they_are(n: int, passes: bool) -> None:
    found = audit(verdicts(even(5, 1, n=n)))
    assert (found.verdict == "passed") is passes
    assert passes or all("Too few answers to tell" in reason for reason in found.reasons)


def test_what_was_not_built_cannot_be_passed() -> None:
    scores = {k: v for k, v in even(5, 1).items() if k != "other_character"}
    found = audit(verdicts(scores))
    assert found.verdict == "failed"
    assert of(found, "other_character").auc is None
    assert "0 of 0" in found.reasons[0]
    skipped = audit(verdicts(scores), groups=[g for g in GROUPS if g != "other_character"])
    assert skipped.verdict == "failed"
    assert "not tested" in skipped.reasons[0]


def test_a_judge_without_a_single_score_fails_and_all_is_missing() -> None:
    found = audit(verdicts({name: [None] * 12 for name in even(4, 2)}))
    assert found.verdict == "failed"
    assert found.missing == 1.0
    assert found.order_shift is found.length_slope is found.repeat_variance is None
    assert all(g.auc is None and g.n == 0 and g.mean_own is None for g in found.groups)
    assert "84 of 84 texts" in found.reasons[-1]


def test_missing_verdicts_are_counted_and_never_taken_for_low_ones() -> None:
    found = audit(verdicts(even(4, 2, refusal=[None] * 3 + [2] * 9)))
    group = of(found, "refusal")
    assert (group.n, group.missing, group.mean_group) == (9, 0.25, 2.0)
    assert found.missing == pytest.approx(3 / 84)
    assert found.verdict == "passed"


def test_the_length_slope_is_points_per_doubling_within_answers() -> None:
    # Answers of 10 characters, padded to 20 and scored one point higher: one point a doubling.
    # Padded to 40 it is half a point a doubling.
    scores = even(3, 1, padding=[4] * 12)
    twice = audit(verdicts(scores, texts={"own": "x" * 10, "padding": "x" * 20}))
    fourfold = audit(verdicts(scores, texts={"own": "x" * 10, "padding": "x" * 40}))
    assert twice.length_slope == pytest.approx(1.0)
    assert fourfold.length_slope == pytest.approx(1 / log2(4))
    assert "2.0" in of(twice, "padding").note
    assert twice.verdict == "passed", "a fondness for length is reported, it does not decide"


def test_the_repeat_variance_is_the_mean_over_answers() -> None:
    # 4, 5, 3 has variance 1; 4, 4, 4 has none: the mean of one of the first and eleven others.
    more = {"repeat#1": [5] + [4] * 11, "repeat#2": [3] + [4] * 11}
    assert audit(verdicts({**even(4, 2), **more})).repeat_variance == pytest.approx(1 / 12)
    assert audit(verdicts(even(4, 2))).repeat_variance is None


def test_the_swap_shift_is_signed_and_its_size_is_noted() -> None:
    found = audit(verdicts(even(4, 2, swapped=[5] * 6 + [3] * 6)))
    assert found.swap_shift == 0.0
    assert "absolute 1.00" in of(found, "swapped").note
    without = audit(verdicts(even(4, 2)))
    assert without.swap_shift is None
    assert "no examples" in of(without, "swapped").note


def test_lift_is_judged_by_auc_alone() -> None:
    rows = [
        row.model_copy(
            update={"score": None, "lift": None if row.score is None else row.score - 3.0}
        )
        for row in verdicts(
            {k: v for k, v in even(4, 2, padding=[3] * 12).items() if k not in NOT_FOR_LIFT},
            judge="lift:m", texts={"own": "x", "padding": "xx"},
        )
    ]  # fmt: skip
    found = audit(rows)
    assert found.verdict == "passed"
    assert found.order_shift is found.swap_shift is found.repeat_variance is None
    assert of(found, "order").passed is None
    assert "does not apply to lift" in of(found, "order").note
    assert of(found, "refusal").mean_own == 1.0
    assert found.length_slope == pytest.approx(-1.0)


def test_only_the_judges_own_rows_count() -> None:
    rows = verdicts(even(4, 2)) + verdicts(even(1, 5), judge="k")
    assert audit(rows).verdict == "passed"
    assert judge_audit("k", rows, language="en", rubric_hash="r").verdict == "failed"


def test_the_reasons_are_in_the_language_of_the_run() -> None:
    scores = even(2, 2, order=[5] * 12, order_on_generic=[5] * 12)
    (chinese, english) = (audit(verdicts(scores), language).reasons for language in ("zh", "en"))
    assert len(chinese) == len(english) == 6
    assert all("：" in r or "均值" in r for r in chinese)


def test_both_languages_hold_the_same_words() -> None:
    def places(language: Language) -> dict[str, set[str]]:
        fields = defaultdict(set)
        for table, words in load_words(language).items():
            for key, text in words.items():
                names = [part.split("}")[0].partition(":")[0] for part in text.split("{")[1:]]
                fields[f"{table}.{key}"] = set(names)
        return fields

    assert places("en") == places("zh")
