"""Two models on the same characters of the same scenes: their difference, scene by scene.

A scene is one drawing of the lot for both models, so its difficulty falls out of the difference,
which two means side by side do not give. Only a character that both played in the very same scene
counts: in a scene, the mean over such characters of their differences; then the mean over scenes,
whose interval resamples scenes (the clustering of `personae.judging.trajectory_scores`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations

from personae.judging.statistics import cluster_bootstrap
from personae.judging.trajectory_scores import AVERAGE, Ratings, Unit
from personae.records import Estimate, Language, Record


class SceneDifference(Record):
    """The mean score of `model` minus that of `other` on the same characters of the same scenes.

    Attributes:
        metric: of the seven, or `average`.
        estimate: in points; `n` counts the scenes that enter, `missing` is the share of the
            characters that both played of which one model or both have no score.
        judged_apart: characters that both played and that are left out, because not the same
            judges were asked about both.
    """

    model: str
    other: str
    lang: Language
    metric: str
    estimate: Estimate
    judged_apart: int = 0


Seat = tuple[str, str]
"""What two trajectories must share to be compared: the scene (by content) and the character."""


def scene_differences(
    ratings: Ratings, seats: Mapping[str, Seat], *, seed: int = 0
) -> list[SceneDifference]:
    """The differences of every two models of a language that played the same characters.

    Scenes with a single character are left out, as from the scores.

    Args:
        ratings: of characters.
        seats: by unit id.
        seed: of the bootstrap.

    Raises:
        KeyError: a unit has no seat.
    """
    played: dict[tuple[Language, str], dict[Seat, Unit]] = defaultdict(dict)
    for unit in ratings.units:
        if not unit.alone:
            played[unit.lang, unit.model][seats[unit.unit_id]] = unit
    values = {metric: ratings.of_panel(metric) for metric in (AVERAGE, *ratings.keys)}
    found = []
    for (lang, model), (other_lang, other) in combinations(sorted(played), 2):
        if lang != other_lang:
            continue
        mine, theirs = played[lang, model], played[lang, other]
        common = [(seat, mine[seat], theirs[seat]) for seat in sorted(mine.keys() & theirs.keys())]
        pairs = [p for p in common if ratings.asked[p[1]] == ratings.asked[p[2]]]
        if not common:
            continue
        for metric, given in values.items():
            scored = [(seat, a, b) for seat, a, b in pairs if a in given and b in given]
            interval = cluster_bootstrap(
                [given[a] - given[b] for _, a, b in scored],
                [scene for (scene, _), _, _ in scored],
                seed=seed,
            )
            found.append(
                SceneDifference(
                    model=model,
                    other=other,
                    lang=lang,
                    metric=metric,
                    estimate=Estimate(
                        mean=interval.value,
                        low=interval.low,
                        high=interval.high,
                        n=len({scene for (scene, _), _, _ in scored}),
                        missing=1 - len(scored) / len(pairs) if pairs else 0,
                    ),
                    judged_apart=len(common) - len(pairs),
                )
            )
    return found
