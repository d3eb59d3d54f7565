"""Every prompt as a template file, in English and in Chinese.

A template is `prompts/LANGUAGE/NAME.md`: Jinja2 text that lines `=== system`, `=== user` and
`=== assistant` cut into messages. It is cut *before* anything is filled in, and filled in once, so
neither a line `=== system` nor Jinja syntax inside a value means anything. What templates share
lies in `partials/` and is drawn in with `{% include %}`.

Inside a template the order is from what many calls share to what one call has for itself (task,
persona, question, response), so that a server's prefix cache can reuse the front.

Judged text, personas and questions are *quoted data*: the filter `quoted` puts them between tags
that the text itself cannot contain, and the template says that nothing in there is an instruction.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Literal, cast, get_args

from jinja2 import DictLoader, Environment, StrictUndefined, Template, meta

from personae.records.benchmark import Language
from personae.records.call import Message

Role = Literal["system", "user", "assistant"]

LANGUAGES: tuple[Language, ...] = get_args(Language)

_MARK = re.compile(r"^=== *(system|user|assistant) *$", re.MULTILINE)
# Angle brackets, and what no text holds: control characters and lone surrogates. One table, since
# a pass over ten kilobytes is a good part of what a prompt costs.
_OUTSIDE = {
    **str.maketrans({"<": "‹", ">": "›", "＜": "‹", "＞": "›", "﹤": "‹", "﹥": "›"}),
    **dict.fromkeys(
        (*range(9), *range(0x0B, 0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000)), "\ufffd"
    ),
}
_OUTSIDE_ASCII = bytes(c for c in _OUTSIDE if c < 0x80)
_BRACKET_TOKEN = re.compile(
    r"\[(/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_\w+))\]", re.IGNORECASE
)
_INCLUDE = re.compile(r'\{% include "([^"]+)" (\+?)%\}(\n?)')
_ENDED = re.compile(r"[.!?…。！？][\"'”’」』)）]*$")


def render(name: str, language: Language, /, **values: object) -> tuple[Message, ...]:
    """The messages of a template, filled in.

    Args:
        name: path without ending (`"judge"`, `"world/act"`).
        language: of the template; the values are taken as they are.
        values: exactly the variables that the template uses (`variables`), None included.

    Raises:
        KeyError: there is no such template.
        TypeError: a variable is missing, or one is given that the template does not use.

    """
    wanted = variables(name, language)
    if wanted != values.keys():
        missing, unknown = sorted(wanted - values.keys()), sorted(values.keys() - wanted)
        raise TypeError(
            f"prompt {language}/{name}: "
            + "; ".join(
                f"{what} {', '.join(names)}"
                for what, names in (("missing", missing), ("unknown", unknown))
                if names
            )
        )
    return tuple(
        Message(role=role, content=template.render(values).strip())
        for role, template in _sections(name, language)
    )


def names(language: Language, room: str = "interview") -> tuple[str, ...]:
    """The template names of a room, sorted.

    The templates of the interview, and those that all rooms share (`repair`), lie in the language's
    folder itself; those of another room in a folder of its name (`world/act`).
    """
    own = {n.removesuffix(".md") for n in _sources(language) if "/" not in n}
    if room != "interview":
        own = {"repair"} | {n.removesuffix(".md") for n in _sources(language) if _in(n, room)}
    return tuple(sorted(own))


def _in(path: str, room: str) -> bool:
    return path.startswith(f"{room}/") and "/" not in path.removeprefix(f"{room}/")


@cache
def variables(name: str, language: Language) -> frozenset[str]:
    """The variables that a template and its partials use.

    Raises:
        KeyError: there is no such template.

    """
    environment = _environment(language)
    sources = _sources(language)
    used: set[str] = set()
    for file in _closure(name, language):
        used |= meta.find_undeclared_variables(environment.parse(sources[file]))
    return frozenset(used)


@cache
def prompt_hash(name: str, language: Language) -> str:
    """SHA-256 (64 hex digits) over the template file and the partials that it draws in.

    Raises:
        KeyError: there is no such template.

    """
    digest = hashlib.sha256()
    sources = _sources(language)
    for file in _closure(name, language):
        # NUL stands in no file, so no two sets of files run together into the same bytes.
        digest.update(f"{file}\0{sources[file]}\0".encode())
    return digest.hexdigest()


def quoted(text: str, tag: str, **attributes: str | int) -> str:
    """The text as data between `<tag>` and `</tag>`, unable to end its own quotation.

    Angle brackets inside become `‹` and `›`, so the text contains neither a tag of ours nor the
    control tokens of chat templates (`<|im_end|>`, `</s>`); bracketed ones (`[INST]`) become
    `⟦INST⟧`. Control characters and lone surrogates become U+FFFD. All else stays as it is.

    Raises:
        TypeError: what is quoted is not text.

    """
    if not isinstance(text, str):
        raise TypeError(f"<{tag}> quotes text, not {type(text).__name__}")
    inside = text.replace("\r\n", "\n").replace("\r", "\n")
    if not _is_plain(inside):
        inside = inside.translate(_OUTSIDE)
    if "[" in inside:
        inside = _BRACKET_TOKEN.sub(r"⟦\1⟧", inside)
    head = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f"<{tag}{head}>\n{inside}\n</{tag}>"


def _is_plain(text: str) -> bool:
    """Whether a text is ASCII with nothing to replace: told in a fifth of the time of replacing."""
    if not text.isascii():
        return False
    raw = text.encode()
    return len(raw.translate(None, _OUTSIDE_ASCII)) == len(raw)


def sentence(text: str, language: Language) -> str:
    """A description as the end of a sentence: one closing mark, and in English "a" for "A".

    Raises:
        ValueError: the description is blank.

    """
    text = text.strip()
    if not text:
        raise ValueError("a blank persona cannot be played")
    if language == "en":
        text = re.sub(r"^(A|An|The) ", lambda m: m[0].lower(), text)
    if re.search(r"[^.]\.\.$", text):
        text = text[:-1]
    if language == "zh":
        text = re.sub(r"(?<!\.)\.$", "。", text)
    return text if _ENDED.search(text) else text + ("。" if language == "zh" else ".")


@cache
def _sources(language: Language) -> dict[str, str]:
    """Template texts by their path below the language's folder, templates and partials."""
    root = files(__name__).joinpath(language)
    return {path: item.read_text("utf-8") for path, item in _walk(root) if path.endswith(".md")}


