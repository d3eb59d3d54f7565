"""Writes the JSON Schemas in docs/formats, from the records where there is one.

    .venv/bin/python tools/make_formats.py

tests/test_formats.py fails where a schema in the folder is not what this writes.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

from personae.cast.history import TrainingStep
from personae.cast.rows import CharacterRows, Refused
from personae.cast.training import Spent
from personae.cast_stage import Outcome
from personae.characters.summary import CardSummary, Conversion, LintReport
from personae.interview.benchmark_file import FORMAT
from personae.interview.export import COLUMNS
from personae.interview.personas import MAX_PERSONA_CHARS
from personae.judging.audit import AuditRow
from personae.judging.interview_audit import InterviewAuditRow
from personae.judging.interview_scores import (
    InterviewCharacterScores,
    InterviewDifference,
    InterviewScores,
    StabilityCurve,
    TemptingScores,
    TopicScores,
    Voice,
)
from personae.judging.people import HumanAgreement
from personae.judging.trajectory_audit import TrajectoryAuditRow
from personae.judging.trajectory_pairs import SceneDifference
from personae.judging.trajectory_scores import (
    CharacterScores,
    Cronbach,
    Gap,
    JudgeAgreement,
    TrajectoryScores,
)
from personae.judging.writers import Comparison
from personae.records import (
    Agreement,
    Audit,
    Benchmark,
    CastRow,
    Interview,
    InterviewProfile,
    InterviewRow,
    InterviewScript,
    Manifest,
    ModelScores,
    PairedDifference,
    Persona,
    Play,
    Question,
    RatingRow,
    Record,
    ResultRow,
    Scene,
    Shortfall,
    Task,
)
from personae.records.cast import BaseModelRef, Block, CastAnswer, CastManifest, Routed
from personae.records.cast_reports import Addition
from personae.records.cast_scores import (
    CastScores,
    DialogueScore,
    KeptMethods,
    LiftScore,
    SwitchScore,
)
from personae.reports.data import CallCounts, Cost, FailureCount, UsageLine
from personae.world.cast import CardInPlay
from personae.world.writing import Attempt, ComparedScene

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "formats"
DRAFT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
TEXT: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
HASH: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
USD: Schema = {"type": ["number", "null"], "minimum": 0, "description": "null is unknown."}
TASK_NAMES = [task.value for task in Task]


def _flat(text: str) -> str:
    """The lines of a docstring as paragraphs."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()))


def _documented(schema: Schema, model: type[Record]) -> Schema:
    """The schema with the record's docstring: its text, and what it says of each attribute."""
    head, _, attributes = (inspect.getdoc(model) or "").partition("\nAttributes:\n")
    schema["description"] = _flat(head)
    said = re.findall(r"^    (\w+(?:, \w+)*): ((?:.|\n {6,})+)", attributes, re.MULTILINE)
    notes = {name: _flat(text) for names, text in said for name in names.split(", ")}
    for name, field in schema.get("properties", {}).items():
        field.pop("title", None)  # pydantic's: the name again, in capitals
        if name in notes:
            field["description"] = notes[name]
    return schema


def _records(*models: type[Record]) -> dict[str, Schema]:
    """The `$defs` of these records and of all that they hold."""
    from pydantic.json_schema import models_json_schema

    _, whole = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/$defs/{model}"
    )
    known: dict[str, type[Record]] = {}
    waiting = [Record]
    while waiting:
        kind = waiting.pop()
        known[kind.__name__] = kind
        waiting += kind.__subclasses__()
    return {
        name: _documented(schema, known[name]) if name in known else schema
        for name, schema in whole["$defs"].items()
    }


def _ref(model: type[Record]) -> Schema:
    return {"$ref": f"#/$defs/{model.__name__}"}


def _nullable(model: type[Record]) -> Schema:
    return {"anyOf": [_ref(model), {"type": "null"}]}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _of(model: type[Record]) -> Schema:
    """A file or line that is this record."""
    defs = _records(model)
    root = defs.pop(model.__name__)
    return {**root, **({"$defs": defs} if defs else {})}


def _object(properties: Schema, *optional: str, closed: bool = True) -> Schema:
    made: Schema = {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }
    return {**made, "additionalProperties": False} if closed else made


