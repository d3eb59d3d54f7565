"""The providers and their dialects of the OpenAI chat-completions protocol, as a table.

`docs/models.md` has the same table for people. What is not known beforehand is learnt on the wire:
see `personae.models.wire`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import SplitResult, urlsplit

from personae.errors import MissingKeyError, UsageError
from personae.models.keys import Key, Setting, Settings

if TYPE_CHECKING:
    from personae.models.wire import OpenAICompatible

Structured = Literal["schema", "json", "none"]
Parameter = Literal[
    "temperature", "top_p", "max_tokens", "seed", "stop", "logprobs", "response_format"
]
STRENGTH: dict[Structured, int] = {"none": 0, "json": 1, "schema": 2}
URL_KEY = "PERSONAE_API_KEY"


@dataclass(frozen=True)
class Dialect:
    """How one endpoint deviates from the protocol; frozen, what is learnt makes a new one.

    Attributes:
        drops: parameters that it rejects or ignores; never sent, noted in the reply.
        renames: parameters that it knows by another name.
        structured: the strongest `response_format` it takes.
        structured_for: the same for single schemas (by name) that it refused.
        bare_schemas: it refuses schemas with limits on lengths, ranges and counts; they go without.
        max_temperature: temperatures above it are sent as it.
        logprobs_as_count: `logprobs: 5` instead of `logprobs: true, top_logprobs: 5` (Together).
        thinking_beside: `completion_tokens` leaves thinking out, `total_tokens` has it (Gemini).
        score: returns log-probabilities of given text (vLLM's `prompt_logprobs`).

    """

    drops: frozenset[Parameter] = frozenset()
    renames: Mapping[Parameter, str] = field(default_factory=dict)
    structured: Structured = "schema"
    structured_for: Mapping[str, Structured] = field(default_factory=dict)
    bare_schemas: bool = False
    max_temperature: float | None = None
    logprobs_as_count: bool = False
    thinking_beside: bool = False
    score: bool = False

    def structured_level(self, schema_name: str) -> Structured:
        """The strongest `response_format` for this schema."""
        own = self.structured_for.get(schema_name, "schema")
        return min(own, self.structured, key=STRENGTH.__getitem__)

    def learn(self, other: Dialect) -> Dialect:
        """This dialect with the restrictions of another one added."""
        return replace(
            self,
            drops=self.drops | other.drops,
            renames={**self.renames, **other.renames},
            structured=min(self.structured, other.structured, key=STRENGTH.__getitem__),
            structured_for={**self.structured_for, **other.structured_for},
            bare_schemas=self.bare_schemas or other.bare_schemas,
            score=self.score and other.score,
        )


@dataclass(frozen=True)
class Provider:
    """One provider.

    Attributes:
        name: the part of the id before the slash.
        base_url: its OpenAI-compatible endpoint.
        keys: environment variables that may hold its key, by preference.
        needs_key: whether it can do without.
        dialect: what holds for its models.
        exceptions: dialects of models whose name matches; the first match wins.

    """

    name: str
    base_url: str
    keys: tuple[str, ...]
    needs_key: bool = True
    dialect: Dialect = Dialect()
    exceptions: tuple[tuple[re.Pattern[str], Dialect], ...] = ()

    @property
    def base_url_variable(self) -> str:
        """The variable that moves it elsewhere."""
        return f"{self.name.upper()}_BASE_URL"


# An address of the user's own: probably vLLM, SGLang, llama.cpp or a proxy. Hopeful, and quick to
# learn.
ELSEWHERE = Dialect(score=True)

# platform.openai.com/docs/guides/reasoning: these models take no sampling parameters. Later ones
# (gpt-5.1 ...) do in some modes: they are asked, and the refusal is learnt.
_OPENAI = Dialect(renames={"max_tokens": "max_completion_tokens"})
_OPENAI_REASONING = replace(_OPENAI, drops=frozenset({"temperature", "top_p", "logprobs", "stop"}))

PROVIDERS: dict[str, Provider] = {
    p.name: p
    for p in (
        Provider(
            "openai",
            "https://api.openai.com/v1",
            ("OPENAI_API_KEY",),
            dialect=_OPENAI,
            exceptions=((re.compile(r"(o\d|codex-mini|gpt-5(?![.\d]|-chat))"), _OPENAI_REASONING),),
        ),
        # docs.claude.com/en/api/openai-sdk: seed, logprobs and response_format are ignored, which
        # is worse than rejected; temperatures above 1 are capped there.
        Provider(
            "anthropic",
            "https://api.anthropic.com/v1",
            ("ANTHROPIC_API_KEY",),
            dialect=Dialect(
                drops=frozenset({"seed", "logprobs"}), structured="none", max_temperature=1.0
            ),
        ),
        # "Unknown name \"seed\": Cannot find field" (400).
        Provider(
            "gemini",
            "https://generativelanguage.googleapis.com/v1beta/openai",
            ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
            dialect=Dialect(drops=frozenset({"seed", "logprobs"}), thinking_beside=True),
        ),
        Provider("openrouter", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)),
        Provider(
            "together",
            "https://api.together.xyz/v1",
            ("TOGETHER_API_KEY",),
            dialect=Dialect(logprobs_as_count=True),
        ),
        # console.groq.com/docs/openai: logprobs are a 400.
        Provider(
            "groq",
            "https://api.groq.com/openai/v1",
            ("GROQ_API_KEY",),
            dialect=Dialect(drops=frozenset({"logprobs"})),
        ),
        # api-docs.deepseek.com: JSON mode, no schema; the reasoner ignores sampling parameters and
        # rejects logprobs. seed is not a documented parameter.
        Provider(
            "deepseek",
            "https://api.deepseek.com/v1",
            ("DEEPSEEK_API_KEY",),
            dialect=Dialect(drops=frozenset({"seed"}), structured="json"),
            exceptions=(
                (
                    re.compile(r"deepseek-reasoner"),
                    Dialect(
                        drops=frozenset({"seed", "temperature", "top_p", "logprobs"}),
                        structured="json",
                    ),
                ),
            ),
        ),
        # Unknown parameters are a 422 there; the seed has a name of its own.
        Provider(
            "mistral",
            "https://api.mistral.ai/v1",
            ("MISTRAL_API_KEY",),
            dialect=Dialect(drops=frozenset({"logprobs"}), renames={"seed": "random_seed"}),
        ),
        Provider("ollama", "http://localhost:11434/v1", ("OLLAMA_API_KEY",), needs_key=False),
        Provider(
            "vllm",
            "http://localhost:8000/v1",
            ("VLLM_API_KEY",),
            needs_key=False,
            dialect=Dialect(score=True),
        ),
    )
}


@dataclass(frozen=True)
class Address:
    """Where a model id leads.

    Attributes:
        model_id: as the user wrote it.
        model: the name that the endpoint knows.
        base_url: without a slash at its end.
        key: goes to this address only.
        dialect: what is known of it beforehand.

    """

    model_id: str
    model: str
    base_url: str
    key: Key | None
    dialect: Dialect


def is_endpoint_id(model_id: str) -> bool:
    """Whether the id is `http(s)://host/path#model` or `provider/model` of a known provider."""
    if model_id.startswith(("http://", "https://")):
        return True
    provider, slash, _ = model_id.partition("/")
    return bool(slash) and provider in PROVIDERS


def resolve(model_id: str, settings: Settings | None = None) -> Address:
    """Find address, key and dialect of a model id.

    Args:
        model_id: `provider/model` or `http(s)://host:port/v1#model`.
        settings: where keys and base URLs come from (default: the environment, then `./.env`).

    Raises:
        UsageError: no such id; the text lists what there is.
        MissingKeyError: the provider needs a key and none is set.
        InputError: `.env` cannot be read.

    """
    settings = settings or Settings.load()
    if model_id.startswith(("http://", "https://")):
        url, _, model = model_id.partition("#")
        base_url = base_url_of(url, what=f"the model id {model_id!r}")
        if not model.strip():
            raise UsageError(
                f"{model_id!r} names no model: write the model's name after a #, "
                "http://localhost:8000/v1#Qwen/Qwen3-8B for instance"
            )
        # PERSONAE_API_KEY alone: a provider's key never goes to a stranger's host.
        return Address(model_id, model, base_url, settings.key((URL_KEY,)), ELSEWHERE)
    name, _, model = model_id.partition("/")
    provider = PROVIDERS.get(name)
    if provider is None or not model.strip():
        raise UsageError(
            f"{model_id!r} is no model id. Endpoints are written provider/model with one of "
            f"{', '.join(PROVIDERS)} (openai/gpt-4.1-mini), or http://host:port/v1#model; "
            "besides them there are local and scripted:FILE.py (docs/models.md)"
        )
    moved = settings.get(provider.base_url_variable)
    base_url = provider.base_url
    if moved is not None:
        base_url = base_url_of(moved.value, what=moved.name)
    at_home = base_url == provider.base_url
    key = settings.key(provider.keys, address=None if at_home else moved)
    if key is None and provider.needs_key and (at_home or _has_key_elsewhere(settings, provider)):
        raise MissingKeyError(_missing_key(provider, None if at_home else moved))
    return Address(model_id, model, base_url, key, _dialect(provider, model, at_home=at_home))


def leads_key_away(model_id: str, settings: Settings | None = None) -> bool:
    """Whether a call of this id would take `PERSONAE_API_KEY` to another machine.

    For ids that the user did not type: a manifest that somebody else wrote may name any address.

    Raises:
        UsageError, InputError: see `resolve`.

    """
    if not model_id.startswith(("http://", "https://")):
        return False
    address = resolve(model_id, settings)
    return address.key is not None and not _is_loopback(urlsplit(address.base_url).hostname or "")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def backend_for_endpoint(
    model_id: str,
    *,
    timeout: float = 120.0,
    connect_timeout: float = 10.0,
    folder: Path | None = None,
) -> OpenAICompatible:
    """The backend of an endpoint's model.

    Args:
        model_id: `provider/model` or `http(s)://host:port/v1#model`.
        timeout: seconds for one whole exchange.
        connect_timeout: seconds for reaching the host.
        folder: where `.env` may lie (default: the current folder).

    Raises:
        UsageError, MissingKeyError, InputError: see `resolve`.

    """
    from personae.models.wire import OpenAICompatible

    address = resolve(model_id, Settings.load(folder))
    return OpenAICompatible(address, timeout=timeout, connect_timeout=connect_timeout)


def _dialect(provider: Provider, model: str, *, at_home: bool) -> Dialect:
    if not at_home and provider.needs_key:
        # OPENAI_BASE_URL and its like lead to other people's servers; what they speak is not
        # this provider's dialect.
        return ELSEWHERE
    for pattern, dialect in provider.exceptions:
        if pattern.match(model):
            return dialect
    return provider.dialect


def base_url_of(url: str, *, what: str) -> str:
    """An endpoint's address without a slash at its end; where it gives no path, with `/v1`.

    Args:
        what: whose address it is, for the text.

    Raises:
        UsageError: it is no http(s) URL, or holds a password or a query.

    """
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise UsageError(
            "the address of a model holds a user name or password, and addresses are recorded: "
            f"take them out and set {URL_KEY}"
        )
    try:
        parts: SplitResult = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{what} is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f"{what} is no URL: it should look like http://localhost:8000/v1")
    if parts.query or parts.fragment:
        raise UsageError(f"{what}: an endpoint's address has no ?query")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def _has_key_elsewhere(settings: Settings, provider: Provider) -> bool:
    """Whether a key is set that must not go to the address that `.env` gives."""
    return settings.key(provider.keys) is not None


def _missing_key(provider: Provider, moved: Setting | None) -> str:
    names = " or ".join(provider.keys)
    if moved is not None:
        return (
            f"{moved.name} comes from .env, so the key must too: an address from a file never "
            f"receives a key from the environment. Put {names} into .env, or set {moved.name} in "
            "the environment."
        )
    return (
        f"{provider.name} needs a key: set {names} in the environment, "
        "or write it into .env in the current folder"
    )
