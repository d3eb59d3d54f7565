from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.characters import lorebook
from personae.characters.keys import MAX_PATTERNS
from personae.characters.lorebook import MAX_PASSES, Activation, Cause, activate, examine
from personae.records import Lorebook, LoreEntry
from personae.records.tokens import estimate_tokens

CATASTROPHE = "(a+)+$"
FATAL = "a" * 4000 + "!"


def entry(*keys: str, content: str = "lore", **fields: Any) -> LoreEntry:
    return LoreEntry(keys=keys, content=content, **fields)


def tavern(*keys: str, content: str = "lore", **extensions: Any) -> LoreEntry:
    """An entry as SillyTavern exports it into a card."""
    fields = {
        k: extensions.pop(k) for k in ("constant", "selective", "secondary_keys") if k in extensions
    }
    return entry(
        *keys,
        content=content,
        use_regex=True,
        extensions={"selectiveLogic": 0, "probability": 100, "useProbability": True, **extensions},
        **fields,
    )


def book(*entries: LoreEntry, **fields: Any) -> Lorebook:
    return Lorebook(entries=entries, **fields)


def fired(a_book: Lorebook | LoreEntry, *texts: str, **options: Any) -> list[int]:
    return [f.index for f in activation(a_book, *texts, **options).fired]


def activation(a_book: Lorebook | LoreEntry, *texts: str, **options: Any) -> Activation:
    if isinstance(a_book, LoreEntry):
        a_book = book(a_book)
    return activate(a_book, texts, **{"seed": 0, "turn": 0, **options})


# Keys -------------------------------------------------------------------------------------------


def test_a_key_is_found_anywhere_in_a_text_whatever_its_case():
    assert fired(entry("Wizard"), "Two WIZARDS came.") == [0]
    assert fired(entry("Wizard"), "Two witches came.") == []


def test_a_chinese_key_needs_no_border():
    assert fired(entry("金箍棒"), "他把金箍棒往地上一插。") == [0]


def test_the_same_letter_is_found_however_it_is_composed():
    assert fired(entry("caf\u00e9"), "The cafe\u0301.") == [0]


def test_case_counts_where_the_entry_says_so():
    assert fired(entry("It", case_sensitive=True), "it is") == []
    assert fired(entry("It", case_sensitive=True), "It is") == [0]


def test_an_empty_key_never_fires():
    assert fired(entry("", " "), "anything") == []


def test_a_disabled_entry_fires_in_no_case():
    assert fired(entry("a", content="@@activate\nx", enabled=False, constant=True), "a") == []


def test_a_constant_entry_fires_without_any_text():
    a = activation(entry(constant=True))
    assert a.fired[0].cause == Cause(kind="constant")


def test_the_cause_names_the_key_and_the_newest_message_that_holds_it():
    a = activation(entry("cat", "dog"), "a dog", "a dog", "a bird")
    assert a.fired[0].cause == Cause(kind="key", key="dog", message=1)


def test_a_secondary_key_is_needed_where_the_entry_is_selective():
    one = entry("dragon", selective=True, secondary_keys=("gold",))
    assert fired(one, "a dragon") == []
    assert fired(one, "gold!", "a dragon") == [0]
    assert fired(one.model_copy(update={"selective": False}), "a dragon") == [0]


@pytest.mark.parametrize(
    ("logic", "text", "fires"),
    [
        (0, "k a", True), (0, "k", False), (0, "k a b", True),
        (1, "k a", True), (1, "k", True), (1, "k a b", False),
        (2, "k a", False), (2, "k", True), (2, "k a b", False),
        (3, "k a", False), (3, "k", False), (3, "k a b", True),
    ],
)  # fmt: skip
def test_sillytavern_joins_secondary_keys_in_four_ways(logic: int, text: str, fires: bool):
    one = tavern("k", selective=True, secondary_keys=("a", "b"), selectiveLogic=logic)
    assert bool(fired(one, text)) is fires