def _open(schema: Schema) -> Schema:
    """The same with room for more keys, as the documents of `--json` promise no less."""

    def opened(node: Any) -> Any:
        if isinstance(node, dict):
            return _open(node)
        return [opened(value) for value in node] if isinstance(node, list) else node

    kept = {k: v for k, v in schema.items() if (k, v) != ("additionalProperties", False)}
    return {key: opened(value) for key, value in kept.items()}


def _benchmark() -> Schema:
    defs = _records(Benchmark)
    for name, kind in (("Benchmark", "benchmark"), ("Persona", "persona")):
        _lead(defs[name], "record", {"const": kind})
    _lead(defs["Question"], "record", {"const": "question"})
    header = defs["Benchmark"]
    del header["properties"]["personas"], header["properties"]["questions"]
    header["description"] = "The first line: what the benchmark is, beside its lines."
    _lead(header, "format", {"const": FORMAT})
    header["properties"]["content_hash"] = {
        **HASH,
        "description": "Of language, rubrics, personas and questions; a file whose content does "
        "not match it is refused. Left out: not checked.",
    }
    return {
        "description": "A line is the header (the first), a persona, or a question; personas "
        "stand before questions. Ids are unique, and every question's persona_id is a persona.",
        "oneOf": [_ref(Benchmark), _ref(Persona), _ref(Question)],
        "$defs": defs,
    }


def _lead(schema: Schema, name: str, value: Schema) -> None:
    """A required property more."""
    schema["properties"] = {name: value, **schema["properties"]}
    schema["required"] = [name, *schema.get("required", [])]


def _personas() -> Schema:
    def line(key: str) -> Schema:
        text = {**TEXT, "maxLength": MAX_PERSONA_CHARS, "pattern": r"\S"}
        name = {**TEXT, "description": "Made from the description where it is left out."}
        return _object({key: text, "id": name}, "id", closed=False)

    return {
        "description": "One persona a line; `persona` is accepted for `description`, other keys "
        "are not read. (In a .txt file: one persona a line, and # begins a comment.)",
        "anyOf": [line("description"), line("persona")],
    }


def _questions() -> Schema:
    unknown = {"type": ["string", "null"], "description": "null is unknown."}
    kinds: Schema = dict.fromkeys(COLUMNS, TEXT) | {
        "task": {"enum": TASK_NAMES},
        "environment": unknown,
        **{
            f"exemplar_{score}": {
                "type": ["string", "null"],
                "description": f"An example response of score {score}; null where not written.",
            }
            for score in range(1, 6)
        },
    }
    return {
        "description": "A question a line, as `personae bench show --export FILE.jsonl` writes "
        "it. The .csv has the same columns.",
        **_object({name: kinds[name] for name in COLUMNS}),
    }


def _personagym() -> Schema:
    return {
        "description": "A file of PersonaGym's `questions/benchmark-v1`, as `personae bench import "
        "personagym` reads it. The file's name is the persona; a task stands once.",
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"enum": [*TASK_NAMES, "Toxicity"]},
        "additionalProperties": {**_list({**TEXT, "pattern": r"\S"}), "minItems": 1},
    }


def _environments() -> Schema:
    return {
        "description": "The pool that `personae bench build --environments FILE.json` chooses "
        "from. (In a text file: one name a line.)",
        **_list({**TEXT, "pattern": r"\S"}),
        "minItems": 1,
        "uniqueItems": True,
    }


def _ratings() -> Schema:
    return {
        "description": "A line of the CSV that `personae agree RUN --human FILE` reads, as an "
        "object of its cells, or of a file .jsonl with the same keys. UTF-8; a CSV of at most 64 "
        "MB, whose first line names the four columns.",
        **_object(
            {
                "unit_id": {
                    **TEXT,
                    "description": "The answer or trajectory: `unit_id` of results.jsonl; of "
                    "interviews `interview_id`.",
                },
                "rater": {**TEXT, "description": "Who rated; once an answer and metric."},
                "metric": {
                    **TEXT,
                    "description": "A task by any of its names (that of the answer's question); of "
                    "a trajectory one of the seven metrics, of an interview one of the eight; or "
                    "the raters' own name, such as overall.",
                },
                "score": {
                    "type": ["string", "number"],
                    "pattern": r"^[+-]?[0-9]{1,9}(\.[0-9]{1,9})?$",
                    "description": "A number on the raters' own scale, the same for a metric; in "
                    "JSONL it may stand without quotation marks.",
                },
            }
        ),
    }


