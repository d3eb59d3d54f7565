"""The contract: the `Model` protocol and the frozen records that all rooms share."""

from personae.records.base import Record, canonical_json, content_hash
from personae.records.benchmark import (
    Benchmark,
    Language,
    Persona,
    Question,
    Rubric,
    Shortfall,
    Task,
)
from personae.records.call import (
    Backend,
    Call,
    Capabilities,
    Failure,
    Message,
    Model,
    Reply,
    ReplySchema,
    Sampling,
    TokenLogprob,
    Usage,
    prompt_text,
)
from personae.records.manifest import Manifest
from personae.records.price import Price, Prices
from personae.records.results import (
    Agreement,
    Audit,
    AuditGroup,
    Estimate,
    ModelScores,
    PairedDifference,
    ResultRow,
)

__all__ = [
    "Agreement",
    "Audit",
    "AuditGroup",
    "Backend",
    "Benchmark",
    "Call",
    "Capabilities",
    "Estimate",
    "Failure",
    "Language",
    "Manifest",
    "Message",
    "Model",
    "ModelScores",
    "PairedDifference",
    "Persona",
    "Price",
    "Prices",
    "Question",
    "Record",
    "Reply",
    "ReplySchema",
    "ResultRow",
    "Rubric",
    "Sampling",
    "Shortfall",
    "Task",
    "TokenLogprob",
    "Usage",
    "canonical_json",
    "content_hash",
    "prompt_text",
]  # fmt: skip
