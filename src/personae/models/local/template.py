"""Messages to the text that a model reads, by the model's own chat template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from personae.errors import UnsupportedError

_MAX_PROMPT_CHARS = 4_000_000


def defuse(content: str, control: Sequence[str]) -> tuple[str, bool]:
    """Content in which no control token stands, and whether anything was changed.

    A judged answer that spells `<|im_end|>` would end its own message and begin another. A space
    after the first character keeps it readable and makes it plain text.
    """
    if not control:
        return content, False
    pattern = re.compile("|".join(re.escape(t) for t in sorted(control, key=len, reverse=True)))
    changed = pattern.sub(lambda found: found[0][0] + " " + found[0][1:], content)
    return changed, changed != content


def render(template: str | None, messages: list[dict[str, str]], *, bos: str, eos: str) -> str:
    """The prompt up to where the assistant's next message begins.

    Raises:
        UnsupportedError: the model brings no chat template, or it refuses these messages.
    """
    if template is None:
        raise UnsupportedError(
            "these weights bring no chat template, so they cannot hold a dialogue"
        )
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # The template comes from a file that a stranger made: no attribute that leads out of it.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def refuse(message: str) -> Any:
        raise TemplateError(message)

    environment.globals["raise_exception"] = refuse
    try:
        text = environment.from_string(template).render(
            messages=messages, add_generation_prompt=True, bos_token=bos, eos_token=eos
        )
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        raise UnsupportedError(
            f"the model's chat template refuses these messages: {error}"
        ) from None
    if len(text) > _MAX_PROMPT_CHARS:
        raise UnsupportedError("the model's chat template writes without end")
    return text
