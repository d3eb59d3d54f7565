"""Texts of models and strangers as they can be shown to people."""

from __future__ import annotations

import re

_OVERRIDES = re.compile("[\u202a-\u202e\u2066-\u2069]")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")


def clean(text: str) -> str:
    """A text that can be shown: encodable, no control characters, bidi overrides made visible.

    Lone surrogates and control characters become U+FFFD. Characters that turn the reading order
    of what follows are written out, so that a text cannot show what it does not say.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _OVERRIDES.sub(lambda m: f"[U+{ord(m.group()):04X}]", text)
    return _UNPRINTABLE.sub("\ufffd", text)
