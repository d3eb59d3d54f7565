import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.characters.decorators import Decorated, Reason, parse_decorators


def reasons(read: Decorated) -> list[tuple[str, Reason]]:
    return [(i.name, i.why) for i in read.ignored]


def test_decorators_are_trimmed_with_the_newlines_around_them():
    read = parse_decorators("\n@@depth 5\n@@role user\n\nThe vault is open.\n")
    assert read.text == "The vault is open.\n"
    assert (read.depth, read.role) == (5, "user")


def test_a_content_without_decorators_stays_to_the_letter():
    text = "\n  mail me @@ noon\n@@depth 4\n"
    assert parse_decorators(text) == Decorated(text=text)


def test_every_decorator_that_is_honoured_is_read():
    read = parse_decorators(
        "@@activate_only_after 3\n@@activate_only_every 2\n@@keep_activate_after_match\n"
        "@@dont_activate_after_match\n@@scan_depth 7\n@@is_greeting 1\n@@position personality\n"
        "@@additional_keys a, b ,,\n@@exclude_keys 中文,c\n@@ignore_on_max_context\n@@activate\nx"
    )
    assert read == Decorated(
        text="x",
        activate=True,
        activate_only_after=3,
        activate_only_every=2,
        keep_activate_after_match=True,
        dont_activate_after_match=True,
        scan_depth=7,
        is_greeting=1,
        position="personality",
        additional_keys=("a", "b"),
        exclude_keys=("中文", "c"),
        ignore_on_max_context=True,
    )


def test_the_first_decorator_of_a_name_counts():
    read = parse_decorators("@@depth 1\n@@depth 2\nx")
    assert read.depth == 1
    assert reasons(read) == [("depth", "repeated")]


def test_a_fallback_stands_in_for_a_decorator_that_is_not_known():
    # The specification's own example.
    read = parse_decorators("@@risu_only_decorator 4\n@@@agn_only_decorator 4\n@@@depth 4\nx")
    assert read.depth == 4
    assert reasons(read) == [("risu_only_decorator", "unknown"), ("agn_only_decorator", "unknown")]


def test_a_fallback_of_a_decorator_that_is_honoured_is_not_looked_at():
    read = parse_decorators("@@depth 5\n@@@instruct_depth 5\nx")
    assert read == Decorated(text="x", depth=5)


def test_a_fallback_stands_in_for_a_value_that_does_not_fit():
    assert parse_decorators("@@depth deep\n@@@role system\nx").role == "system"


def test_a_fallback_may_end_a_chain_of_many():
    chain = "@@one\n" + "".join(f"@@@n{n}\n" for n in range(20)) + "@@@depth 2\nx"
    assert parse_decorators(chain).depth == 2


def test_what_counts_the_tokens_of_one_running_text_is_ignored_in_a_conversation():
    read = parse_decorators("@@instruct_depth 3\n@@@depth 3\n@@is_user_icon me\nx")
    assert read.depth == 3
    assert reasons(read) == [("instruct_depth", "unsupported"), ("is_user_icon", "unsupported")]


def test_what_the_caller_cannot_honour_now_gives_way_to_its_fallback():
    text = "@@is_greeting 1\n@@@activate_only_after 2\nx"
    assert parse_decorators(text).activate_only_after is None
    assert parse_decorators(text, cannot={"is_greeting"}).activate_only_after == 2


def test_a_fallback_of_nothing_has_no_effect():
    read = parse_decorators("@@@depth 2\nx")
    assert (read.text, read.depth) == ("x", None)
    assert reasons(read) == [("depth", "orphan")]


def test_a_position_overrules_a_depth_and_activate_overrules_dont_activate():
    read = parse_decorators("@@depth 2\n@@position scenario\n@@dont_activate\n@@activate\nx")
    assert (read.depth, read.position) == (None, "scenario")
    assert (read.activate, read.dont_activate) == (True, False)
    assert reasons(read) == [("depth", "overruled"), ("dont_activate", "overruled")]


@pytest.mark.parametrize(
    "line",
    [
        "@@depth", "@@depth 1.5", "@@depth ٣", "@@depth 99999999999999999999", "@@scan_depth -1",
        "@@activate_only_every 0", "@@role narrator", "@@position pt_custom", "@@activate no",
        "@@additional_keys ,", "@@is_greeting first",
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_ignored_and_told(line: str):
    read = parse_decorators(f"{line}\nx")
    assert read == Decorated(text="x", ignored=read.ignored)
    assert [i.why for i in read.ignored] == ["value"]


def test_lines_end_as_they_do_on_any_system():
    assert parse_decorators("@@depth 1\r\n@@role user\r\n\r\nx\r\ny").text == "x\r\ny"


def test_a_content_of_decorators_only_has_nothing_to_tell():
    assert parse_decorators("@@constant\n@@depth 4").text == ""


@given(st.lists(st.sampled_from(["@@depth 1", "@@@role user", "@@x", "", "text", "@@ y"])))
def test_the_text_is_what_stands_behind_the_last_decorator(lines: list[str]):
    content = "\n".join(lines)
    read = parse_decorators(content)
    assert content.endswith(read.text)
    if not read.ignored and read == Decorated(text=read.text):
        assert read.text == content


@given(st.text())
def test_any_text_is_read(text: str):
    parse_decorators("@@" + text)
