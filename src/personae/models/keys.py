"""Keys and addresses from the environment or `./.env`, never from anywhere else, never into a file.

A `.env` file is input like any other: the folder it lies in may have come from a stranger. So it is
size-capped, nothing in it is interpolated (`A=${OPENAI_API_KEY}` stays these very characters),
`os.environ` is never changed, and an address that only `.env` gives never receives a key that only
the environment holds (`Settings.key`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from dotenv import dotenv_values

from personae.errors import InputError, UsageError

HIDDEN = "[key]"
_MAX_DOTENV_BYTES = 64 * 1024
# Below this length a "key" is a placeholder ("EMPTY", "ollama") and an ordinary word of a text.
_SHORTEST_SECRET = 8
# Providers echo a wrong key back half masked ("sk-ab***yz"); the rest of it is nobody's business.
_KEY_SHAPE = re.compile(
    r"\b(?:sk|pk|gsk|xai|hf|tgp|key)[-_][A-Za-z0-9_.*-]{6,}|\bAIza[A-Za-z0-9_.*-]{6,}"
    r"|\bBearer\s+\S{6,}"
)


class Key:
    """A secret that shows its name, never its value.

    Args:
        value: the secret.
        name: the variable it came from.

    Raises:
        UsageError: the value cannot travel in an HTTP header.

    """

    __slots__ = ("_value", "name")

    def __init__(self, value: str, name: str) -> None:
        if not value.isascii() or not value.isprintable():
            raise UsageError(
                f"{name} holds a character that no key has (a line break, a space, an accent?). "
                "Set it again."
            )
        self._value, self.name = value, name

    def reveal(self) -> str:
        """The value, for the one header that needs it."""
        return self._value

    def scrub(self, text: str) -> str:
        """The text without this key, and without anything else of a key's shape."""
        if len(self._value) >= _SHORTEST_SECRET:
            for spelling in {self._value, quote(self._value, safe="")}:
                text = text.replace(spelling, HIDDEN)
        return scrub_shapes(text)

    def scrub_body(self, body: bytes) -> bytes:
        """A body without this key: a server that mirrors headers must not feed the journal."""
        secret = self._value.encode()
        if len(secret) >= _SHORTEST_SECRET:
            for spelling in {secret, secret.replace(b"/", b"\\/")}:  # JSON may escape a slash
                body = body.replace(spelling, HIDDEN.encode())
        return body

    def __repr__(self) -> str:
        return f"<key from {self.name}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a key is not pickled")


def scrub_shapes(text: str) -> str:
    """The text with everything that looks like a key replaced."""
    return _KEY_SHAPE.sub(HIDDEN, text)


class Setting(NamedTuple):
    """A value and where it came from."""

    value: str
    name: str
    from_dotenv: bool


class Settings:
    """The environment, and `.env` behind it.

    Args:
        environ: the environment's variables.
        dotenv: those of the `.env` file.

    """

    def __init__(self, environ: Mapping[str, str], dotenv: Mapping[str, str | None]) -> None:
        self._environ, self._dotenv = environ, dotenv

    @classmethod
    def load(cls, folder: Path | None = None) -> Settings:
        """Read `os.environ` and `folder/.env` (default: the current folder).

        Raises:
            InputError: `.env` is there but cannot be read as text of at most 64 KiB.

        """
        path = (folder or Path.cwd()) / ".env"
        if not path.is_file():
            return cls(os.environ, {})
        try:
            with path.open("rb") as file:
                raw = file.read(_MAX_DOTENV_BYTES + 1)
            text = raw.decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"cannot be read ({type(error).__name__})",
                path=path,
                mend="Write it as UTF-8 lines of NAME=value, or remove it.",
            ) from None
        if len(raw) > _MAX_DOTENV_BYTES:
            raise InputError(
                "is larger than 64 KiB", path=path, mend="It should hold a few NAME=value lines."
            )
        return cls(os.environ, dotenv_values(stream=StringIO(text), interpolate=False))

    def get(self, name: str) -> Setting | None:
        """The variable's value, the environment first; None when unset or blank."""
        for source, from_dotenv in ((self._environ, False), (self._dotenv, True)):
            value = (source.get(name) or "").strip()
            if value:
                return Setting(value, name, from_dotenv)
        return None

    def key(self, names: Sequence[str], *, address: Setting | None = None) -> Key | None:
        """The first of these keys that is set.

        Args:
            names: variables, by preference.
            address: where the key would be sent, when a variable rather than the provider's own
                default says so. From `.env`, it is given keys from `.env` alone: a downloaded
                folder must not be able to lead the user's key away.

        """
        only_dotenv = address is not None and address.from_dotenv
        for name in names:
            value = (self._dotenv.get(name) or "").strip() if only_dotenv else None
            if not only_dotenv and (setting := self.get(name)) is not None:
                value = setting.value
            if value:
                return Key(value, name)
        return None
