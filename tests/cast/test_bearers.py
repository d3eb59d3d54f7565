"""Whom a given name means: one, nobody, or several and so none for certain."""

from __future__ import annotations

import pytest

from personae.cast.bearers import Bearers, bare_name, parts
from personae.records.cast import CastCharacter

CAST = Bearers(
    [
        CastCharacter(name="Ada Byron", aliases=("The Countess", "Ada")),
        CastCharacter(name="Ada", aliases=("the  countess",)),
        CastCharacter(name="武松", aliases=("Wu Song",)),
    ]
)


@pytest.mark.parametrize(
    ("name", "of", "spelt", "by_part"),
    [
        ("Ada", ("Ada",), ("Ada",), ("Ada",)),
        ("ada", ("Ada Byron", "Ada"), ("Ada Byron", "Ada"), ("Ada Byron", "Ada")),
        ("ＡＤＡ  byron", ("Ada Byron",), ("Ada Byron",), ("Ada Byron",)),
        ("The Countess", ("Ada Byron", "Ada"), ("Ada Byron", "Ada"), ("Ada Byron", "Ada")),
        ("Ada_Byron", (), ("Ada Byron",), ("Ada Byron",)),
        ("wu-song", (), ("武松",), ("武松",)),
        ("Byron", (), (), ("Ada Byron",)),
        ("Song", (), (), ("武松",)),
        ("松", (), (), ()),
        ("", (), (), ()),
    ],
)
def test_a_name_means_whom_it_names_and_less_exactly_only_where_nobody_has_it(
    name: str, of: tuple[str, ...], spelt: tuple[str, ...], by_part: tuple[str, ...]
) -> None:
    assert (CAST.of(name), CAST.spelt(name), CAST.by_part(name)) == (of, spelt, by_part)


def test_a_name_without_letters_is_not_the_same_as_every_other_such_name() -> None:
    assert bare_name("!!!") != bare_name("???")


def test_the_parts_of_a_name_are_its_runs_of_whole_words() -> None:
    assert list(parts("Mr J Holmes")) == ["mr", "mr j", "mr j holmes", "j holmes", "holmes"]
