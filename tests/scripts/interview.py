"""A script that plays every role of an interview: characters, interviewer, question writer, judge."""

import hashlib
from typing import Any


def _number(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def reply(call: dict[str, Any]):
    last = call["messages"][-1]["content"]
    wanted = (call["schema"] or {}).get("properties", {})
    if "score" in wanted:
        made: dict[str, Any] = {"reasoning": f"Step one, {_number(last) % 9}."}
        if "turn_scores" in wanted:
            count = wanted["turn_scores"]["minItems"]
            made["turn_scores"] = [1 + (_number(last) + n) % 7 for n in range(count)]
        return {**made, "score": 1 + _number(str(call["messages"])) % 7}
    if "questions" in wanted:
        count = wanted["questions"]["minItems"]
        return {"questions": [_distinct(last, n, call["repeat"]) for n in range(count)]}
    if call["role"] == "interviewer":
        return f"And what of number {_number(str(call['messages'])) % 1000}?"
    return f"Indeed, as I always say {_number(str(call['messages'])) % 1000}."


def _distinct(seed: str, n: int, repeat: int) -> str:
    """Texts that share no trigrams to speak of: every letter comes out of a hash."""
    digest = hashlib.sha256(f"{seed}/{n}/{repeat}".encode()).hexdigest()
    return f"What of {digest[:16]} {digest[16:32]} {digest[32:48]}?"