def test_only_the_newest_texts_are_searched():
    texts = ["the key", "b", "c"]
    assert fired(book(entry("key"), scan_depth=2), *texts) == []
    assert fired(book(entry("key"), scan_depth=3), *texts) == [0]
    assert fired(book(entry("key", content="@@scan_depth 3\nx"), scan_depth=2), *texts) == [0]
    assert fired(book(entry("key"), scan_depth=0), "key") == []
    assert fired(entry("key"), "key", *["-"] * lorebook.SCAN_DEPTH) == []


def test_a_key_does_not_reach_over_two_texts():
    assert fired(entry("ab"), "a", "b") == []


@pytest.mark.parametrize(
    ("text", "fires"),
    [("art", True), ("a fine art.", True), ("party", False), ("arts", False), ("学art吧", True),
     ("_art", False), ("party art", True)],
)  # fmt: skip
def test_a_whole_word_has_no_letter_beside_it(text: str, fires: bool):
    assert bool(fired(tavern("art", match_whole_words=True), text)) is fires


def test_a_chinese_word_is_whole_among_other_characters():
    assert fired(tavern("黛玉", match_whole_words=True), "林黛玉来了") == [0]


def test_macros_are_filled_in_in_keys_and_contents():
    def expand(text: str) -> str:
        return text.replace("{{char}}", "Ada")

    one = entry("{{char}}", content="{{char}} counts. {{hidden_key:x}}")
    a = activation(one, "Ada!", expand=lambda t: expand(t).replace("{{hidden_key:x}}", ""))
    assert [f.text for f in a.fired] == ["Ada counts."]
    assert a.fired[0].cause.key == "Ada"


# Patterns ---------------------------------------------------------------------------------------


def test_a_pattern_is_read_bare_or_between_slashes():
    assert fired(entry(r"drag(on|oon)s?\b", use_regex=True), "DRAGOONS!") == [0]
    assert fired(entry("/dragon/", use_regex=True), "DRAGON") == []
    assert fired(entry("/dragon/i", use_regex=True), "DRAGON") == [0]
    assert fired(entry("/^b$/m", use_regex=True), "a\nb\nc") == [0]
    assert fired(entry("/a.b/s", use_regex=True), "a\nb") == [0]
    assert fired(entry(r"/a\/b/", use_regex=True), "a/b") == [0]
    assert fired(entry("/b/y", use_regex=True), "ab") == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"/\bdragon\b/i", "那只Dragon来了"),  # JavaScript's \b knows ASCII only
        ("/москва/i", "Москва"),  # and its i all letters
        (r"/(?<n>ab)-\k<n>/", "ab-ab"),
        (r"/a[^]b/", "a\nb"),
        (r"/\u{4e2d}/u", "中"),
        (r"/(?<!no )entry/", "an entry"),
        (r"/^[一-龥]+$/", "林黛玉"),
    ],
)
def test_javascripts_patterns_mean_what_they_mean_there(pattern: str, text: str):
    assert fired(entry(pattern, use_regex=True), text) == [0]


def test_an_entry_with_an_invalid_pattern_is_no_match_and_told():
    a = activation(entry("(", "lore", use_regex=True), "lore (")
    assert a.fired == ()
    assert [(n, t.key, t.what) for n, t in a.troubles] == [(0, "(", "invalid")]


def test_patterns_leave_constant_and_secondary_keys_aside():
    one = entry("a", use_regex=True, constant=True, selective=True, secondary_keys=("z",))
    assert fired(one, "b") == []
    assert fired(one, "a") == [0]


def test_what_sillytavern_exports_as_patterns_are_texts_unless_in_slashes():
    assert fired(tavern("C++ (old)"), "I know c++ (old).") == [0]
    assert fired(tavern("/c[au]t/"), "cut") == [0]
    assert fired(tavern("a", constant=True), "b") == [0]


def test_a_catastrophic_pattern_ends_and_is_told():
    a = activation(book(entry(CATASTROPHE, use_regex=True), entry("lore")), FATAL, "lore")
    assert [f.index for f in a.fired] == [1]
    assert [(n, t.what) for n, t in a.troubles] == [(0, "timeout")]


