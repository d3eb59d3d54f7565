"""Errors in the API's shape, and what of the engine's trouble a client is told."""

from __future__ import annotations

import pytest

from personae.errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    InputError,
    PersonaeError,
    RateLimitError,
    RefusedConnectionError,
    ServerError,
    TimeoutExceededError,
    UnsupportedError,
)
from personae.serve.api_errors import ApiError, invalid, of_engine, one_line


def test_an_error_has_the_four_fields_of_the_api() -> None:
    assert invalid("no", "messages[0].role").body == {
        "error": {
            "message": "no",
            "type": "invalid_request_error",
            "param": "messages[0].role",
            "code": "invalid_value",
        }
    }


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BadRequestError("nobody is meant"), 400, "bad_request"),
        (ContextLengthError("too long"), 400, "context_length_exceeded"),
        (ContentFilterError("withheld"), 400, "content_filter"),
        (UnsupportedError("no logprobs"), 400, "unsupported"),
        (RateLimitError("later"), 429, "rate_limit_exceeded"),
        (TimeoutExceededError("late"), 504, "timeout"),
        (ServerError("broke"), 503, "engine_unavailable"),
        (RefusedConnectionError("nobody"), 503, "engine_unavailable"),
        (AuthenticationError("wrong key"), 503, "engine_unavailable"),
        (InputError("damaged", path="/srv/cast"), 503, "engine_unavailable"),
    ],
)
def test_each_trouble_of_an_engine_has_its_status_and_code(
    error: PersonaeError, status: int, code: str
) -> None:
    told = of_engine(error)
    assert (told.status, told.code) == (status, code)


def test_the_clients_own_fault_is_told_and_ours_is_for_the_log() -> None:
    assert "5000 tokens" in of_engine(ContextLengthError("5000 tokens do not fit")).message
    for error in (ServerError("http://10.0.0.7 broke"), InputError("x", path="/srv/cast/10.0.0.7")):
        assert "10.0.0.7" not in of_engine(error).message


@pytest.mark.parametrize(("wish", "told"), [(6.2, "7"), (0.01, "1"), (None, "2")])
def test_a_wait_that_the_engine_wishes_is_passed_on_in_whole_seconds(
    wish: float | None, told: str
) -> None:
    assert of_engine(RateLimitError("later", retry_after=wish)).headers["Retry-After"] == told


def test_a_message_is_bounded_and_shows_no_control_characters() -> None:
    assert len(ApiError(400, "x" * 100_000).message) <= 2000
    assert "\x1b" not in ApiError(400, "\x1b[31mred").message


def test_a_line_of_the_log_is_one_line() -> None:
    assert one_line("one\nINFO a forged line\r\n") == "one INFO a forged line"
