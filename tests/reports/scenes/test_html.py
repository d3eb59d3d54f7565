"""The page of plays: what a person finds on it, and what no text of a model can make of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from personae.records import Language
from personae.reports.html import ANSWER_CHARS
from personae.reports.scenes import html as page_module
from personae.reports.scenes import render_plays, write_plays_html
from personae.reports.scenes.html import SCRIPTS, WORST
from tests.judging.plays import NAMES, a_play, a_scene
from tests.reports.page import HOSTILE, Page

from .sample import (
    a_rated_run,
    an_eventful_play,
    audit,
    by_name,
    four_scenes,
    play_run,
    rate,
    report,
)


def where(page: Page, *needles: str) -> list[int]:
    """Where the needles first stand, in the text a person reads."""
    return [page.text.index(needle) for needle in needles]


def a_full_page(folder: Path, language: Language = "en") -> str:
    """Two runs with two judges, narrators' ratings, a single-character scene and failures."""
    alone = a_play(a_scene("Well/extracted/0", names=("Cleo",)))
    plays = [an_eventful_play(), *four_scenes()[1:], alone]
    one = a_rated_run(folder / "one", plays)
    rate(
        one,
        plays,
        "test:second",
        lambda c, m: None if m == "IM" and len(c.others) else by_name(c, m),
    )
    rate(one, plays, kind="narrator", score=lambda _c, _m: 3)
    audit(folder / "audit", verdict="failed")
    two = a_rated_run(folder / "two", four_scenes(model="test:better"))
    return render_plays(report(one, two), language)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_is_well_formed_in_both_languages(tmp_path: Path, language: Language) -> None:
    Page(a_full_page(tmp_path, language))


def test_a_page_of_chinese_plays_is_chinese(tmp_path: Path) -> None:
    scenes = [a_scene(f"渡口/{o}/0", names=NAMES["zh"][:2], language="zh")
              for o in ("extracted", "generated")]  # fmt: skip
    run = a_rated_run(tmp_path / "run", [a_play(scene) for scene in scenes])
    page = Page(render_plays(report(run), "zh"))
    assert "这些评分来自一个从未经过轨迹审查的评审：不要据此行动。" in page.text
    assert "知识准确性" in page.text
    assert "最差的轨迹" in page.text


def test_the_warning_stands_before_the_scores_and_they_before_the_worst_trajectories(
    tmp_path: Path,
) -> None:
    page = Page(render_plays(report(a_rated_run(tmp_path / "run"))))
    found = where(
        page,
        "a judge that was never audited on trajectories: do not act on them.",
        "2.50 of 5",
        "95% interval 2.00 to 3.00",
        "Worst trajectories The 8 lowest of 8",
        "1. Bede · Ferry/generated/0",
        "test:judge It holds together. 1 Knowledge Accuracy So it reads. (KA)",
    )
    assert found == sorted(found)


def test_the_command_that_audits_the_judge_can_be_copied(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "a run", judge="x;rm")
    page = Page(render_plays(report(run)))
    assert f"personae audit --judge 'x;rm' --answers '{run}' --out AUDIT" in page.text


