"""From scored lines to a cast's scores: means, differences, and the intervals of both.

Means are over dialogues: first over what is said in one (by several characters, at several
switches), then over dialogues. Intervals resample dialogues, and seeds where a method was trained
with several (`judging.statistics.crossed_bootstrap`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, get_args

from personae.errors import InputError
from personae.judging.statistics import crossed_bootstrap
from personae.records.cast_scores import (
    DialogueScore,
    LiftScore,
    Measure,
    MethodDifference,
    MethodName,
    MethodScores,
    MetricName,
    SwitchScore,
    Why,
)
from personae.records.files import read_jsonl, write_atomically

Line: TypeAlias = DialogueScore | SwitchScore | LiftScore
_Key: TypeAlias = tuple[str, int, str, int]
"""Source, row, character, turn. What comes from one source is one dialogue, whoever saw it."""
_Table: TypeAlias = dict[int | None, dict[_Key, float | None]]

METHODS: tuple[MethodName, ...] = get_args(MethodName)
METRICS: tuple[MetricName, ...] = get_args(MetricName)
SWITCH_METRICS: tuple[MetricName, ...] = ("switch_cost", "switch_leak")
COMPARED: tuple[MetricName, ...] = (
    "nll",
    "margin",
    "identified",
    "switch_cost",
    "switch_leak",
    "lift",
)

TIE = 1e-4
"""Nats a token below which two fits are the same: what the order of a batch may change."""
ENOUGH_SEEDS = 3
ENOUGH_ROWS = 20


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    """Write results.jsonl whole or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    write_atomically(path, (line.to_json() + "\n" for line in lines))


def read_lines(path: Path) -> tuple[Line, ...]:
    """Read results.jsonl of a `personae cast eval`.

    Raises:
        InputError: names the line that is no score.
    """
    kinds: dict[str, type[Line]] = {
        "dialogue": DialogueScore,
        "switch": SwitchScore,
        "lift": LiftScore,
    }
    found: list[Line] = []
    for number, value in read_jsonl(path):
        kind: Any = value.get("kind")
        if kind not in kinds:
            raise InputError(
                "not the score of a dialogue, of a switch or of an answer",
                path=path,
                place=f"line {number}",
                mend="Give the run of a `personae cast eval`",
            )
        found.append(kinds[kind].from_dict(value, path=path, place=f"line {number}"))
    return tuple(found)


def margin(line: DialogueScore) -> float | None:
    """By how many nats a token others' blocks fit it worse, in their mean; None: nobody to try."""
    others = [nats for name, nats in (line.fits or {}).items() if name != line.character]
    if line.fits is None or not others or line.tokens is None:
        return None
    return (sum(others) / len(others) - line.fits[line.character]) / line.tokens


def identified(line: DialogueScore) -> float | None:
    """1 where the character's own blocks fit it best, else 0 (a tie is 0); None: nobody to try."""
    others = [nats for name, nats in (line.fits or {}).items() if name != line.character]
    if line.fits is None or not others or line.tokens is None:
        return None
    return float(line.fits[line.character] < min(others) - TIE * line.tokens)


def _nll(line: DialogueScore) -> float | None:
    return None if line.nll is None or line.tokens is None else line.nll / line.tokens


def _cost(line: SwitchScore) -> float | None:
    if line.nll is None or line.nll_without is None or line.tokens is None:
        return None
    return (line.nll - line.nll_without) / line.tokens


def _leak(line: SwitchScore) -> float | None:
    if line.nll is None or line.nll_previous is None or line.tokens is None:
        return None
    return float(line.nll_previous <= line.nll + TIE * line.tokens)


_OF_DIALOGUES: Mapping[MetricName, Callable[[DialogueScore], float | None]] = {
    "nll": _nll,
    "margin": margin,
    "identified": identified,
    "identified_unnamed": identified,
}
_OF_SWITCHES: Mapping[MetricName, Callable[[SwitchScore], float | None]] = {
    "switch_cost": _cost,
    "switch_leak": _leak,
}


def method_scores(
    lines: Sequence[Line],
    names: Sequence[str],
    *,
    parameters: Mapping[MethodName, tuple[int, int] | None] | None = None,
    seed: int = 0,
) -> tuple[MethodScores, ...]:
    """The scores of all methods, in the order of `MethodName`.

    Args:
        lines: of all methods and seeds.
        names: the characters of the cast.
        parameters: of each method, trained ones in all and those that work for one character.
        seed: of the resampling.
    """
    made = []
    for method in METHODS:
        own = [line for line in lines if line.method == method]
        if not own:
            continue
        by_name = {name: [line for line in own if line.character == name] for name in names}
        known = (parameters or {}).get(method)
        made.append(
            MethodScores(
                method=method,
                seeds=tuple(sorted({line.seed for line in own if line.seed is not None})),
                parameters=None if known is None else known[0],
                active=None if known is None else known[1],
                measures={m: measure(own, m, names, seed=seed) for m in METRICS},
                characters={
                    name: {m: measure(some, m, names, seed=seed) for m in METRICS}
                    for name, some in by_name.items()
                },
            )
        )
    return tuple(made)


