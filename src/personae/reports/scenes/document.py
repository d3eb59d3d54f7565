"""The JSON document of `personae report --json` over play runs."""

from __future__ import annotations

from typing import Any

from personae.judging.trajectory_scores import AVERAGE, JudgeAgreement
from personae.reports.scenes.data import PlaysReport


def plays_document(data: PlaysReport) -> dict[str, Any]:
    """The report as plain JSON values.

    The keys of issue A4 are there as for interviews; `models` and what goes with it is empty, since
    PersonaScore is of interviews. `scenes.models` is the contract of issue B5; what else stands
    under `scenes` is said at `personae.reports.ratings.scenes_document`, and `differences`, which
    is a list of `personae.judging.trajectory_pairs.SceneDifference`.

    `agreement` is that of the judges on a trajectory's average.
    """
    agreed = next(
        (
            one
            for one in map(JudgeAgreement.from_dict, data.scenes["agreement"])
            if one.metric == AVERAGE
        ),
        None,
    )
    agreement = None if agreed is None else agreed.agreement
    return {
        "models": [],
        "judges": [
            {
                "model": judge.model,
                "audit": judge.state,
                "reasons": list(judge.audit.reasons) if judge.audit else [],
                "kind": judge.kind,
                "lang": judge.lang,
            }
            for judge in data.judges
        ],
        "agreement": None if agreement is None else agreement.to_dict(),
        "agreement_reason": None if agreed is None else agreed.reason,
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
        "scenes": data.scenes,
    }
