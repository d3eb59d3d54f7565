from __future__ import annotations

from personae.reports.words import attribute_counts


def test_words_are_counted_by_the_characters_that_share_them():
    counts = dict(
        attribute_counts(
            ["A nurse, a nurse and a nurse from Oslo", "The old nurse who sails"], "en"
        )
    )
    assert counts["nurse"] == 2
    assert counts["sails"] == 1
    assert not {"the", "and", "old", "who"} & set(counts)


def test_names_of_places_stay_whole_and_keep_their_capitals():
    counts = dict(
        attribute_counts(["A cook from New York", "A doctor in Tokyo, once of New York"], "en")
    )
    assert counts["New York"] == 2
    assert counts["Tokyo"] == 1
    assert "york" not in counts


def test_the_first_word_of_a_description_is_no_name():
    assert "teacher" in dict(attribute_counts(["Teacher of music"], "en"))


def test_chinese_runs_are_found_without_spaces_and_the_longest_stands_for_its_parts():
    counts = dict(
        attribute_counts(
            ["一名软件工程师，喜欢登山", "来自上海的软件工程师", "一位热爱登山的律师"], "zh"
        )
    )
    assert counts["登山"] == 2
    assert counts["软件工程师"] == 2
    assert "工程师" not in counts
    assert "喜欢" not in counts


def test_the_list_ends_at_its_limit_most_shared_first():
    texts = [f"alpha beta{'x' * i} gamma" for i in range(20)]
    counts = attribute_counts(texts, "en", limit=3)
    assert len(counts) == 3
    assert [n for _, n in counts] == sorted((n for _, n in counts), reverse=True)
    assert counts[0] == ("alpha", 20)
