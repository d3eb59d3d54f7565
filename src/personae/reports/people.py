"""How far judges and people agree, for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from personae.judging.people import (
    Correlation,
    Dispute,
    HumanAgreement,
    MetricAgreement,
    TrajectoryDispute,
)
from personae.records import Estimate


def _cell(found: Correlation | Estimate) -> str:
    value = found.mean if isinstance(found, Estimate) else found.value
    if value is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{value:.2f} (no interval)"
    return f"{value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _system(line: MetricAgreement) -> str:
    if line.model is None:
        return "all"
    return line.model if line.method is None else f"{line.model} by {line.method}, {line.mode}"


def print_agreement(found: HumanAgreement, console: Console) -> None:
    """Correlations per metric, means and orders of systems, raters, disputes.

    PersonaGym, Table 2; CharacterBox, Table 3; Neeko, Table 3.
    """
    table = Table(
        "metric", "model", "measure", "rated", "Spearman", "Kendall tau", "Pearson",
        title=f"Judges and people, 95 % intervals over {found.over}",
    )  # fmt: skip
    for line in found.metrics:
        table.add_row(
            line.metric,
            _system(line),
            line.measure,
            f"{line.units}" + (f" ({line.unscored} unscored)" if line.unscored else ""),
            _cell(line.spearman),
            _cell(line.kendall),
            _cell(line.pearson),
        )
    console.print(table)
    _print_systems(found, console)
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


def _print_systems(found: HumanAgreement, console: Console) -> None:
    """Both sides' means over the same interviews, and the orders that they make."""
    if not found.systems:
        return
    table = Table(
        "metric", "model", "method", "mode", "interviews", "people", "judges",
        title=f"Means of people and of judges, 95 % intervals over {found.over}",
    )  # fmt: skip
    for line in found.systems:
        table.add_row(
            line.metric,
            line.model,
            line.method,
            line.mode,
            str(line.interviews),
            _cell(line.people),
            _cell(line.judges),
        )
    console.print(table)
    for order in found.orders:
        tau = "-" if order.kendall is None else f"{order.kendall:.2f}"
        console.print(
            f"Order by {order.metric} ({order.mode}), Kendall tau {tau}:\n"
            f"  people: {' > '.join(order.by_people)}\n"
            f"  judges: {' > '.join(order.by_judges)}",
            markup=False,
        )


def _disputed(dispute: Dispute | TrajectoryDispute) -> tuple[str, float | None, str]:
    """What is disputed, the judges' score, and the beginning of the text."""
    if isinstance(dispute, TrajectoryDispute):
        return f"{dispute.unit_id}, {dispute.metric}", dispute.score, ""
    answer = dispute.answer
    return answer.unit_id, answer.score, " ".join((answer.answer or "").split())[:160]