def _prices() -> Schema:
    price = _object(
        {
            name: {"type": "number", "minimum": 0}
            for name in ("in", "out", "cached")
        },
        "cached",
        closed=False,
    )  # fmt: skip
    price["properties"]["cached"]["type"] = ["number", "null"]
    price["description"] = "US dollars per million tokens; cached is that of a cached prompt token."
    return {
        "description": "Prices by model id (`--prices FILE`, or PERSONAE_PRICES); they replace "
        "the shipped ones of the same id. A model that no table lists has an unknown price.",
        **_object(
            {
                "models": {"type": "object", "additionalProperties": price},
                "as_of": {"type": "string", "format": "date"},
                "unit": STRING,
                "note": STRING,
            },
            *("as_of", "unit", "note"),
            closed=False,
        ),
    }


def _bench_show() -> Schema:
    return _open(
        {
            "description": "What `personae bench show --json` prints (also after build, exemplify "
            "and import). personas, questions, tasks and exemplars are a contract.",
            **_object(
                {
                    "personas": COUNT,
                    "questions": COUNT,
                    "tasks": {
                        "type": "object",
                        "propertyNames": {"enum": TASK_NAMES},
                        "additionalProperties": {"type": "integer", "minimum": 1},
                        "description": "Questions by task; a task without any is left out.",
                    },
                    "exemplars": {**COUNT, "description": "Questions that have all five."},
                    "language": {"enum": ["en", "zh"]},
                    "hash": HASH,
                    "environments": {
                        "type": ["integer", "null"],
                        "minimum": 1,
                        "description": "Different ones; null where the source does not say.",
                    },
                    "rubrics": {
                        "type": "object",
                        "additionalProperties": {"enum": ["custom", "shipped"]},
                    },
                    "made_by": {"type": "object", "additionalProperties": STRING},
                    "shortfalls": _list(_ref(Shortfall)),
                    "path": STRING,
                },
                "path",
            ),
            "$defs": _records(Shortfall),
        }
    )


def _report() -> Schema:
    judge = _object(
        {
            "model": STRING,
            "audit": {"enum": ["passed", "failed", "none"]},
            "reasons": _list(STRING),
        }
    )
    shown = {
        "models": _list(_ref(ModelScores)),
        "judges": _list(judge),
        "agreement": _nullable(Agreement),
        "agreement_reason": {"type": ["string", "null"]},
        "calls": _ref(CallCounts),
        "cost": _ref(Cost),
        "paired": _list(_ref(PairedDifference)),
        "usage": _list(_ref(UsageLine)),
        "failures": _list(_ref(FailureCount)),
        "shortfalls": _list(_ref(Shortfall)),
        "wall_seconds": {"type": ["number", "null"], "minimum": 0},
        "benchmarks": _list(HASH),
        "runs": _list(STRING),
        "protocol": _list({"enum": ["paper", "personae"]}),
        "notes": _list(STRING),
        "page": {"type": ["string", "null"], "description": "The report that was written."},
        "scenes": _reported_scenes(),
        "interviews": _interviews(),
    }
    records = (ModelScores, Agreement, CallCounts, Cost, PairedDifference, UsageLine)
    of_scenes = (TrajectoryScores, CharacterScores, JudgeAgreement, Cronbach, Gap)
    of_interviews = (
        *(InterviewScores, InterviewCharacterScores, TopicScores, TemptingScores),
        *(StabilityCurve, InterviewDifference),
    )
    defs = _records(*records, FailureCount, Shortfall, *of_scenes, SceneDifference, *of_interviews)
    for name in ("CallCounts", "Cost"):  # the contract: they are always there, known or not
        defs[name]["required"] = list(defs[name]["properties"])
    return _open(
        {
            "description": "What `personae report --json` prints (also after eval, resume and "
            "demo). models, judges, agreement, calls and cost are a contract; so is scenes.models, "
            "which is there of play runs, and interviews.models, which is there of interviews.",
            **_object(shown, "page", "scenes", "interviews"),
            "$defs": defs,
        }
    )


