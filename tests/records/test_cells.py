"""No cell of a CSV file is computed, and every text comes back."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.records.cells import csv_text, plain_cell, safe_cell

FORMULAS = [
    "=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\nx", "  =cmd", "\u00a0=1", "\u3000=1",
    "＝1", "＋1", "－1", "＠a",
]  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_that_would_be_computed_gets_an_apostrophe(text: str) -> None:
    assert safe_cell(text) == f"'{text}"


@pytest.mark.parametrize(
    "value", ["", "a=1", "'quoted'", "'tis so", "1-2", "3 - 2", "– dash", "面包师", -0.5, 3, True]
)
def test_any_other_value_stays_as_it_is(value: object) -> None:
    assert safe_cell(value) == value


def test_what_is_unknown_is_an_empty_cell() -> None:
    assert csv_text(["a", "b"], [[None, 0]]) == "a,b\r\n,0\r\n"


@given(st.text(alphabet=st.sampled_from("'=+-@＝\t\r\n ab"), max_size=8) | st.text())
def test_every_cell_comes_back(text: str) -> None:
    assert plain_cell(str(safe_cell(text))) == text


def test_heads_are_cells_too() -> None:
    read = list(csv.reader(io.StringIO(csv_text(["=model"], [["=answer"]]), newline="")))
    assert read == [["'=model"], ["'=answer"]]
