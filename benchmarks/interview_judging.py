"""What judging an interview costs: calls, prompt tokens, and how much of them is a shared prefix.

Ours beside the prompts of Neeko's appendix B.3, which are read from the paper's text at run time
(`papers/neeko.txt` beside the data) and filled as the released code fills them: first paragraph of
the profile, "Coffee Shop - Afternoon", the dialogue as "Man: ..." and "NAME: ...". Both judge the
same published dialogues, one metric a call. Tokens are those of the embedded model's tokenizer,
over the texts of the messages alone.

A prefix is reusable where an earlier prompt begins with the same tokens, each prefix computed once
(a trie over the prompts): within one dialogue, and over all dialogues of one character. With
`--judge MODEL` some dialogues are really judged, and what the endpoint says it took from its cache
is counted.

    python benchmarks/interview_judging.py [--each N] [--judge MODEL --judged N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from personae.cast.base import local_directory
from personae.interview.neeko import import_dialogues
from personae.journal.client import Client
from personae.journal.store import Journal
from personae.judging.interview_metrics import METRICS
from personae.judging.interviews import case_of, interview_call, judge_rows
from personae.models import Registry
from personae.records.interview import Interview, InterviewKind, InterviewProfile
from personae.session import repair_messages

DATA = Path(os.environ.get("PERSONAE_DATA", Path(__file__).parents[2] / "shared" / "data"))
PAPER = DATA.parent / "papers" / "neeko.txt"

KINDS: dict[InterviewKind, str] = {
    "single": "single questions",
    "multi": "5-turn dialogues",
    "transfer": "transfer dialogues, 5 turns",
}
TURNS = {"single": 1, "multi": 5, "transfer": 5}

TYPO = ("AI assistant mimicking", "AI assistant mimicing")
"""How the released file for CU differs from the other six, near its beginning (upstream.md C4)."""

Encode = Callable[[Sequence[str]], list[NDArray[np.uint32]]]
Prompts = Callable[[Interview], dict[str, tuple[str, ...]]]
"""An interview's prompts by metric, each as the texts of its messages."""


def paper_prompts(text: str) -> dict[str, str]:
    """The templates of appendix B.3 by metric.

    Raises:
        ValueError: one of the eight is not where it was.
    """
    found = {
        key.removesuffix("."): template
        for key, template in re.findall(
            r"^\| Prompt [^|]*\((\w+\.?)\) \|\n\| (You will be given.+) \|$", text, re.MULTILINE
        )
    }
    if set(found) != set(METRICS):
        raise ValueError(f"of the paper's prompts only {sorted(found)} were found")
    return found


def first_paragraph(profile: str) -> tuple[str, str]:
    """The name and the first paragraph of a published profile: all that the released judges see."""
    title, *paragraphs = [part.strip() for part in profile.split("\n") if part.strip()]
    return title.removeprefix("#").strip(), paragraphs[0]


def filled(template: str, one: Interview, paragraphs: Mapping[str, str]) -> str:
    """A template of the paper for one interview."""
    said = "\n".join(f"Man: {e.asked}\n{e.character}: {e.answer}" for e in one.exchanges)
    values = {
        "agent_name": ", ".join(one.characters),
        "agent_context": "\n".join(paragraphs[name] for name in one.characters),
        "loc_time": one.location,
        "status": one.status,
        "interactions": said,
    }
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], template)


def reused(prompts: Sequence[NDArray[np.uint32]]) -> int:
    """How many tokens of the prompts stand in a prefix that another of them has, computed once."""
    ordered = sorted(prompts, key=lambda ids: ids.astype(">u4").tobytes())
    return sum(common(a, b) for a, b in pairwise(ordered))


