"""A cast's scores on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from personae.reports.cast import print_scores

from .sample import scores


def printed(**more: object) -> str:
    out = io.StringIO()
    print_scores(scores(**more), Console(file=out, width=160))  # type: ignore[arg-type]  # passed on
    return out.getvalue()


def test_methods_stand_with_their_measures_and_unknown_is_no_zero() -> None:
    text = " ".join(printed().split())
    assert "the cast 3.000 +0.267 66.7% 100.0% +0.200 0.0%" in text
    assert "the base alone 3.500 – – – +0.800 –" in text


def test_differences_and_notes_follow() -> None:
    text = " ".join(printed().split())
    assert "the cast − the base alone nats/token −0.500 [−0.500, −0.500] the cast is better" in text
    assert "Fewer than 20 held-out dialogues" in text
    assert "Not in the cast, so not scored: Zoe (2)" in text


def test_a_base_s_name_is_no_markup() -> None:
    assert "[red]" not in printed(notes=("[red]hot",)).replace("[red]hot", "")
    assert "[red]hot" in printed(notes=("[red]hot",))


def test_a_method_of_which_units_are_missing_says_how_many() -> None:
    text = " ".join(printed().split())
    assert "the cast: 25.0% of the units could not be scored; the page says why" in text


def test_lift_that_failed_is_said_apart_from_the_likelihoods() -> None:
    whole = scores()
    of_cast, *others = whole.methods
    failed = of_cast.measures["lift"].model_copy(update={"missing": 0.5})
    of_cast = of_cast.model_copy(update={"measures": {**of_cast.measures, "lift": failed}})
    text = " ".join(printed(methods=(of_cast, *others)).split())
    assert "the cast, lift: 50.0% of the units could not be scored" in text
