"""How far judges and people agree, for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from personae.judging.people import Correlation, HumanAgreement


def _cell(found: Correlation) -> str:
    if found.value is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{found.value:.2f} (no interval)"
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def print_agreement(found: HumanAgreement, console: Console) -> None:
    """Correlations per metric (PersonaGym, Table 2), agreement of the raters, the disputes."""
    table = Table(
        "metric", "model", "measure", "answers", "Spearman", "Kendall tau", "Pearson",
        title="Judges and people, 95 % intervals over personas",
    )  # fmt: skip
    for line in found.metrics:
        table.add_row(
            line.metric,
            line.model or "all",
            line.measure,
            f"{line.units}" + (f" ({line.unscored} unscored)" if line.unscored else ""),
            _cell(line.spearman),
            _cell(line.kendall),
            _cell(line.pearson),
        )
    console.print(table)
    for raters in found.raters:
        alpha = raters.agreement
        told = (
            f"alpha {alpha.alpha:.2f}"
            if alpha is not None and alpha.alpha is not None
            else f"no alpha: {raters.reason}"
        )
        console.print(f"Raters of {raters.metric}: {raters.raters}, {told}", markup=False)
    if found.disputes:
        console.print("\nWhere judges and people differ most:")
    for dispute in found.disputes:
        answer = dispute.answer
        score = "none" if answer.score is None else f"{answer.score:.2f}"
        console.print(
            f"  {answer.unit_id}: judges {score}, people {dispute.human_score:.2f} "
            f"({dispute.difference:+.1f} standard deviations)\n"
            f"    {' '.join((answer.answer or '').split())[:160]}",
            markup=False,
        )
