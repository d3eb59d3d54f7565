"""Hypothesis strategies for the records: any that their own rules allow."""

from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel

from personae.records import (
    Agreement,
    Audit,
    AuditGroup,
    Benchmark,
    Call,
    Capabilities,
    Estimate,
    Failure,
    Manifest,
    Message,
    ModelScores,
    PairedDifference,
    Persona,
    Question,
    Reply,
    ReplySchema,
    ResultRow,
    Rubric,
    Sampling,
    Shortfall,
    Task,
    TokenLogprob,
    Usage,
)
from tests.records.cast_strategies import CAST
from tests.records.interview_strategies import INTERVIEWS
from tests.records.world_strategies import WORLD

text = st.text(max_size=12)
filled = st.text(min_size=1, max_size=12)
worded = filled.filter(str.strip)
count = st.integers(0, 2**53)
number = st.floats(allow_nan=False, allow_infinity=False)
share = st.floats(0, 1)
maybe_number = st.none() | number
json_value: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
json_object = st.dictionaries(text, json_value, max_size=3)
task = st.sampled_from(Task)
language = st.sampled_from(["en", "zh"])
five = st.tuples(text, text, text, text, text)


def several(one: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[Any]:
    return st.lists(one, max_size=most).map(tuple)


message = st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), content=text)
sampling = st.builds(
    Sampling,
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0, 1, exclude_min=True),
    max_tokens=st.none() | st.integers(1, 2**31),
    seed=st.none() | st.integers(),
    stop=several(text),
    logprobs=st.integers(0, 20),
)
reply_schema = st.builds(
    ReplySchema, name=st.from_regex(r"\A[A-Za-z0-9_-]{1,64}\Z"), body=json_object
)
call_parts = st.fixed_dictionaries(
    {
        "role": filled,
        "model": filled,
        "messages": st.lists(message, max_size=3).map(
            lambda some: (*some, Message(role="assistant", content="…"))
        ),
        "sampling": sampling,
        "reply_schema": st.none() | reply_schema,
        "repeat": st.integers(0, 2**31),
        "kind": st.sampled_from(["generate", "score"]),
        "meta": st.dictionaries(text, text | st.integers(), max_size=3),
    }
)
call = call_parts.map(lambda parts: Call(**parts))
usage = st.builds(
    Usage,
    tokens_in=st.none() | count,
    tokens_out=st.none() | count,
    cached=st.none() | count,
    reasoning=st.none() | count,
)
failure = st.builds(Failure, cause=filled, detail=text)
token = st.builds(
    TokenLogprob, token=text, logprob=number, top=several(st.tuples(text, number), most=2)
)
around = {
    "usage": usage,
    "finish": st.none() | text,
    "served_model": st.none() | text,
    "seconds": st.none() | st.floats(0, 1e9),
    "retries": several(text),
    "notes": several(text),
    "reasoning": st.none() | text,
}
reply = (
    st.builds(Reply, text=text, value=json_value, logprobs=st.none() | several(token), **around)
    | st.builds(Reply, logprobs=several(token), **around)
    | st.builds(Reply, failure=failure, **around)
)
character = st.builds(Persona, id=filled, description=worded, source=text)
rubric = st.builds(Rubric, task=task, description=worded, criteria=five)
shortfall = st.builds(Shortfall, what=text, wanted=count, got=count, cause=text)


@st.composite
def questions(draw: st.DrawFn, people: tuple[Persona, ...]) -> tuple[Question, ...]:
    if not people:
        return ()
    ids = draw(st.lists(filled, max_size=3, unique=True))
    return tuple(
        Question(
            id=name,
            persona_id=draw(st.sampled_from(people)).id,
            task=draw(task),
            environment=draw(st.none() | text),
            text=draw(worded),
            exemplars=draw(st.none() | five),
        )
        for name in ids
    )


@st.composite
def benchmarks(draw: st.DrawFn) -> Benchmark:
    people = tuple(draw(st.lists(character, max_size=3, unique_by=lambda p: p.id)))
    return Benchmark(
        language=draw(language),
        made_by=draw(st.dictionaries(text, text, max_size=2)),
        made_from=draw(several(text)),
        environments=draw(st.dictionaries(text, several(text), max_size=2)),
        rubrics=tuple(draw(st.lists(rubric, max_size=5, unique_by=lambda r: r.task))),
        shortfalls=draw(several(shortfall)),
        personas=people,
        questions=draw(questions(people)),
    )


