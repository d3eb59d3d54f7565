from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.errors import InputError, UsageError
from personae.world.memory import MAX_TEXT, MemoryStream, Weights
from tests.world.memory.compass import Compass

EQUAL = Weights(relevance=1, recency=1, importance=1, decay=0.5)


def stream(*texts: str, weights: Weights = EQUAL, language: str = "en") -> MemoryStream:
    """One memory a step, all of the same importance."""
    made = MemoryStream(language, weights=weights)  # type: ignore[arg-type]  # a plain str
    for step, text in enumerate(texts):
        made.add(text, step=step, kind="observation", importance=0.5)
    return made


async def recalled(memories: MemoryStream, query: str, now: int = 99, **rest: int) -> list[str]:
    return [m.text for m in await memories.recall(query, now=now, **rest)]


# --- the score ------------------------------------------------------------------------------------


async def test_the_score_of_park_et_al_is_that_computed_by_hand() -> None:
    memories = MemoryStream("en", weights=EQUAL)
    memories.add("The letter is under the floor.", step=0, kind="observation", importance=0.2)
    memories.add("Rain all day.", step=1, kind="observation", importance=0.6)
    memories.add("Bella sleeps.", step=2, kind="action", importance=1.0)
    found = await memories.recall("Where is the letter?", now=2)
    # recency before min-max: 0.25, 0.5, 1; importance: 0.2, 0.6, 1; only the first has "letter".
    parts = {m.text: (m.relevance, m.recency, m.importance, m.score) for m in found}
    assert parts == {
        "Bella sleeps.": (0, 1, 1, 2),
        "The letter is under the floor.": (1, 0, 0, 1),
        "Rain all day.": (0, 0.333333, 0.5, 0.833333),
    }
    assert [m.text[0] for m in found] == ["B", "T", "R"]
    assert [(m.round, m.kind) for m in found] == [
        (2, "action"),
        (0, "observation"),
        (1, "observation"),
    ]


async def test_the_score_is_the_weighted_sum_of_what_is_shown() -> None:
    weights = Weights(relevance=2, recency=0.5, importance=0.25, decay=0.9)
    memories = MemoryStream("en", weights=weights)
    for step, (text, importance) in enumerate(
        [("a ship", 0.1), ("a ship at sea", 0.9), ("a port", 0.4), ("fog at sea", 0.3)]
    ):
        memories.add(text, step=step, kind="observation", importance=importance)
    for m in await memories.recall("the ship at sea", now=7):
        total = 2 * m.relevance + 0.5 * m.recency + 0.25 * m.importance
        assert m.score == pytest.approx(total, abs=1e-6)


async def test_recency_goes_by_steps_of_the_game() -> None:
    memories = stream("one", "two", "three", weights=Weights(decay=0.5))
    far = await memories.recall("", now=12)
    near = await memories.recall("", now=2)
    assert [m.recency for m in near] == [1, 0.333333, 0]
    assert [m.recency for m in far] == [m.recency for m in near]


async def test_a_component_on_which_all_agree_counts_nothing() -> None:
    memories = MemoryStream("en", weights=EQUAL)
    for text in ("one", "two"):
        memories.add(text, step=3, kind="observation", importance=0.5)
    assert [m.score for m in await memories.recall("", now=3)] == [0, 0]


async def test_among_equals_the_first_comes_first() -> None:
    memories = MemoryStream("en")
    for text in ("one", "two", "three"):
        memories.add(text, step=1, kind="observation", importance=0.5)
    assert await recalled(memories, "nothing of it", limit=2) == ["one", "two"]


async def test_what_is_relevant_comes_back_after_a_thousand_other_things() -> None:
    memories = stream("The key is in the blue vase.", *(f"Step number {i}." for i in range(1000)))
    weighed = MemoryStream("en")
    for memory in memories.memories:
        weighed.add(memory.text, step=memory.step, kind="observation", importance=0.5)
    assert (await recalled(weighed, "Where did I put the key?", 1001))[0].startswith("The key")


async def test_a_chinese_memory_comes_back_for_a_chinese_question() -> None:
    memories = stream(
        "曹操每晚睡觉都把短刀压在枕头下。",
        "张飞立誓三年之内滴酒不沾。",
        "城北的石桥昨夜被洪水冲垮了。",
        language="zh",
        weights=Weights(),
    )
    assert (await recalled(memories, "枕头底下放着什么？"))[0].startswith("曹操")
    assert (await recalled(memories, "那座桥还在吗？"))[0].startswith("城北")


# --- closeness of meaning -------------------------------------------------------------------------


async def test_meaning_finds_what_shares_no_word() -> None:
    compass = Compass()
    memories = MemoryStream("en", embedder=compass, weights=Weights(recency=0, importance=0))
    for step, text in enumerate(("north", "east east", "south west")):
        memories.add(text, step=step, kind="observation", importance=0.5)
    found = await memories.recall("north north", now=3)
    assert [m.text for m in found] == ["north", "east east", "south west"]
    # cosines with (0.1, 2.1): of (0.1, 1.1), (2.1, 0.1) and (-0.9, -0.9).
    cosines = [0.999090, 0.095023, -0.739923]
    span = cosines[0] - cosines[2]
    meant = [(c - cosines[2]) / span for c in cosines]
    # One text shares the word: 0.2 of it is words, 0.8 is meaning.
    assert [m.relevance for m in found] == pytest.approx([1, 0.8 * meant[1], 0], abs=1e-5)


