"""How far judges and people agree, for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from personae.judging.people import Correlation, Dispute, HumanAgreement, TrajectoryDispute


def _cell(found: Correlation) -> str:
    if found.value is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{found.value:.2f} (no interval)"
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def print_agreement(found: HumanAgreement, console: Console) -> None:
    """Correlations per metric (PersonaGym, Table 2; CharacterBox, Table 3), raters, disputes."""
    table = Table(
        "metric", "model", "measure", "rated", "Spearman", "Kendall tau", "Pearson",
        title=f"Judges and people, 95 % intervals over {found.over}",
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
        what, score, text = _disputed(dispute)
        console.print(
            f"  {what}: judges {'none' if score is None else f'{score:.2f}'}, "
            f"people {dispute.human_score:.2f} ({dispute.difference:+.1f} standard deviations)"
            + (f"\n    {text}" if text else ""),
            markup=False,
        )


def _disputed(dispute: Dispute | TrajectoryDispute) -> tuple[str, float | None, str]:
    """What is disputed, the judges' score, and the beginning of the text."""
    if isinstance(dispute, TrajectoryDispute):
        return f"{dispute.unit_id}, {dispute.metric}", dispute.score, ""
    answer = dispute.answer
    return answer.unit_id, answer.score, " ".join((answer.answer or "").split())[:160]
