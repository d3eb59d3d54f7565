"""From a call to the JSON body of a request, and from a refusal to a body without its cause."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from personae.models.complaints import RejectedError
from personae.models.providers import Dialect, Parameter, Structured
from personae.records import Call, Message
from personae.records.call import messages_json

# Of `max_tokens` only the name is learnt; that 100000 are too many is for the caller to mend.
_UNKNOWN_NAME = re.compile(
    r"support|unrecogni|unknown|unexpected|not permitted|not allowed|cannot find|instead",
    re.IGNORECASE,
)
_INVALID_SCHEMA = re.compile(
    r"(?:invalid|bad).{0,12}schema|schema is (?:invalid|not valid)", re.IGNORECASE
)
_TOO_MANY = re.compile(r"too (?:large|high|many|long)|at most|less than|exceed", re.IGNORECASE)
# Keywords that strict modes refuse here and there. The client checks the full schema anyway.
_LIMITS = frozenset(
    {
        "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
        "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems", "minProperties",
        "maxProperties", "default", "examples",
    }
)  # fmt: skip
_LIMIT_WORDS = re.compile(
    r"\b(?:(?:min|max)_?(?:length|items|imum)|unique_?items)\b", re.IGNORECASE
)
_NOT_STRICT = frozenset({"allOf", "oneOf", "not", "if", "patternProperties", "dependentSchemas"})
# What makes vLLM a scorer; an endpoint that complains of these is none.
_SCORE_WORDS = re.compile(
    r"prompt_logprobs|add_generation_prompt|continue_final_message|return_token_ids"
)
# The words by which an error names a parameter, the weakest wish first: where an error names
# several ("temperature and top_p cannot both be given"), only the first of these goes.
_WORDS: dict[Parameter, re.Pattern[str]] = {
    "logprobs": re.compile(r"(?<!prompt_)\b(?:top_)?logprobs\b"),
    "response_format": re.compile(
        r"\bresponse[_ ]?format\b|\bjson[_ ](?:schema|object|mode)\b|\bstructured[_ ]outputs?\b"
        r"|\bguided[_ ]|\bgrammar\b|\b(?:response|invalid|output) schemas?\b",
        re.IGNORECASE,
    ),
    "seed": re.compile(r"\b(?:random_)?seed\b"),
    "stop": re.compile(r"\bstop(?:_sequences)?\b"),
    "top_p": re.compile(r"\btop_p\b"),
    "temperature": re.compile(r"\btemperature\b"),
    "max_tokens": re.compile(r"\bmax_(?:completion_|output_)?tokens\b"),
}


def body_of(call: Call, model: str, dialect: Dialect) -> tuple[dict[str, Any], list[str]]:
    """The JSON body of a `generate` call without its messages, and notes on what it leaves out.

    Args:
        call: the call.
        model: the name by which the endpoint knows its model.
        dialect: what the endpoint takes.

    """
    s, drops, names = call.sampling, dialect.drops, dialect.renames
    body: dict[str, Any] = {"model": model}
    notes: list[str] = []

    def put(parameter: Parameter, value: Any) -> None:
        if parameter in drops:
            notes.append(f"{parameter} dropped")
        else:
            body[names.get(parameter, parameter)] = value

    if s.temperature is not None:
        top = dialect.max_temperature
        if top is not None and s.temperature > top and "temperature" not in drops:
            notes.append(f"temperature lowered to {top:g}")
            put("temperature", top)
        else:
            put("temperature", s.temperature)
    if s.top_p is not None:
        put("top_p", s.top_p)
    if s.max_tokens is not None:
        put("max_tokens", s.max_tokens)
    if s.seed is not None:
        put("seed", s.seed)
    if s.stop:
        put("stop", list(s.stop))
    if s.logprobs:
        put("logprobs", s.logprobs if dialect.logprobs_as_count else True)
        if "logprobs" in body and not dialect.logprobs_as_count:
            body["top_logprobs"] = s.logprobs
    if call.reply_schema is not None:
        level = dialect.structured_level(call.reply_schema.name)
        if level == "schema":
            text = to_json(call.reply_schema.body)
            schema, strict = _as_sent(text, bare=dialect.bare_schemas)
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": call.reply_schema.name, "schema": schema, "strict": strict},
            }
            if dialect.bare_schemas and _has_limits(text):
                notes.append("schema limits dropped")
        elif level == "json":
            body["response_format"] = {"type": "json_object"}
            notes.append("schema weakened to json")
        else:
            notes.append("schema dropped")
    return body, notes


def score_body(call: Call, model: str) -> dict[str, Any]:
    """The body, without its messages, that has vLLM return the log-probabilities of the prompt.

    The dialogue is rendered with its last message left open, so that the prompt ends where the
    message does; the one token generated after it is ignored. At least one alternative is asked
    for: some versions take 0 for None.
    """
    return {
        "model": model,
        "add_generation_prompt": False,
        "continue_final_message": True,
        "prompt_logprobs": max(call.sampling.logprobs, 1),
        "return_token_ids": True,
        "max_tokens": 1,
        "temperature": 0,
    }


def encode(body: dict[str, Any], messages: tuple[Message, ...]) -> bytes:
    """The body with its messages, as UTF-8."""
    try:
        head = to_json(body)  # a fifth of the time of json.dumps
    except PydanticSerializationError:
        # Half of a surrogate pair, from a damaged file: only an escape can carry it.
        head = json.dumps(body, separators=(",", ":")).encode()
    return b'%b,"messages":%b}' % (head.removesuffix(b"}"), messages_json(messages))


@lru_cache(maxsize=256)
def _as_sent(text: bytes, *, bare: bool) -> tuple[Any, bool]:
    """A schema from its JSON, without its limits on request, and whether it fits strict mode."""
    schema = json.loads(text)
    if bare:
        schema = _without_limits(schema)
    return schema, _fits_strict(schema)


@lru_cache(maxsize=256)
def _has_limits(text: bytes) -> bool:
    schema = json.loads(text)
    return bool(_without_limits(schema) != schema)


def _parts(schema: dict[str, Any]) -> list[Any]:
    """The schemas directly inside a schema."""
    parts = [schema[key] for key in ("items", "additionalProperties") if key in schema]
    for key in ("properties", "$defs"):
        parts += schema.get(key, {}).values()
    for key in ("anyOf", "prefixItems"):
        parts += schema.get(key, [])
    return parts


def _fits_strict(schema: Any) -> bool:
    """Whether a JSON Schema is within OpenAI's strict subset.

    Every object lists all its properties as required and allows no others, and parts are combined
    by `anyOf` alone (platform.openai.com/docs/guides/structured-outputs).
    """
    if not isinstance(schema, dict):
        return True
    if not schema.keys().isdisjoint(_NOT_STRICT):
        return False
    if schema.get("type") == "object" or "properties" in schema:
        closed = schema.get("additionalProperties") is False
        if not closed or set(schema.get("required", ())) != set(schema.get("properties", ())):
            return False
    return all(map(_fits_strict, _parts(schema)))


def _without_limits(schema: Any) -> Any:
    """A JSON Schema without the keywords that bound lengths, ranges and counts."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in _LIMITS}
    for key in ("items", "additionalProperties"):
        if key in kept:
            kept[key] = _without_limits(kept[key])
    for key in ("properties", "$defs"):
        if key in kept:
            kept[key] = {name: _without_limits(part) for name, part in kept[key].items()}
    for key in ("anyOf", "prefixItems"):
        if key in kept:
            kept[key] = [_without_limits(part) for part in kept[key]]
    return kept


