"""The documents say what is there: links, paths, command lines and options are those of the code."""

import argparse
import ast
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from personae.cli import _parser
from tests.conftest import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(p for p in (ROOT / "docs").rglob("*.md"))], key=str)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
OUR_PATH = re.compile(r"(?:\.ci|src|docs|tests|tools|benchmarks)/[\w./-]+")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def prose(page: Path) -> str:
    """The page without its fenced code."""
    return FENCE.sub("", page.read_text("utf-8"))


def slugs(page: Path) -> set[str]:
    """The anchors that a page's headings have on the usual forges."""
    headings = re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def command_lines(text: str) -> Iterator[str]:
    """Lines of code blocks that call `personae`; continued lines joined, without what stands around.

    That is comments, and variables of the environment before the command.
    """
    fenced = "\n".join(body for _, _, body in FENCE.findall(text))
    indented = re.findall(r"^(?: {4}|\t)(.*)$", FENCE.sub("", text), re.MULTILINE)
    code = re.sub(r"\\\n\s*", " ", fenced + "\n" + "\n".join(indented))
    for line in code.splitlines():
        called = re.sub(r"^(?:[A-Z_]+=\S* )+", "", line.strip())
        if called.startswith("personae "):
            yield re.sub(r"\s+#\s.*$", "", called)


def command(words: list[str]) -> tuple[argparse.ArgumentParser, list[str]] | None:
    """The parser of a command line and the words behind the command's name; None if there is none."""
    parser, rest = _parser(), words
    while True:
        subs = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if not subs or not rest or rest[0].startswith("-"):
            return parser, rest
        if rest[0] not in subs[0].choices:
            return None
        parser, rest = subs[0].choices[rest[0]], rest[1:]


def long_options(parser: argparse.ArgumentParser) -> set[str]:
    found = {o for a in parser._actions for o in a.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                found |= long_options(sub)
    return found


def test_there_are_pages_to_look_at() -> None:
    names = {str(p.relative_to(ROOT)) for p in PAGES}
    assert {
        "README.md",
        "CONTRIBUTING.md",
        "docs/running.md",
        "docs/decisions/0001-wire.md",
    } <= names
    assert sum(len(LINK.findall(prose(p))) for p in PAGES) > 50
    assert sum(1 for p in PAGES for _ in command_lines(p.read_text("utf-8"))) > 15


@every_page
def test_every_relative_link_leads_to_a_file_and_every_anchor_to_a_heading(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target}"
        assert there.is_relative_to(ROOT), f"{page.name}: {target} leads out of the repository"
        if anchor:
            assert anchor in slugs(there), f"{page.name}: {target}"


@every_page
def test_every_path_of_the_repository_that_is_named_exists(page: Path) -> None:
    for word in INLINE.findall(prose(page)):
        if OUR_PATH.fullmatch(word):
            assert (ROOT / word).exists(), f"{page.name}: {word}"


@every_page
def test_every_command_line_in_a_code_block_is_one_that_the_parser_takes(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in command_lines(page.read_text("utf-8")):
        try:
            _parser().parse_args(shlex.split(line)[1:])
        except SystemExit:
            pytest.fail(f"{page.name}: {line}\n{capsys.readouterr().err}")


@every_page
def test_every_command_and_option_named_in_the_text_exists(page: Path) -> None:
    anywhere = long_options(_parser())
    for word in INLINE.findall(prose(page)):
        words = word.split()
        if words[0] == "personae" and len(words) > 1:
            found = command(words[1:])
            assert found is not None, f"{page.name}: {word}"
            known = long_options(found[0])
            asked = [w for w in found[1] if w.startswith("--")]
        else:
            known, asked = anywhere, [w for w in words[:1] if w.startswith("--")]
        for option in asked:
            assert option in known, f"{page.name}: {word}"


def test_the_page_of_commands_is_what_the_tool_writes_now() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "make_commands.py"))["page"]()
    written = (ROOT / "docs" / "commands.md").read_text("utf-8")
    assert written == made, "run tools/make_commands.py"


def test_the_page_of_commands_has_every_option_of_every_command() -> None:
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    for name, asked in {"eval": ["--judge MODEL...", "--limit N"], "resume": ["RUN", "--replay"],
                        "bench build": ["--tasks TASK..."], "models pull": ["[NAME]"]}.items():  # fmt: skip
        part = page.split(f"## personae {name}\n")[1].split("\n## ")[0]
        for option in asked:
            assert f"`{option}`" in part, (name, option)
    for option in long_options(_parser()) - {"-h", "--help", "--version"}:
        assert f"`{option}" in page, option


def test_every_document_stands_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name


def test_decisions_have_numbers_of_their_own_and_say_when_to_turn_back() -> None:
    notes = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [note.name[:4] for note in notes]
    assert len(notes) >= 9
    assert len(set(numbers)) == len(numbers)
    for note in notes:
        text = note.read_text("utf-8")
        assert text.startswith(f"# {note.name[:4]} "), note.name
        assert "**Turn back when**" in text, note.name


def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports, wherever in it."""
    tree = ast.parse(path.read_text("utf-8"))
    found = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    found |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    return {m for m in found if m.startswith("personae.")}


@pytest.mark.parametrize(
    ("room", "below"),
    [
        ("records", {"records", "errors"}),
        ("models", {"records", "errors", "models", "journal"}),
        ("journal", {"records", "errors", "models", "journal"}),
        ("judging",
         {"records", "errors", "models", "journal", "judging", "prompts", "data", "world"}),
        ("characters", {"records", "errors", "prompts", "characters"}),
        # Retrieval for an interview is the recall by words that the memory of plays has (world).
        ("interview",
         {"records", "errors", "models", "journal", "judging", "prompts", "data", "characters",
          "interview", "world"}),
        # It learns from runs, so it reads benchmarks (interview) and answers (judging); the vectors
        # of meaning are those of the memory of plays (world).
        ("cast",
         {"records", "errors", "models", "journal", "judging", "prompts", "characters", "interview",
          "world", "cast"}),
        # What a character may know is told by its card (characters).
        ("serve", {"records", "errors", "models", "prompts", "characters", "cast", "serve"}),
    ],
)  # fmt: skip
def test_arrows_between_rooms_point_one_way(room: str, below: set[str]) -> None:
    files = list((ROOT / "src" / "personae" / room).rglob("*.py"))
    assert len(files) > 3
    for file in files:
        rooms = {module.split(".")[1] for module in imports(file)}
        assert rooms <= below, f"{file.relative_to(ROOT)} uses {sorted(rooms - below)}"