def common(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> int:
    """How many tokens two prompts begin with alike."""
    n = min(len(one), len(other))
    apart = np.flatnonzero(one[:n] != other[:n])
    return int(apart[0]) if len(apart) else n


@dataclass(frozen=True)
class Cost:
    """What one way of asking costs over all dialogues of a kind.

    Attributes:
        tokens: of all prompts; `within` of them are reusable in their dialogue, `over` in all
            dialogues of their character (transfer: of their first).
        shared: tokens that all prompts of a dialogue begin with, in the mean over dialogues.
    """

    dialogues: int
    calls: int
    tokens: int
    within: int
    over: int
    shared: float


def cost(interviews: Iterable[Interview], prompts: Prompts, encode: Encode) -> Cost:
    """The cost of judging the interviews with these prompts."""
    groups: dict[str, list[Interview]] = defaultdict(list)
    for one in interviews:
        groups[one.characters[0]].append(one)
    dialogues = calls = tokens = within = over = shared = 0
    for group in groups.values():
        of_character: list[NDArray[np.uint32]] = []
        for one in group:
            texts = list(prompts(one).values())
            flat = encode([text for messages in texts for text in messages])
            ids, start = [], 0
            for messages in texts:
                ids.append(np.concatenate(flat[start : start + len(messages)]))
                start += len(messages)
            dialogues, calls = dialogues + 1, calls + len(ids)
            tokens += sum(map(len, ids))
            within += reused(ids)
            shared += min(common(ids[0], other) for other in ids)
            of_character += ids
        over += reused(of_character)
    return Cost(dialogues, calls, tokens, within, over, shared / dialogues)


def arms(
    templates: Mapping[str, str],
    profiles: Mapping[str, InterviewProfile],
    paragraphs: Mapping[str, str],
) -> Iterator[tuple[str, Prompts]]:
    """The ways of asking that are compared."""

    def paper(typo: bool) -> Prompts:
        def prompts(one: Interview) -> dict[str, tuple[str, ...]]:
            wanted = case_of(one, profiles).metrics
            texts = {m: filled(templates[m], one, paragraphs) for m in wanted}
            if typo and "CU" in texts:
                texts["CU"] = texts["CU"].replace(*TYPO)
            return {m: (text,) for m, text in texts.items()}

        return prompts

    def ours(known: Mapping[str, InterviewProfile]) -> Prompts:
        def prompts(one: Interview) -> dict[str, tuple[str, ...]]:
            case = case_of(one, known)
            return {
                m: tuple(x.content for x in interview_call("j", case, m).messages)
                for m in case.metrics
            }

        return prompts

    short = {name: InterviewProfile(name=name, text=text) for name, text in paragraphs.items()}
    yield "appendix B.3, as released (CU misspelt)", paper(typo=True)
    yield "appendix B.3, as printed", paper(typo=False)
    yield "ours, first paragraph of the profile", ours(short)
    yield "ours, whole profile (the default)", ours(profiles)


def load(each: int | None) -> tuple[list[Interview], dict[str, InterviewProfile], dict[str, str]]:
    """Public interviews that can be judged, their profiles, and those' first paragraphs."""
    folder = DATA / "neeko"
    found = import_dialogues([folder / "gen_results", folder / "trans_dialogues.jsonl"])
    paragraphs = dict(
        first_paragraph(path.read_text("utf-8"))
        for path in sorted((folder / "profiles").glob("wiki_*.txt"))
    )
    profiles = {p.name: p for p in found.profiles if p.name in paragraphs}
    taken: dict[tuple[str, str, str], int] = defaultdict(int)
    interviews = []
    for one in found.interviews:
        place = (one.model, one.kind, one.characters[0])
        if one.failure is None and set(one.characters) <= profiles.keys():
            taken[place] += 1
            if each is None or taken[place] <= each:
                interviews.append(one)
    return interviews, profiles, paragraphs


def tokenizer() -> Encode:
    """The embedded model's, from the weights in the cache."""
    from tokenizers import Tokenizer

    known = Tokenizer.from_file(str(local_directory("local") / "tokenizer.json"))

    def encode(texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        found = known.encode_batch(list(texts), add_special_tokens=False)
        return [np.array(one.ids, dtype=np.uint32) for one in found]

    return encode


def table(each: int | None) -> Iterator[str]:
    """The figures as Markdown."""
    interviews, profiles, paragraphs = load(each)
    encode = tokenizer()
    templates = paper_prompts(PAPER.read_text("utf-8"))
    for kind, title in KINDS.items():
        mine = [i for i in interviews if i.kind == kind and len(i.exchanges) == TURNS[kind]]
        if not mine:
            continue
        yield f"\n## {len(mine):,} {title}\n"
        yield (
            "| prompts | calls a dialogue | tokens a call | tokens a dialogue "
            "| all its prompts begin with | reusable in the dialogue "
            "| with the character's others | left to compute a dialogue |"
        )
        yield "|---|---|---|---|---|---|---|---|"
        for name, prompts in arms(templates, profiles, paragraphs):
            c = cost(mine, prompts, encode)
            yield (
                f"| {name} | {c.calls / c.dialogues:.0f} | {c.tokens / c.calls:,.0f} "
                f"| {c.tokens / c.dialogues:,.0f} | {c.shared:,.0f} | {c.within / c.tokens:.1%} "
                f"| {c.over / c.tokens:.1%} | {(c.tokens - c.over) / c.dialogues:,.0f} |"
            )


async def judged(model: str, count: int) -> list[str]:
    """What an endpoint says of its cache when dialogues are really judged, one after the other."""
    interviews, profiles, _ = load(count)
    cases = [
        case_of(one, profiles)
        for one in interviews
        if one.kind == "multi" and len(one.exchanges) == TURNS["multi"]
    ][:count]
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "j.sqlite") as journal:
        client = Client(journal, Registry(), repair=repair_messages("en"))
        rows = [row for case in cases for row in await judge_rows(client, (model, 0), case)]
        await client.close()
        usage = [u for u in journal.usage() if u.role == "judge"]
    calls, tokens = sum(u.calls for u in usage), sum(u.tokens_in for u in usage)
    cached = sum(u.cached for u in usage)
    causes = Counter(row.failure.cause for row in rows if row.failure is not None)
    return [
        f"\n## {len(cases)} 5-turn dialogues judged by {model}\n",
        f"{calls} calls (repairs included), {tokens:,} prompt tokens, {cached:,} of them from its "
        f"cache ({cached / tokens if tokens else 0:.1%}); {sum(r.score is not None for r in rows)} "
        f"of {len(rows)} scores; missing by cause: {dict(causes) or 'none'}.",
    ]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--each", type=int, default=10, help="at most so many a system, kind and character; 0: all"
    )
    parser.add_argument("--judge", help="judge some dialogues, and ask its cache")
    parser.add_argument("--judged", type=int, default=3)
    args = parser.parse_args()
    if not (DATA / "neeko").is_dir() or not PAPER.is_file():
        print(f"{DATA / 'neeko'} or {PAPER} is absent; nothing to measure")
        return
    for line in table(args.each or None):
        print(line, flush=True)
    if args.judge:
        for line in asyncio.run(judged(args.judge, args.judged)):
            print(line)


if __name__ == "__main__":
    main()