def measure(
    lines: Sequence[Line], metric: MetricName, names: Sequence[str], *, seed: int = 0
) -> Measure:
    """One metric over lines of one method."""
    table = _table(lines, metric)
    reason = _why_not(lines, metric, names, table)
    if reason in {"cannot_tell", "one_character", "not_run", "no_units"}:
        return Measure(reason=reason)
    return _mean(table, reason, seed)


def differences(lines: Sequence[Line], *, seed: int = 0) -> tuple[MethodDifference, ...]:
    """The cast (where it was trained again: those casts) minus every other method, paired.

    A method that nothing was trained for, and the cast as given, count as the same under all seeds.
    """
    methods = [m for m in METHODS if any(line.method == m for line in lines)]
    ours: MethodName = "retrained" if "retrained" in methods else "cast"
    made = []
    for other in methods:
        if other in {"cast", "retrained"}:
            continue
        for metric in COMPARED:
            table = _paired(
                _table([line for line in lines if line.method == ours], metric),
                _table([line for line in lines if line.method == other], metric),
            )
            if not any(v is not None for row in table.values() for v in row.values()):
                continue
            made.append(
                MethodDifference(
                    method=ours,
                    other=other,
                    metric=metric,
                    seeds=tuple(s for s in table if s is not None),
                    difference=_mean(table, "none_scored", seed),
                )
            )
    return tuple(made)


def _table(lines: Sequence[Line], metric: MetricName) -> _Table:
    """The metric by seed and unit, None where it failed; units that it does not ask are not in."""
    table: _Table = {}
    for line in lines:
        if isinstance(line, DialogueScore):
            value = _OF_DIALOGUES.get(metric)
            if value is None or (metric == "identified_unnamed" and line.named):
                continue
            table.setdefault(line.seed, {})[line.source, line.row, line.character, 0] = value(line)
        elif isinstance(line, LiftScore):
            if metric == "lift":
                key = (line.source, line.row, line.character, 0)
                table.setdefault(line.seed, {})[key] = line.lift
        elif (of_switch := _OF_SWITCHES.get(metric)) is not None:
            key = (line.source, line.row, line.character, line.turn)
            table.setdefault(line.seed, {})[key] = of_switch(line)
    return table


def _why_not(
    lines: Sequence[Line], metric: MetricName, names: Sequence[str], table: _Table
) -> Why | None:
    if metric == "lift" and not any(table.values()):
        return "not_run"
    needs_others = metric in {"margin", "identified", "identified_unnamed", "switch_leak"}
    if needs_others and len(names) < 2:
        return "one_character"
    if not any(table.values()):
        return "no_units"
    if any(value is not None for row in table.values() for value in row.values()):
        return None
    wanted: type[Line] = SwitchScore if metric in SWITCH_METRICS else DialogueScore
    scored = any(isinstance(line, wanted) and line.failure is None for line in lines)
    return "cannot_tell" if needs_others and scored else "none_scored"


def _paired(first: _Table, second: _Table) -> _Table:
    """First minus second under the seeds that both have; None where either is missing."""
    constant = {None}
    if set(first) == constant:
        seeds: list[int | None] = sorted(second, key=lambda s: -1 if s is None else s)
    elif set(second) == constant:
        seeds = sorted(first, key=lambda s: -1 if s is None else s)
    else:
        seeds = sorted(set(first) & set(second), key=lambda s: -1 if s is None else s)
    made: _Table = {}
    for seed in seeds:
        a, b = first.get(seed, first.get(None, {})), second.get(seed, second.get(None, {}))
        made[seed] = {}
        for key in a.keys() | b.keys():
            x, y = a.get(key), b.get(key)
            made[seed][key] = None if x is None or y is None else x - y
    return made


def _mean(table: _Table, otherwise: Why | None, seed: int) -> Measure:
    keys = sorted({key for row in table.values() for key in row})
    cells = len(keys) * len(table)
    there = sum(value is not None for row in table.values() for value in row.values())
    whole = [k for k in keys if all(row.get(k) is not None for row in table.values())]
    missing = 1 - there / cells if cells else 0.0
    if not whole:
        return Measure(missing=missing, reason=otherwise or "none_scored")
    values = [[v for k in whole if (v := row[k]) is not None] for row in table.values()]
    found = crossed_bootstrap(values, [k[0] for k in whole], seed=seed)
    return Measure(mean=found.value, low=found.low, high=found.high, n=len(whole), missing=missing)
