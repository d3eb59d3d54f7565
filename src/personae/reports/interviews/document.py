"""The JSON document of `personae report --json` over runs of interviews."""

from __future__ import annotations

from typing import Any

from personae.reports.interviews.data import InterviewsReport


def interviews_report(data: InterviewsReport) -> dict[str, Any]:
    """The report as plain JSON values.

    The keys of issue A4 are there as for single answers; `models` and what goes with it is empty,
    since PersonaScore is not of these interviews. `interviews.models` is the contract of issue D4;
    what else stands under `interviews` is said at
    `personae.judging.interview_scores.interviews_document`, and beside it:

    - `left_out`: the interviews that cannot be scored, by model, method, mode, lang and cause;
    - `unscored`: the verdicts that are missing though there was something to judge.
    """
    return {
        "models": [],
        "judges": [
            {
                "model": judge.model,
                "audit": judge.state,
                "reasons": list(judge.audit.reasons) if judge.audit else [],
                "lang": judge.lang,
            }
            for judge in data.judges
        ],
        "agreement": None if data.agreement is None else data.agreement.to_dict(),
        "agreement_reason": data.agreement_reason,
        "calls": data.calls.to_dict(),
        "cost": data.cost.to_dict(),
        "paired": [],
        "usage": [line.to_dict() for line in data.usage],
        "failures": [failure.to_dict() for failure in data.failures],
        "shortfalls": [],
        "wall_seconds": data.wall_seconds,
        "benchmarks": [],
        "runs": [str(one.run) for one in data.runs],
        "protocol": sorted({manifest.protocol for manifest in data.manifests}),
        "notes": list(data.notes),
        "interviews": {
            **data.interviews,
            "left_out": [
                {
                    **one.voice.to_dict(),
                    "cause": one.cause,
                    "interviews": one.interviews,
                    "of": one.of,
                    "places": list(one.places),
                }
                for one in data.left_out
            ],
            "unscored": [
                {
                    "judge": one.judge,
                    "metric": one.metric,
                    "cause": one.cause,
                    "count": one.count,
                    "of": one.of,
                }
                for one in data.unscored
            ],
        },
    }