def test_all_patterns_share_one_allowance_of_time():
    many = [entry(f"/(a+)+${n}/", use_regex=True) for n in range(40)]
    a = activation(book(*many), FATAL)
    assert a.fired == ()
    assert {t.what for _, t in a.troubles} == {"timeout"}
    assert len(a.troubles) == len(many)
    assert "for all patterns" in a.troubles[-1][1].detail


@pytest.mark.parametrize(
    "pattern",
    ["(" * 3000, "a" * 3000, "(?P<n>a)(?P<n>", "[", "a{9999999999999}", "\\", "(?(1)a|b)", "*",
     "((((((((((" * 60 + "))))))))))" * 60, r"\L<x>", "(?V1)[a--b", "(?i", r"\u{110000}", "x{2,1}"],
)  # fmt: skip
def test_a_hostile_pattern_neither_matches_nor_breaks(pattern: str):
    a = activation(entry(pattern, use_regex=True), "text of no harm")
    assert a.fired == ()


@pytest.mark.parametrize(
    "name",
    ["probability", "scan_depth", "depth", "position", "role", "delay_until_recursion",
     "selectiveLogic"],
)  # fmt: skip
@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan"), "7", [], {}])
def test_an_extension_that_is_no_number_of_use_is_as_though_it_were_not_there(name, value):
    assert fired(tavern("a", **{name: value}), "a") == [0]


def test_a_book_has_so_many_patterns_and_no_more():
    many = [entry(f"/x{n};/", use_regex=True) for n in range(MAX_PATTERNS + 2)]
    a = activation(book(*many), f"x0; x{MAX_PATTERNS + 1};")
    assert [f.index for f in a.fired] == [0]
    assert [(n, t.what) for n, t in a.troubles] == [
        (MAX_PATTERNS, "too_many"),
        (MAX_PATTERNS + 1, "too_many"),
    ]


@settings(max_examples=200)
@given(st.text("()[]{}|*+?.\\^$abw/iu1,-<>=!:P", max_size=20), st.text("ab1/", max_size=12))
def test_any_pattern_is_tried(pattern: str, text: str):
    activation(entry(pattern, use_regex=True), text)
    activation(tavern(pattern), text)


# Recursion --------------------------------------------------------------------------------------


def test_contents_are_searched_only_in_a_book_that_says_so():
    entries = (entry("dragon", content="It guards gold."), entry("gold", content="x"))
    assert fired(book(*entries), "dragon") == [0]
    assert fired(book(*entries, recursive_scanning=False), "dragon") == [0]
    a = activation(book(*entries, recursive_scanning=True), "dragon")
    assert [f.index for f in a.fired] == [0, 1]
    assert a.fired[1].cause == Cause(kind="key", key="gold", entry=0)


def test_recursion_reaches_whatever_the_scan_depth():
    entries = (entry("a", content="b", constant=True), entry("b", content="c"))
    assert fired(book(*entries, recursive_scanning=True, scan_depth=0), "-") == [0, 1]


def test_entries_that_call_each_other_are_told_once():
    entries = (entry("a", content="b"), entry("b", content="a"))
    assert fired(book(*entries, recursive_scanning=True), "a") == [0, 1]


def test_recursion_is_bounded_and_says_so():
    chain = [entry(f"<{n}>", content=f"<{n + 1}>") for n in range(MAX_PASSES + 5)]
    a = activation(book(*chain, recursive_scanning=True), "<0>")
    assert [f.index for f in a.fired] == list(range(MAX_PASSES))
    assert a.stopped
    assert not activation(book(*chain), "<0>").stopped


def test_sillytaverns_entries_may_keep_out_of_recursion():
    start = tavern("a", content="b")
    assert fired(book(start, tavern("b"), recursive_scanning=True), "a") == [0, 1]
    assert fired(
        book(start, tavern("b", exclude_recursion=True), recursive_scanning=True), "a"
    ) == [0]
    silent = tavern("a", content="b", prevent_recursion=True)
    assert fired(book(silent, tavern("b"), recursive_scanning=True), "a") == [0]


