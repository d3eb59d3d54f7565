"""Does a character remember? Recall of planted facts among 1,000 to 100,000 memories (issue B3).

The haystack is real scene text where `../shared/data` is there (CharacterBox; sentences of scenes,
characters and acts, and pairs of them where more are wanted), else synthetic prose. 48 facts a
language are planted at random steps. `near` questions name the thing in other words than the fact;
`far` questions share nothing with it but a name, if that. Every way of ranking answers the same
questions over the same memories, and `recall@5` says how often the fact was among the first five.

Meaning is measured with `minilm` where `personae[memory]` is installed (English; it knows no
Chinese). To have 100,000 vectors in minutes, a pair of sentences gets the mean of their vectors.

    python benchmarks/memory.py [--sizes 1000 10000 100000] [--languages en zh]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from stub_server import prose

from personae.errors import UsageError
from personae.records import Language
from personae.world.embedding import Embedder, Vector, make_embedder
from personae.world.memory import MemoryStream, Weights

DATA = Path(os.environ.get("PERSONAE_DATA", Path(__file__).parents[2] / "shared" / "data"))
FACTS = Path(__file__).with_name("memory_facts.json")
TITLES = {"en": ("The_Matrix", "Twilight"), "zh": ("三国演义", "红楼梦", "西游记")}
PER_STEP = 8
RULE = (0.3, 0.3, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Importance as the rule of the play loop spreads it: most is merely witnessed."""

ONLY = {"recency": 0.0, "importance": 0.0}
WAYS = {
    "recency alone": Weights(relevance=0, recency=1, importance=0),
    "words alone": Weights(relevance=1, lexical=1, **ONLY),
    "meaning alone": Weights(relevance=1, lexical=0, **ONLY),
    "words + meaning": Weights(relevance=1, **ONLY),
    "all three, words (default)": Weights(lexical=1),
    "all three, joined (default)": Weights(),
    "all three, words, 1:1:1": Weights(relevance=1, recency=1, importance=1, lexical=1),
    "all three, joined, 1:1:1": Weights(relevance=1, recency=1, importance=1),
}


def sentences(language: Language) -> list[str]:
    """The sentences of the public scenes, each once; synthetic ones where they are absent."""
    folder = DATA / "characterbox"
    if not folder.is_dir():
        made = [prose(seed, 80) for seed in range(5000)]
        return made if language == "en" else [_in_han(text) for text in made]
    texts: list[str] = []
    for kind in ("extracted_scenes", "generated_data"):
        for title in TITLES[language]:
            books = json.loads((folder / kind / f"{title}.json").read_text(encoding="utf-8"))
            for book in books if isinstance(books, list) else [books]:
                for scene in book["scenes"]:
                    texts += [scene["event"], scene["description"], scene["plot"]]
                    for person in scene["characters"]:
                        texts += [person["description"], person["position"], person["states"]]
                    for act in scene["actions"]:
                        texts.append(f"{act['character']}: {act.get('action', '')}")
                        texts.append(f"{act['character']}: {act.get('dialogue', '')}")
    least = 20 if language == "en" else 6
    pieces = (p.strip() for t in texts for p in re.split(r"(?<=[.!?。！？])\s*", str(t)))
    return list(dict.fromkeys(p for p in pieces if len(p) >= least))


def _in_han(text: str) -> str:
    return "".join(chr(0x4E00 + sum(map(ord, word)) % 3000) for word in text.split())


def haystack(language: Language, size: int) -> list[str]:
    """Distinct memories: single sentences, then pairs of them on two lines."""
    pieces, draw = sentences(language), random.Random(size)
    draw.shuffle(pieces)
    texts = dict.fromkeys(pieces[:size])
    while len(texts) < size:
        texts[f"{draw.choice(pieces)}\n{draw.choice(pieces)}"] = None
    return list(texts)


class Pairs:
    """An embedder that gives a pair of sentences the mean of their vectors, each embedded once."""

    def __init__(self, inner: Embedder) -> None:
        self._inner, self._kept = inner, dict[str, Vector]()
        self.name, self.dimension = inner.name, inner.dimension

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        parts = list(dict.fromkeys(p for t in texts for p in t.split("\n") if p not in self._kept))
        self._kept |= dict(zip(parts, await self._inner.embed(parts), strict=True))
        sums = [np.sum([self._kept[p] for p in t.split("\n")], axis=0) for t in texts]
        return [s / np.linalg.norm(s) for s in sums]

    async def close(self) -> None:
        await self._inner.close()


async def measure(
    language: Language, size: int, embedder: Embedder | None, facts: list[dict[str, str]]
) -> None:
    draw = random.Random(7)
    texts = haystack(language, size - len(facts)) + [f["fact"] for f in facts]
    draw.shuffle(texts)
    if embedder is not None:
        await embedder.embed(texts)  # timed on its own
    weighed = [(t, i // PER_STEP, draw.choice(RULE)) for i, t in enumerate(texts)]
    now = weighed[-1][1] + 1
    for way, weights in WAYS.items():
        if embedder is None and weights.lexical < 1 and weights.relevance:
            continue
        meant = weights.lexical < 1 and weights.relevance > 0
        stream = MemoryStream(language, embedder=embedder if meant else None, weights=weights)
        begin = time.perf_counter()
        for text, step, importance in weighed:
            stream.add(text, step=step, kind="observation", importance=importance)
        await stream.recall("?", now=now)
        await stream.recall(facts[0]["near"], now=now)
        fill = (time.perf_counter() - begin) / size
        hits, seconds, both = {"near": 0, "far": 0}, [], []
        for kind in hits:
            for fact in facts:
                if meant and embedder is not None:
                    await embedder.embed([fact[kind]])
                begin = time.perf_counter()
                found = await stream.recall(fact[kind], now=now, limit=5)
                seconds.append(time.perf_counter() - begin)
                hits[kind] += any(m.text == fact["fact"] for m in found)
        for text, step, importance in weighed[:9]:
            begin = time.perf_counter()
            stream.add(text, step=now + step, kind="observation", importance=importance)
            await stream.recall(facts[0]["near"], now=now + step)
            both.append(time.perf_counter() - begin)
        print(
            f"| {language} | {size:,} | {way} | {hits['near'] / len(facts):.2f} | "
            f"{hits['far'] / len(facts):.2f} | {fill * 1e6:.0f} | "
            f"{statistics.median(seconds) * 1e3:.2f} | {statistics.median(both) * 1e3:.2f} |",
            flush=True,
        )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--languages", nargs="+", choices=["en", "zh"], default=["en", "zh"])
    args = parser.parse_args()
    facts = json.loads(FACTS.read_text(encoding="utf-8"))
    source = "CharacterBox scenes" if (DATA / "characterbox").is_dir() else "synthetic prose"
    print(f"haystack: {source}; {len(facts['en'])} facts a language")
    embedder: Embedder | None = None
    try:
        inner = make_embedder("minilm")
        assert inner is not None
        await inner.embed(["warm"])
        begin = time.perf_counter()
        await inner.embed([f["fact"] for f in facts["en"]])
        each = (time.perf_counter() - begin) / len(facts["en"])
        print(f"minilm: {each * 1e3:.1f} ms a sentence")
        embedder = Pairs(inner)
    except UsageError as error:
        print(f"without meaning: {error}")
    print(
        "\n| | memories | ranked by | recall@5 near | far | fill, us each | recall ms | add + recall ms |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for language in args.languages:
        for size in args.sizes:
            meaning = embedder if language == "en" else None
            await measure(language, size, meaning, facts[language])
    if embedder is not None:
        await embedder.close()


if __name__ == "__main__":
    asyncio.run(main())
