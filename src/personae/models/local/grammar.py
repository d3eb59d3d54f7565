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
# Characters a token, on the low side: SmolLM2 has few Chinese tokens.
_LATIN, _HAN = 2.0, 0.6
_CJK = re.compile(r"[\u3400-\u9fff\u3040-\u30ff\uac00-\ud7af\uff00-\uffef]")
_FLOOR = 16


def bounded(call: Call, max_tokens: int) -> dict[str, Any]:
    """The schema of a call with a bound on every string and array, and no white space.

    `x-guidance` is the extension of LLGuidance, the constraint engine, for what JSON Schema
    cannot say (`docs/json_schema.md` of the llguidance project).
    """
    assert call.reply_schema is not None
    schema: dict[str, Any] = copy.deepcopy(dict(call.reply_schema.body))
    text = "".join(m.content for m in call.messages)
    han = len(_CJK.findall(text)) / max(len(text), 1)
    per_token = _HAN if han > 0.2 else _LATIN
    strings = max(1, _count_strings(schema, 1))
    limit = max(_FLOOR, int(max_tokens * _SHARE * per_token / strings))
    _bound(schema, limit)
    # Without "lenient" a keyword that the engine does not know (uniqueItems) silently lifts the
    # whole constraint; with it only that keyword is left to whoever checks the reply.
    schema["x-guidance"] = {"whitespace_flexible": False, "lenient": True}
    return schema


def grammar(call: Call, max_tokens: int) -> str:
    """The bounded schema as a grammar of the engine."""
    return "%llguidance {}\nstart: %json " + json.dumps(bounded(call, max_tokens))


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


def _count_strings(node: Any, times: int) -> int:
    if not isinstance(node, dict):
        return 0
    own = times if _is(node, "string") and not ({"enum", "const"} & node.keys()) else 0
    return own + sum(_count_strings(sub, times * n) for sub, n in _children(node))


def _bound(node: Any, limit: int) -> None:
    if not isinstance(node, dict):
        return
    if _is(node, "string") and not ({"enum", "const", "pattern", "format"} & node.keys()):
        bound = max(limit, node.get("minLength", 0))
        node["maxLength"] = min(node.get("maxLength", bound), bound)
    if _is(node, "array") and "maxItems" not in node:
        node["maxItems"] = max(_ITEMS, node.get("minItems", 0))
    for sub, _ in _children(node):
        _bound(sub, limit)
