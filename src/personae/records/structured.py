"""The one parser of structured replies: text and schema in, value out, or the reason why not."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any

from pydantic_core import to_json

from personae.records.base import canonical_json
from personae.records.call import ReplySchema

MAX_REPLY_CHARS = 200_000

_FENCE = "```"


class MalformedReplyError(ValueError):
    """A structured reply that is not what its schema asks for; the message says why."""


def _unfenced(body: str) -> str:
    # By hand: a regular expression takes minutes over a fence and 200,000 spaces.
    opening, newline, rest = body.partition("\n")
    if newline and opening.rstrip(" \t") in (_FENCE, f"{_FENCE}json", f"{_FENCE}JSON"):
        return rest[: -len(_FENCE)] if rest.endswith(_FENCE) else body
    return body


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        # {"score": 1, "score": 5}: whichever we took, the other reader would take the other.
        raise MalformedReplyError("a key stands twice")
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):  # 1e999
        raise MalformedReplyError("a number is too large")
    return value


def _no_constant(name: str) -> Any:
    raise MalformedReplyError(f"{name} is not a number in JSON")


@lru_cache(maxsize=256)
def _validator(body: bytes) -> Any:
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(json.loads(body))


def parse_structured(text: str, schema: ReplySchema) -> Any:
    """The value of a structured reply.

    The text must be one JSON value, alone or in one Markdown code fence. A value outside its
    scale, a key that stands twice, and anything beside the value are refused, never mended.

    Raises:
        MalformedReplyError: with the reason, fit for the repair exchange.
    """
    if len(text) > MAX_REPLY_CHARS:
        raise MalformedReplyError(f"the reply is longer than {MAX_REPLY_CHARS} characters")
    body = _unfenced(text.strip())
    try:
        value = json.loads(
            body, object_pairs_hook=_no_twins, parse_constant=_no_constant, parse_float=_finite
        )
        if "\\u" in body:  # only an escape can bring half of a surrogate pair
            canonical_json(value).encode()
        body.encode()
    except json.JSONDecodeError as error:
        raise MalformedReplyError(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise MalformedReplyError("the JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise MalformedReplyError("a string holds half of a surrogate pair") from None
    except MalformedReplyError:
        raise
    except ValueError:  # Python's own limits: an integer of thousands of digits, infinity
        raise MalformedReplyError("a number is too large") from None
    check_value(value, schema)
    return value


def check_value(value: Any, schema: ReplySchema) -> None:
    """Check an already parsed value.

    Raises:
        MalformedReplyError: the value breaks the schema.
    """
    error = next(_validator(to_json(schema.body)).iter_errors(value), None)
    if error is not None:
        place = "/".join(str(p) for p in error.instance_path) or "the value"
        # The library shortens long lists; whoever repairs the reply needs to see the choices.
        options = getattr(error.kind, "options", None)
        message = f"not one of {options}" if options else error.message
        raise MalformedReplyError(f"{place}: {message[:300]}")