def _interviews() -> Schema:
    """What stands under `interviews` (`personae.reports.interviews.document`)."""
    scores = _list(_ref(InterviewScores))
    voice = _records(Voice)["Voice"]["properties"]
    left_out = {
        **voice,
        "cause": TEXT,
        "interviews": COUNT,
        "of": {**COUNT, "description": "All interviews of that model, method, mode and language."},
        "places": {**_list(STRING), "description": "File and place, or the interview's id."},
    }
    unscored = {
        "judge": TEXT,
        "metric": TEXT,
        "cause": TEXT,
        "count": COUNT,
        "of": {**COUNT, "description": "All verdicts that the judge owed on the metric."},
    }
    return _object(
        {
            "models": scores,
            "characters": _list(_ref(InterviewCharacterScores)),
            "topics": _list(_ref(TopicScores)),
            "tempting": _list(_ref(TemptingScores)),
            "curves": _list(_ref(StabilityCurve)),
            "by_judge": {"type": "object", "additionalProperties": scores},
            "agreement": _list(_ref(JudgeAgreement)),
            "paired": _list(_ref(InterviewDifference)),
            "left_out": {
                **_list(_object(left_out)),
                "description": "Interviews that cannot be scored.",
            },
            "unscored": {
                **_list(_object(unscored)),
                "description": "Verdicts that are missing though there was something to judge.",
            },
        }
    )


def _reported_scenes() -> Schema:
    """As `_scenes`, with what only a report of several models has."""
    scenes, _ = _scenes()
    differences = _list(_ref(SceneDifference))
    return {
        **scenes,
        "properties": {**scenes["properties"], "differences": differences},
        "required": [*scenes["required"], "differences"],
    }


def _scenes() -> tuple[Schema, dict[str, Schema]]:
    """What stands under `scenes` (`personae.reports.ratings.scenes_document`), and its `$defs`."""
    scores = _list(_ref(TrajectoryScores))
    by_judge: Schema = {"type": "object", "additionalProperties": scores}
    judge = _object(
        {
            "model": STRING,
            "kind": {"enum": ["characters", "narrator"]},
            "lang": {"enum": ["en", "zh"]},
            "rubric_hash": HASH,
            "audit": {"enum": ["passed", "failed", "none"]},
            "reasons": _list(STRING),
        }
    )
    spent: Schema = {"type": ["number", "null"], "minimum": 0, "description": "null is unknown."}
    cost = _object(
        {
            "calls": COUNT,
            "usd": spent,
            "tokens_in": spent,
            "tokens_out": spent,
            "per_play": _object({"usd": spent, "tokens_in": spent, "tokens_out": spent}),
            "models": _list(_ref(UsageLine)),
        }
    )
    shown = {
        "models": {**scores, "description": "Without scenes of a single character."},
        "characters": _list(_ref(CharacterScores)),
        "alone": {**scores, "description": "Of the scenes with a single character."},
        "by_judge": by_judge,
        "agreement": _list(_ref(JudgeAgreement)),
        "cronbach": _list(_ref(Cronbach)),
        "gap": _list(_ref(Gap)),
        "narrator": _object(
            {"models": scores, "by_judge": by_judge, "agreement": _list(_ref(JudgeAgreement))}
        ),
        "judges": _list(judge),
        "cost": _object({"characters": cost, "narrator": cost, "judges": cost}),
        "plays": COUNT,
    }
    return _object(shown), _records(
        TrajectoryScores, CharacterScores, JudgeAgreement, Cronbach, Gap, UsageLine
    )


def _rate_document() -> Schema:
    scenes, defs = _scenes()
    whole = {"run": STRING, "rating": STRING, "rows": COUNT, "missing": COUNT, "scenes": scenes}
    whole["page"] = {"type": ["string", "null"], "description": "null: a replay writes none."}
    return _open(
        {
            "description": "What `personae rate --json` prints. scenes.models is a contract.",
            **_object(whole),
            "$defs": defs,
        }
    )


def _play_document() -> Schema:
    play = _object(
        {
            "scene": TEXT,
            "rounds": COUNT,
            "concluded": {"type": "boolean"},
            "complete": {"type": "boolean"},
            "events": COUNT,
            "interactions": {**COUNT, "description": "Acts that affected somebody."},
            "failures": {**COUNT, "description": "Replies that could not be had."},
        }
    )
    return _open(
        {
            "description": "What `personae play --json` prints.",
            **_object({"run": STRING, "plays": _list(play), "page": {"type": ["string", "null"]}}),
        }
    )


def _audit_document() -> Schema:
    return _open(
        {
            "description": "What `personae audit --json` prints.",
            **_object({"audits": _list(_ref(Audit)), "run": STRING}),
            "$defs": _records(Audit),
        }
    )


