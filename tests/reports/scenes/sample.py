"""Play runs and their ratings on disk, with scores that can be counted by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from personae.judging.metrics import KEYS, Kind, rating_hash
from personae.judging.trajectories import Case, cases_of
from personae.models.prices import load_prices
from personae.play_stage import PLAYS
from personae.records import (
    Audit,
    AuditGroup,
    Beliefs,
    CharacterState,
    Event,
    Failure,
    Language,
    Manifest,
    Memorised,
    Play,
    RatingRow,
    Scene,
    WorldState,
    content_hash,
)
from personae.reports.ratings import made_from
from personae.reports.scenes import PlaysReport, gather_plays
from personae.session import MANIFEST, RESULTS
from personae.stages import write_results
from tests.judging.plays import a_play, a_scene

Score = Callable[[Case, str], int | None]
"""A judge's score of a case on a metric; None is a reply that was no rating."""

BY_NAME = {"Ada": 4, "Bede": 2, "Cleo": 5, "阿黛": 4, "白德": 2}


def by_name(case: Case, _metric: str) -> int:
    """Ada 4 and Bede 2, one less in generated scenes."""
    assert case.character is not None
    return BY_NAME[case.character.name] - (case.scene.origin == "generated")


def four_scenes(**more: object) -> list[Play]:
    """Two titles with one scene of each origin."""
    return [
        a_play(f"{title}/{origin}/0", **more)  # type: ignore[arg-type]  # passed through
        for title in ("Ferry", "Mill")
        for origin in ("extracted", "generated")
    ]


def play_run(run: Path, plays: Sequence[Play], *, status: str = "done", **more: object) -> Path:
    """A play run as `personae play` leaves it, without its journal."""
    run.mkdir(parents=True)
    manifest = Manifest(
        kind="play",
        arguments={"rounds": max(p.rounds for p in plays), "characters": "x"},
        models={
            "character": tuple(dict.fromkeys(m for p in plays for m in p.models.values())),
            "narrator": tuple(dict.fromkeys(p.narrator for p in plays)),
        },
        protocol=plays[0].protocol,
        language=plays[0].language,
        created="2026-11-20T10:00:00Z",
        status=status,
    ).model_copy(update=more)
    (run / MANIFEST).write_text(manifest.to_json(), "utf-8")
    write_results(plays, run / PLAYS)
    return run


def rate(
    run: Path,
    plays: Sequence[Play],
    judge: str = "test:judge",
    score: Score = by_name,
    *,
    kind: Kind = "characters",
    rubric: str | None = None,
    critique: str = "It holds together.",
    reason: str = "So it reads.",
    judges_repeat: int = 1,
) -> Path:
    """A rating as `personae rate` leaves it, without its journal."""
    language = plays[0].language
    folder = run / "ratings" / content_hash([judge, kind])[:12]
    folder.mkdir(parents=True)
    manifest = Manifest(
        kind="rate",
        arguments={"narrator": kind == "narrator"},
        models={"judge": (judge,) * judges_repeat},
        language=language,
        rubric_hash=rubric or rating_hash(language, plays[0].protocol, kind),
        made_from=made_from(run, plays),
        created="2026-11-20T11:00:00Z",
        status="done",
    )
    (folder / MANIFEST).write_text(manifest.to_json(), "utf-8")
    rows = [
        _row(case, metric, judge, score(case, metric), critique, reason, repeat)
        for case in cases_of(plays, kind)
        for repeat in range(judges_repeat)
        for metric in KEYS[kind]
    ]
    write_results(rows, folder / RESULTS)
    return folder


def _row(
    case: Case,
    metric: str,
    judge: str,
    score: int | None,
    critique: str,
    reason: str,
    repeat: int,
) -> RatingRow:
    return RatingRow(
        unit_id=case.unit_id,
        scene_id=case.scene.id,
        language=case.language,
        origin=case.scene.origin,
        title=case.title,
        character=None if case.character is None else case.character.name,
        model=case.model,
        narrator=case.narrator,
        judge=judge,
        metric=metric,
        score=score,
        failure=None if score is not None else Failure(cause="malformed", detail="no score in it"),
        critique=critique,
        justification=None if score is None else f"{reason} ({metric})",
        alone=len(case.scene.characters) == 1,
        acts_missing=case.acts_missing,
        repeat=repeat,
    )


def a_rated_run(folder: Path, plays: Sequence[Play] | None = None, **more: object) -> Path:
    """Four scenes, rated by one judge: Ada 4, Bede 2, one less in generated scenes."""
    plays = plays or four_scenes()
    run = play_run(folder, plays)
    rate(run, plays, **more)  # type: ignore[arg-type]  # passed through
    return run