def _walk(folder: Traversable, before: str = "") -> Iterator[tuple[str, Traversable]]:
    for item in folder.iterdir():
        if item.is_dir():
            yield from _walk(item, f"{before}{item.name}/")
        else:
            yield before + item.name, item


@cache
def _environment(language: Language) -> Environment:
    environment = Environment(
        loader=DictLoader(_sources(language)),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701  (prompts are plain text; `quoted` guards them)
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["quoted"] = quoted
    environment.filters["sentence"] = lambda text: sentence(text, language)
    return environment


def _closure(name: str, language: Language) -> tuple[str, ...]:
    """The template's file and, in order, all partials that it can draw in."""
    sources, environment = _sources(language), _environment(language)
    first = f"{name}.md"
    if first not in sources or name.startswith("partials/"):
        raise KeyError(f"there is no prompt {language}/{name}; there are: {names(language)}")
    found: set[str] = set()
    waiting = [first]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        for other in meta.find_referenced_templates(environment.parse(sources[file])):
            if other is None:  # the name is computed (one partial per task): any may be meant
                folder = "partials/questions/"
                waiting += [path for path in sources if path.startswith(folder)]
            else:
                waiting.append(other)
    return (first, *sorted(found - {first}))


def _inlined(source: str, language: Language) -> str:
    """The text with its literal includes written out: Jinja takes as long for one as for a page."""

    def partial(match: re.Match[str]) -> str:
        path, keeps, newline = match.groups()
        text = _inlined(_sources(language)[path], language).removesuffix("\n")
        if text.endswith("%}"):  # its last tag must not swallow the newline that follows it here
            text = text.removesuffix("%}").removesuffix("+") + "+%}"
        return text + (newline if keeps else "")

    return _INCLUDE.sub(partial, source)


@cache
def _sections(name: str, language: Language) -> tuple[tuple[Role, Template], ...]:
    if f"{name}.md" not in _sources(language):
        raise KeyError(f"there is no prompt {language}/{name}; there are: {names(language)}")
    environment = _environment(language)

    def compiled(body: str) -> Template:
        template = environment.from_string(body.strip())
        # Copied for every rendering: a ChainMap takes as long for that as a message for its text.
        template.globals = dict(template.globals)
        return template

    head, *parts = _MARK.split(_inlined(_sources(language)[f"{name}.md"], language))
    if head.strip() or not parts:
        raise ValueError(f"prompt {language}/{name} must begin with a line `=== system` or so")
    return tuple(
        (cast("Role", role), compiled(body))
        for role, body in zip(parts[::2], parts[1::2], strict=True)
    )
