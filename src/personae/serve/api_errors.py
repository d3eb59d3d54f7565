"""Errors as OpenAI's API words them: `{"error": {"message", "type", "param", "code"}}`.

Shape and status codes: platform.openai.com/docs/guides/error-codes. Clients, the `openai` package
among them, choose their exception by the status and read the four fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from personae.errors import (
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    PersonaeError,
    RateLimitError,
    TimeoutExceededError,
    TransportError,
    UnsupportedError,
)
from personae.records.shown import clean

INVALID = "invalid_request_error"
SERVER = "server_error"
BUSY = "rate_limit_error"
RETRY_AFTER = 2
"""Seconds after which whoever was turned away may try again."""

_MAX_MESSAGE = 2000
_ASKED_WRONGLY: dict[type[TransportError], str] = {
    ContextLengthError: "context_length_exceeded",
    ContentFilterError: "content_filter",
    UnsupportedError: "unsupported",
    BadRequestError: "bad_request",
}


class ApiError(Exception):
    """A request is answered by an error.

    Attributes:
        status: of HTTP; in a stream that has begun it no longer tells.
        param: what of the request is wrong, as `messages[1].role`.
        code: a short stable name.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.code = status, kind, param, code
        self.message = clean(message)[:_MAX_MESSAGE]
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The document that the client is sent."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """The request cannot be meant so."""
    return ApiError(400, message, param=param, code=code)


def unknown_model(model: str) -> ApiError:
    """Nobody is called that."""
    return ApiError(
        404,
        f"The model {model!r} does not exist; GET /v1/models lists the characters",
        param="model",
        code="model_not_found",
    )


def too_many() -> ApiError:
    """All places are taken, and all waiting places."""
    return ApiError(
        429,
        "Too many requests at once; try again later",
        kind=BUSY,
        code="rate_limit_exceeded",
        headers={"Retry-After": str(RETRY_AFTER)},
    )


def too_slow(seconds: float) -> ApiError:
    """The answer was not finished in time."""
    return ApiError(504, f"No complete answer within {seconds:g} s", kind=SERVER, code="timeout")


def stopping() -> ApiError:
    """The server is being shut down."""
    return ApiError(
        503,
        "The server is shutting down",
        kind=SERVER,
        code="shutting_down",
        headers={"Retry-After": str(RETRY_AFTER)},
    )


def ended() -> ApiError:
    """The engine was ended under an answer."""
    return _unavailable("ended")


def unforeseen() -> ApiError:
    """A fault of ours; what it was stands in the log, not in the answer."""
    return ApiError(500, "The server failed; its log says why", kind=SERVER, code="internal_error")


def one_line(text: str) -> str:
    """A text as one line of a log, whatever it quotes."""
    return " ".join(clean(text).split())[:_MAX_MESSAGE]


def of_engine(error: PersonaeError) -> ApiError:
    """What an engine's error means to whoever asked.

    What the request is to blame for is told as it is; of the rest the cause alone: addresses and
    paths of this machine are for its log.
    """
    for kind, code in _ASKED_WRONGLY.items():
        if isinstance(error, kind):
            return ApiError(400, str(error), param="messages", code=code)
    if isinstance(error, RateLimitError):
        wait = RETRY_AFTER if error.retry_after is None else max(1, math.ceil(error.retry_after))
        again = too_many()
        again.headers["Retry-After"] = str(wait)
        return again
    if isinstance(error, TimeoutExceededError):
        return ApiError(504, "The engine did not answer in time", kind=SERVER, code="timeout")
    return _unavailable(error.cause if isinstance(error, TransportError) else "failed")


def _unavailable(cause: str) -> ApiError:
    return ApiError(
        503,
        f"The engine cannot answer now ({cause})",
        kind=SERVER,
        code="engine_unavailable",
        headers={"Retry-After": str(RETRY_AFTER)},
    )
