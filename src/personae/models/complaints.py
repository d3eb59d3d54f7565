"""What an endpoint's error means: from status, headers and body to a class of `personae.errors`."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from pydantic_core import from_json

from personae.errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    RateLimitError,
    ServerError,
    TimeoutExceededError,
    TransportError,
)

MAX_DETAIL = 400
_DAY = 86_400.0

_CONTEXT_LENGTH = re.compile(
    r"context.{0,3}length|maximum context|context (?:window|size)|prompt is too long"
    r"|too many (?:input )?tokens|input token count|too large for model with"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)"
    r"|`?inputs`? tokens \+ `?max_new_tokens",
    re.IGNORECASE,
)
_CONTENT_FILTER = re.compile(
    r"content.?filter|content.?policy|content.?management.?policy|content exists risk"
    r"|data_inspection_failed|responsibleai|invalid_prompt|flagged_input",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    r"insufficient.?(?:quota|balance|credit|funds)|exceeded your current quota|billing_hard_limit"
    r"|credit balance is too low|out of credits",
    re.IGNORECASE,
)
_RATE_LIMIT = re.compile(r"rate.?limit|per.minute", re.IGNORECASE)
# Vertex and AI Studio word a per-minute limit as "you exceeded your current quota".
_GOOGLE_RATE = re.compile(r"RESOURCE_EXHAUSTED")


class RejectedError(BadRequestError):
    """A 400 or 422, with what it says, before anyone has decided what to make of it."""

    def __init__(self, message: str, *, param: str, detail: str) -> None:
        super().__init__(message)
        self.param, self.detail = param, detail


def error_of(
    status: int,
    headers: Mapping[str, str],
    answer: Any,
    raw: bytes,
    *,
    endpoint: str,
    model: str,
    key_name: str | None,
    scrub: Callable[[str], str],
) -> TransportError:
    """The error that an unhappy answer means.

    Args:
        status: the HTTP status (or the one that a 200 holds inside).
        headers: the answer's headers.
        answer: the body as JSON, None where it is none.
        raw: the body.
        endpoint: for the text.
        model: the name that the endpoint was asked for; for the text.
        key_name: the variable of the key that was sent.
        scrub: takes secrets out of a text.

    """
    message, param, code = complaint(answer)
    message = scrub(message)
    text = f"{endpoint} answered {status}: {message[:MAX_DETAIL] or describe(raw)}"
    everything = f"{code} {message}"
    after = retry_after(headers, answer)
    quota = _QUOTA.search(everything) and not _GOOGLE_RATE.search(code)
    if status == 402 or (status in (400, 403, 429) and quota):
        error = AuthenticationError(f"{text} (no money or quota is left there)")
        error.cause = "quota"
        return error
    if status == 429 or (status == 503 and after is not None):
        return RateLimitError(text, retry_after=after)
    if status == 413:
        if _RATE_LIMIT.search(everything):  # Groq: the prompt alone is over the limit per minute
            return RateLimitError(text, retry_after=after)
        return ContextLengthError(text)
    if status in (400, 422) and ("context_length" in code or _CONTEXT_LENGTH.search(message)):
        return ContextLengthError(text)
    if status in (400, 403, 422) and (_CONTENT_FILTER.search(everything) or _moderated(answer)):
        return ContentFilterError(text)
    if status in (401, 403):
        whose = f"the key in {key_name}" if key_name else "a call without a key"
        return AuthenticationError(f"{text} ({whose} was refused)")
    if status == 408:
        return TimeoutExceededError(text)
    if status in (409, 425) or status >= 500:
        return ServerError(text)
    if status in (400, 422):
        return RejectedError(text, param=param, detail=message)
    rejected = BadRequestError(text)
    if status == 404:
        rejected = BadRequestError(f"{text} (is the model {model!r} known there?)")
    if 300 <= status < 400:
        where = scrub(headers.get("Location", "elsewhere"))[:200]
        rejected = BadRequestError(f"{endpoint} redirects to {where}: use that address")
    # A wrong path or an unknown model stays wrong for every later call.
    rejected.fatal = status == 404 or 300 <= status < 400
    return rejected


def complaint(answer: Any) -> tuple[str, str, str]:
    """Message, parameter and code of an error body, in the shapes that are about."""
    if isinstance(answer, list):  # Gemini wraps its error in a list
        answer = answer[0] if answer else None
    body = as_dict(answer)
    error = body.get("error") or body
    if isinstance(error, str):
        return " ".join(error.split()), "", ""
    error = as_dict(error)
    message = error.get("message") or error.get("detail") or ""
    param = error.get("param")
    if isinstance(message, str) and message.startswith('{"detail"'):  # Mistral, JSON in JSON
        message = decode(message.encode()) or message
    if isinstance(message, dict):
        message = message.get("detail", message)
    if isinstance(message, list):  # FastAPI: [{"loc": ["body", "seed"], "msg": ...}]
        faults = [(_place(m), str(as_dict(m).get("msg", ""))) for m in message]
        param = param or (faults[0][0] if faults else None)
        message = "; ".join(f"{place}: {msg}" for place, msg in faults)
    code = " ".join(str(error[k]) for k in ("code", "type", "status") if error.get(k))
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return " ".join(text.split()), param if isinstance(param, str) else "", code


def _place(fault: Any) -> str:
    place = as_dict(fault).get("loc")
    names = [str(p) for p in place if p != "body"] if isinstance(place, list) else []
    return ".".join(names)


def _moderated(answer: Any) -> bool:
    """OpenRouter reports moderated input as 403 with the reasons in its metadata."""
    metadata = as_dict(as_dict(as_dict(answer).get("error")).get("metadata"))
    return "flagged_input" in metadata or "reasons" in metadata


def retry_after(headers: Mapping[str, str], answer: Any) -> float | None:
    """Seconds that the endpoint wants to be left alone, None where it does not say.

    From `retry-after-ms`, `Retry-After` (seconds or a date, RFC 9110 section 10.2.3) or Google's
    `RetryInfo` in the body.
    """
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return min(milliseconds / 1000, _DAY)
    given = headers.get("Retry-After", "")
    if (seconds := _number(given)) is not None:
        return min(seconds, _DAY)
    if given:
        try:
            when = parsedate_to_datetime(given)
        except ValueError:
            pass
        else:
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
            return min(max(0.0, (when - datetime.now(UTC)).total_seconds()), _DAY)
    if isinstance(answer, list) and answer:
        answer = answer[0]
    details = as_dict(as_dict(answer).get("error")).get("details")
    for detail in details if isinstance(details, list) else ():
        delay = as_dict(detail).get("retryDelay")
        if isinstance(delay, str) and (seconds := _number(delay.removesuffix("s"))) is not None:
            return min(seconds, _DAY)
    return None


def _number(text: str | None) -> float | None:
    """A finite number, not below 0."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def as_dict(value: Any) -> dict[str, Any]:
    """The value where it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def decode(raw: bytes) -> Any:
    """The JSON value of a body, or None where it is none."""
    with contextlib.suppress(ValueError):  # a byte order mark, half of a surrogate pair
        return from_json(raw)  # a third of the time of json.loads
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def describe(raw: bytes) -> str:
    """What a body looks like, without quoting it."""
    head = raw[:200].lstrip().lower()
    if not head:
        return "an empty body"
    if head.startswith((b"<!doctype", b"<html")):
        return "an HTML page (a proxy's?)"
    if head.startswith((b"{", b"[")):
        return "JSON cut short or malformed" if decode(raw) is None else "other JSON"
    return "no JSON"