def test_an_entry_may_wait_for_recursion():
    late = tavern("b", content="c", delay_until_recursion=True)
    entries = (tavern("a", content="b"), late, tavern("c", delay_until_recursion=2))
    a = activation(book(*entries, recursive_scanning=True), "a b")
    assert [f.index for f in a.fired] == [0, 1, 2]
    assert a.fired[1].cause.kind == "key"


def test_a_hidden_key_fires_others_and_is_never_told():
    entries = (entry("a", content="x{{hidden_key:gold}}"), entry("gold"))
    a = activation(
        book(*entries, recursive_scanning=True),
        "a",
        expand=lambda text: text.replace("{{hidden_key:gold}}", ""),
    )
    assert [f.text for f in a.fired] == ["x", "lore"]


# Decorators -------------------------------------------------------------------------------------


def test_activate_needs_no_key_and_dont_activate_no_reason():
    assert activation(entry(content="@@activate\nx")).fired[0].cause == Cause(kind="always")
    assert fired(entry("a", content="@@dont_activate\nx"), "a") == []
    assert fired(entry("a", content="@@dont_activate\n@@activate\nx")) == [0]


def test_the_number_of_own_messages_decides_after_and_every():
    after = entry("a", content="@@activate_only_after 3\nx")
    assert [turn for turn in range(6) if fired(after, "a", turn=turn)] == [3, 4, 5]
    every = entry("a", content="@@activate_only_every 2\nx")
    assert [turn for turn in range(6) if fired(every, "a", turn=turn)] == [0, 2, 4]


def test_a_constant_entry_heeds_its_decorators():
    assert fired(entry(content="@@activate_only_after 3\nx", constant=True), turn=2) == []


def test_a_greeting_decides_where_it_is_known():
    one = entry("a", content="@@is_greeting 1\nx")
    assert fired(one, "a", greeting_index=1) == [0]
    assert fired(one, "a", greeting_index=0) == []
    assert fired(one, "a") == [0]


def test_an_invalid_pattern_among_the_additional_keys_is_no_match():
    sound = entry("a", content="@@additional_keys b\nx", use_regex=True)
    assert fired(sound, "a b") == [0]
    assert fired(entry("a", content="@@additional_keys b,(\nx", use_regex=True), "a b") == []
    assert fired(entry("a", content="@@additional_keys b,(\nx"), "a b") == [0]  # plain texts


def test_one_of_the_additional_keys_must_occur_and_no_excluded_one():
    one = entry("a", content="@@additional_keys b, c\n@@exclude_keys d\nx")
    assert fired(one, "a") == []
    assert fired(one, "a c") == [0]
    assert fired(one, "a c D") == []


def test_an_entry_is_kept_or_barred_after_it_matched():
    kept = entry("a", content="@@keep_activate_after_match\nx")
    first = activation(kept, "a", before=())
    assert first.matched == (0,)
    assert activation(kept, "-", before=first.matched).fired[0].cause == Cause(kind="kept")
    assert fired(kept, "-", before=()) == []
    barred = entry("a", content="@@dont_activate_after_match\nx")
    assert fired(barred, "a", before=()) == [0]
    assert fired(barred, "a", before=(0,)) == []
    assert fired(barred, "a") == [0]  # what was before is not known


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("x", ("after_char", None, None)),
        ("@@position before_desc\nx", ("before_desc", None, None)),
        ("@@depth 3\n@@role user\nx", ("depth", 3, "user")),
        ("@@depth -4\nx", ("depth", 0, None)),
        ("@@position pt_unknown\nx", ("after_char", None, None)),
    ],
)
def test_decorators_say_where_an_entry_goes(content: str, where: tuple[Any, ...]):
    one = activation(entry("a", content=content), "a").fired[0]
    assert (one.position, one.depth, one.role) == where


@pytest.mark.parametrize(
    ("extensions", "where"),
    [
        ({"position": 0}, ("before_char", None, None)),
        ({"position": 1, "depth": 4, "role": 0}, ("after_char", None, None)),
        ({"position": 4, "depth": 2, "role": 1}, ("depth", 2, "user")),
        ({"position": 4}, ("depth", 4, None)),
        ({"position": 6}, ("after_examples", None, None)),
        ({"position": 7}, ("after_char", None, None)),
        ({"position": {"hostile": []}, "depth": "x", "role": -1}, ("after_char", None, None)),
    ],
)
def test_sillytaverns_numbers_say_where_an_entry_goes(
    extensions: dict[str, Any], where: tuple[Any, ...]
):
    one = activation(tavern("a", **extensions), "a").fired[0]
    assert (one.position, one.depth, one.role) == where


