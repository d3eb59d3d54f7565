"""The page of a cast's evaluation as a browser and a person take it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from personae.records import Language
from personae.records.cast_scores import Figure, Measure, MethodDifference
from personae.reports.cast import render_page, write_page
from personae.reports.cast.data import taken, worst
from personae.reports.cast.html import figure_text, reading_of, value_text
from personae.reports.language import Words
from tests.reports.page import HOSTILE, Page

from .sample import NAMES, dialogue, lines, scores


@pytest.fixture(params=["en", "zh"])
def language(request: pytest.FixtureRequest) -> Any:
    return request.param


def page(language: Language = "en") -> Page:
    return Page(render_page(scores(), lines(), language))


def test_the_page_loads_nothing_and_runs_nothing(language: Any) -> None:
    found = page(language)
    tags = {tag for tag, _ in found.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "form", "base"}
    for _, attributes in found.tags:
        assert not {name for name in attributes if name.startswith("on")}
        for name in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(name) or "#").startswith("#")


def test_figures_stand_with_their_intervals_and_what_is_missing() -> None:
    text = page().text
    assert "5 held-out rows, 4 units (what one character says in one dialogue), 30 tokens" in text
    # (2.0 + 3.0 + 4.0) / 3, one of four missing; the base half a nat a token above.
    assert "Nats a token lower is better the cast 3.000 [2.000, 4.000] 3 25.0%" in text
    assert "the base alone 3.500 [2.500, 4.500] 3 25.0%" in text
    assert "the cast minus" in text
    assert "the base alone −0.500 [−0.500, −0.500] 3 25.0% – the cast is better" in text
    assert "Persona lift higher is better every method – not run 0 0.0%" in text
    assert "the cast is better" in text
    assert "Guessing finds 50.0%." in text
    assert "nothing of a character's own to exchange" in text  # of the base
    assert "too long for the model" in text
    assert "Zoe (2)" in text
    assert "1 line of the data is no dialogue" in text
    assert "CC-BY-4.0" in text
    assert "The base was run in bfloat16, cpu" in text


def test_a_figure_says_whether_it_was_measured() -> None:
    text = page().text
    assert "a model each 2,000,000 computed 3.8 MiB computed 15.3 MiB computed" in text
    assert "the cast 300 computed 1.4 KiB measured" in text
    assert "0.610 ms measured" in text
    assert "unknown" in text  # how long a training takes that nobody ran


def test_who_is_taken_for_whom_is_counted_with_ties() -> None:
    given = [
        dialogue(1, "Ada", 20.0, 26.0),
        dialogue(2, "Bob", 30.0, 29.0),
        dialogue(3, "Bob", 30.0, 30.0),
        dialogue(4, "Bob", 30.0, 31.0),
        dialogue(5, "Ada", None),
    ]
    ada, bob = taken(given, NAMES, tie=1e-4)
    assert (ada.best, ada.ties) == ((1, 0), 0)
    assert (bob.best, bob.ties) == ((1, 1), 1)


def test_the_dialogues_that_are_least_their_own_come_first() -> None:
    found = worst(lines())
    assert [(w.character, round(w.behind, 3), w.best) for w in found] == [
        ("Bob", 0.2, "Ada"), ("Bob", -0.4, "Ada"), ("Ada", -0.6, "Bob"),
    ]  # fmt: skip
    assert [w.named for w in found] == [True, False, False]


@pytest.mark.parametrize(
    ("metric", "low", "high", "reading"),
    [
        ("nll", -0.3, -0.1, "better"),
        ("nll", 0.1, 0.3, "worse"),
        ("margin", 0.1, 0.3, "better"),
        ("margin", -0.3, -0.1, "worse"),
        ("switch_leak", -0.3, -0.1, "better"),
        ("nll", -0.1, 0.3, "open"),
        ("nll", 0.0, 0.3, "open"),
        ("nll", None, None, "open"),
    ],
)
def test_a_difference_is_read_by_its_interval_and_by_what_is_better(
    metric: Any, low: float | None, high: float | None, reading: str
) -> None:
    measure = Measure(mean=0.2, low=low, high=high, n=4)
    found = MethodDifference(method="cast", other="base", metric=metric, difference=measure)
    assert reading_of(found) == reading


def test_figures_have_the_digits_that_likelihoods_need() -> None:
    words = Words("en", "casts")
    assert value_text(words, "nll", 2.14159) == "2.142"
    assert value_text(words, "margin", -0.0004) == "0.000"
    assert value_text(words, "margin", -0.0123) == "−0.012"
    assert value_text(words, "identified", 0.5) == "50.0%"
    assert value_text(words, "nll", None) == "–"
    assert figure_text(words, Figure(), "bytes") == "unknown"
    assert figure_text(words, Figure(value=512, how="computed"), "bytes") == "512 B"
    assert figure_text(words, Figure(value=0, how="computed"), "bytes") == "0 B"
    assert figure_text(words, Figure(value=3 * 2**30, how="computed"), "bytes") == "3.0 GiB"


@pytest.mark.parametrize("evil", [e for e in HOSTILE if "\ud800" not in e])  # no record takes it
def test_no_name_and_no_source_becomes_markup(evil: str, language: Any) -> None:
    plain = page(language).tags
    names = (f"Ada{evil}", "Bob")
    given = [line.model_copy(update={"source": f"{evil} {line.row}"}) for line in lines(names)]
    found = Page(render_page(scores(given, names), given, language))
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain]


def test_a_page_is_written_whole_in_utf_8(tmp_path: Path) -> None:
    write_page(scores(), lines(), tmp_path / "report.html", "zh")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert 'lang="zh' in text
    assert "角色组" in text
    assert "{{" not in text


def test_a_cast_of_one_without_switches_has_a_page_too(language: Any) -> None:
    given = [dialogue(1, "Ada", 20.0, method="cast")]
    one = scores(given, ("Ada",), consumption=(), notes=(), chance=1.0)
    text = Page(render_page(one, given, language)).text
    assert "2.000" in text
