"""What the server is told is checked before anything is loaded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from personae.errors import UsageError
from personae.models.keys import Key
from personae.serve.settings import DEFAULT_TOKEN_ENV, ServeSettings, is_loopback, token_of

TOKEN = Key("a-long-and-random-token", "T")


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "192.168.1.7", "example.org", "127.0.0.1.nip.io"]
)
def test_beyond_this_machine_a_token_is_required(host: str) -> None:
    with pytest.raises(UsageError, match="a token is required"):
        ServeSettings(Path("cast"), host=host)
    assert ServeSettings(Path("cast"), host=host, token=TOKEN).host == host


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.8.7", "::1", "[::1]", "localhost", "LOCALHOST"]
)
def test_on_this_machine_it_is_not(host: str) -> None:
    assert is_loopback(host)
    assert ServeSettings(Path("cast"), host=host).token is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": -1}, {"port": 65536}, {"max_body": 10}, {"max_tokens": 0}, {"usual_tokens": 0},
        {"max_concurrency": 0}, {"max_queue": -1}, {"timeout": 0.0}, {"timeout": math.nan},
        {"timeout": math.inf}, {"body_timeout": -1.0}, {"heartbeat": 0.0}, {"grace": -1.0},
        {"grace": math.nan}, {"upstream": "ftp://x"}, {"upstream": "127.0.0.1:8000"},
        {"rows": 0},
        {"rows": 4, "upstream": "http://h/v1"}, {"upstream_token": TOKEN}, {"upstream_adapters": Path("a")}, {"upstream": "http://"}, {"upstream": "http://me:pass@host/v1"},
    ],
)  # fmt: skip
def test_a_number_or_an_address_that_means_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ServeSettings(Path("cast"), **wrong)


@pytest.mark.parametrize(
    "url",
    ["http://me:hidden@host/v1", "me:hidden@host/v1", "http://h/v1?key=hidden", "http://[::1",
     "http://h:99999/v1", "ftp://hidden@h"],
)  # fmt: skip
def test_an_upstream_that_cannot_be_one_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="--upstream") as refused:
        ServeSettings(Path("cast"), upstream=url)
    assert "hidden" not in str(refused.value)


def test_the_usual_number_of_tokens_is_within_the_limit() -> None:
    assert ServeSettings(Path("cast"), max_tokens=100, usual_tokens=512).default_tokens == 100
    assert ServeSettings(Path("cast"), max_tokens=600, usual_tokens=512).default_tokens == 512


def test_a_token_comes_from_the_variable_that_is_named() -> None:
    environ = {"MINE": " abc ", DEFAULT_TOKEN_ENV: "def"}
    mine, usual = token_of("MINE", environ), token_of(None, environ)
    assert mine is not None
    assert usual is not None
    assert (mine.reveal(), usual.reveal()) == ("abc", "def")
    assert token_of(None, {}) is None


@pytest.mark.parametrize("environ", [{}, {"MINE": ""}, {"MINE": "  "}, {"MINE": "two\nlines"}])
def test_a_named_variable_that_holds_no_token_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="MINE"):
        token_of("MINE", environ)


def test_settings_do_not_show_a_token() -> None:
    shown = repr(
        ServeSettings(Path("cast"), token=TOKEN, upstream="http://h/v1", upstream_token=TOKEN)
    )
    assert TOKEN.reveal() not in shown
