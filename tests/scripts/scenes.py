"""A script that writes, directs and reviews scenes sensibly: it takes names that it is given."""

import hashlib
import re
from typing import Any

KNOWN = ["Alice", "Ada", "Holmes", "Watson", "悟空", "唐僧", "八戒"]


def _letters(*parts: Any) -> str:
    """Words that share no trigrams to speak of: every letter comes out of a hash."""
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    return f"{digest[:20]} {digest[20:40]} {digest[40:]}"


def _people(call: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Whom the schema names, if it does, and its words for gender."""
    wanted = call["schema"]["properties"]["scene"]
    people = wanted.get("anyOf", [wanted])[0]["properties"]["characters"]
    parts = [p["properties"] for p in people.get("properties", {}).values()]
    names = [part["name"]["enum"][0] for part in parts]
    return names, (parts or [people["items"]["properties"]])[0]["gender"]["enum"]


def scene_of(call: dict[str, Any], names: list[str], **changes: Any) -> dict[str, Any]:
    """A scene that its schema allows and that differs from call to call."""
    wanted, genders = _people(call)
    text = _letters(call["role"], call["messages"][-1]["content"], call["repeat"])
    people = [
        {
            "name": name,
            "gender": genders[0],
            "description": "wears a grey coat",
            "position": "at the door",
            "state": "calm",
            "goal": "",
        }
        for name in names
    ]
    slots = {f"character_{n}": person for n, person in enumerate(people, 1)}
    return {
        "event": f"event {text}",
        "time": "dusk",
        "location": "the hall",
        "description": text[::-1],
        "characters": slots if wanted else people,
        "secrets": [{"fact": "The key is false.", "known_by": names[:1]}],
        "plot": "They part.",
        **changes,
    }


def names_for(call: dict[str, Any]) -> list[str]:
    """Whom the schema names, or the passage."""
    wanted, _ = _people(call)
    if wanted:
        return wanted
    passage = re.search(r"<(?:passage|原文)>(.*?)</", call["messages"][-1]["content"], re.DOTALL)
    return [name for name in KNOWN if passage and name in passage[1]]


def verdict(call: dict[str, Any], score: int = 4, accept: bool = True, *changes: str):
    """A review with the same score on every criterion."""
    criteria = [k for k in call["schema"]["properties"] if k not in ("changes", "accept")]
    marks = {name: {"reason": f"{name} is so", "score": score} for name in criteria}
    return {**marks, "changes": list(changes), "accept": accept}


def reply(call: dict[str, Any]):
    if call["role"] == "reviewer":
        return verdict(call)
    names = names_for(call)
    return {"scene": scene_of(call, names[:4]) if len(names) > 1 else None}
