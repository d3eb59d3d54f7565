"""From a model id to its backend.

`local`, `local:FILE.gguf`, `local:OWNER/REPO:FILE.gguf` are the embedded model; `scripted:FILE.py`
is a script; `provider/model` and `http://host:port/v1#model` are OpenAI-compatible endpoints.
Other rooms register schemes of their own (`lift:`, `cast:`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from personae.errors import UsageError
from personae.records import Backend

Maker = Callable[[str], Backend]
Check = Callable[[str], None]


def model_scheme(model_id: str) -> str:
    """`local`, `scripted`, `http`, another word that a room registered, or `provider`."""
    head = model_id.partition(":")[0]
    if model_id == "local" or head in ("local", "scripted"):
        return head
    if head in ("http", "https"):
        return "http"
    if ":" in model_id and "/" not in head:
        return head
    return "provider"


def script_path(model_id: str) -> Path:
    """The file that a `scripted:FILE.py` id names."""
    return Path(model_id.partition(":")[2]).expanduser()


class Registry:
    """Makes backends; one backend a model id, one engine for all ids that share it.

    Args:
        timeout: seconds for one attempt.
    """

    def __init__(self, *, timeout: float = 120.0) -> None:
        self._timeout = timeout
        self._schemes: dict[str, Maker] = {
            "local": self._local,
            "scripted": self._scripted,
            "http": self._endpoint,
            "provider": self._endpoint,
        }
        self._checks: dict[str, Check] = {}

    def register(self, scheme: str, maker: Maker, check: Check | None = None) -> None:
        """Teach the registry another scheme.

        Args:
            check: refuses an id that could only fail later; nothing is loaded.

        Raises:
            UsageError: the scheme is taken.
        """
        if self.knows(scheme):
            raise UsageError(f"the model scheme {scheme!r} is already taken")
        self._schemes[scheme] = maker
        if check is not None:
            self._checks[scheme] = check

    def knows(self, scheme: str) -> bool:
        """Whether a scheme has a maker."""
        return scheme in self._schemes

    def __call__(self, model_id: str) -> Backend:
        """The backend of a model id.

        Raises:
            UsageError: no such scheme or provider, or a key is missing.
            InputError: a script or weights file cannot be used.
        """
        return self._maker(model_id)(model_id)

    def check(self, model_id: str) -> None:
        """Refuse an id now that could only fail later; nothing is run, loaded or asked.

        Raises:
            UsageError: no such scheme or provider, a key is missing, or what a room checks.
        """
        from personae.models.providers import resolve

        scheme = model_scheme(model_id)
        if scheme in ("http", "provider"):
            resolve(model_id)
        else:
            self._maker(model_id)
        if scheme in self._checks:
            self._checks[scheme](model_id)

    def _maker(self, model_id: str) -> Maker:
        maker = self._schemes.get(model_scheme(model_id))
        if maker is None:
            raise UsageError(
                f"{model_id!r} is no model id: use provider/model, http://host:port/v1#model, "
                "local, local:FILE.gguf, scripted:FILE.py or cast:DIR (docs/models.md)"
            )
        return maker

    def _scripted(self, model_id: str) -> Backend:
        from personae.models.scripted import ScriptedModel, read_script

        return ScriptedModel(read_script(script_path(model_id)), name=model_id)

    def _local(self, model_id: str) -> Backend:
        from personae.models.local import LocalModel

        return LocalModel(model_id)

    def _endpoint(self, model_id: str) -> Backend:
        from personae.models.providers import backend_for_endpoint

        return backend_for_endpoint(model_id, timeout=self._timeout)
