"""What dialogues share, and what a batch keeps when rows come and go."""

from __future__ import annotations

import numpy as np
import torch

from personae.cast.caching import Batch, Kept, Layers, Tokens, layers_of

ADA, BASE = (("Ada", 1.0),), ()


def tokens(ids: list[int], voices: list[object]) -> Tokens:
    return Tokens(np.asarray(ids), voices)  # type: ignore[arg-type]  # tuples of pairs


def layers(*rows: list[float]) -> Layers:
    """One layer, one head, width 1: the value of each token is a number."""
    made = torch.tensor(rows)[:, None, :, None]
    return [(made, -made)]


def test_tokens_have_in_common_what_is_the_same_under_the_same_voice() -> None:
    one = tokens([1, 2, 3, 4], [BASE, BASE, ADA, ADA])
    assert one.common(tokens([1, 2, 3, 4, 5], [BASE, BASE, ADA, ADA, BASE])) == 4
    assert one.common(tokens([1, 2, 9, 4], [BASE, BASE, ADA, ADA])) == 2
    assert one.common(tokens([1, 2, 3, 4], [BASE, ADA, ADA, ADA])) == 1
    assert one.common(tokens([1, 2, 3, 4], [ADA, ADA, ADA, ADA])) == 0


def test_tokens_grow_and_are_cut() -> None:
    one = tokens([1, 2], [BASE, BASE])
    one.append(3, ADA)
    one.append(4, BASE)
    assert one.ids.tolist() == [1, 2, 3, 4]
    assert [one.kinds[n] for n in one.numbers] == [BASE, BASE, ADA, BASE]
    part = one.part(2, 4)
    assert (part.ids.tolist(), [part.kinds[n] for n in part.numbers]) == ([3, 4], [ADA, BASE])
    assert len(one) == 4


def test_rows_that_join_are_padded_and_what_is_padding_in_all_goes_with_those_who_leave() -> None:
    batch: Batch[str] = Batch()
    batch.join(["long"], layers([1.0, 2.0, 3.0]), [0])
    batch.join(["short", "shorter"], layers([4.0, 5.0], [0.0, 6.0]), [0, 1])
    assert batch.rows == ["long", "short", "shorter"]
    (keys, values) = layers_of(batch.cache)[0]
    assert keys[:, 0, :, 0].tolist() == [[1, 2, 3], [0, 4, 5], [0, 0, 6]]
    assert batch.grow().tolist() == [[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert torch.equal(values, -keys)


def test_a_row_is_taken_out_without_its_padding_and_the_others_stay_as_they_are() -> None:
    batch: Batch[str] = Batch()
    batch.join(["long"], layers([1.0, 2.0, 3.0]), [0])
    batch.join(["short", "shorter"], layers([4.0, 5.0], [0.0, 6.0]), [0, 1])
    (keys, _) = batch.of(1)[0]
    assert keys[:, 0, :, 0].tolist() == [[4, 5]]
    batch.keep([1, 2])
    assert layers_of(batch.cache)[0][0][:, 0, :, 0].tolist() == [[4, 5], [0, 6]]
    assert batch.grow().tolist() == [[1, 1, 1], [0, 1, 1]]
    batch.keep([])
    assert batch.rows == []


def test_an_entry_that_is_gone_on_with_gives_way_to_what_goes_on() -> None:
    kept = Kept(1 << 20)
    kept.keep(tokens([1, 2], [ADA, ADA]), layers([1.0, 2.0]))
    kept.keep(tokens([1, 2, 3], [ADA, ADA, ADA]), layers([1.0, 2.0, 3.0]))
    assert len(kept._entries) == 1
    kept.keep(tokens([1, 7], [ADA, ADA]), layers([1.0, 7.0]))
    assert len(kept._entries) == 2
    found, common = kept.longest(tokens([1, 2, 3, 4], [ADA] * 4), 3)
    assert found is not None
    assert (common, found[0][0].shape[2]) == (3, 3)
    assert kept.longest(tokens([1, 2], [BASE, BASE]), 2) == (None, 0)


def test_the_entry_that_was_used_last_stays_longest() -> None:
    entry = layers([1.0, 2.0])
    size = sum(k.nbytes + v.nbytes for k, v in entry)
    kept = Kept(2 * size)
    kept.keep(tokens([1, 1], [ADA, ADA]), entry)
    kept.keep(tokens([2, 2], [ADA, ADA]), entry)
    kept.longest(tokens([1, 1, 1], [ADA] * 3), 2)
    kept.keep(tokens([3, 3], [ADA, ADA]), entry)
    assert [t.ids.tolist() for t, _, _ in kept._entries] == [[1, 1], [3, 3]]
    kept.clear()
    assert not kept._entries