benchmark = benchmarks()
question = st.builds(
    Question,
    id=filled,
    persona_id=filled,
    task=task,
    environment=st.none() | text,
    text=worded,
    exemplars=st.none() | five,
)
result_row = st.builds(
    ResultRow,
    unit_id=text,
    model=text,
    persona=text,
    task=task,
    question_id=text,
    question=text,
    environment=st.none() | text,
    answer=st.none() | text,
    judge=text,
    score=st.none() | st.integers(1, 5),
    failure=st.none() | failure,
    justification=st.none() | text,
    expected_score=st.none() | st.floats(1, 5),
    lift=maybe_number,
    refusal=st.none() | st.booleans(),
    repeat=st.integers(),
)
estimate = st.builds(
    Estimate, mean=maybe_number, low=maybe_number, high=maybe_number, n=count, missing=share
)
estimates = st.dictionaries(text, estimate, max_size=2)
model_scores = st.builds(
    ModelScores,
    model=text,
    persona_score=estimate,
    tasks=estimates,
    n_answers=count,
    refusal_rate=maybe_number,
    refusal_by_task=st.dictionaries(text, maybe_number, max_size=2),
    lift=st.none() | estimate,
    lift_tasks=estimates,
    by_judge=estimates,
    expected_score=st.none() | estimate,
)
agreement = st.builds(
    Agreement, alpha=maybe_number, low=maybe_number, high=maybe_number, units=count
)
paired = st.builds(PairedDifference, model=text, other=text, what=text, estimate=estimate)
audit_group = st.builds(
    AuditGroup,
    name=text,
    auc=maybe_number,
    low=maybe_number,
    high=maybe_number,
    n=count,
    missing=share,
    passed=st.none() | st.booleans(),
    mean_own=maybe_number,
    mean_group=maybe_number,
    note=text,
)
audit = st.builds(
    Audit,
    judge=text,
    rubric_hash=text,
    language=text,
    verdict=st.sampled_from(["passed", "failed"]),
    reasons=several(text),
    groups=several(audit_group),
    order_shift=maybe_number,
    length_slope=maybe_number,
    repeat_variance=maybe_number,
    swap_shift=maybe_number,
    missing=share,
    thresholds=st.dictionaries(text, number, max_size=2),
    answers_hash=text,
)
manifest = st.builds(
    Manifest,
    kind=text,
    arguments=json_object,
    models=st.dictionaries(text, several(text), max_size=2),
    sampling=st.dictionaries(text, json_object, max_size=2),
    protocol=st.sampled_from(["paper", "personae"]),
    language=language,
    seed=st.integers(),
    prompts=st.dictionaries(text, text, max_size=2),
    rubric_hash=st.none() | text,
    benchmark_hash=st.none() | text,
    made_from=several(text),
    versions=st.dictionaries(text, text, max_size=2),
    created=text,
    status=st.sampled_from(["running", "done", "stopped", "failed"]),
    notes=several(text),
)
capabilities = st.builds(
    Capabilities,
    structured=st.sampled_from(["schema", "json", "none"]),
    score=st.booleans(),
    logprobs=st.booleans(),
)

ALL: dict[type[BaseModel], st.SearchStrategy[Any]] = {
    Agreement: agreement,
    Audit: audit,
    AuditGroup: audit_group,
    Benchmark: benchmark,
    Call: call,
    Capabilities: capabilities,
    Persona: character,
    Estimate: estimate,
    Failure: failure,
    Manifest: manifest,
    Message: message,
    ModelScores: model_scores,
    PairedDifference: paired,
    Question: question,
    Reply: reply,
    ReplySchema: reply_schema,
    ResultRow: result_row,
    Rubric: rubric,
    Sampling: sampling,
    Shortfall: shortfall,
    TokenLogprob: token,
    Usage: usage,
    **CAST,
    **INTERVIEWS,
    **WORLD,
}