def _cast_train() -> Schema:
    character = _records(CharacterRows)["CharacterRows"]
    character["description"] = "A character, and what these data hold of it."
    for name, value in (
        ("weights", {"type": "object", "additionalProperties": {"type": "number"}}),
        ("card", {"type": ["string", "null"], "description": "The file of its card in the cast."}),
        ("name", TEXT),
    ):
        _lead(character, name, value)
    outcome = _records(Outcome)["Outcome"]["properties"]
    whole = {
        "cast": STRING,
        "base": _ref(BaseModelRef),
        "protocol": {"enum": ["paper", "personae"]},
        "mode": {"enum": ["full", "speaker"]},
        "rank": {"type": "integer", "minimum": 1},
        "characters": _list(character),
        "blocks": _list(_ref(Block)),
        "rows": COUNT,
        "refused": {**COUNT, "description": "Lines of refused.jsonl."},
        **outcome,
        "unused_cards": {**_list(STRING), "description": "Cards of nobody in the data."},
        "baselines": {
            "type": "object",
            "additionalProperties": STRING,
            "description": "By method: `trained`, or why not; {} where none was asked for.",
        },
        "training": {**STRING, "description": "The folder of plan, rows, history and plot."},
    }
    return _open(
        {
            "description": "What `personae cast train --json` prints; the same after each call.",
            **_object(whole),
            "$defs": _records(BaseModelRef, Block),
        }
    )


def _cast_route() -> Schema:
    schema = _of(Routed)
    return _open(
        {
            **schema,
            "description": "What `personae cast route --json` prints. decision, role, confidence "
            "and weights are a contract. " + schema["description"],
            "required": ["decision", "role", "confidence", "weights"],
        }
    )


def _cast_add() -> Schema:
    schema = _of(Addition)
    more = {
        "record": {**STRING, "description": "The file of the same in CAST/additions/."},
        "refused": {**_list(_ref(Refused)), "description": "What of the data is not learnt."},
    }
    schema["properties"] |= more
    schema["required"] = [*schema["required"], *more]
    schema["$defs"] |= _records(Refused)
    return _open({**schema, "description": "What `personae cast add --json` prints."})


def _cast_export() -> Schema:
    shown = {
        "to": {"enum": ["peft", "gguf", "vllm"]},
        "out": STRING,
        "adapters": {
            "type": "object",
            "additionalProperties": STRING,
            "description": "By character: its directory, or its file.",
        },
        "notes": {**_list(STRING), "description": "What the reader of the files should know."},
    }
    return _open({"description": "What `personae cast export --json` prints.", **_object(shown)})


def _cast_results() -> Schema:
    return {
        "description": "What one character says in one held-out dialogue, its first line after "
        "another character's, or its own answer, under one method and seed.",
        "oneOf": [_ref(DialogueScore), _ref(SwitchScore), _ref(LiftScore)],
        "$defs": _records(DialogueScore, SwitchScore, LiftScore),
    }


def _dry_run() -> Schema:
    use = {"tokens_in": COUNT, "tokens_out": COUNT, "usd": USD}
    line = _object({"role": STRING, "model": STRING, "calls": COUNT, **use}, closed=False)
    return {
        "description": "What a command prints with --dry-run --json: calls and estimated tokens.",
        **_object(
            {"dry_run": {"const": True}, "calls": COUNT, "reused": COUNT, **use,
             "lines": _list(line)},
            closed=False,
        ),
    }  # fmt: skip


