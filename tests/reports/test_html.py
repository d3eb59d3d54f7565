from __future__ import annotations

import base64
import hashlib
import re

import pytest

from personae.errors import OutputError
from personae.records import CastAnswer, Language, Manifest, Shortfall
from personae.reports import render, write_html
from personae.reports.html import ANSWER_CHARS, WORST

from .page import HOSTILE, Page
from .sample import make_benchmark, make_data, make_rows


def first(page: Page, *needles: str) -> list[int]:
    """Where the needles first stand, in the text a person reads."""
    return [page.text.index(needle) for needle in needles]


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("states", [("passed", "passed"), ("failed", "none")])
def test_the_page_is_well_formed_in_both_languages(language, states):
    Page(render(make_data(language=language, states=states), language))


def test_the_warning_stands_before_the_scores_and_they_before_the_worst_answers():
    data = make_data(models=("m",), states=("none", "none"))
    page = Page(render(data))
    score = f"{data.models[0].persona_score.mean:.2f}"
    where = first(page, "never audited: do not act on them", score, "Worst answers The")
    assert where == sorted(where)


def test_a_judge_that_failed_its_audit_is_named_with_what_it_failed():
    page = Page(render(make_data(judges=("j/one",), states=("failed",))))
    assert "a judge that failed its audit: do not act on them" in page.text
    assert "j/one failed its audit in: a refusal (AUC 0.58, n = 40)." in page.text


def test_the_page_says_when_the_judge_passed_and_warns_of_nothing():
    page = Page(render(make_data(judges=("j/one",), states=("passed",))))
    assert "The judge of these verdicts passed its audit." in page.text
    assert "do not act" not in page.text
    assert "not to be trusted" not in page.text


def test_one_bad_judge_among_two_is_enough_for_the_warning():
    page = Page(render(make_data(states=("passed", "failed"))))
    assert "Not every judge of these verdicts passed an audit" in page.text


def test_where_only_lift_judged_there_is_no_persona_score():
    page = Page(render(make_data(judges=("lift:local",), states=())))
    assert "No judge gave verdicts: there is no PersonaScore." in page.text
    assert "Only lift judged these answers." in page.text


def test_a_judge_of_its_own_answers_is_named_as_such():
    page = Page(render(make_data(models=("local",), judges=("local",), states=("none",))))
    assert "It also judges its own answers." in page.text
    assert "personae audit --judge local --answers runs/demo-run --out AUDIT" in page.text


def test_what_the_user_is_told_to_run_is_quoted_for_the_shell():
    page = Page(render(make_data(models=("m",), judges=("x;rm -rf ~",), states=("none",))))
    assert "--judge 'x;rm -rf ~'" in page.text


def test_the_missing_rate_stands_beside_every_mean():
    data = make_data(lost=0.25)
    page = Page(render(data))
    for scores in data.models:
        for e in (scores.persona_score, *scores.tasks.values()):
            if e.mean is None:
                continue
            shown = f"{e.mean:.2f} [{e.low:.2f}, {e.high:.2f}]"
            missing = f"{e.missing:.1%}"
            assert f"{shown} · missing {missing}" in page.text
            assert f"{shown} {e.n} {missing}" in page.text
        assert scores.lift is not None
        for lift in (scores.lift, *scores.lift_tasks.values()):
            mean = f"{lift.mean:+.2f}".replace("-", "−")
            assert re.search(rf"{re.escape(mean)} (\[.*?\] )?missing {lift.missing:.1%}", page.text)


def test_nothing_scored_is_no_zero():
    rows = [
        r.model_copy(update={"score": None, "justification": None})
        for r in make_rows(make_benchmark(people=2), ["m"], ["j"])
    ]
    page = Page(render(make_data(models=("m",), judges=("j",), states=("none",), rows=rows,
                                 benchmark=make_benchmark(people=2))))  # fmt: skip
    assert "No answer could be scored." in page.text
    assert "No answer has a score, so none can be called the worst." in page.text
    assert "0.00" not in page.text


def test_a_single_persona_has_no_interval_and_the_page_says_so():
    page = Page(render(make_data(people=1, states=("passed", "passed"))))
    assert "no interval below two personas" in page.text
    assert "rest on a single persona" in page.text


def test_few_personas_are_called_few_and_many_are_not():
    assert "rest on only 6 personas" in Page(render(make_data(people=6))).text
    assert "rest on only" not in Page(render(make_data(people=12, questions=1))).text


def test_repeats_of_one_model_are_called_repeats():
    page = Page(render(make_data(models=("m",), judges=("local", "local"))))
    assert "These are repeats, no agreement." in page.text


