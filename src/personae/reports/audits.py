"""What audits found, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from personae.records import Audit


def _number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def print_audits(audits: Sequence[Audit], console: Console) -> None:
    """One table a judge, its verdict, the reasons, and the thresholds."""
    for audit in audits:
        table = Table(title=f"{audit.judge}: {audit.verdict}", title_justify="left")
        for name in ("group", "AUC", "95 % interval", "pairs", "missing", "passed"):
            table.add_column(name)
        for group in audit.groups:
            table.add_row(
                group.name,
                _number(group.auc),
                f"{_number(group.low)} to {_number(group.high)}",
                str(group.n),
                f"{group.missing:.1%}",
                {True: "yes", False: "no", None: "not asked"}[group.passed],
            )
        console.print(table)
        for reason in audit.reasons:
            console.print(f"  {reason}", markup=False)
        console.print(
            f"  order to give the highest score: {_number(audit.order_shift, '+.2f')} points; "
            f"length: {_number(audit.length_slope, '+.2f')} points a doubling; "
            f"variance of repeats: {_number(audit.repeat_variance)}; "
            f"examples in swapped order: {_number(audit.swap_shift, '+.2f')}; "
            f"missing {audit.missing:.1%}"
        )
        limits = ", ".join(f"{k} {v:g}" for k, v in audit.thresholds.items())
        console.print(f"  thresholds: {limits}\n")
