"""The tables of the experiment, in Markdown, from its results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import quality_plan as plans
from quality_plan import METHODS, Found, Protocol
from quality_statistics import Held, Interval, closed, difference, one_role

Done = Mapping[str, Mapping[str, Any]]

CONDITIONS = (
    "base",
    "base, profile",
    "shared alone",
    "profile",
    "equation 7",
    "fusion",
    "fusion, tuned",
    "expansion",
    "isolated, equation 7",
    "isolated, fusion",
)
"""What speaks as a role that was left out, in the order of the table."""
FUSIONS = ("shared alone", "profile", "equation 7", "fusion", "fusion, tuned",
           "isolated, equation 7", "isolated, fusion")  # fmt: skip


def tables(done: Done) -> str:
    """All that can be told of these results."""
    if not done:
        return "no results yet"
    p = protocol_in(done)
    parts = [_about(done), _tuning(done, p), _main(done, p), _left_out(done, p)]
    return "\n\n".join(part for part in parts if part)


def protocol_in(done: Done) -> Protocol:
    """The protocol that results were run under."""
    given = dict(next(iter(done.values()))["protocol"])
    return Protocol(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})


def held_of(results: Mapping[int, Mapping[str, Any]]) -> Held:
    """A method's scores `{role: [[nats, tokens], ...]}` by seed, as one table."""
    seeds = sorted(results)
    roles = list(results[seeds[0]])
    nats = {r: np.array([[a[0] for a in results[s][r]] for s in seeds]) for r in roles}
    tokens = {r: np.array([a[1] for a in results[seeds[0]][r]], dtype=float) for r in roles}
    return Held(nats, tokens)


def main_held(done: Done, p: Protocol) -> tuple[dict[str, Held], tuple[int, ...]]:
    """Each finished method's held-out scores, on the seeds that all of them have."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for method in METHODS:
        best = plans.search(method, done, p).best
        for result in done.values():
            job = result["job"]
            if (job["part"], job["method"], job["purpose"]) != ("main", method, "final"):
                continue
            if job["settings"] == best:
                found.setdefault(method, {})[job["seed"]] = result["held"]
    seeded = [set(by_seed) for method, by_seed in found.items() if method != plans.BASE]
    seeds = sorted(set.intersection(*seeded)) if seeded else []
    held = {
        method: held_of(by_seed if method == plans.BASE else {s: by_seed[s] for s in seeds})
        for method, by_seed in found.items()
        if method == plans.BASE or seeds
    }
    return held, tuple(seeds)


def left_out_held(done: Done) -> tuple[dict[str, Held], tuple[int, ...], tuple[str, ...]]:
    """Each condition's scores on roles left out: the roles and seeds of which all is there."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for result in done.values():
        job = result["job"]
        if job["part"] == "leave-one-out" and job["purpose"] == "final":
            for condition, scores in result["held"].items():
                found.setdefault(condition, {}).setdefault(job["seed"], {})[job["out"]] = scores
    whole = {role for by_seed in found.values() for of in by_seed.values() for role in of}
    seeds = {
        seed
        for by_seed in found.values()
        for seed in by_seed
        if all(whole <= of.get(seed, {}).keys() for of in found.values())
    }
    roles = sorted(whole)
    held = {
        condition: held_of({s: {r: by_seed[s][r] for r in roles} for s in sorted(seeds)})
        for condition, by_seed in found.items()
        if seeds
    }
    return held, tuple(sorted(seeds)), tuple(roles)


def _about(done: Done) -> str:
    one = next(iter(done.values()))
    seconds = sum(result["seconds"] for result in done.values())
    peak = [r["peak_gib"] for r in done.values() if r.get("peak_gib")]
    devices = sorted({f"{r['device']}, torch {r['torch']}" for r in done.values()})
    lines = [
        f"{len(done)} jobs, {seconds / 60:.1f} minutes of work one after the other; "
        f"{'; '.join(devices)}; base {one['base']}, data {one['data']}",
        "protocol: " + ", ".join(f"{k} {v}" for k, v in one["protocol"].items()),
    ]
    if peak:
        lines.append(f"most device memory of a job: {max(peak):.1f} GiB")
    return "\n".join(lines)


def _tuning(done: Done, p: Protocol) -> str:
    rows = []
    for method in METHODS[1:]:
        found = plans.search(method, done, p)
        if found.best is not None:
            rows.append([method, *_found(found, _development(done, method, found))])
    outs = {r["job"]["out"] for r in done.values() if r["job"]["part"] == "leave-one-out"} - {""}
    new = plans.search_new(sorted(outs), done, p) if outs else Found()
    if new.best is not None:
        rows.append(["expansion", *_found(new, None)])
    if not rows:
        return ""
    head = ["method", "trainings", "chosen on development dialogues", "their loss"]
    return "## What was tuned\n\n" + _table(head, rows)


def _found(found: Found, loss: float | None) -> list[str]:
    chosen = ", ".join(f"{k} {v:g}" for k, v in (found.best or {}).items())
    return [
        str(found.trials),
        chosen + (" (edge of the grid)" if found.edge else ""),
        "" if loss is None else f"{loss:.4f}",
    ]


def _development(done: Done, method: str, found: Found) -> float | None:
    for result in done.values():
        job = result["job"]
        if (job["method"], job["purpose"]) == (method, "tune") and job["settings"] == found.best:
            return float(result["development"])
    return None