# Order, chance and budget -----------------------------------------------------------------------


def test_entries_come_in_the_order_of_insertion():
    entries = [entry("a", insertion_order=n) for n in (3, 1, 2, 1)]
    assert fired(book(*entries), "a") == [1, 3, 2, 0]


def test_an_entry_with_nothing_to_tell_is_not_told_but_matched():
    a = activation(entry("a", content="@@depth 2\n  \n"), "a")
    assert (a.fired, a.matched) == ((), (0,))


def test_chance_is_drawn_from_seed_turn_and_entry():
    one = tavern("a", probability=30)
    draws = [bool(fired(one, "a", seed=7, turn=turn)) for turn in range(2000)]
    assert draws == [bool(fired(one, "a", seed=7, turn=turn)) for turn in range(2000)]
    assert 0.25 < sum(draws) / len(draws) < 0.35
    assert not any(fired(tavern("a", probability=0), "a", turn=turn) for turn in range(50))
    assert fired(tavern("a", probability=0, useProbability=False), "a") == [0]


def words(text: str) -> int:
    return len(text.split())


def test_what_has_the_lowest_priority_goes_when_the_book_is_full():
    entries = (
        entry("a", content="one two", priority=5),
        entry("a", content="three four", priority=1),
        entry("a", content="five", priority=9),
    )
    a = activation(book(*entries, token_budget=3), "a", count_tokens=words)
    assert [f.index for f in a.fired] == [0, 2]
    assert [(c.index, c.tokens, c.limit) for c in a.cut] == [(1, 2, "token_budget")]
    assert a.tokens == 3
    assert a.matched == (0, 1, 2)


def test_the_insertion_order_stands_in_for_a_priority():
    entries = [entry("a", content="x y", insertion_order=n) for n in (2, 1, 3)]
    a = activation(book(*entries, token_budget=4), "a", count_tokens=words)
    assert [f.index for f in a.fired] == [0, 2]


def test_what_alone_exceeds_the_budget_takes_no_other_with_it():
    entries = (entry("a", content="x " * 50, priority=9), entry("a", content="y", priority=1))
    assert fired(book(*entries, token_budget=5), "a", count_tokens=words) == [1]


def test_both_budgets_hold():
    entries = [entry("a", content="x y", priority=n) for n in range(4)]
    a = activation(book(*entries, token_budget=6), "a", budget=4, count_tokens=words)
    assert [f.index for f in a.fired] == [2, 3]
    assert [(c.index, c.limit) for c in a.cut] == [(0, "token_budget"), (1, "budget")]


def test_where_the_context_is_full_the_willing_go_first():
    entries = (
        entry("a", content="@@ignore_on_max_context\nx y", priority=9),
        entry("a", content="x y", priority=1),
    )
    assert fired(book(*entries), "a", budget=2, count_tokens=words) == [1]
    assert fired(book(*entries, token_budget=2), "a", count_tokens=words) == [0]


def test_an_entry_may_stand_outside_its_books_budget_but_not_outside_the_callers():
    one = tavern("a", content="x y", ignore_budget=True)
    assert fired(book(one, token_budget=0), "a", count_tokens=words) == [0]
    assert fired(book(one), "a", budget=1, count_tokens=words) == []


