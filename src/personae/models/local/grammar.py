"""A reply's JSON Schema, made such that a small model comes to its end.

A 135M model under a schema pads white space inside the JSON for ever, or never closes a string.
So white space is taken out of the grammar, and what the schema leaves without a bound gets one
from the tokens that the reply may have. Whatever fits the bounded schema fits the one asked for.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from personae.records import Call

_ITEMS = 16  # of an array without maxItems
_SHARE = 0.8  # of the tokens, for the strings; the rest is keys, quotes and numbers
# Characters a token, on the low side: SmolLM2's 49,152 tokens hold few Chinese characters, Qwen's
# 151,936 whole words.
_LATIN, _HAN, _HAN_OF_MANY = 2.0, 0.6, 1.2
_MANY = 100_000
_OPEN = 2000  # what counts for a string without a maxLength when the tokens are shared out
_CJK = re.compile(r"[\u3400-\u9fff\u3040-\u30ff\uac00-\ud7af\uff00-\uffef]")
_FLOOR = 16


def bounded(call: Call, max_tokens: int, vocabulary: int = 0) -> dict[str, Any]:
    """The schema of a call with a bound on every string and array, and no white space.

    Strings share the tokens in the proportion of the lengths that the schema allows them.

    `x-guidance` is the extension of LLGuidance, the constraint engine, for what JSON Schema
    cannot say (`docs/json_schema.md` of the llguidance project).
    """
    assert call.reply_schema is not None
    schema: dict[str, Any] = copy.deepcopy(dict(call.reply_schema.body))
    text = "".join(m.content for m in call.messages)
    han = len(_CJK.findall(text)) / max(len(text), 1)
    per_han = _HAN_OF_MANY if vocabulary >= _MANY else _HAN
    budget = max_tokens * _SHARE * (per_han if han > 0.2 else _LATIN)
    _bound(schema, budget / max(_allowed(schema, 1), 1))
    # Without "lenient" a keyword that the engine does not know (uniqueItems) silently lifts the
    # whole constraint; with it only that keyword is left to whoever checks the reply.
    schema["x-guidance"] = {"whitespace_flexible": False, "lenient": True}
    return schema


def grammar(call: Call, max_tokens: int, vocabulary: int = 0) -> str:
    """The bounded schema as a grammar of the engine."""
    return "%llguidance {}\nstart: %json " + json.dumps(bounded(call, max_tokens, vocabulary))


def _children(node: dict[str, Any]) -> list[tuple[Any, int]]:
    """Sub-schemas, each with how many values of it the reply may hold."""
    found: list[tuple[Any, int]] = []
    for key in ("properties", "$defs", "definitions"):
        if isinstance(node.get(key), dict):
            found += [(sub, 1) for sub in node[key].values()]
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(node.get(key), list):
            found += [(sub, 1) for sub in node[key]]
    if isinstance(node.get("items"), dict):
        found.append((node["items"], node.get("maxItems") or max(_ITEMS, node.get("minItems", 0))))
    if isinstance(node.get("additionalProperties"), dict):
        found.append((node["additionalProperties"], 1))
    return found


def _is(node: dict[str, Any], kind: str) -> bool:
    given = node.get("type")
    return given == kind or (isinstance(given, list) and kind in given)


def _allowed(node: Any, times: int) -> int:
    """How many characters the strings of a reply may have in all."""
    if not isinstance(node, dict):
        return 0
    free = _is(node, "string") and not ({"enum", "const"} & node.keys())
    own = times * node.get("maxLength", _OPEN) if free else 0
    return own + sum(_allowed(sub, times * n) for sub, n in _children(node))


def _bound(node: Any, share: float) -> None:
    """Give every string its share of the length that it is allowed, and every array an end."""
    if not isinstance(node, dict):
        return
    if _is(node, "string") and not ({"enum", "const", "pattern", "format"} & node.keys()):
        most = node.get("maxLength", _OPEN)
        wanted = max(_FLOOR, int(most * share), node.get("minLength", 0))
        node["maxLength"] = min(wanted, node.get("maxLength", wanted))
    if _is(node, "array") and "maxItems" not in node:
        node["maxItems"] = max(_ITEMS, node.get("minItems", 0))
    for sub, _ in _children(node):
        _bound(sub, share)
