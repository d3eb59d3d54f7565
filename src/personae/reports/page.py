"""What the pages share: the templates and the one style sheet."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from personae.reports.language import clean


def _finalize(value: Any) -> Any:
    return value if isinstance(value, Markup) or not isinstance(value, str) else clean(value)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates: every value escaped, every text cleaned, no name undefined."""
    return Environment(
        loader=PackageLoader("personae.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@lru_cache(maxsize=1)
def style() -> tuple[str, str]:
    """The style sheet and its hash: the page's policy allows this one style and no other."""
    css = (files("personae.reports") / "templates" / "report.css").read_text(encoding="utf-8")
    return css, base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
