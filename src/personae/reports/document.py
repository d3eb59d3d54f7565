"""The JSON document of `personae report --json`."""

from __future__ import annotations

from typing import Any

from personae.records import ModelScores
from personae.reports.data import ReportData


def _model(scores: ModelScores) -> dict[str, Any]:
    return {
        "model": scores.model,
        "persona_score": scores.persona_score.to_dict(),
        "tasks": {name: estimate.to_dict() for name, estimate in scores.tasks.items()},
        "n_answers": scores.n_answers,
        "refusal_rate": scores.refusal_rate,
        "lift": None if scores.lift is None else scores.lift.to_dict(),
        "refusal_by_task": dict(scores.refusal_by_task),
        "lift_tasks": {name: e.to_dict() for name, e in scores.lift_tasks.items()},
        "by_judge": {name: e.to_dict() for name, e in scores.by_judge.items()},
        "expected_score": (
            None if scores.expected_score is None else scores.expected_score.to_dict()
        ),
    }


def report_document(data: ReportData) -> dict[str, Any]:
    """The report as plain JSON values.

    The keys of issue A4 are a contract: `models`, `judges`, `agreement`, `calls`, `cost` and what
    stands in them. More stand beside them.
    """
    agreement = data.agreement
    return {
        "models": [_model(scores) for scores in data.models],
        "judges": [
            {
                "model": judge,
                "audit": data.judge_state(judge),
                "reasons": list(audit.reasons) if (audit := data.audits.get(judge)) else [],
            }
            for judge in data.judges
        ],
        "agreement": None if agreement is None else agreement.to_dict(),
        "agreement_reason": data.agreement_reason or None,
        "calls": data.calls.to_dict(),
        "cost": data.cost.to_dict(),
        "paired": [difference.to_dict() for difference in data.paired],
        "usage": [line.to_dict() for line in data.usage],
        "failures": [failure.to_dict() for failure in data.failures],
        "shortfalls": [shortfall.to_dict() for shortfall in data.shortfalls],
        "wall_seconds": data.wall_seconds,
        "benchmarks": [benchmark.hash for benchmark in data.benchmarks],
        "runs": list(data.runs),
        "protocol": sorted({manifest.protocol for manifest in data.manifests}),
        "notes": list(data.notes),
    }