def test_a_judge_that_failed_is_named_with_what_it_failed(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run")
    audit(tmp_path / "audit", verdict="failed")
    page = Page(render_plays(report(run)))
    assert "a judge that failed its audit on trajectories" in page.text
    assert "test:judge failed its audit in: refusals for acts (AUC 0.60, n = 20)." in page.text


def test_a_judge_that_passed_leaves_no_warning(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run")
    audit(tmp_path / "audit")
    page = Page(render_plays(report(run)))
    assert "The judge of these ratings passed its audit on trajectories." in page.text
    assert "do not act" not in page.text
    assert "not to be trusted" not in page.text


def test_a_judge_of_its_own_play_is_named_as_such(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run", judge="test:player")
    assert "It also rates its own play." in Page(render_plays(report(run))).text


def test_every_metric_has_its_mean_interval_scenes_and_missing_rate(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run", score=lambda c, m: by_name(c, m) if m != "AD" else None)
    page = Page(render_plays(report(run)))
    assert page.text.count("2.50 [2.00, 3.00] · missing 0.0%") == 6
    assert "Adaptability no score" in page.text
    assert (
        "No trajectory has a score on every metric; 14.3% of the ratings are missing." in page.text
    )


def test_the_gap_of_origins_and_the_alphas_are_told(tmp_path: Path) -> None:
    page = Page(render_plays(report(a_rated_run(tmp_path / "run"))))
    assert "+1.00 [+1.00, +1.00]" in page.text
    assert "within 2 titles that have both, 2 extracted and 2 generated scenes" in page.text
    assert "Character fidelity Knowledge Accuracy, Behavioral Accuracy 1.00" in page.text
    assert "there is one judge, and one judge cannot agree with itself." in page.text


def test_differences_of_two_runs_say_what_they_show(tmp_path: Path) -> None:
    one = a_rated_run(tmp_path / "one")
    two = a_rated_run(
        tmp_path / "two", four_scenes(model="test:better"), score=lambda c, m: by_name(c, m) + 1
    )
    page = Page(render_plays(report(one, two)))
    assert "test:better − test:player Average" in page.text
    assert "+1.00 [+1.00, +1.00] 4 0.0% higher" in page.text


def test_scenes_with_a_single_character_have_a_section_of_their_own(tmp_path: Path) -> None:
    html = a_full_page(tmp_path)
    section = html[html.index('id="alone"') : html.index('id="failures"')]
    assert "Well/extracted/0" in section
    worst = html[html.index('id="worst"') : html.index('id="compared"')]
    assert "Well/extracted/0" not in worst


def test_narrators_are_said_to_be_rated_by_judges_nobody_audited(tmp_path: Path) -> None:
    page = Page(a_full_page(tmp_path))
    assert "How well judges rate narrators is not audited" in page.text
    assert "Quantity 3.00 [3.00, 3.00]" in page.text


def test_where_only_narrators_were_rated_the_page_says_so(tmp_path: Path) -> None:
    run = play_run(tmp_path / "run", four_scenes())
    rate(run, four_scenes(), kind="narrator", score=lambda _c, _m: 3)
    page = Page(render_plays(report(run)))
    assert "Only narrators have been rated: the characters have no scores." in page.text
    assert "Quantity 3.00 [3.00, 3.00]" in page.text


def test_a_script_reads_as_one(tmp_path: Path) -> None:
    page = Page(render_plays(report(play_run(tmp_path / "run", [an_eventful_play()]))))
    for said in (
        "Night · A pier",
        "pier (Ada, Bede) Ada draws the bolt to Bede Come, Bede. Recalled: 1 memory",
        "Narrator touches Bede Bede feels the draught",
        "Bede reacts nods",
        "Narrator what comes of it The gate stands open",
        "Bede whispers to Ada The rope is bad. heard by Ada, Bede",
        "Cleo missing act: no answer in time (no reply in 120 s)",
        "Cleo goes to pier",
        "waves a hand perceived only by Ada, Cleo",
        "influence of an act: refused twice by the checks ('Dov' cannot be changed here)",
        "The narrator calls the story concluded in round 2.",
        "Ada Holds true Bede knows Wants to cross",
        "The rope is cut known by Ada",
        "The bell rang twice 1 0.80 0.90 0.70 0.50",
    ):
        assert said in page.text


def test_what_changed_is_marked_and_what_it_was_is_crossed_out(tmp_path: Path) -> None:
    html = render_plays(report(play_run(tmp_path / "run", [an_eventful_play()])))
    assert '<mark dir="auto">at the gate</mark> <del dir="auto">at the rail</del>' in html
    assert '<dd class="changed" dir="auto">at the gate</dd>' in html
    assert '<dd dir="auto">by the lamp</dd>' in html


def test_actions_are_in_italics_by_their_class(tmp_path: Path) -> None:
    html = render_plays(report(play_run(tmp_path / "run", [an_eventful_play()])))
    assert re.search(r'<div class="line line-action">(?:(?!<div class="line).)*draws the bolt', html,
                     re.DOTALL)  # fmt: skip
    assert ".line-action .said" in html


def test_plays_that_nobody_rated_come_first_and_say_how_to_have_them_rated(tmp_path: Path) -> None:
    run = play_run(tmp_path / "run", four_scenes())
    html = render_plays(report(run))
    page = Page(html)
    assert "These plays have not been rated: there are no scores." in page.text
    assert f"personae rate {run} --judge MODEL" in page.text
    assert html.index('id="plays"') < html.index('id="failures"')
    assert 'id="scores"' not in html
    assert "0.00" not in page.text.replace("$0.00", "")  # no rating has cost nothing


def test_a_run_or_a_rating_that_was_stopped_is_named_with_how_to_go_on(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run")
    (rating,) = (run / "ratings").iterdir()
    for folder in (run, rating):
        manifest = folder / "manifest.json"
        manifest.write_text(manifest.read_text("utf-8").replace('"done"', '"stopped"'), "utf-8")
    page = Page(render_plays(report(run)))
    found = where(page, f"personae resume {run} ", f"personae resume {rating} ", "2.50 of 5")
    assert found == sorted(found)


def test_the_first_scripts_are_open_and_the_others_folded(tmp_path: Path) -> None:
    page = Page(render_plays(report(a_rated_run(tmp_path / "run"))))
    plays = [attrs for tag, attrs in page.tags if tag == "details" and attrs.get("class") == "play"]
    assert ["open" in attrs for attrs in plays] == [True, True, False, False]


def test_worst_trajectories_link_to_their_script(tmp_path: Path) -> None:
    html = render_plays(report(a_rated_run(tmp_path / "run")))
    assert re.search(r'1\. <span dir="auto">Bede</span>.*?href="#play-2">Read the script', html,
                     re.DOTALL)  # fmt: skip
    assert re.search(r'id="play-2".*?2\. Ferry/generated/0', html, re.DOTALL)


def test_links_inside_the_page_lead_somewhere(tmp_path: Path) -> None:
    page = Page(a_full_page(tmp_path))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in page.tags:
        if tag == "a":
            assert (attrs["href"] or "")[1:] in ids


def test_only_the_scripts_that_have_room_are_in_the_page_and_the_file_of_the_rest_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plays = [a_play(f"Ferry/extracted/{i}", rounds=1) for i in range(SCRIPTS + 5)]
    run = play_run(tmp_path / "run", plays)
    page = Page(render_plays(report(run)))
    assert f"{SCRIPTS} of {SCRIPTS + 5} plays stand here as scripts" in page.text
    assert page.text.count(f"{run}/plays.jsonl") == 5
    assert f"personae report {run} --scene ID" in page.text
    monkeypatch.setattr(page_module, "SCRIPT_CHARS", 0)
    assert f"0 of {SCRIPTS + 5} plays" in Page(render_plays(report(run))).text


def test_the_scripts_of_wanted_scenes_are_the_ones_in_the_page(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run")
    page = Page(render_plays(report(run, wanted=["Mill/extracted/0"])))
    assert "1 of 4 plays stands here as a script" in page.text
    assert [a["id"] for t, a in page.tags if t == "details" and a.get("class") == "play"] == [
        "play-3"
    ]


def test_the_worst_trajectories_are_few_and_their_scripts_come_first(tmp_path: Path) -> None:
    plays = [a_play(f"Ferry/extracted/{i}", rounds=1) for i in range(SCRIPTS + 5)]
    last = plays[-1].scene.id
    run = a_rated_run(
        tmp_path / "run", plays, score=lambda c, m: 1 if c.scene.id == last else by_name(c, m)
    )
    html = render_plays(report(run))
    assert html.count(">Read the script</a>") == WORST
    assert f'id="play-{SCRIPTS + 5}"' in html


def test_a_very_long_text_is_folded_and_cut_with_a_pointer_to_the_file(tmp_path: Path) -> None:
    run = play_run(tmp_path / "run", [an_eventful_play("long " * 8_000)])
    html = render_plays(report(run))
    page = Page(html)
    assert "Show all 40,000 characters" in page.text
    assert (
        f"Cut after {ANSWER_CHARS:,} characters; {run}/plays.jsonl has the whole text." in page.text
    )
    assert len(html) < 400_000


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_model_or_a_scene_becomes_markup(tmp_path: Path, text: str) -> None:
    name = text.encode("utf-8", "replace").decode()  # no record takes half a character for a name
    play = an_eventful_play(
        text, names=(f"1{name}", f"2{name}", f"3{name}"), player=f"p{text}", teller=f"n{text}"
    )
    scene = play.scene.model_copy(update={"id": f"i{name}", "title": text, "source": text})
    play = play.model_copy(update={"scene": scene})
    run = play_run(
        tmp_path / "run", [play], status="stopped", notes=(text,), created=text,
        versions={text: text},
    )  # fmt: skip
    rate(
        run, [play], f"j{text}", lambda _c, m: 1 if m != "IM" else None, critique=text, reason=text
    )
    rate(run, [play], f"k{text}", lambda _c, _m: 2, critique=text, reason=text)
    rate(run, [play], f"j{text}", lambda _c, _m: 2, kind="narrator", critique=text, reason=text)
    audit(tmp_path / "audit", f"j{text}", verdict="failed")
    html = render_plays(report(run, title=text))
    page = Page(html)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "iframe", "object", "link", "base", "form"}
    assert sum(tag == "style" for tag, _ in page.tags) == 1
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert all((a.get("href") or "#").startswith("#") for _, a in page.tags)
    for never in ("\u202e", "\x00", "\x1b"):
        assert never not in html
    html.encode("utf-8")
    if text.isascii() and text.isprintable():
        assert page.text.count(" ".join(text.split())) > 40


def test_the_page_loads_nothing_and_runs_nothing(tmp_path: Path) -> None:
    html = a_full_page(tmp_path)
    assert not re.search(r"(?i)https?:|url\(|@import|javascript:", html)
    for tag, attrs in Page(html).tags:
        assert tag not in {"script", "link", "img", "iframe"}
        assert "src" not in attrs
        assert "style" not in attrs


def test_tables_have_headers_and_pictures_have_words(tmp_path: Path) -> None:
    page = Page(a_full_page(tmp_path))
    heads = [attrs for tag, attrs in page.tags if tag == "th"]
    assert heads
    assert all(attrs.get("scope") in {"col", "row", "rowgroup"} for attrs in heads)
    pictures = [attrs for tag, attrs in page.tags if tag == "svg" and attrs.get("role") == "img"]
    assert pictures
    assert all(attrs["aria-label"] for attrs in pictures)


def test_the_page_is_written_whole(tmp_path: Path) -> None:
    data = report(a_rated_run(tmp_path / "run"))
    path = tmp_path / "deep" / "report.html"
    write_plays_html(data, path)
    assert path.read_text("utf-8") == render_plays(data)