def audit(
    folder: Path, judge: str = "test:judge", *, verdict: str = "passed", language: Language = "en"
) -> Path:
    """An audit of a judge of trajectories, as `personae audit` leaves it."""
    folder.mkdir()
    about = Audit(
        judge=judge,
        rubric_hash=rating_hash(language, "personae"),
        language=language,
        verdict="passed" if verdict == "passed" else "failed",
        reasons=() if verdict == "passed" else ("it cannot tell refusals apart",),
        groups=(
            AuditGroup(name="refusal", auc=0.6, low=0.5, high=0.7, n=20, missing=0,
                       passed=verdict == "passed"),
        ),
        order_shift=0.1, length_slope=None, repeat_variance=None, swap_shift=None, missing=0,
        thresholds={"auc_low": 0.8},
    )  # fmt: skip
    (folder / "audits.json").write_text(json.dumps([about.to_dict()]), "utf-8")
    return folder


def report(*runs: Path, **more: object) -> PlaysReport:
    """The report of these runs."""
    return gather_plays(runs, prices=load_prices(), **more)  # type: ignore[arg-type]


def an_eventful_play(
    text: str = "",
    *,
    names: tuple[str, str, str] = ("Ada", "Bede", "Cleo"),
    player: str = "test:player",
    teller: str = "test:teller",
) -> Play:
    """A play with everything that a script can show, in two rounds and two places.

    Args:
        text: stands in every field that a model or a scene file fills; empty gives plain words.
    """

    ada, bede, cleo = names

    def t(plain: str) -> str:
        return text or plain

    scene: Scene = a_scene(
        "Ferry/extracted/0",
        names=names,
        secrets=[(t("The rope is cut").encode("utf-8", "replace").decode(), (ada,))],
    )
    scene = scene.model_copy(
        update={
            "event": t("The ferry leaves"),
            "environment": scene.environment.model_copy(
                update={"time": t("Night"), "location": t("A pier"), "description": t("Fog.")}
            ),
            "characters": tuple(
                c.model_copy(update={"description": t(f"{c.name}, known."), "goal": t("to cross")})
                for c in scene.characters
            ),
        }
    )

    def state(of_cleo: str = "quay", **changed: str) -> WorldState:
        return WorldState(
            environment=scene.environment,
            places={"pier": changed.get("surroundings", t("A lamp."))},
            characters={
                ada: CharacterState(
                    place="pier", position=changed.get("ada", t("at the rail")), state=t("tired")
                ),
                bede: CharacterState(place="pier", position=t("by the lamp"), state=t("calm")),
                cleo: CharacterState(place=of_cleo, position=t("on a crate"), state=t("awake")),
            },
        )

    def event(number: int, turn: int, kind: str, **fields: object) -> Event:
        return Event.model_validate({"round": number, "turn": turn, "kind": kind, **fields})

    both, recalled = (ada, bede), (
        Memorised(
            text=t("The bell rang twice"), round=1, kind="observation", score=0.8, relevance=0.9,
            recency=0.7, importance=0.5,
        ),
    )  # fmt: skip
    everyone = (*both, cleo)
    events = (
        event(0, -1, "opening", text=scene.event, perceived_by=everyone, state=state()),
        event(1, 0, "action", actor=ada, text=t("draws the bolt"), perceived_by=both,
              recalled=recalled, model=player),
        event(1, 0, "speech", actor=ada, text=t("Come, Bede."), to=(bede,), perceived_by=both,
              recalled=recalled, model=player),
        event(1, 0, "influence", text=t("Bede feels the draught"), to=(bede,), affected=bede,
              perceived_by=(bede,), model=teller),
        event(1, 0, "reaction", actor=bede, text=t("nods"), perceived_by=both, model=player),
        event(1, 0, "result", text=t("The gate stands open"), perceived_by=both, model=teller),
        event(1, 0, "update", state=state(ada=t("at the gate")), model=teller),
        event(1, 1, "speech", actor=bede, text=t("The rope is bad."), manner="whisper",
              to=(ada,), perceived_by=both, model="test:other"),
        event(1, 2, "failure", actor=cleo, text="act", model=player,
              failure=Failure(cause="timeout", detail=t("no reply in 120 s"))),
        event(1, -1, "update", actor=cleo, text="pier", perceived_by=everyone,
              state=state("pier", ada=t("at the gate"))),
        event(1, -1, "belief", actor=ada, perceived_by=(ada,), recalled=recalled, model=player,
              beliefs=Beliefs(belief=t("Bede knows"), desire=t("to cross"))),
        event(2, 0, "action", actor=ada, text=t("waves a hand"), perceived_by=(ada, cleo),
              model=player),
        event(2, 0, "failure", text="influence", model=teller,
              failure=Failure(cause="refused", detail=t("'Dov' cannot be changed here"))),
        event(2, 1, "action", actor=bede, text=t("steps back"), perceived_by=everyone,
              model=player),
        event(2, -1, "concluded", model=teller),
    )  # fmt: skip
    return Play(
        scene=scene,
        scene_hash=scene.hash,
        language="en",
        protocol="personae",
        narrator=teller,
        models=dict.fromkeys(everyone, player),
        rounds=2,
        concluded=True,
        events=events,
    )