def _main(done: Done, p: Protocol) -> str:
    held, seeds = main_held(done, p)
    if not held:
        return ""
    roles = list(next(iter(held.values())).nats)
    answers = {role: len(next(iter(held.values())).tokens[role]) for role in roles}
    head = ["method", "rank, all / active", *(f"{r} ({answers[r]})" for r in roles), "mean"]
    rows = [
        [
            method,
            _ranks(method, p.rank, len(roles)),
            *(f"{one.of(role):.4f}" for role in roles),
            f"**{one.mean():.4f}**" + _spread(one),
        ]
        for method, one in held.items()
    ]
    parts = [
        f"## Held-out answers, nats a token (seeds {', '.join(map(str, seeds)) or 'none'}; "
        "in brackets the answers of a role, and the seeds' standard deviation)",
        _table(head, rows),
    ]
    if plans.OWN in held and seeds:
        ours = held[plans.OWN]
        rows = []
        for method, other in held.items():
            if method == plans.OWN:
                continue
            wide, narrow = difference(ours, other), difference(ours, other, "answers")
            better = sum(one_role(ours, r).mean() < one_role(other, r).mean() for r in roles)
            rows.append(
                [method, _bold(wide), str(narrow), f"{better} of {len(roles)}"]
            )  # fmt: skip
        parts += [
            "Shared + own is better by so many nats a token (95 %; bold where 0 is outside):",
            _table(["than", "over roles, answers and seeds", "over answers alone", "roles"], rows),
        ]
    return "\n\n".join(parts)


def _left_out(done: Done, p: Protocol) -> str:
    held, seeds, roles = left_out_held(done)
    if not held:
        return ""
    there = [one for one in CONDITIONS if one in held]
    rows = [
        [
            condition,
            *(f"{held[condition].of(role):.4f}" for role in roles),
            f"**{held[condition].mean():.4f}**" + _spread(held[condition]),
        ]
        for condition in there
    ]
    parts = [
        f"## Roles left out, nats a token (seeds {', '.join(map(str, seeds))})",
        _table(["what speaks", *roles, "mean"], rows),
    ]
    if {"base", "expansion"} <= held.keys():
        base, goal = held["base"], held["expansion"]
        rows = []
        for condition in [one for one in FUSIONS if one in held]:
            gain = difference(held[condition], base)
            wide = closed(base, held[condition], goal)
            narrow = closed(base, held[condition], goal, "answers")
            rows.append([condition, _bold(gain), _share(wide), _share(narrow)])
        parts += [
            "How far from the base to expansion (95 %):",
            _table(
                ["", "better than base by", "of the way, over roles, answers, seeds",
                 "over answers alone"],
                rows,
            ),
        ]  # fmt: skip
        pairs = [(a, b) for a, b in (
            ("fusion", "shared alone"), ("fusion", "equation 7"), ("fusion", "profile"),
            ("fusion, tuned", "fusion"), ("expansion", "fusion, tuned"), ("expansion", "profile"),
            ("isolated, fusion", "isolated, equation 7"),
        ) if {a, b} <= held.keys()]  # fmt: skip
        rows = [
            [f"{a} than {b}", _bold(difference(held[a], held[b])),
             str(difference(held[a], held[b], "answers"))]
            for a, b in pairs
        ]  # fmt: skip
        parts += [
            "Better by so many nats a token:",
            _table(["", "over roles, answers and seeds", "over answers alone"], rows),
        ]
    finals = [
        r
        for r in done.values()
        if (r["job"]["method"], r["job"]["purpose"]) == (plans.NEW, "final")
    ]
    if finals:
        same = sum(bool(r["old_unchanged"]) for r in finals)
        errors = [r["eq7_error"] for r in finals]
        parts.append(
            f"After expansion the others' likelihoods were the same to the last digit in {same} of "
            f"{len(finals)} casts. Equation 7's update was off the weighted sum by "
            f"{np.mean(errors):.2f} of its norm ({min(errors):.2f} to {max(errors):.2f})."
        )
        rows = [
            [r["job"]["out"], str(r["job"]["seed"]), _mix(r["neighbours"]), _mix(r["tuned"])]
            for r in sorted(finals, key=lambda r: (r["job"]["out"], r["job"]["seed"]))
        ]
        parts.append(_table(["left out", "seed", "router's weights", "tuned"], rows))
    return "\n\n".join(parts)


def _ranks(method: str, rank: int, roles: int) -> str:
    both = {
        plans.BASE: (0, 0),
        plans.SHARED_TOTAL: (rank * (roles + 1),) * 2,
        plans.SHARED_ACTIVE: (2 * rank,) * 2,
        plans.ISOLATED: (rank * roles, rank),
        plans.ISOLATED_ACTIVE: (2 * rank * roles, 2 * rank),
    }.get(method, (rank * (roles + 1), 2 * rank))
    return " / ".join(map(str, both))


def _spread(held: Held) -> str:
    if held.seeds < 2:
        return ""
    tokens = held.tokens
    each = np.mean([held.nats[r].sum(1) / tokens[r].sum() for r in tokens], axis=0)
    return f" ({np.std(each, ddof=1):.4f})"


def _bold(found: Interval) -> str:
    return f"**{found}**" if found.excludes_zero else str(found)


def _share(found: Interval) -> str:
    return f"{found.value:.0%} ({found.low:.0%} to {found.high:.0%})"


def _mix(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {weight:.2f}" for name, weight in weights.items())


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
