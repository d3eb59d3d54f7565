"""Writes docs/commands.md from the parser, so that the options on the page are those of the code.

    .venv/bin/python tools/make_commands.py

tests/test_docs.py fails where the page is not what this writes. argparse's own help texts are
wrapped differently by each Python version; tables are not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from personae.cli import _parser

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"

HEAD = """# Commands

<!-- Made by tools/make_commands.py from the parser; a test compares. Do not edit. -->

A command with `--help` shows the same. Exit codes: 0 done, 1 failed, 2 usage, 3 stopped early and
resumable ([running.md](running.md#stopping)). Model ids: [models.md](models.md).
"""

Parser = argparse.ArgumentParser


def commands(parser: Parser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Parser]]:
    """Every command with its parser, `bench import personagym` and the like included."""
    if words:
        yield " ".join(words), parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from commands(sub, (*words, name))


def options(parser: Parser) -> list[argparse.Action]:
    """A command's own arguments and options, without `--help` and sub-commands."""
    skip = (argparse._HelpAction, argparse._SubParsersAction)
    return [a for a in parser._actions if not isinstance(a, skip)]


def _value(action: argparse.Action) -> str:
    """How the value is written: `MODEL...`, `en|zh`, nothing for a switch."""
    if action.nargs == 0:
        return ""
    if action.choices is not None:
        return "|".join(str(c) for c in action.choices)
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.nargs == "+":
        return f"{name}..."
    return f"[{name}]" if action.nargs == "?" else name


def _groups(parser: Parser) -> Iterator[str]:
    for group in parser._mutually_exclusive_groups:
        names = " and ".join(f"`{a.option_strings[0]}`" for a in group._group_actions)
        rule = "exactly one of" if group.required else "at most one of"
        yield f"{rule[0].upper()}{rule[1:]} {names}."


def _row(action: argparse.Action) -> str:
    written = _value(action).replace("|", "\\|")
    if action.option_strings:
        written = f"{action.option_strings[-1]} {written}".rstrip()
    text = (action.help or "").replace("|", "\\|")
    needed = " (required)" if action.required and action.option_strings else ""
    return f"| `{written}` | {text}{needed} |"


def page() -> str:
    """The text of docs/commands.md."""
    parts = [HEAD]
    for name, parser in commands(_parser()):
        if not options(parser) and any(True for _ in commands(parser)):
            continue  # only a roof over its sub-commands
        part = [f"## personae {name}", "", parser.description or ""]
        for rule in _groups(parser):
            part += ["", rule]
        rows = [_row(action) for action in options(parser)]
        if rows:
            part += ["", "| | |", "|---|---|", *rows]
        parts.append("\n".join(part) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
