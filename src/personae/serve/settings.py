"""How the server is run; all of it is checked before anything is loaded."""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from personae.errors import UsageError
from personae.models.keys import Key

DEFAULT_TOKEN_ENV = "PERSONAE_SERVE_TOKEN"  # noqa: S105  (a variable's name)
"""The variable that holds the token, where no other is named."""


@dataclass(frozen=True)
class ServeSettings:
    """What a server may be told.

    Attributes:
        cast: the cast's directory.
        host: what is bound; without a token only a loopback address.
        port: 0 takes a free one.
        token: what clients have to show (`Authorization: Bearer ...`).
        upstream: base URL of a vLLM server that answers under the adapters' names; None: the cast
            is loaded here.
        upstream_token: what the upstream wants to be shown.
        upstream_adapters: a directory that the upstream finds under the same path; characters that
            it lacks are exported to it and loaded there.
        rows: answers in one batch of the cast loaded here; None: what the engine finds usual.
        max_body: bytes of a request.
        max_tokens: the most tokens of an answer that a request may ask for.
        usual_tokens: given to requests that say nothing.
        max_concurrency: answers under way at once.
        max_queue: requests that wait for one of these places; whoever comes beyond gets a 429.
        timeout: seconds from a request's arrival to its answer's end.
        body_timeout: seconds in which a request's body has to come.
        grace: seconds in which answers under way may end once the server is told to stop.
        heartbeat: seconds of silence after which a stream is sent a comment.
        probe: seconds for which the engine's health is remembered: `/health` is open to all.

    Raises:
        UsageError: a number that means nothing, or an open door: no token beyond loopback.
    """

    cast: Path
    host: str = "127.0.0.1"
    port: int = 8484
    token: Key | None = None
    upstream: str | None = None
    upstream_token: Key | None = field(default=None, repr=False)
    upstream_adapters: Path | None = None
    rows: int | None = None
    max_body: int = 2 * 1024 * 1024
    max_tokens: int = 2048
    usual_tokens: int = 512
    max_concurrency: int = 64
    max_queue: int = 256
    timeout: float = 300.0
    body_timeout: float = 30.0
    grace: float = 30.0
    heartbeat: float = 10.0
    probe: float = 1.0

    def __post_init__(self) -> None:
        """What does not fit is refused here, before weights are read."""
        for name, low in (
            ("max_body", 1024), ("max_tokens", 1), ("usual_tokens", 1),
            ("max_concurrency", 1), ("max_queue", 0), ("port", 0), ("rows", 1),
        ):  # fmt: skip
            if (value := getattr(self, name)) is not None and value < low:
                raise UsageError(f"{_option(name)} must be at least {low}")
        if self.port > 65535:
            raise UsageError("--port is at most 65535")
        for name in ("timeout", "body_timeout", "heartbeat"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{_option(name)} is a number of seconds above 0")
        for name in ("grace", "probe"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{_option(name)} is a number of seconds from 0")
        if self.upstream is not None:
            _check_url(self.upstream)
            if self.rows is not None:
                raise UsageError("--rows is of a cast loaded here, not of an --upstream")
        elif self.upstream_token is not None or self.upstream_adapters is not None:
            raise UsageError("--upstream-token-env and --upstream-adapters need --upstream")
        if self.token is None and not is_loopback(self.host):
            raise UsageError(
                f"{self.host or 'every address'} can be reached from other machines, so a token is "
                f"required. Put one into {DEFAULT_TOKEN_ENV} (or name another variable with "
                "--token-env), or bind to 127.0.0.1"
            )

    @property
    def default_tokens(self) -> int:
        """The tokens of an answer whose request asks for no number."""
        return min(self.usual_tokens, self.max_tokens)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; of names only `localhost` is known to."""
    if host.casefold().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def token_of(name: str | None, environ: Mapping[str, str] = os.environ) -> Key | None:
    """The token of a variable of the environment; None where it is unset and was not asked for.

    A `.env` file is not read: whoever wrote the folder would then hold the token.

    Args:
        name: the variable that the user names; None: `DEFAULT_TOKEN_ENV`, where it is set.

    Raises:
        UsageError: the named variable is unset or blank, or holds what no header can carry.
    """
    value = environ.get(name or DEFAULT_TOKEN_ENV, "").strip()
    if value:
        return Key(value, name or DEFAULT_TOKEN_ENV)
    if name is not None:
        raise UsageError(f"{name} is not set: put the token into it")
    return None


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_url(url: str) -> None:
    from personae.models.providers import base_url_of

    if "@" in url.partition("://")[2].partition("/")[0]:
        raise UsageError("--upstream holds a password: name its variable with --upstream-token-env")
    base_url_of(url, what="--upstream")