def test_the_worst_answers_show_question_answer_reasons_and_lift():
    data = make_data(models=("m",), states=("passed", "passed"), lost=0)
    page = Page(render(data))
    worst = min(
        {r.unit_id: r for r in data.rows}.values(),
        key=lambda r: (
            sum(x.score or 0 for x in data.rows if x.unit_id == r.unit_id),
            r.unit_id,
        ),
    )
    at = page.text.index(f"unit {worst.unit_id}")
    card = page.text[page.text.rindex("Model m", 0, at) : at]
    of_unit = [r for r in data.rows if r.unit_id == worst.unit_id]
    assert worst.question in card
    assert (worst.answer or "") in card
    for row in of_unit:
        if row.score is not None:
            assert f"{row.judge} {row.score} {row.justification}" in card
        else:
            assert f"{row.judge} {row.lift:+.2f}".replace("-", "−") in card


def test_only_the_worst_answers_are_in_the_page():
    data = make_data(people=20, questions=4, judges=("j",), states=("passed",), models=("m",))
    page = Page(render(data))
    assert page.text.count("unit p") == WORST
    assert "results.jsonl" in page.text


def test_lift_is_said_to_miss_contradictions_wherever_it_is_measured():
    assert "not contradiction. It is in nats a token" in Page(render(make_data())).text


def test_unknown_cost_stays_unknown():
    page = Page(render(make_data()))
    assert "Cost unknown" in page.text


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_model_becomes_markup(text):
    benchmark = make_benchmark(people=1, questions=1)
    rows = [
        r.model_copy(
            update={
                "model": text, "judge": text if "lift" not in r.judge else f"lift:{text}",
                "answer": text, "question": text, "environment": text, "persona": text,
                "justification": text, "unit_id": r.question_id + text,
            }
        )
        for r in make_rows(benchmark, ["m"], ["j", "lift:x"], lost=0)
    ]  # fmt: skip
    data = make_data(
        rows=rows, benchmark=benchmark, models=(text,), judges=(text, f"lift:{text}"),
        states=("failed",),
    )  # fmt: skip
    data = data.model_copy(
        update={
            "title": text,
            "notes": (text,),
            "shortfalls": (Shortfall(what=text, wanted=2, got=1, cause=text),),
            "manifests": (
                Manifest(
                    kind=text, arguments={text: text}, models={text: (text,)}, created=text,
                    sampling={text: {text: text}}, prompts={text: text}, versions={text: text},
                    status="stopped", notes=(text,),
                ),
            ),
        }
    )  # fmt: skip
    html = render(data)
    page = Page(html)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "iframe", "object", "link", "base", "form", "a:href"}
    assert sum(tag == "style" for tag, _ in page.tags) == 1
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert "\u202e" not in html
    assert "\x00" not in html
    assert "\x1b" not in html
    html.encode("utf-8")
    if text.isascii() and text.isprintable():
        assert page.text.count(" ".join(text.split())) > 10


def test_a_very_long_answer_is_folded_and_cut_with_a_pointer_to_the_whole():
    benchmark = make_benchmark(people=1, questions=1)
    rows = [
        r.model_copy(update={"answer": "long " * 40_000})
        for r in make_rows(benchmark, ["m"], ["j"], lost=0)
    ]
    html = render(make_data(rows=rows, benchmark=benchmark, models=("m",), judges=("j",)))
    assert "Show all 200,000 characters" in html
    assert f"Cut after {ANSWER_CHARS:,} characters; results.jsonl has the whole text." in html
    assert len(html) < 200_000


def test_the_page_loads_nothing_and_runs_nothing():
    html = render(make_data())
    page = Page(html)
    assert not re.search(r"(?i)https?:|//[a-z]|url\(|@import|javascript:", html)
    for tag, attrs in page.tags:
        assert tag not in {"script", "link", "img", "iframe"}
        assert "src" not in attrs
        assert (attrs.get("href") or "#").startswith("#")
        assert "style" not in attrs


def test_the_policy_allows_the_one_style_sheet_by_its_hash_and_nothing_else():
    html = render(make_data())
    css = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert css is not None
    digest = base64.b64encode(hashlib.sha256(css[1].encode()).digest()).decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert policy[1] == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def test_tables_have_headers_and_pictures_have_words():
    page = Page(render(make_data()))
    heads = [attrs for tag, attrs in page.tags if tag == "th"]
    assert heads
    assert all(attrs.get("scope") in {"col", "row", "rowgroup"} for attrs in heads)
    pictures = [attrs for tag, attrs in page.tags if tag == "svg" and attrs.get("role") == "img"]
    assert pictures
    assert all(attrs["aria-label"] for attrs in pictures)
    inner = {"x", "cx"}  # a mark inside a picture
    for tag, attrs in page.tags:
        if tag == "svg" and not inner & set(attrs):
            assert attrs.get("role") == "img" or attrs.get("aria-hidden") == "true"


