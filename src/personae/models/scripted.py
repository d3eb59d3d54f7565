"""The scripted model: a program's replies behind the real interface, for tests and rehearsals."""

from __future__ import annotations

import inspect
import json
import math
import runpy
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from personae.errors import InputError, ServerError, TransportError
from personae.records import Call, Capabilities, Failure, Reply, TokenLogprob, Usage
from personae.records.call import prompt_text

ReplyFunction = Callable[[dict[str, Any]], str | dict[str, Any] | Awaitable[str | dict[str, Any]]]


class ScriptedModel:
    """A `Backend` that answers calls with a function.

    Args:
        reply: receives the call as a dict (`role`, `model`, `messages`, `schema`, `sampling`,
            `repeat`, `kind`, `meta`) and returns the reply's text, or a dict as a structured reply;
            sync or async. For a `score` call it returns `{"logprobs": [float, ...]}`. Whatever
            it raises is a transport failure; a `TransportError` is taken as it is.
        name: what to call the endpoint.
    """

    capabilities = Capabilities(structured="schema", score=True, logprobs=False)

    def __init__(self, reply: ReplyFunction, *, name: str = "scripted") -> None:
        self._reply = reply
        self.endpoint = name

    async def complete(self, call: Call) -> Reply:
        """Run the function once.

        Raises:
            TransportError: the function raised, or returned what is not a reply.
        """
        try:
            given = self._reply(_as_script_sees(call))
            if inspect.isawaitable(given):
                given = await given
        except TransportError:
            raise
        except (Exception, SystemExit) as error:  # by contract a transport failure
            raise ServerError(f"the script raised {type(error).__name__}: {error}") from error
        if call.kind == "score":
            return _scored(given)
        if isinstance(given, dict):
            try:
                given = json.dumps(given, ensure_ascii=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise TransportError(f"the script returned what is no JSON: {error}") from None
        if not isinstance(given, str):
            raise TransportError(f"the script returned {type(given).__name__}, not str or dict")
        # Half of a surrogate pair is no text that a file could hold; the wire does the same.
        given = given.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        usage = Usage(tokens_in=_words(prompt_text(call)), tokens_out=_words(given))
        if not given.strip():  # as on the wire: nothing is no answer
            silent = Failure(cause="empty", detail="the script returned no text")
            return Reply(failure=silent, usage=usage, finish="stop", seconds=0.0)
        return Reply(text=given, usage=usage, finish="stop", seconds=0.0)

    async def close(self) -> None:
        """Nothing to release."""


def _as_script_sees(call: Call) -> dict[str, Any]:
    seen = call.to_dict()
    seen["schema"] = None if call.reply_schema is None else dict(call.reply_schema.body)
    return seen


def _scored(given: Any) -> Reply:
    values = given.get("logprobs") if isinstance(given, dict) else None
    if not isinstance(values, list) or not all(
        isinstance(v, int | float) and math.isfinite(v) for v in values
    ):
        raise TransportError('a script answers a score call with {"logprobs": [finite numbers]}')
    return Reply(
        logprobs=tuple(TokenLogprob(token="", logprob=float(v)) for v in values),
        usage=Usage(tokens_in=len(values), tokens_out=0),
    )


def _words(text: str) -> int:
    return len(text.split())


def read_script(path: Path) -> ReplyFunction:
    """Run `FILE.py` and take its `reply`.

    Raises:
        InputError: the file is absent, does not run, or defines no `reply`.
    """
    if not path.is_file():
        raise InputError("there is no such script", path=path, mend="Give scripted:FILE.py")
    try:
        found = runpy.run_path(str(path)).get("reply")
    except (Exception, SystemExit) as error:
        raise InputError(
            f"the script does not run: {type(error).__name__}: {error}", path=path
        ) from error
    if not callable(found):
        raise InputError(
            "the script defines no function `reply`",
            path=path,
            mend="Define `def reply(call: dict) -> str | dict`",
        )
    return found  # type: ignore[no-any-return]  # a script's function has no types to check
