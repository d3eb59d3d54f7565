"""The six characters of Neeko's published files: what is trained on, tuned on and held out.

Trained and tuned on: `interview_multi/chatgpt` (dialogues). Held out: `icl_interview_single/chatgpt`
(one question, one answer). A held-out answer is refused where it is empty, repeats its prompt, was
answered twice, or shares thirteen words in a row with a dialogue (Brown et al. 2020, appendix C);
or where its question was asked in a dialogue. What is refused is counted.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from personae.cast.rows import read_rows
from personae.errors import InputError
from personae.records import Character
from personae.records.cast import CastRow, CastTurn

DIALOGUES = "gen_results/interview_multi/chatgpt"
ANSWERS = "gen_results/icl_interview_single/chatgpt"
PROFILES = "profiles"
LICENCE = "CC-BY-NC-4.0"
OVERLAP = 13
"""Words in a row that a held-out answer may not share with a dialogue."""
PROMPTS = ("i want you to act like", "i want you to respond", "your question:")
"""How the prompt of the released code begins, which some published answers repeat."""

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


@dataclass(frozen=True)
class Role:
    """One character.

    Attributes:
        name: as all methods' prompts give it.
        train, development: dialogues.
        held: single answers, `source` unlike in all.
        refused: held-out answers and dialogues that are not used, by reason.
    """

    name: str
    profile: Character
    train: tuple[CastRow, ...]
    development: tuple[CastRow, ...]
    held: tuple[CastRow, ...]
    refused: Mapping[str, int] = field(default_factory=dict)


def load(folder: Path, *, development: int, seed: int = 0) -> dict[str, Role]:
    """All roles by name.

    Args:
        folder: `data/neeko`.
        development: dialogues of each role that are tuned on, and never trained on.
        seed: of the draw of those.

    Raises:
        InputError: the folder is not that, or a role has too few dialogues.
    """
    from personae.characters.importers import import_neeko

    found = {}
    files = sorted((folder / DIALOGUES).glob("*_multi.jsonl"))
    if not files:
        raise InputError("holds no dialogues", path=folder / DIALOGUES, mend="Give data/neeko")
    pooled: set[tuple[str, ...]] = set()
    asked: set[str] = set()
    read = {}
    for file in files:
        short = file.name.removesuffix("_multi.jsonl")
        rows, not_read = read_rows([file], licence=LICENCE)
        refused: Counter[str] = Counter(
            "broken line of a dialogue" if one.kept else "broken dialogue" for one in not_read
        )
        read[short] = rows, refused
        for row in rows:
            for turn in row.turns:
                pooled |= runs(words(turn.text), OVERLAP)
                if turn.speaker is None:
                    asked.add(" ".join(words(turn.text)))
    for short, (rows, refused) in read.items():
        (profile,) = import_neeko(folder / PROFILES / f"wiki_{short}.txt")
        name = profile.name
        mine = [spoken_by(row, name) for row in rows]
        if len(mine) < development + 1:
            raise InputError(
                f"{len(mine)} dialogues, {development} of them to tune on: none is left",
                path=folder / DIALOGUES / f"{short}_multi.jsonl",
            )
        held, why = held_out(folder / ANSWERS / f"{short}_single.json", name, pooled, asked)
        order = np.random.default_rng(seed).permutation(len(mine))
        tuned_on = {int(n) for n in order[:development]}
        found[name] = Role(
            name,
            profile,
            train=tuple(row for n, row in enumerate(mine) if n not in tuned_on),
            development=tuple(row for n, row in enumerate(mine) if n in tuned_on),
            held=held,
            refused=dict(refused + why),
        )
    return found


def held_out(
    file: Path, name: str, pooled: set[tuple[str, ...]], asked: set[str]
) -> tuple[tuple[CastRow, ...], Counter[str]]:
    """The answers of a file that may be held out, and why others may not."""
    rows, not_read = read_rows([file], licence=LICENCE)
    refused: Counter[str] = Counter(
        "empty, a refusal, or holds its prompt or another's line" for _ in not_read
    )
    kept: list[CastRow] = []
    questions: set[str] = set()
    for row in rows:
        reason = unfit(row, pooled, asked, questions)
        if reason:
            refused[reason] += 1
            continue
        questions.add(question_of(row))
        kept.append(spoken_by(row, name))
    return tuple(kept), refused


def unfit(
    row: CastRow, pooled: set[tuple[str, ...]], asked: set[str], questions: Iterable[str]
) -> str | None:
    """Why an answer may not be held out; None: it may."""
    answer = words(" ".join(turn.text for turn in row.turns if turn.speaker is not None))
    if any(prompt in " ".join(answer) for prompt in PROMPTS):
        return "the answer repeats its prompt"
    if question_of(row) in asked:
        return "the question is in a dialogue"
    if question_of(row) in questions:
        return "answered twice"
    if runs(answer, OVERLAP) & pooled:
        return f"shares {OVERLAP} words in a row with a dialogue"
    return None


def question_of(row: CastRow) -> str:
    """What the person says, as words."""
    return " ".join(words(" ".join(turn.text for turn in row.turns if turn.speaker is None)))


def words(text: str) -> list[str]:
    """Its words in lower case."""
    return _WORD.findall(text.casefold())


def runs(text: Sequence[str], length: int) -> set[tuple[str, ...]]:
    """All runs of so many words."""
    return {tuple(text[n : n + length]) for n in range(len(text) - length + 1)}


def spoken_by(row: CastRow, name: str) -> CastRow:
    """The same with its one character under another name ("Caesar": "Julius Caesar")."""
    (old,) = row.characters
    turns = tuple(
        CastTurn(speaker=name, text=turn.text) if turn.speaker == old else turn
        for turn in row.turns
    )
    return row.model_copy(update={"characters": (name,), "turns": turns})


def digest(roles: Mapping[str, Role]) -> str:
    """Of all that is trained on, tuned on and held out."""
    whole = hashlib.sha256()
    for role in roles.values():
        for kind, rows in (("t", role.train), ("d", role.development), ("h", role.held)):
            for row in rows:
                said = "\n".join(f"{turn.speaker}: {turn.text}" for turn in row.turns)
                whole.update(f"{kind} {role.name}\n{said}\n\n".encode())
    return whole.hexdigest()[:16]