def test_links_inside_the_page_lead_somewhere():
    page = Page(render(make_data()))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in page.tags:
        if tag == "a":
            assert (attrs["href"] or "")[1:] in ids


def test_an_unfinished_run_and_different_benchmarks_are_said_at_the_top():
    data = make_data()
    stopped = data.manifests[0].model_copy(update={"status": "stopped"})
    other = make_benchmark(people=3)
    data = data.model_copy(
        update={"manifests": (stopped,), "benchmarks": (*data.benchmarks, other)}
    )
    page = Page(render(data))
    where = first(page, "stopped early", "2 different benchmarks", "Scores PersonaScore"[:6])
    assert "personae resume runs/demo-run" in page.text
    assert where[0] < page.text.index("of 5")
    assert where[1] < page.text.index("of 5")


def test_failures_and_shortfalls_are_counted_in_the_page():
    page = Page(render(make_data()))
    assert "reply not in the asked form judge anthropic/judge-a 4" in page.text
    assert "questions of p001, LH 2 1 the examiner repeated itself" in page.text
    assert "it is never scored" in page.text


def test_how_it_was_run_is_in_the_page():
    data = make_data()
    page = Page(render(data))
    for needle in ("temperature 0.9, top_p 0.9", data.benchmarks[0].hash, "ab" * 32, "cd" * 32):
        assert needle in page.text


def test_a_lift_difference_is_not_drawn_on_the_axis_of_points():
    data = make_data()
    html = render(data)
    points = sum(1 for d in data.paired if d.what != "lift")
    assert 0 < points < len(data.paired)
    section = html[html.index('id="paired"') : html.index('id="spread"')]
    assert section.count('role="img"') == points


QUESTION = "What do you answer?"
ASKED = (
    CastAnswer(question=QUESTION, character="Ada", block="Ada", answer="With numbers."),
    CastAnswer(question=QUESTION, character="Ada", answer="As a model."),
    CastAnswer(question=QUESTION, character="Bob", block="Bob", missing="timeout"),
    CastAnswer(question=QUESTION, character="Bob", missing="empty"),
)


def cast_section(answers: tuple[CastAnswer, ...], language: Language = "en") -> Page:
    html = render(
        make_data(language=language).model_copy(update={"cast_answers": answers}), language
    )
    assert html.count('href="#cast"') == 1
    return Page(html[html.index('<section id="cast">') :].partition("</section>")[0] + "</section>")


def test_the_answers_of_a_cast_stand_under_one_question_missing_ones_as_missing():
    text = cast_section(ASKED).text
    assert text.count(QUESTION) == 1
    where = [text.index(part) for part in (
        "Two characters, each in its own block", QUESTION,
        "Ada through its block", "With numbers.", "Ada the model alone", "As a model.",
        "Bob through its block The model gave no answer. (no answer in time)",
        "Bob the model alone The model gave no answer. (empty reply)",
    )]  # fmt: skip
    assert where == sorted(where)


def test_the_answers_of_a_cast_are_told_in_chinese_too():
    text = cast_section(ASKED, "zh").text
    for part in (
        "两个角色，各有自己的块",
        "经由自己的块",
        "只有模型",
        "模型没有给出回答。 (超时无回复)",
    ):
        assert part in text
    assert "block" not in text


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_a_cast_says_is_more_than_text(text):
    name = text.encode(errors="replace").decode()  # a record takes no half of a character as a name
    hostile = CastAnswer(question=name, character=name, block=name, answer=text)
    gone = CastAnswer(question=name, character=name, missing=name)
    page = cast_section((hostile, gone))
    assert {tag for tag, _ in page.tags} <= {
        "section", "h2", "p", "article", "dl", "dt", "dd", "span", "div", "details", "summary",
    }  # fmt: skip
    assert not [a for _, attrs in page.tags for a in attrs if a.startswith("on")]
    assert "49" not in page.text
    assert not set(page.text) & set("\x00\x1b\u202e")


def test_a_report_of_no_demo_has_no_section_of_a_cast():
    assert 'id="cast"' not in render(make_data())


def test_a_report_without_any_data_is_still_a_page():
    page = Page(render(make_data().model_copy(update={
        "rows": (), "models": (), "paired": (), "audits": {}, "manifests": (), "runs": (),
        "benchmarks": (), "agreement": None, "usage": (), "failures": (), "shortfalls": (),
    })))  # fmt: skip
    assert "No model has results yet." in page.text


def test_the_page_is_written_whole_and_leaves_no_half_file(tmp_path):
    path = tmp_path / "deep" / "report.html"
    data = make_data()
    write_html(data, path)
    assert path.read_text(encoding="utf-8") == render(data)
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_a_page_that_cannot_be_written_names_the_file_and_the_mend(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OutputError, match=r"file.*cannot be written"):
        write_html(make_data(), blocked / "report.html")
