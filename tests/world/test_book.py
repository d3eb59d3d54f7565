"""Books: the usual encodings, passages of whole paragraphs, nothing lost at the cuts."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.errors import InputError
from personae.records.tokens import estimate_tokens
from personae.world.book import passages, read_book, spread

CHINESE = "第一回 灵根育孕源流出\n　　那座山正当顶上有一块仙石。\n　　石猴在山中行走跳跃。\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030", "gbk", "utf-16"])
def test_a_chinese_book_is_read_in_its_usual_encodings(tmp_path: Path, encoding: str):
    path = tmp_path / "book.txt"
    path.write_bytes(CHINESE.encode(encoding))
    assert read_book(path) == CHINESE


def test_line_ends_of_every_system_are_one(tmp_path: Path):
    path = tmp_path / "book.txt"
    path.write_bytes(b"One.\r\n\r\nTwo.\rThree.")
    assert read_book(path) == "One.\n\nTwo.\nThree."


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        ("Élan vital, déjà vu, garçon: où est-il allé?".encode("latin-1"), "neither UTF-8 nor"),
        (b"\x89PNG\r\n\x1a\n\xff\xff", "neither UTF-8 nor"),
        (b"abc\0def", "binary data"),
        (b" \n\n", "empty"),
        ("吾輩は猫である。名前はまだ無い。".encode("shift_jis"), "neither UTF-8 nor"),
        ("那座山正當頂上，有一塊仙石。其石有三丈六尺五寸高。".encode("big5"), "neither UTF-8 nor"),
    ],
)
def test_what_is_no_such_text_is_refused(tmp_path: Path, raw: bytes, complaint: str):
    path = tmp_path / "book.txt"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=complaint) as caught:
        read_book(path)
    assert caught.value.path == path


def test_an_absent_book_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="no such file"):
        read_book(tmp_path / "book.txt")


def paragraphs(count: int, words: int = 60) -> str:
    return "\n\n".join(f"Paragraph {i}: " + f"word{i} " * words for i in range(count))


def test_passages_hold_whole_paragraphs_and_no_more_than_asked():
    text = paragraphs(200)
    found = passages(text, tokens=1000, overlap=0)
    assert len(found) > 10
    for p in found:
        assert estimate_tokens(p.text) <= 1000
        assert p.text.startswith("Paragraph ")
        assert text[p.start : p.end].strip() == p.text
    assert "\n\n".join(p.text for p in found).split() == text.split()


def test_the_end_of_a_passage_begins_the_next():
    found = passages(paragraphs(100), tokens=1000, overlap=300)
    for one, other in pairwise(found):
        assert one.start < other.start < one.end < other.end
        shared = estimate_tokens(other.text[: one.end - other.start])
        assert 0 < shared <= 300


def test_a_chapter_begins_a_passage_and_shares_nothing_with_the_one_before():
    text = f"CHAPTER I\n\n{paragraphs(7)}\n\nCHAPTER II. The Sea\n\n{paragraphs(7)}"
    found = passages(text, tokens=1000, overlap=200)
    assert [p.heading for p in found] == ["CHAPTER I", "CHAPTER II. The Sea"]
    assert found[1].text.startswith("CHAPTER II. The Sea")


def test_chapters_of_a_line_each_are_not_passages_of_their_own():
    contents = "\n\n".join(f"Chapter {i}" for i in range(1, 30))
    assert len(passages(f"{contents}\n\n{paragraphs(5)}", tokens=1000)) <= 2


def test_chapters_of_a_chinese_book_without_blank_lines_are_found():
    text = "".join(
        f"第{n}回 标题\n" + "　　石猴在山中行走跳跃，食草木，饮涧泉。\n" * 30 for n in "一二三"
    )
    found = passages(text, tokens=500, overlap=50)
    assert {p.heading for p in found} == {"第一回 标题", "第二回 标题", "第三回 标题"}
    assert all(estimate_tokens(p.text) <= 500 for p in found)


@pytest.mark.parametrize(
    "text", ["字" * 30_000, "x" * 30_000, "他说。" * 9_000, "He said. " * 4_000]
)
def test_a_paragraph_without_an_end_is_cut_all_the_same(text: str):
    found = passages(text, tokens=800, overlap=0)
    assert all(estimate_tokens(p.text) <= 800 for p in found)
    assert sum(len(p.text.replace(" ", "")) for p in found) == len(text.replace(" ", ""))


def test_a_book_of_two_megabytes_is_cut_as_a_whole():
    text = paragraphs(3500, words=80)
    assert len(text) > 2_000_000
    found = passages(text)
    assert [p.number for p in found] == list(range(len(found)))
    assert found[0].start == 0
    assert found[-1].text.endswith("word3499")
    assert all(one.end >= other.start - 2 for one, other in pairwise(found))


def test_the_notices_of_project_gutenberg_are_no_part_of_the_book():
    text = (
        "The Project Gutenberg eBook\n*** START OF THE PROJECT GUTENBERG EBOOK 1 ***\n\n"
        "Alice was beginning to get tired.\n\n"
        "*** END OF THE PROJECT GUTENBERG EBOOK 1 ***\nLicence of many pages"
    )
    assert [p.text for p in passages(text)] == ["Alice was beginning to get tired."]


@given(st.text(alphabet="ab 。.\n\u3000字", max_size=600), st.integers(0, 40))
def test_every_letter_of_a_text_is_in_some_passage(text: str, overlap: int):
    found = passages(text, tokens=100, overlap=overlap)
    covered = set()
    for p in found:
        covered |= set(range(p.start, p.end))
        assert estimate_tokens(p.text) <= 100
    assert all(i in covered for i, c in enumerate(text) if not c.isspace())


@pytest.mark.parametrize(("tokens", "overlap"), [(99, 0), (1000, 500), (1000, -1)])
def test_sizes_that_mean_nothing_are_refused(tokens: int, overlap: int):
    with pytest.raises(ValueError):
        passages("text", tokens=tokens, overlap=overlap)


@pytest.mark.parametrize(
    ("size", "count", "expected"),
    [(10, 2, [2, 7]), (3, 3, [0, 1, 2]), (3, 9, [0, 1, 2]), (9, 1, [4]), (0, 3, []), (4, 0, [])],
)
def test_what_is_taken_is_spread_over_the_whole(size: int, count: int, expected: list[int]):
    assert spread(range(size), count) == expected
