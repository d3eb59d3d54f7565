"""`personae play`: play scenes."""

from __future__ import annotations

from typing import Any

from personae.commands.base import Resume

RESUMES: dict[str, Resume] = {}


def add(commands: Any) -> None:
    """Add the commands to the parser."""
