"""A script that plays every role of PersonaGym sensibly: examiner, writer, character, judge."""

import hashlib
from typing import Any


def _number(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def reply(call: dict[str, Any]):
    last = call["messages"][-1]["content"]
    if call["kind"] == "score":
        return {"logprobs": [-0.5 - (_number(str(call["messages"])) % 100) / 100] * 3}
    wanted = (call["schema"] or {}).get("properties", {})
    if "environments" in wanted:
        names = wanted["environments"]["items"]["enum"]
        return {"environments": names[:2]}
    if "questions" in wanted:
        item = wanted["questions"]["items"]["properties"]["environment"]["enum"]
        count = wanted["questions"]["minItems"]
        return {
            "questions": [
                {"environment": item[n % len(item)], "question": _distinct(last, n, call["repeat"])}
                for n in range(count)
            ]
        }
    if "personas" in wanted:
        count = wanted["personas"]["minItems"]
        return {"personas": [_distinct(last, n, call["repeat"]) for n in range(count)]}
    if "1" in wanted:
        return {str(s): f"An answer worth {s}." for s in range(1, 6)}
    if "score" in wanted:
        return {"justification": f"It is so {_number(last) % 9}.", "score": _number(last) % 5 + 1}
    return f"Indeed, as I always say {_number(last) % 1000}."


def _distinct(seed: str, n: int, repeat: int) -> str:
    """Texts that share no trigrams to speak of: every letter comes out of a hash."""
    digest = hashlib.sha256(f"{seed}/{n}/{repeat}".encode()).hexdigest()
    return f"What of {digest[:16]} {digest[16:32]} {digest[32:48]}?"
