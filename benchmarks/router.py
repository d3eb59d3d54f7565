"""Does the router find who is wanted, and does it know a stranger? (issue C2)

The starter cast's eight named characters; instructions that give a name, describe somebody, want a
stranger, or come in the middle of a dialogue, in English and Chinese (`data/router`). Beside it the
paper's gate (`cast.gate`) on the same cast and instructions, with the hashing encoder and, for
English, with MiniLM where `personae[memory]` is installed.

    python benchmarks/router.py              figures on `dev`, which tuned words and weights
    python benchmarks/router.py --heldout    on the third kept for the final figure
    python benchmarks/router.py --calibrate  fit the calibration that ships, on `dev`
    python benchmarks/router.py --dense      does MiniLM add to the words? (`dev`, English)

AUROC takes the confidence of implied against unknown instructions. On `dev` the calibration has
seen them; "cross-fitted" refits it without the ones it is tried on. Times are wall times, one
instruction at a time; on a busy machine compare within a run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from personae.cast.calibrate import FOLDS, Example, instructions, logistic
from personae.cast.gate import PaperRouter, hashed
from personae.cast.router import Router
from personae.characters.starter import starter
from personae.errors import PersonaeError
from personae.judging.statistics import auc
from personae.records import Language
from personae.records.cast import Routed

EIGHT = (
    "sherlock-holmes", "ada-lovelace", "alice", "don-quixote",
    "sun-wukong", "zhuge-liang", "lin-daiyu", "li-qingzhao",
)  # fmt: skip
CALIBRATION = Path(__file__).parents[1] / "src/personae/data/router/calibration.json"
LANGUAGES: tuple[Language, ...] = ("en", "zh")


def share(hits: Sequence[bool]) -> str:
    """A share with its Wilson interval."""
    n, k = len(hits), sum(hits)
    low, high = binomtest(k, n).proportion_ci(method="wilson")
    return f"{k}/{n} = {k / n:.1%} ({low:.1%} to {high:.1%})"


def separation(implied: Sequence[float], unknown: Sequence[float]) -> str:
    """AUROC with its bootstrap interval, and the strangers passed where 95 % of the known are."""
    labels = [("i", n) for n in range(len(implied))], [("u", n) for n in range(len(unknown))]
    found = auc(implied, unknown, own_clusters=labels[0], other_clusters=labels[1])
    passed = float(np.mean(np.asarray(unknown) >= np.quantile(implied, 0.05)))
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f}), FPR@95 {passed:.2f}"


def nearest(found: Routed) -> str | None:
    return found.role or next(iter(found.weights), None)


def report(title: str, examples: Sequence[Example], route: Callable[[Example], Routed]) -> None:
    done = [(one, route(one)) for one in examples]
    print(f"\n{title}")

    def of(kind: str) -> list[tuple[Example, Routed]]:
        return [(one, found) for one, found in done if one.kind == kind]

    print(
        "  named: accepted as who it is   ",
        share([r.decision == "accept" and r.role == e.role for e, r in of("named")]),
    )
    print("  misspelt: accepted or asked    ", share([r.role == e.role for e, r in of("misspelt")]))
    print(
        "  implied: nearest is who it is  ", share([nearest(r) == e.role for e, r in of("implied")])
    )
    print(
        "  implied: accepted as who it is ",
        share([r.decision == "accept" and r.role == e.role for e, r in of("implied")]),
    )
    print("  implied: ... or asked about    ", share([r.role == e.role for e, r in of("implied")]))
    print(
        "  unknown: falsely accepted      ",
        share([r.decision == "accept" for _, r in of("unknown")]),
    )
    print(
        "  unknown: asked about           ", share([r.decision == "ask" for _, r in of("unknown")])
    )
    print(
        "  unknown AUROC                  ",
        separation(
            [r.confidence for _, r in of("implied")], [r.confidence for _, r in of("unknown")]
        ),
    )
    print(
        "  dialogue: goes on or switches  ",
        share(
            [
                (r.decision == "accept" and r.role == e.role) if e.role else r.decision == "reject"
                for e, r in of("switch")
            ]
        ),
    )


def cross_fitted(router: Router) -> None:
    """AUROC on `dev` of scores from models that did not see the example."""
    used = [
        e
        for lang in LANGUAGES
        for e in instructions("dev", lang)
        if e.kind in {"implied", "unknown"}
    ]
    seen = [router.evidence(e.text) for e in used]
    x = np.array([s.features for s in seen])
    x = (x - router.calibration.mean) / router.calibration.scale
    y = np.array([s.role == e.role for s, e in zip(seen, used, strict=True)], dtype=float)
    scores = np.zeros(len(x))
    for fold in range(FOLDS):
        test = np.arange(len(x)) % FOLDS == fold
        weights, bias = logistic(x[~test], y[~test])
        scores[test] = x[test] @ weights + bias
    print("\nunknown AUROC on dev, cross-fitted")
    for lang in LANGUAGES:
        here = [n for n, e in enumerate(used) if (e.role or e) and e in instructions("dev", lang)]
        known = [float(scores[n]) for n in here if used[n].role]
        print(f"  {lang}", separation(known, [float(scores[n]) for n in here if not used[n].role]))


def gate(title: str, router: PaperRouter, examples: Sequence[Example]) -> None:
    """The paper's gate: right role, and whether its cosine or its weight knows a stranger."""
    found = [(e, router.route(e.text), router.similarity(e.text)) for e in examples]
    print(f"\n{title}")
    for kind in ("named", "misspelt", "implied"):
        print(
            f"  {kind}: right".ljust(18),
            share([r.role == e.role for e, r, _ in found if e.kind == kind]),
        )
    print(
        "  unknown: accepted",
        share([r.decision == "accept" for e, r, _ in found if e.kind == "unknown"]),
    )
    for name, value in (("cosine", lambda r, c: c), ("softmax", lambda r, c: r.confidence)):
        kinds = (
            [value(r, c) for e, r, c in found if e.kind == kind] for kind in ("implied", "unknown")
        )
        print(f"  AUROC by {name}".ljust(18), separation(*kinds))


