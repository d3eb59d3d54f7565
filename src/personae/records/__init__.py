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
from personae.records.cast import (
    BaseModelRef,
    Block,
    CastAnswer,
    CastCharacter,
    CastManifest,
    CastRow,
    CastTurn,
    DataSource,
    Routed,
)
from personae.records.character import (
    Asset,
    Character,
    DialogueTurn,
    Lorebook,
    LoreEntry,
    PersonaeExtension,
    Secret,
)
from personae.records.interview import (
    Exchange,
    Interview,
    InterviewProfile,
    InterviewRow,
    InterviewScript,
    ScriptTurn,
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
from personae.records.scene import Environment, Scene, SceneCharacter, ScriptLine
from personae.records.trajectory import (
    Beliefs,
    CharacterState,
    Event,
    Memorised,
    Play,
    RatingRow,
    WorldState,
)

__all__ = [
    "Agreement", "Asset", "Audit", "AuditGroup", "Backend", "BaseModelRef", "Beliefs", "Benchmark",
    "Block", "Call", "Capabilities", "CastAnswer", "CastCharacter", "CastManifest", "CastRow",
    "CastTurn", "Character", "CharacterState", "DataSource", "DialogueTurn", "Environment",
    "Estimate", "Event", "Exchange", "Failure", "Interview", "InterviewProfile", "InterviewRow",
    "InterviewScript", "Language", "LoreEntry", "Lorebook", "Manifest", "Memorised",
    "Message", "Model", "ModelScores", "PairedDifference", "Persona", "PersonaeExtension", "Play",
    "Price", "Prices", "Question", "RatingRow", "Record", "Reply", "ReplySchema", "ResultRow",
    "Routed", "Rubric", "Sampling", "Scene", "SceneCharacter", "ScriptLine", "ScriptTurn", "Secret",
    "Shortfall",
    "Task", "TokenLogprob", "Usage", "WorldState", "canonical_json", "content_hash", "prompt_text",
]  # fmt: skip
