"""From logits to tokens, and from tokens to text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from personae.cast.drawing import Text, _begins, draw
from tests.cast.serving import loaded


@pytest.fixture(scope="module")
def tokenizer(tiny_base: Path) -> Any:
    """Of bytes."""
    return loaded(tiny_base).tokenizer


def test_draws_follow_the_distribution_cut_at_top_p() -> None:
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    dice = random.Random(1)
    drawn = [draw(p.log(), [1.0], [0.7], [dice])[0] for _ in range(4000)]
    shares = [drawn.count(n) / len(drawn) for n in range(4)]
    # top_p 0.7: 0.5 and 0.3 stay, 5/8 and 3/8; standard error below 0.008
    assert shares[2:] == [0, 0]
    assert abs(shares[0] - 0.625) < 0.03


def test_a_wide_vocabulary_is_drawn_from_as_if_all_of_it_was_sorted() -> None:
    torch.manual_seed(0)
    flat = torch.randn(3, 4000) * 0.1  # the likeliest 512 have a seventh of the mass
    found = draw(flat, [0.8] * 3, [0.95] * 3, [random.Random(n) for n in range(3)])
    for n, token in enumerate(found):
        p, which = (flat[n].double() / 0.8).softmax(-1).sort(descending=True)
        keep = (p.cumsum(-1) - p) < 0.95
        at = int(((p * keep).cumsum(-1) < random.Random(n).random() * (p * keep).sum()).sum())
        assert abs(int((which == token).nonzero()) - at) <= 1  # float32 beside float64


def test_a_character_of_many_tokens_comes_in_one_piece(tokenizer: Any) -> None:
    text = Text(tokenizer, ())
    ids = tokenizer("a老虎🐯!", add_special_tokens=False)["input_ids"]
    assert len(ids) == 1 + 3 + 3 + 4 + 1
    pieces = [text.push(token) for token in ids]
    assert [p for p in pieces if p] == ["a", "老", "虎", "🐯", "!"]
    assert text.end() == ""


def test_what_may_become_a_stop_string_is_held_back(tokenizer: Any) -> None:
    text = Text(tokenizer, ("\nUser:",))
    ids = tokenizer("Yes.\nUse it.\nUser: no", add_special_tokens=False)["input_ids"]
    given = ""
    for token in ids:
        given += text.push(token)
        assert not given.endswith("\n")
        if text.stopped:
            break
    assert given + text.end() == "Yes.\nUse it."
    assert (_begins("ab\nU", "\nUser:"), _begins("ab", "\nUser:")) == (2, 0)


def test_what_was_held_back_comes_at_the_end(tokenizer: Any) -> None:
    text = Text(tokenizer, ("XYZ",))
    for token in tokenizer("abXY", add_special_tokens=False)["input_ids"]:
        text.push(token)
    assert (text.whole, text.end(), text.whole) == ("ab", "XY", "abXY")


def test_one_row_that_needs_all_of_the_vocabulary_does_not_change_another_ones_draw() -> None:
    ties = torch.zeros(1, 3000)  # all alike: whoever sorts them decides
    ties[0, :600] = 9.0
    flat = torch.zeros(1, 3000)
    alone = draw(ties, [1.0], [0.9], [random.Random(4)])
    beside = draw(
        torch.cat([flat, ties]), [1.0, 1.0], [0.99, 0.9], [random.Random(1), random.Random(4)]
    )
    assert beside[1] == alone[0]


def test_logits_that_are_no_numbers_are_an_error_and_no_token() -> None:
    broken = torch.zeros(2, 5)
    broken[1, 3] = float("nan")
    with pytest.raises(FloatingPointError):
        draw(broken, [0.0, 0.0], [1.0, 1.0], [random.Random(1)] * 2)


def test_the_smallest_temperature_takes_the_likeliest() -> None:
    assert draw(torch.tensor([[0.0, 80.0, 79.0]]), [1e-300], [1.0], [random.Random(1)]) == [1]


def sentencepiece_like() -> Any:
    """A tokenizer as Llama 2 has it: words begin with a mark, the rest falls back to bytes."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words = [
        "<unk>",
        "</s>",
        *(f"<0x{n:02X}>" for n in range(256)),
        "▁The",
        "▁tiger",
        "s",
        "▁",
        ".",
    ]
    raw = Tokenizer(
        models.BPE(
            vocab={w: n for n, w in enumerate(words)},
            merges=[],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    raw.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>", unk_token="<unk>")


def test_spaces_and_bytes_of_a_sentencepiece_tokenizer_come_as_they_are_read() -> None:
    tokenizer = sentencepiece_like()
    number = tokenizer.convert_tokens_to_ids
    tiger = [number(f"<0x{byte:02X}>") for byte in "老虎".encode()]
    ids = [number("▁The"), number("▁tiger"), number("s"), number("▁"), *tiger, number("."),
           number("▁The")]  # fmt: skip
    text = Text(tokenizer, ())
    pieces = [text.push(token) for token in ids]
    assert "".join(pieces) + text.end() == tokenizer.decode(ids) == "The tigers 老虎. The"
    assert not any("\ufffd" in piece for piece in pieces)
    assert [p for p in pieces if p][-4:] == ["老", "虎", ".", " The"]
