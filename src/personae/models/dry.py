"""The backend of dry runs: replies that meet their schema and say nothing.

With them all later calls of a pipeline can be counted without a model.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

from personae.records import Call, Capabilities, Reply, TokenLogprob


class DryBackend:
    """Invents replies that each call's schema allows: lists as long as they may be.

    No two strings are alike, so that no stage takes one for a near-duplicate and asks again.
    """

    endpoint = "dry-run"
    capabilities = Capabilities(structured="schema", score=True, logprobs=True)

    def __init__(self) -> None:
        self._count = 0

    async def complete(self, call: Call) -> Reply:
        """A placeholder reply."""
        await asyncio.sleep(0)  # nothing else lets Ctrl-C be heard while a run is counted
        if call.kind == "score":
            return Reply(logprobs=(TokenLogprob(token="", logprob=0.0),))
        if call.reply_schema is None:
            return Reply(text=self._word())
        return Reply(text=json.dumps(self._of(call.reply_schema.body)))

    async def close(self) -> None:
        """Nothing to release."""

    def _word(self) -> str:
        self._count += 1
        return hashlib.sha256(str(self._count).encode()).hexdigest()

    def _of(self, schema: dict[str, Any]) -> Any:
        if "enum" in schema:
            return schema["enum"][self._step(len(schema["enum"]))]
        if "anyOf" in schema:
            return self._of(schema["anyOf"][0])
        match schema.get("type"):
            case "object":
                return {k: self._of(v) for k, v in schema.get("properties", {}).items()}
            case "array":
                count = schema.get("maxItems") or max(1, schema.get("minItems", 1))
                items = schema.get("items", {})
                if schema.get("uniqueItems") and "enum" in items:
                    return items["enum"][:count]
                return [self._of(items) for _ in range(count)]
            case "integer" | "number":
                return schema.get("minimum", 0)
            case "boolean":
                return False
            case _:
                return self._word()

    def _step(self, size: int) -> int:
        self._count += 1
        return self._count % size
