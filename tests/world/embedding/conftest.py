"""An embeddings endpoint on loopback, over real HTTP."""

from __future__ import annotations

from tests.models.conftest import _bare_environment, endpoint

__all__ = ["_bare_environment", "endpoint"]
