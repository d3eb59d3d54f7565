from personae.records.tokens import estimate_tokens


def test_tokens_are_estimated_for_both_scripts():
    assert estimate_tokens("abcdefgh") == 2
    assert estimate_tokens("今天天气") == 3  # 4 / 1.5 = 2.67


def test_no_text_is_free():
    assert estimate_tokens("") == 1
