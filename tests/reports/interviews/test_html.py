"""The page of interviews: what a person finds on it, and what no text of a model can make of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from personae.judging.interview_audit import GROUPS
from personae.records import Failure, Interview, InterviewScript, Language, ScriptTurn
from personae.reports.html import ANSWER_CHARS
from personae.reports.interviews import (
    InterviewsReport,
    render_interviews,
    write_interviews_html,
)
from personae.reports.interviews import html as page_module
from personae.reports.interviews.html import SHOWN, WORST
from personae.reports.language import flatten, load_strings
from tests.reports.page import HOSTILE, Page

from .sample import (
    audit,
    both_methods,
    by_name,
    held,
    interview_run,
    question,
    report,
    switching,
    talk,
    two_questions_each,
)

LOST = {1: Failure(cause="contaminated", detail="it holds the prompt")}


def where(page: Page, *needles: str) -> list[int]:
    """Where the needles first stand, in the text a person reads."""
    return [page.text.index(needle) for needle in needles]


def everything(model: str = "test:player") -> list[Interview]:
    """Both methods on single questions, fixed talks, a live talk and a transfer dialogue."""
    live = talk(7)
    return [
        *both_methods([*two_questions_each(), talk(1), talk(1, "Bede"), switching()], model),
        held(live, model, mode="live", interviewer="test:interviewer"),
        held(live, model, "rag", mode="live", interviewer="test:interviewer"),
        held(question(8), model, failures=LOST, source="Ada_single.json, entry 7"),
    ]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> InterviewsReport:
    """Two judges, one that failed its audit, missing answers and missing verdicts."""
    folder = tmp_path_factory.mktemp("full")
    run = interview_run(
        folder / "run",
        everything(),
        ("test:judge", "test:second"),
        score=lambda i, m: None if (m, i.mode) == ("VK", "live") else by_name(i, m),
        notes=("Something to know.",),
    )
    audit(folder / "audit", verdict="failed", groups=GROUPS[:-1])
    return report(run)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_is_well_formed_in_both_languages(
    full: InterviewsReport, language: Language
) -> None:
    Page(render_interviews(full, language))


def test_a_page_of_chinese_interviews_is_chinese(tmp_path: Path) -> None:
    scripts = [question(i, name, language="zh") for name in ("阿黛", "白德") for i in (1, 2)]
    run = interview_run(tmp_path / "run", both_methods(scripts))
    page = Page(render_interviews(report(run), "zh"))
    assert "这些分数来自一个从未经过访谈审查的评审：不要据此行动。" in page.text
    assert "单个问题" in page.text
    assert "并列两种平均" in page.text


def test_the_warning_stands_before_the_scores_and_they_before_the_answers(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", both_methods(two_questions_each()))
    page = Page(render_interviews(report(run)))
    found = where(
        page,
        "a judge that was never audited on interviews: do not act on them.",
        "Eight metrics Model and method",
        # Ada 40 / 7 and Bede 26 / 7; without Stab 6 and 4.
        "test:player card in the prompt 4 interviews 4.71 [3.71, 5.71] missing 0.0% "
        "5.00 [4.00, 6.00] missing 0.0%",
        "Worst interviews These verdicts are not to be trusted",
        "1. Bede · Values",
        "Side by side Every question with the answer of each model and method. Under an answer",
        "1. Question 1 to Ada?",
    )
    assert found == sorted(found)


def test_both_averages_say_why_they_stand_there(tmp_path: Path) -> None:
    page = Page(render_interviews(report(interview_run(tmp_path / "run", [held(question(1))]))))
    assert "its lead comes from Stab alone" in page.text


def test_every_mode_has_its_own_lines(full: InterviewsReport) -> None:
    html = render_interviews(full)
    table = Page(html[html.index('id="scores"') :].split("<section")[0].join(["<section ", ""]))
    found = where(table, "single question", "replayed words", "live interviewer")
    assert found == sorted(found)


def test_trans_stands_apart(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(switching(i)) for i in (1, 2)])
    page = Page(render_interviews(report(run)))
    assert "test:player card in the prompt replayed words 6.00 [6.00, 6.00] 2 0.0%" in page.text
    assert "Average without Stab" not in page.text.split("Terms")[1].split("Compared")[0]
    none = interview_run(tmp_path / "none", [held(question(1))])
    assert "There are no transfer dialogues." in Page(render_interviews(report(none))).text


def test_a_curve_says_its_turns_with_interval_and_n(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", both_methods([talk(1), talk(1, "Bede")]))
    html = render_interviews(report(run))
    page = Page(html)
    # Stab of Ada 4 and of Bede 2, the same in every turn.
    assert "last turn minus first: 0.00 [0.00, 0.00]" in page.text
    assert "1 3.00 [2.00, 4.00] 2 0.0% 2 3.00 [2.00, 4.00] 2 0.0%" in page.text
    assert "n = 2" in page.text
    labels = [a["aria-label"] for t, a in page.tags if t == "svg" and "aria-label" in a]
    assert (
        "test:player, card in the prompt, replayed words: stability over 3 turns: 3.00, 3.00, 3.00"
        in labels
    )
    assert html.count('class="band"') == 2
    assert html.count('class="ghost"') == 2


def test_of_single_questions_alone_there_are_no_curves(tmp_path: Path) -> None:
    page = Page(render_interviews(report(interview_run(tmp_path / "run", [held(question(1))]))))
    assert "No interview of more than one turn has scores by turn." in page.text


def test_answers_to_one_question_stand_beside_each_other(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", both_methods(two_questions_each()))
    page = Page(render_interviews(report(run)))
    assert "test:player card in the prompt Ada answers 1 by prompt. Average 5.71 CB 6" in page.text
    assert (
        "test:player retrieval Ada answers 1 by rag. 1 passage retrieved She keeps the lamp. "
        "Average 4.71" in page.text
    )
    assert "2. Question 2 to Ada? tempting" in page.text
    assert "Where: A quay at night · How: waiting for the ferry" in page.text


def test_passages_are_folded(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", both_methods([question(1)]))
    html = render_interviews(report(run))
    assert re.search(r'<details class="passages"><summary>1 passage retrieved', html)


def test_fixed_words_are_said_once_and_live_ones_under_each(full: InterviewsReport) -> None:
    html = render_interviews(full)
    side = html[html.index('id="side"') : html.index('id="compared"')]
    assert side.count("Turn 2 of 1?") == 2  # once for Ada's talk, once for Bede's
    assert side.count("Turn 2 of 7? (test:player ") == 2  # one for each method
    assert "The interviewer found words for each; so the talks differ." in side


def test_every_turn_has_what_the_judges_gave_it(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(talk(1))])
    page = Page(render_interviews(report(run)))
    assert "Ada answers 2 by prompt. in character 4" in page.text


def test_the_worst_come_lowest_first_with_the_judges_reasons(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", both_methods(two_questions_each()))
    page = Page(render_interviews(report(run)))
    found = where(
        page,
        "The 8 lowest of 8 interviews with all seven metrics",
        "2.71of 7 1. Bede",
        "test:judge 1 Stability So it reads. (Stab) 3 Character Behavior So it reads. (CB)",
        "4 more scores",
    )
    assert found == sorted(found)


def test_the_worst_are_few_and_link_to_where_they_stand_beside_others(tmp_path: Path) -> None:
    scripts = [question(i) for i in range(1, SHOWN + 6)]
    last = scripts[-1].id
    run = interview_run(
        tmp_path / "run",
        [held(s) for s in scripts],
        score=lambda i, m: 1 if i.script_id == last else by_name(i, m),
    )
    html = render_interviews(report(run))
    assert html.count('<article class="answer">') == WORST
    assert f'id="script-{len(scripts)}"' in html
    assert f"{SHOWN} of {len(scripts)} questions and interviews" in Page(html).text


def test_only_what_has_room_stands_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "SHOWN_CHARS", 0)
    run = interview_run(tmp_path / "run", both_methods(two_questions_each()))
    page = Page(render_interviews(report(run)))
    assert "0 of 4 questions and interviews" in page.text
    assert f"personae report {run} --csv" in page.text


def test_every_kind_and_character_has_its_turn_where_not_all_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "SHOWN", 3)
    scripts = [*(question(i) for i in range(1, 6)), question(1, "Bede"), talk(1)]
    run = interview_run(tmp_path / "run", [held(s) for s in scripts], ())
    page = Page(render_interviews(report(run)))
    for one in ("1. Question 1 to Ada?", "6. Question 1 to Bede?", "7. The crossing"):
        assert one in page.text
    assert "Question 2 to Ada?" not in page.text


def test_what_cannot_be_scored_is_shown_as_it_is_and_counted_by_cause(
    full: InterviewsReport,
) -> None:
    page = Page(render_interviews(full))
    cause = "the answer holds the prompt or other text that is not the character's"
    assert f"not scored {cause} (it holds the prompt) Ada answers 1 by prompt." in page.text
    assert (
        f"{cause} it holds the prompt test:player card in the prompt single question 1 of 5 "
        "Ada_single.json, entry 7" in page.text
    )
    assert "1 without a usable answer" in page.text


def test_a_missing_verdict_is_named_with_judge_and_metric(full: InterviewsReport) -> None:
    page = Page(render_interviews(full))
    assert "reply not in the asked form test:judge Virtual Knowledge 2 of 14" in page.text


def test_an_interviewer_without_words_is_no_fault_of_the_characters(tmp_path: Path) -> None:
    script = InterviewScript(
        id="live/1", kind="multi", topic="The sea", turns=(ScriptTurn(character="Ada"),) * 2
    )
    one = held(script, interviewer="test:interviewer", failures={
        1: Failure(cause="interviewer: timeout"), 2: Failure(cause="not_reached")
    })  # fmt: skip
    lost = one.model_copy(
        update={"exchanges": tuple(e.model_copy(update={"asked": None, "answer": None})
                                   for e in one.exchanges)}
    )  # fmt: skip
    page = Page(render_interviews(report(interview_run(tmp_path / "run", [lost]))))
    assert "no words of the interviewer: no answer in time" in page.text
    assert "the interview ended before this turn" in page.text


def test_a_judge_that_failed_is_named_with_what_it_failed(full: InterviewsReport) -> None:
    page = Page(render_interviews(full))
    assert "Not every judge of these scores passed an audit on interviews" in page.text
    assert "test:judge failed its audit in: another character's answers (AUC 0.60, n = 20)" in (
        page.text
    )


def test_a_judge_that_passed_leaves_no_warning(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", both_methods(two_questions_each()))
    audit(tmp_path / "audit")
    page = Page(render_interviews(report(run)))
    assert "The judge of these scores passed its audit on interviews." in page.text
    assert "do not act" not in page.text
    assert "not to be trusted" not in page.text


def test_an_audit_that_is_silent_of_a_scored_metric_does_not_count_and_says_so(
    tmp_path: Path,
) -> None:
    run = interview_run(tmp_path / "run", [held(question(1)), held(switching())])
    audit(tmp_path / "audit")
    data = report(run)
    assert (data.trust, data.judges[0].lacking) == ("none", ("Trans",))
    page = Page(render_interviews(data))
    assert "an audit that says nothing of metrics that it scored here" in page.text
    audit(tmp_path / "more", groups=("order", "refusal", "swapped"))
    assert report(run).trust == "passed"


def test_the_command_that_audits_the_judge_can_be_copied(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "a run", [held(question(1))], ("x;rm",))
    page = Page(render_interviews(report(run)))
    assert f"personae audit --judge 'x;rm' --answers '{run}' --out AUDIT" in page.text


def test_a_judge_of_its_own_answers_is_named_as_such(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(question(1))], ("test:player",))
    assert "It also judges its own answers." in Page(render_interviews(report(run))).text


def test_interviews_that_nobody_judged_show_their_answers_first(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", both_methods(two_questions_each()), ())
    html = render_interviews(report(run))
    page = Page(html)
    assert "Nobody has judged these interviews: there are no scores." in page.text
    assert html.index('id="side"') < html.index('id="missing"')
    for absent in ("scores", "curves", "worst", "compared", "judges"):
        assert f'id="{absent}"' not in html
    assert "not scored" not in page.text


def test_differences_of_methods_say_what_they_show(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", both_methods(two_questions_each()))
    page = Page(render_interviews(report(run)))
    assert (
        "test:player · card in the prompt − test:player · retrieval single question Average "
        "+1.00 [+1.00, +1.00] 2 0.0% higher" in page.text
    )


def test_tempting_questions_and_topics_have_their_own_figures(tmp_path: Path) -> None:
    scripts = [question(i, n, tempting=i > 2) for n in ("Ada", "Bede") for i in (1, 2, 3, 4)]
    run = interview_run(
        tmp_path / "run",
        [held(s) for s in scripts],
        score=lambda i, m: by_name(i, m) - (1 if i.tempting else 0),
    )
    page = Page(render_interviews(report(run)))
    assert "Values test:player card in the prompt single question 5.00 [4.00, 6.00] 2" in page.text
    assert (
        "Values tempting test:player card in the prompt single question 4.00 [3.00, 5.00] 2"
        in page.text
    )
    assert "Tempting questions" in page.text


def test_a_run_that_was_stopped_says_how_to_go_on(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(question(1))], status="stopped")
    page = Page(render_interviews(report(run)))
    found = where(page, f"personae resume {run}", "Eight metrics Model")
    assert found == sorted(found)


def test_links_inside_the_page_lead_somewhere(full: InterviewsReport) -> None:
    page = Page(render_interviews(full))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in page.tags:
        if tag == "a":
            assert (attrs["href"] or "")[1:] in ids


def test_a_very_long_answer_is_folded_and_cut_with_a_pointer_to_the_file(tmp_path: Path) -> None:
    run = interview_run(tmp_path / "run", [held(question(1), answer="long " * 8_000)], ())
    html = render_interviews(report(run))
    page = Page(html)
    assert "Show all 40,000 characters" in page.text
    assert (
        f"Cut after {ANSWER_CHARS:,} characters; {run}/interviews.jsonl has the whole text."
        in page.text
    )
    assert len(html) < 100_000


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_model_or_a_file_becomes_markup(tmp_path: Path, text: str) -> None:
    name = text.encode("utf-8", "replace").decode()  # no record takes half a character for a name
    turns = [ScriptTurn(character=f"1{name}", asked=name)]
    script = question(
        1, turns=turns, topic=name, topic_id=name, location=name, status=name, tempting=True
    )
    long = talk(1, turns=2).model_copy(
        update={"topic": text, "turns": (turns[0], ScriptTurn(character=f"1{name}", asked=name))}
    )
    other = question(2, turns=turns, topic=name, topic_id=name, tempting=True)
    given = [
        held(s, f"m{name}", method, answer=text, passages=(text,))
        for s in (script, other, long)
        for method in ("prompt", "rag")
    ]  # fmt: skip
    lost = {1: Failure(cause=f"c{name}", detail=text)}
    given.append(held(script, f"n{name}", failures=lost, source=text))
    run = interview_run(
        tmp_path / "run", given, (f"j{name}", f"k{name}"),
        score=lambda i, m: None if m == "RK" and i.kind == "multi" else 2, reason=text,
        status="stopped", notes=(text,), created=text, versions={text: text},
    )  # fmt: skip
    audit(tmp_path / "audit", f"j{name}", verdict="failed")
    html = render_interviews(report(run, title=text))
    page = Page(html)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "iframe", "object", "link", "base", "form"}
    assert sum(tag == "style" for tag, _ in page.tags) == 1
    assert not [attrs for _, attrs in page.tags if any(n.startswith("on") for n in attrs)]
    assert all((a.get("href") or "#").startswith("#") for _, a in page.tags)
    for never in ("\u202e", "\x00", "\x1b"):
        assert never not in html
    html.encode("utf-8")
    if text.isascii() and text.isprintable():
        assert page.text.count(" ".join(text.split())) > 40


def test_the_page_loads_nothing_and_runs_nothing(full: InterviewsReport) -> None:
    html = render_interviews(full)
    assert not re.search(r"(?i)https?:|url\(|@import|javascript:", html)
    for tag, attrs in Page(html).tags:
        assert tag not in {"script", "link", "img", "iframe"}
        assert "src" not in attrs
        assert "style" not in attrs


def test_tables_have_headers_and_pictures_have_words(full: InterviewsReport) -> None:
    page = Page(render_interviews(full))
    heads = [attrs for tag, attrs in page.tags if tag == "th"]
    assert heads
    assert all(attrs.get("scope") in {"col", "row", "rowgroup"} for attrs in heads)
    pictures = [attrs for tag, attrs in page.tags if tag == "svg" and attrs.get("role") == "img"]
    assert pictures
    assert all(attrs["aria-label"] for attrs in pictures)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_group_of_an_audit_of_interviews_has_a_name(language: Language) -> None:
    assert {f"interviews.groups.{group}" for group in GROUPS} <= set(
        flatten(load_strings(language))
    )


def test_the_page_is_written_whole(tmp_path: Path) -> None:
    data = report(interview_run(tmp_path / "run", [held(question(1))]))
    path = tmp_path / "deep" / "report.html"
    write_interviews_html(data, path)
    assert path.read_text("utf-8") == render_interviews(data)
