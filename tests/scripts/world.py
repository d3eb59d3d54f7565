"""A script that plays every role of a world: characters, narrator, and whoever writes or judges.

What it answers follows from the content of the call alone. A narrator finds an act to affect
somebody in about seven of ten cases and never calls a story concluded.
"""

import hashlib
import re
from typing import Any

DEEDS = {
    "en": ["opens the window", "picks up the letter", "draws nearer to the fire", "bars the door"],
    "zh": ["推开窗户", "拿起那封信", "走近炉火", "闩上了门"],
}
WORDS = {
    "en": ["We have little time", "I do not believe it", "Look at this", "Who was here before us"],
    "zh": ["时间不多了", "我不相信", "你看这个", "在我们之前谁来过"],
}


def _number(*parts: Any) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode("utf-8", "replace")).digest()[:8])


def reply(call: dict[str, Any]):
    text = "\n".join(m["content"] for m in call["messages"])
    seed = _number(call["role"], call["model"], text, call["repeat"])
    if call["kind"] == "score":
        return {"logprobs": [-0.5 - seed % 100 / 100] * 3}
    language = "zh" if len(re.findall(r"[\u4e00-\u9fff]", text)) > len(text) / 6 else "en"
    who = str(call["meta"].get("character", "someone"))
    if call["schema"] is None:
        return f"{who}: {_words(seed, language)}"
    return _value(call["schema"], seed, "", who, language)


def _words(seed: int, language: str) -> str:
    return f"{WORDS[language][seed % 4]} ({seed % 9973})"


def _deed(seed: int, who: str, language: str) -> str:
    deed = DEEDS[language][seed // 7 % 4]
    return f"{who}{deed}（{seed % 9973}）" if language == "zh" else f"{who} {deed} ({seed % 9973})"


def _value(schema: dict[str, Any], seed: int, name: str, who: str, language: str) -> Any:
    if name == "affected":
        *others, actor = schema["enum"]
        return actor if seed % 10 >= 7 else others[seed % len(others)]
    if name == "manner":
        return "open"
    if name == "concluded":
        return False
    if "enum" in schema:
        return schema["enum"][seed % len(schema["enum"])]
    if "anyOf" in schema:
        return _value(schema["anyOf"][0], seed, name, who, language)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        return {
            key: _value(part, _number(seed, key), key, who, language)
            for key, part in schema.get("properties", {}).items()
        }
    if kind == "array":
        items, least = schema["items"], schema.get("minItems", 0)
        most = min(schema.get("maxItems", least + 3), least + 3)
        if name == "perceived_by":
            return list(items["enum"])
        if "enum" in items:
            return items["enum"][: max(least, seed % (len(items["enum"]) + 1))][:most]
        if name == "changes":
            return [
                {
                    key: _value(part, _number(seed, "changes", key), key, who, language)
                    for key, part in items["properties"].items()
                }
            ]
        count = least + seed % (most - least + 1)
        return [_value(items, _number(seed, n), name, who, language) for n in range(count)]
    if kind == "integer":
        low = schema.get("minimum", 0)
        return low + seed % (schema.get("maximum", low + 9) - low + 1)
    if kind == "number":
        return seed % 1000 / 1000
    if kind == "boolean":
        return bool(seed % 2)
    if kind == "null":
        return None
    if name in ("action", "reaction", "result", "position"):
        said = _deed(seed, who, language)
    elif name in ("time", "location", "description", "surroundings", "place"):
        said = ""
    else:
        said = _words(seed, language)
    if schema.get("minLength", 0) and not said:
        said = _words(seed, language)
    return said[: schema.get("maxLength", len(said))]