def schemas() -> dict[str, Schema]:
    """Every schema by its name in docs/formats."""
    made: dict[str, tuple[str, Schema]] = {
        "benchmark": ("A line of a benchmark file (BENCH.jsonl)", _benchmark()),
        "results": ("A line of results.jsonl", _of(ResultRow)),
        "play_results": ("A line of results.jsonl of a play run", _of(RatingRow)),
        "interview_scripts": ("A line of scripts.jsonl", _of(InterviewScript)),
        "interviews": ("A line of interviews.jsonl", _of(Interview)),
        "interview_profiles": ("A line of profiles.jsonl", _of(InterviewProfile)),
        "interview_results": (
            "A line of results.jsonl of a run of interviews",
            _of(InterviewRow),
        ),
        "manifest": ("manifest.json of a run directory", _of(Manifest)),
        "audits": (
            "audits.json of a run directory",
            {
                "description": "The verdict over each judge that was audited.",
                **_list(_ref(Audit)),
                "$defs": _records(Audit),
            },
        ),
        "audit_rows": ("A line of audit_rows.jsonl", _of(AuditRow)),
        "play_audit_rows": (
            "A line of audit_rows.jsonl of an audit over plays",
            _of(TrajectoryAuditRow),
        ),
        "interview_audit_rows": (
            "A line of audit_rows.jsonl of an audit over interviews",
            _of(InterviewAuditRow),
        ),
        "personas": ("A line of a file of personas (.jsonl)", _personas()),
        "environments": ("A pool of environments (.json)", _environments()),
        "personagym": ("A question file of the public PersonaGym repository", _personagym()),
        "questions": ("A line of an exported list of questions (.jsonl)", _questions()),
        "ratings": ("A line of people's ratings (.csv)", _ratings()),
        "prices": ("A price file", _prices()),
        "scenes": ("A line of a scene file (SCENES.jsonl)", _of(Scene)),
        "plays": ("A line of plays.jsonl", _of(Play)),
        "cards": ("A line of cards.jsonl of a play run", _of(CardInPlay)),
        "scene_attempts": (
            "A line of reviews.jsonl or rejected.jsonl of `personae scene write`",
            _of(Attempt),
        ),
        "scene_scores": ("A line of comparison.jsonl", _of(ComparedScene)),
        "scene_comparison": ("comparison.json", _of(Comparison)),
        "bench_show": ("The document of `personae bench show --json`", _bench_show()),
        "character_show": (
            "The document of `personae character show --json`",
            _open(_of(CardSummary)),
        ),
        "character_lint": (
            "The document of `personae character lint --json`",
            _open(_of(LintReport)),
        ),
        "character_convert": (
            "The document of `personae character convert --json`",
            _open(_of(Conversion)),
        ),
        "report": ("The document of `personae report --json`", _report()),
        "agree": ("The document of `personae agree --json`", _open(_of(HumanAgreement))),
        "audit": ("The document of `personae audit --json`", _audit_document()),
        "cast_scores": (
            "scores.json of a cast's evaluation, and the document of `personae cast eval --json`",
            _open(_of(CastScores)),
        ),
        "cast_results": ("A line of results.jsonl of a cast's evaluation", _cast_results()),
        "cast": ("cast.json of a cast", _of(CastManifest)),
        "cast_train": ("The document of `personae cast train --json`", _cast_train()),
        "cast_route": ("The document of `personae cast route --json`", _cast_route()),
        "cast_add": ("The document of `personae cast add --json`", _cast_add()),
        "cast_export": ("The document of `personae cast export --json`", _cast_export()),
        "cast_addition": ("A file of a cast's additions/", _of(Addition)),
        "cast_history": ("A line of history.jsonl of a training", _of(TrainingStep)),
        "cast_spent": ("spent.json of a training", _of(Spent)),
        "cast_outcome": ("outcome.json of a training", _of(Outcome)),
        "cast_answers": ("A line of cast_answers.jsonl of a demo", _of(CastAnswer)),
        "cast_rows": ("A line of rows.jsonl: a dialogue that a cast learns from", _of(CastRow)),
        "cast_refused": ("A line of refused.jsonl: what of the data is not learnt", _of(Refused)),
        "cast_baselines": ("baselines.json of a cast or of its evaluation", _of(KeptMethods)),
        "play": ("The document of `personae play --json`", _play_document()),
        "rate": ("The document of `personae rate --json`", _rate_document()),
        "dry_run": ("The document of any command with `--dry-run --json`", _dry_run()),
    }
    return {
        name: {"$schema": DRAFT, **schema, "title": title} for name, (title, schema) in made.items()
    }


def spelt(schema: Schema) -> str:
    """The text of a schema file, title and description first."""
    first = {key: schema[key] for key in ("$schema", "title", "description")}
    return json.dumps({**first, **schema}, ensure_ascii=False, indent=2) + "\n"


def main() -> None:
    """Write all of them, and remove what is no longer one."""
    made = schemas()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.schema.json"):
        if path.name.removesuffix(".schema.json") not in made:
            path.unlink()
    for name, schema in made.items():
        (FOLDER / f"{name}.schema.json").write_text(spelt(schema), "utf-8")


if __name__ == "__main__":
    main()
