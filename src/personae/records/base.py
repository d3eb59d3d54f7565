"""What all records share: frozen, self-validating, canonical JSON, hash of the content."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticSerializationError

from personae.errors import InputError


def canonical_json(value: Any) -> str:
    """One spelling per value: sorted keys, no spaces, no NaN; content hashes are taken over it."""
    return json.dumps(
        value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
    )


def content_hash(value: Any) -> str:
    """SHA-256 (64 hex digits) of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()


def explain(error: ValidationError) -> str:
    """A pydantic error in one line: each place and what is wrong there (at most three)."""
    parts = [
        f"{'.'.join(str(p) for p in e['loc']) or 'the whole'}: {e['msg']}" for e in error.errors()
    ]
    more = f" (and {len(parts) - 3} more)" if len(parts) > 3 else ""
    return "; ".join(parts[:3]) + more


class Record(BaseModel):
    """Base of all records: immutable, no unknown fields, JSON round trip without loss."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        ser_json_inf_nan="constants",
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form as plain Python values."""
        return self.model_dump(mode="json", by_alias=True)

    def to_json(self, *, exclude: set[str] | None = None) -> str:
        """One line of JSON that UTF-8 can hold: half of a surrogate pair is escaped."""
        try:
            # What model_dump_json comes to, without a third of its time.
            raw = self.__pydantic_serializer__.to_json(self, by_alias=True, exclude=exclude)
            return raw.decode()
        except PydanticSerializationError:
            value = self.model_dump(mode="python", by_alias=True, exclude=exclude)
            return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_dict(cls, value: Any, *, path: object = None, place: str = "") -> Self:
        """Read the JSON form.

        Raises:
            InputError: the value is not this record; names file and place where given.

        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise InputError(
                f"not a valid {cls.__name__}: {explain(error)}",
                path=None if path is None else str(path),
                place=place,
            ) from None