def without_what_it_names(
    rejection: RejectedError,
    body: dict[str, Any],
    call: Call,
    dialect: Dialect,
    tried: set[str],
) -> Dialect | None:
    """The dialect without the parameter that a rejection names.

    Args:
        rejection: what the endpoint said.
        body: what it was sent.
        call: from which that was made.
        dialect: in which it was made.
        tried: names already given up for this call; added to.

    Returns:
        None where it names nothing that was sent and can be left out.

    """
    parameter = _named(rejection, body, dialect)
    if parameter is None:
        return None
    if parameter == "response_format":
        return _weaker_format(rejection, call, dialect, tried)
    sent = dialect.renames.get(parameter, parameter)
    tried.add(sent)
    if parameter == "max_tokens":
        if not _UNKNOWN_NAME.search(rejection.detail) or _TOO_MANY.search(rejection.detail):
            return None
        other = "max_tokens" if sent != "max_tokens" else "max_completion_tokens"
        if other not in tried:
            return replace(dialect, renames={**dialect.renames, parameter: other})
    return replace(dialect, drops=dialect.drops | {parameter})


def cannot_score(rejection: RejectedError) -> bool:
    """Whether a rejected `score` call says that the endpoint knows nothing of scoring."""
    said = f"{rejection.param} {rejection.detail}"
    return bool(_SCORE_WORDS.search(said) and _UNKNOWN_NAME.search(said))


def _named(rejection: RejectedError, body: dict[str, Any], dialect: Dialect) -> Parameter | None:
    sent = {
        p: name
        for p in _WORDS
        if (name := dialect.renames.get(p, p)) in body or (p == "logprobs" and "logprobs" in body)
    }
    root = re.split(r"[.\[]", rejection.param, maxsplit=1)[0]
    if root:
        for parameter, name in sent.items():
            if root in (parameter, name) or (parameter == "logprobs" and root == "top_logprobs"):
                return parameter
        # JSON mode refused because no message says "JSON" is filed under `messages`. Otherwise
        # the error is about something that is never dropped, whatever else its text mentions.
        if root == "messages" and "response_format" in sent and "json" in rejection.detail.lower():
            return "response_format"
        return None
    for parameter in sent:
        if _WORDS[parameter].search(rejection.detail):
            return parameter
    return None


def _weaker_format(
    rejection: RejectedError, call: Call, dialect: Dialect, tried: set[str]
) -> Dialect | None:
    if call.reply_schema is None:
        return None
    name = call.reply_schema.name
    level = dialect.structured_level(name)
    weaker: Structured = "json" if level == "schema" else "none"
    tried.add(f"response_format {level}")
    if (
        level == "schema"
        and not dialect.bare_schemas
        and (_INVALID_SCHEMA.search(rejection.detail) or _LIMIT_WORDS.search(rejection.detail))
        and _has_limits(to_json(call.reply_schema.body))
    ):
        return replace(dialect, bare_schemas=True)
    if _INVALID_SCHEMA.search(rejection.detail):
        # This schema is at fault, not the endpoint's way with schemas.
        return replace(dialect, structured_for={**dialect.structured_for, name: weaker})
    return replace(dialect, structured=weaker)
