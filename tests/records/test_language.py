"""Which language a text is in."""

from personae.records.language import written_in


def test_the_language_is_that_of_most_letters() -> None:
    assert written_in(["我在河口摆渡。", "OK"]) == "zh"
    assert written_in(["The word 道 means way."]) == "en"
    assert written_in([]) == "en"