entries = st.builds(
    lambda keys, content, fields: LoreEntry(keys=tuple(keys), content=content, **fields),
    st.lists(st.sampled_from("abcd"), max_size=3),
    st.sampled_from(
        ["a b", "c", "d d d", "@@activate\nb", "@@depth 2\nc c", "@@exclude_keys a\nd"]
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "constant": st.booleans(),
            "enabled": st.booleans(),
            "insertion_order": st.integers(-3, 3),
            "priority": st.integers(-3, 3),
            "extensions": st.sampled_from([{}, {"selectiveLogic": 0, "probability": 50}]),
        },
    ),
)
books = st.builds(
    lambda found, fields: Lorebook(entries=tuple(found), **fields),
    st.lists(entries, max_size=6),
    st.fixed_dictionaries(
        {},
        optional={
            "token_budget": st.integers(0, 8),
            "recursive_scanning": st.booleans(),
            "scan_depth": st.integers(0, 3),
        },
    ),
)


@given(books, st.lists(st.text("abcd ", max_size=4), max_size=4), st.integers(0, 9) | st.none())
def test_no_activation_breaks_a_budget_tells_twice_or_loses_what_it_cut(
    a_book: Lorebook, texts: list[str], budget: int | None
):
    a = activation(a_book, *texts, budget=budget, count_tokens=words)
    told, cut = [f.index for f in a.fired], [c.index for c in a.cut]
    assert sorted(told + cut) == sorted(set(told + cut))
    assert set(told + cut) <= set(a.matched)
    assert a.tokens == sum(words(f.text) for f in a.fired)
    assert a.tokens <= min(
        10**9 if a_book.token_budget is None else a_book.token_budget,
        10**9 if budget is None else budget,
    )
    assert [a_book.entries[n].insertion_order for n in told] == sorted(
        a_book.entries[n].insertion_order for n in told
    )
    assert all(a_book.entries[n].enabled for n in a.matched)
    assert a == activation(a_book, *texts, budget=budget, count_tokens=words)


@given(books, st.lists(st.text("abcd ", max_size=4), max_size=4))
def test_a_larger_budget_never_tells_less(a_book: Lorebook, texts: list[str]):
    a_book = a_book.model_copy(update={"token_budget": None})
    sizes = [activation(a_book, *texts, budget=n, count_tokens=words).tokens for n in (0, 3, 6, 99)]
    assert sizes[-1] == max(sizes)
    assert sizes[0] == 0


def test_texts_are_told_by_position():
    a = activation(
        book(entry("a", content="one", position="before_char"), entry("a", content="two")), "a"
    )
    assert a.texts("before_char") == ("one",)
    assert a.texts() == ("one", "two")
    assert a.tokens == estimate_tokens("one") + estimate_tokens("two")


# What authors are told --------------------------------------------------------------------------


def found(one: LoreEntry) -> list[tuple[str, str]]:
    return [(f.place, f.message) for f in examine(book(one), "book")]


def test_nothing_is_said_of_a_sound_entry():
    assert found(entry("a", content="@@depth 4\nlore")) == []


@pytest.mark.parametrize(
    ("one", "place", "says"),
    [
        (entry(), "keys", "never fires"),
        (entry("a", content=""), "content", "nothing to tell"),
        (entry("a", content="@@shout 3\nx"), "content", "@@shout: no such decorator"),
        (entry("a", content="@@instruct_depth 3\nx"), "content", "does not support"),
        (entry("a", content="@@depth x\nx"), "content", "@@depth: its value does not fit"),
        (entry("[", use_regex=True), "keys", "'[' is no valid pattern"),
        (entry("x" * 3000, use_regex=True), "keys", "more than 1,000 characters"),
        (entry("(a|a)*$", use_regex=True), "keys", "can take longer than"),
        (entry("a", use_regex=True, constant=True), "constant", "beside use_regex"),
        (tavern("a", sticky=3), "extensions.sticky", "no effect"),
        (tavern("a", group="g"), "extensions.group", "no effect"),
        (tavern("a", position=7), "extensions.position", "outlet"),
    ],
)
def test_what_has_no_effect_or_can_do_harm_is_told(one: LoreEntry, place: str, says: str):
    (told,) = found(one)
    assert told[0] == f"book.entries[0].{place}"
    assert says in told[1]


def test_the_search_for_harmful_patterns_ends_itself():
    many = book(*[entry(f"/(a+)+${n}/", use_regex=True) for n in range(200)])
    assert "the rest was not tried" in examine(many, seconds=0.3)[-1].message