def latency(router: Router, examples: Sequence[Example]) -> None:
    for one in examples:
        router.route(one.text, previous=one.previous)
    wall, cpu = [], []
    for one in examples * 5:
        a, b = time.perf_counter(), time.process_time()
        router.route(one.text, previous=one.previous)
        wall.append(time.perf_counter() - a)
        cpu.append(time.process_time() - b)
    for name, times in (("wall", wall), ("CPU", cpu)):
        print(
            f"  {name} ms a route: p50 {np.quantile(times, 0.5) * 1e3:.2f}, p95 {np.quantile(times, 0.95) * 1e3:.2f} of {len(times)}"
        )


def minilm() -> Callable[[Sequence[str]], np.ndarray] | None:
    from personae.world.embedding import make_embedder

    try:
        embedder = make_embedder("minilm")
        assert embedder is not None
        asyncio.run(embedder.embed(["one"]))
    except PersonaeError as error:
        print(f"(no MiniLM: {error})")
        return None
    return lambda texts: np.array(asyncio.run(embedder.embed(list(texts))), dtype=np.float64)


def dense(router: Router) -> None:
    """Ranking and rejection by words, by meaning, and by both (reciprocal ranks), English `dev`."""
    encode = minilm()
    if encode is None:
        return
    four = EIGHT[:4]
    file = router.to_dict()["roles"]
    pieces = [(n, text) for n, role in enumerate(four) for text in file[role]["pieces"]]
    owner = np.array([n for n, _ in pieces])
    vectors = encode([text for _, text in pieces])
    words = Router.from_characters({role: starter(role) for role in four})
    ranked, times = [], []
    for one in instructions("dev", "en"):
        if one.kind not in {"implied", "unknown"}:
            continue
        seen = words.evidence(one.text)
        start = time.perf_counter()
        cosines = vectors @ encode([one.text])[0]
        times.append(time.perf_counter() - start)
        near = np.array([np.sort(cosines[owner == n])[-3:].mean() for n in range(4)])
        lexical = np.array(seen.scores)
        ranks = [np.argsort(np.argsort(-s)) for s in (lexical, near)]
        joined = sum(1 / (60 + r + 1) for r in ranks)
        ranked.append((one, seen.features, lexical, near, joined))
    implied = [r for r in ranked if r[0].role]
    for n, name in ((2, "words"), (3, "meaning"), (4, "both (RRF)")):
        print(
            f"  implied, nearest by {name}".ljust(34),
            share([four[int(np.argmax(r[n]))] == r[0].role for r in implied]),
        )
    x = np.array([r[1] for r in ranked])
    extra = np.array([[r[3].max(), np.sort(r[3])[-1] - np.sort(r[3])[-2]] for r in ranked])
    y = np.array([r[0].role is not None for r in ranked], dtype=float)
    for name, data in (("words", x), ("words and meaning", np.c_[x, extra]), ("meaning", extra)):
        z = (data - data.mean(0)) / np.where(data.std(0) > 0, data.std(0), 1)
        out = np.zeros(len(z))
        for fold in range(FOLDS):
            test = np.arange(len(z)) % FOLDS == fold
            weights, bias = logistic(z[~test], y[~test])
            out[test] = z[test] @ weights + bias
        print(
            f"  unknown AUROC, {name}".ljust(34), separation(list(out[y == 1]), list(out[y == 0]))
        )
    print(
        f"  ms for a query's vector: p50 {np.quantile(times, 0.5) * 1e3:.1f}, p95 {np.quantile(times, 0.95) * 1e3:.1f}"
    )