async def test_a_memory_is_embedded_once() -> None:
    compass = Compass()
    memories = MemoryStream("en", embedder=compass)
    memories.add("north", step=0, kind="observation", importance=0.5)
    await memories.recall("east", now=1)
    memories.add("south", step=1, kind="observation", importance=0.5)
    await memories.recall("east", now=1)
    assert compass.asked == ["north", "east", "south", "east"]


async def test_two_recalls_at_once_agree_with_one_after_the_other() -> None:
    memories = MemoryStream("en", embedder=Compass())
    for step, text in enumerate(("north", "east", "south")):
        memories.add(text, step=step, kind="observation", importance=0.5)
    together = await asyncio.gather(
        memories.recall("north", now=3), memories.recall("south", now=3)
    )
    alone = [await memories.recall(q, now=3) for q in ("north", "south")]
    assert list(together) == alone


async def test_an_empty_query_is_not_embedded() -> None:
    compass = Compass()
    memories = MemoryStream("en", embedder=compass)
    memories.add("north", step=0, kind="observation", importance=0.5)
    assert await recalled(memories, "  ") == ["north"]
    assert compass.asked == []


# --- what is not known yet ------------------------------------------------------------------------

TEXTS = st.sampled_from(["north wind", "east", "a north star", "south", "rain in the east", "风"])
LIVES = st.lists(st.tuples(TEXTS, st.integers(0, 5), st.sampled_from([0.1, 0.5, 0.9])), max_size=12)


@given(LIVES, st.integers(0, 5), st.booleans())
async def test_what_came_later_is_as_though_it_had_never_been(
    life: list[tuple[str, int, float]], last: int, meaning: bool
) -> None:
    whole = MemoryStream("en", embedder=Compass() if meaning else None)
    early = MemoryStream("en", embedder=Compass() if meaning else None)
    for text, step, importance in life:
        whole.add(text, step=step, kind="observation", importance=importance)
        if step <= last:
            early.add(text, step=step, kind="observation", importance=importance)
    expected = await early.recall("the north wind", now=5)
    assert await whole.recall("the north wind", now=5, exclude_after=last) == expected
    # Asking what the whole life holds in between changes nothing either.
    await whole.recall("rain", now=5)
    assert await whole.recall("the north wind", now=5, exclude_after=last) == expected


async def test_nobody_remembers_the_future() -> None:
    assert await recalled(stream("one", "two", "three"), "", now=1) == ["two", "one"]


async def test_the_same_life_recalls_the_same_things() -> None:
    one, other = (stream("a ship", "a port", "a ship at sea") for _ in range(2))
    assert await one.recall("ship", now=3) == await other.recall("ship", now=3)


# --- hostile and wrong input ----------------------------------------------------------------------


async def test_an_empty_stream_recalls_nothing() -> None:
    memories = MemoryStream("en")
    assert len(memories) == 0
    assert await memories.recall("anything", now=0) == ()


async def test_no_more_than_the_limit_comes_back() -> None:
    memories = stream(*"abcdefghijkl")
    assert len(await memories.recall("", now=99)) == 8
    assert await memories.recall("", now=99, limit=0) == ()
    with pytest.raises(UsageError, match="limit is -1"):
        await memories.recall("", now=99, limit=-1)


@pytest.mark.parametrize("nothing", ["", "  \n\t", "\u3000"])
def test_a_memory_without_words_is_refused(nothing: str) -> None:
    with pytest.raises(InputError, match="no words"):
        stream(nothing)


def test_a_silence_is_a_memory() -> None:
    assert stream("……").memories[0].text == "……"


async def test_a_memory_of_a_million_characters_is_cut_and_says_so() -> None:
    memories = stream("记" * 1_000_000, "x" * 1_000_000, language="zh")
    assert [len(m.text) for m in memories.memories] == [MAX_TEXT, MAX_TEXT]
    assert memories.memories[0].text.endswith("…")
    assert len(await memories.recall("记" * 1_000_000, now=2)) == 2


async def test_half_of_a_surrogate_pair_is_shown_as_a_replacement() -> None:
    memories = stream("a\ud800b", "\ud83d\ude00")
    assert [m.text for m in memories.memories] == ["a\ufffdb", "\U0001f600"]
    (first, _) = await memories.recall("\udfff", now=2)
    assert first.to_json()


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"importance": 1.5}, "importance"),
        ({"importance": float("nan")}, "importance"),
        ({"step": -1}, "step"),
        ({"kind": "rumour"}, "kind"),
    ],
)
def test_a_number_or_a_kind_out_of_range_is_refused(wrong: dict[str, object], where: str) -> None:
    given_ = {"step": 0, "kind": "belief", "importance": 0.5} | wrong
    memories = MemoryStream("en")
    with pytest.raises(InputError, match=where):
        memories.add("text", **given_)  # type: ignore[arg-type]  # wrong on purpose
    assert len(memories) == 0
