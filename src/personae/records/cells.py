"""CSV files for spreadsheets: no text in them is computed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

# What makes a spreadsheet compute a cell instead of showing it (OWASP, "CSV Injection"), behind
# any apostrophes, so that `plain_cell` can tell ours from one that stood there before.
_FORMULA = re.compile(r"'*(?:[\t\r\n]|\s*[=+\-@＝＋－＠])")


def safe_cell(value: object) -> object:
    """A cell that no spreadsheet takes for a formula; `plain_cell` undoes it.

    Numbers stay numbers, None is an empty cell, a text that starts like a formula gets an
    apostrophe before it.
    """
    if not isinstance(value, str):
        return "" if value is None else value
    return f"'{value}" if _FORMULA.match(value) else value


def plain_cell(cell: str) -> str:
    """The text of a cell written by `safe_cell`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def csv_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows under a head as CSV (RFC 4180), every cell a `safe_cell`."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    for row in (head, *rows):
        writer.writerow([safe_cell(cell) for cell in row])
    return file.getvalue()