async def with_meaning() -> None:
    """What the user is asked about by words, and by words and MiniLM (four English roles)."""
    from personae.cast.meaning import MeaningRouter
    from personae.world.embedding import make_embedder

    words = Router.from_characters({role: starter(role) for role in EIGHT[:4]})
    embedder = make_embedder("minilm")
    assert embedder is not None
    both = await MeaningRouter.made(words, embedder, instructions("dev", "en"))
    for split in ("dev", "heldout"):
        for kind in ("implied", "unknown"):
            rows = [e for e in instructions(split, "en") if e.kind == kind]
            a = [words.route(e.text) for e in rows]
            b = [await both.route(e.text) for e in rows]
            name = "found" if kind == "implied" else "accepted or asked about"
            for title, found in (("words", a), ("words, then meaning", b)):
                hits = [
                    r.role is not None and (kind == "unknown" or r.role == e.role)
                    for e, r in zip(rows, found, strict=True)
                ]
                print(f"  {split}, {kind} {name} by {title}".ljust(62), share(hits))
    await embedder.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heldout", action="store_true")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--dense", action="store_true")
    args = parser.parse_args()
    cast = {role: starter(role) for role in EIGHT}
    router = Router.from_characters(cast)
    if args.calibrate:
        examples = [e for lang in LANGUAGES for e in instructions("dev", lang)]
        fitted = router.calibrated(examples).calibration
        CALIBRATION.write_text(json.dumps(fitted.to_dict(), indent=1) + "\n", encoding="utf-8")
        print(f"wrote {CALIBRATION}")
        return
    if args.dense:
        dense(router)
        asyncio.run(with_meaning())
        return
    split = "heldout" if args.heldout else "dev"
    encode = minilm()
    both: list[Example] = []
    for lang in LANGUAGES:
        examples = instructions(split, lang)
        both += examples
        report(
            f"{split}, {lang}: the router",
            examples,
            lambda e: router.route(e.text, previous=e.previous),
        )
        four = {role: one for role, one in cast.items() if one.ours.language == lang}
        gate(
            f"{split}, {lang}: the paper's gate, hashed words, eight roles",
            PaperRouter.from_characters(cast, encode=hashed),
            examples,
        )
        if lang == "en" and encode is not None:
            own = [e for e in examples if e.role is None or e.role in four]
            gate(
                f"{split}, {lang}: the paper's gate, MiniLM, the four English roles",
                PaperRouter.from_characters(four, encode=encode),
                own,
            )
    report(
        f"{split}, both languages: the router",
        both,
        lambda e: router.route(e.text, previous=e.previous),
    )
    cross = instructions("cross")
    print(
        "\nimplied in the other language than the card's: accepted or asked",
        share([router.route(e.text).role == e.role for e in cross]),
    )
    if split == "dev":
        cross_fitted(router)
    print("\nlatency, eight characters")
    latency(router, both)


if __name__ == "__main__":
    main()
