"""The wire: one attempt at one exchange with an OpenAI-compatible endpoint, on aiohttp.

Why not the `openai` SDK: `docs/decisions/0001-wire.md`. The protocol is the chat completions of
platform.openai.com/docs/api-reference, with the deviations of `personae.models.providers` and, for
log-probabilities of given text, vLLM's `prompt_logprobs`.

What an endpoint cannot do is learnt once: when it answers 400 or 422 and names a parameter, the
call is sent again without that parameter, the reply notes it, and the backend remembers. A message
is never dropped, and nothing else is sent twice from here: retries are the client's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from pydantic import ValidationError
from yarl import URL

from personae import __version__
from personae.errors import (
    BadRequestError,
    RefusedConnectionError,
    ServerError,
    TimeoutExceededError,
    TransportError,
    UnsupportedError,
    UsageError,
)
from personae.models.answers import read_answer, read_score, usage_of
from personae.models.bodies import (
    body_of,
    cannot_score,
    encode,
    score_body,
    without_what_it_names,
)
from personae.models.complaints import (
    MAX_DETAIL,
    RejectedError,
    as_dict,
    decode,
    describe,
    error_of,
)
from personae.models.keys import scrub_shapes
from personae.models.providers import Address
from personae.records import Call, Capabilities, Reply

MAX_BODY_BYTES = 32 * 1024 * 1024
_MAX_SENDS = 8
# aiohttp warns when it is given 1 MB or more as bytes.
_MAX_BYTES_AT_ONCE = 512 * 1024
# uvicorn, under vLLM and most local servers, drops an idle connection after 5 s; one that is reused
# at that very moment is a failed call.
IDLE_SECONDS = {"http": 4.0, "https": 30.0}
_NOBODY_THERE = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}


class OpenAICompatible:
    """A `Backend` for one model of one OpenAI-compatible endpoint.

    One connection pool, opened on the first call in the running loop, closed by `close()`.

    Args:
        address: endpoint, model, key and dialect (`personae.models.providers.resolve`).
        timeout: seconds for one whole exchange.
        connect_timeout: seconds for reaching the host.
        max_body: replies larger than this many bytes are refused.

    """

    path = "/chat/completions"

    def __init__(
        self,
        address: Address,
        *,
        timeout: float = 120.0,
        connect_timeout: float = 10.0,
        max_body: int = MAX_BODY_BYTES,
    ) -> None:
        self._address = address
        self._dialect = address.dialect
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=connect_timeout)
        self._max_body = max_body
        self._chat_url = URL(f"{address.base_url}{self.path}")
        self._proxy = proxy_of(address.base_url)
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"OpenAICompatible({self._address.model_id!r})"

    @property
    def endpoint(self) -> str:
        """The base URL: what shares one concurrency limit."""
        return self._address.base_url

    @property
    def capabilities(self) -> Capabilities:
        """What is known beforehand, less what this endpoint has refused so far."""
        d = self._dialect
        return Capabilities(
            structured=d.structured, score=d.score, logprobs="logprobs" not in d.drops
        )

    async def complete(self, call: Call) -> Reply:
        """One attempt; where the endpoint names a parameter that it does not take, one without it.

        Returns:
            The reply. It carries a failure of cause `truncated` when the model used up its tokens
            before its first word of answer, `empty` when it stopped without one, and
            `zero_probability` when a scored token has none.

        Raises:
            TransportError: see `personae.errors`; the class says whether to try again.

        """
        if call.kind == "score":
            return await self._score(call)
        dialect, tried = self._dialect, set[str]()
        for _ in range(_MAX_SENDS):
            body, notes = body_of(call, self._address.model, dialect)
            try:
                answer, seconds = await self._exchange(encode(body, call.messages))
            except RejectedError as rejection:
                changed = without_what_it_names(rejection, body, call, dialect, tried)
                if changed is None:
                    raise
                dialect = changed
                continue
            if dialect is not self._dialect:
                # Learnt only now: the call went through without it, so it was the parameter.
                self._dialect = self._dialect.learn(dialect)
            return self._read(call, answer, seconds, notes)
        raise BadRequestError(
            f"{self.endpoint} rejected {_MAX_SENDS} variants of the call, the last without "
            f"{', '.join(sorted(tried))}"
        )

    async def _score(self, call: Call) -> Reply:
        if not self._dialect.score:
            raise self._no_score()
        try:
            body = score_body(call, self._address.model)
            answer, seconds = await self._exchange(encode(body, call.messages))
        except RejectedError as rejection:
            if cannot_score(rejection):
                raise self._no_score() from None
            raise
        return self._read(call, answer, seconds, [])

    async def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        session, self._session, self._loop = self._session, None, None
        if session is not None:
            await session.close()

    # --- the exchange -------------------------------------------------------------------------

    def _open(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is not None:
            if self._loop is loop:
                return self._session
            raise UsageError(f"{self!r} is open in another event loop: close() it there first")
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"personae/{__version__}",
        }
        if self._address.key is not None:
            headers["Authorization"] = f"Bearer {self._address.key.reveal()}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=IDLE_SECONDS[self._chat_url.scheme],
                ttl_dns_cache=300,
            ),
            headers=headers,
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,  # the proxy is worked out once, and .netrc is nobody's business here
        )
        self._loop = loop
        return self._session

    async def _exchange(self, data: bytes) -> tuple[dict[str, Any], float]:
        """Send one body; the decoded answer and the seconds it took."""
        session = self._open()
        start = time.perf_counter()
        with broken_off(self.endpoint, self._timeout, self._scrub):
            async with session.post(
                self._chat_url,
                data=data if len(data) <= _MAX_BYTES_AT_ONCE else io.BytesIO(data),
                allow_redirects=False,
                proxy=self._proxy,
            ) as response:
                status, headers = response.status, response.headers
                raw = await self._read_capped(response)
        seconds = time.perf_counter() - start
        if self._address.key is not None:
            raw = self._address.key.scrub_body(raw)
        answer = decode(raw)
        if status != 200:
            raise self._error_of(status, headers, answer, raw)
        if not isinstance(answer, dict):
            raise ServerError(
                f"{self.endpoint} answered 200 with {describe(raw)} instead of a JSON object"
            )
        if "error" in answer and answer["error"] and not answer.get("choices"):
            # A gateway that had already sent its 200 when the model behind it failed.
            code = as_dict(answer["error"]).get("code")
            inner = code if isinstance(code, int) and 400 <= code <= 599 else 502
            raise self._error_of(inner, headers, answer, raw)
        return answer, seconds

    async def _read_capped(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > self._max_body:
                raise ServerError(
                    f"{self.endpoint} sent more than {self._max_body // 1024 // 1024} MB"
                )
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # --- what came back -----------------------------------------------------------------------

    def _scrub(self, text: str) -> str:
        key = self._address.key
        return key.scrub(text) if key is not None else scrub_shapes(text)

    def _error_of(
        self, status: int, headers: Mapping[str, str], answer: Any, raw: bytes
    ) -> TransportError:
        key = self._address.key
        return error_of(
            status,
            headers,
            answer,
            raw,
            endpoint=self.endpoint,
            model=self._address.model,
            key_name=key.name if key else None,
            scrub=self._scrub,
        )

    def _no_score(self) -> UnsupportedError:
        self._dialect = replace(self._dialect, score=False)
        return UnsupportedError(
            f"{self._address.model_id} does not return log-probabilities of given text: a score "
            "needs an endpoint with vLLM's prompt_logprobs, or the embedded model (local)"
        )

    def _read(self, call: Call, answer: dict[str, Any], seconds: float, notes: list[str]) -> Reply:
        try:
            usage = usage_of(answer.get("usage"), self._dialect)
            served = answer.get("model")
            served = served if isinstance(served, str) else None
            if call.kind == "generate":
                return read_answer(call, answer, seconds, notes, usage, served)
            reply = read_score(call, answer, seconds, usage, served)
        except (ValidationError, TypeError, KeyError, ValueError, AttributeError) as error:
            # Not what the protocol says: a proxy's mishap more often than a server's habit.
            raise ServerError(
                f"{self.endpoint} sent a malformed completion ({type(error).__name__})"
            ) from None
        if reply is None:
            raise self._no_score()
        return reply


@contextlib.contextmanager
def broken_off(
    endpoint: str, timeout: aiohttp.ClientTimeout, scrub: Callable[[str], str]
) -> Iterator[None]:
    """Around an exchange: what goes wrong on the way becomes one of `personae.errors`.

    Args:
        endpoint: for the text.
        timeout: what the exchange runs under; for the text.
        scrub: takes secrets out of a text.

    Raises:
        TimeoutExceededError, RefusedConnectionError, ServerError: see their classes.

    """

    def error_for(kind: type[TransportError], what: str, error: BaseException) -> TransportError:
        said = scrub(" ".join(str(error).split()))[:MAX_DETAIL]
        return kind(f"{what} ({said or type(error).__name__})")

    kind: type[TransportError]
    try:
        yield
    except aiohttp.ConnectionTimeoutError:
        raise TimeoutExceededError(
            f"no connection to {endpoint} within {timeout.sock_connect:g} s"
        ) from None
    except TimeoutError:
        raise TimeoutExceededError(
            f"no answer from {endpoint} within {timeout.total or timeout.sock_read or 0:g} s"
        ) from None
    except aiohttp.ClientConnectorCertificateError as error:
        raise error_for(
            RefusedConnectionError, f"the certificate of {endpoint} is not valid", error
        ) from None
    except aiohttp.ClientConnectorError as error:
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            kind, what = RefusedConnectionError, f"the name in {endpoint} is unknown"
        elif error.os_error.errno in _NOBODY_THERE:
            kind, what = RefusedConnectionError, f"nothing answers at {endpoint}"
        else:  # a reset, no file handles left: it may pass
            kind, what = ServerError, f"no connection to {endpoint}"
        raise error_for(kind, what, error.os_error) from None
    except (aiohttp.InvalidURL, aiohttp.ClientProxyConnectionError) as error:
        raise error_for(RefusedConnectionError, f"{endpoint} cannot be reached", error) from None
    except (aiohttp.ClientError, OSError) as error:
        raise error_for(ServerError, f"the connection to {endpoint} broke", error) from None


def proxy_of(base_url: str) -> str | None:
    """The proxy that the environment names for this address (HTTPS_PROXY, NO_PROXY)."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    if host in ("localhost", "127.0.0.1", "::1") or proxy_bypass(host):
        return None
    proxy = getproxies().get(parts.scheme)
    if proxy is not None and not proxy.startswith("http://"):
        raise UsageError(
            f"{parts.scheme.upper()}_PROXY must be an http:// proxy; add {host} to NO_PROXY to go "
            "around it"
        )
    return proxy
