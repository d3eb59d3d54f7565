"""Progress: plain lines where nobody watches a terminal, with failures and an honest cost."""

import io

from rich.console import Console

from personae.journal.client import Event
from personae.progress import Display, Tally
from personae.records import Call, Failure, Message, Reply

CALL = Call(role="judge", model="m", messages=(Message(role="user", content="?"),))
GOOD, BAD = Reply(text="x", retries=("timeout", "server")), Reply(failure=Failure(cause="timeout"))


def test_failures_and_retries_are_counted_and_the_cost_is_what_the_client_has_spent():
    tally = Tally()
    for reply, spent in ((GOOD, 0.25), (BAD, 0.25), (GOOD, 0.75)):
        tally.hear(Event(CALL, reply, spent))
    assert tally.words() == "1 failed, 4 retried, 0.7500 USD"


def test_an_unknown_price_makes_the_cost_unknown():
    tally = Tally()
    tally.hear(Event(CALL, GOOD, None))
    assert "cost unknown" in tally.words()


def test_what_came_from_the_journal_was_not_retried_now():
    tally = Tally()
    tally.hear(Event(CALL, GOOD.model_copy(update={"reused": True}), 0.0))
    assert tally.words() == "0 failed, 0 retried, 0.0000 USD"


def lines(**more) -> list[str]:
    out = io.StringIO()
    with Display(Console(file=out, force_terminal=False, width=200), **more) as display:
        display.begin("interview", 3)
        for _ in range(3):
            display.step("interview")
    return out.getvalue().splitlines()


def test_without_a_terminal_there_are_plain_lines_for_the_begin_and_the_end_of_a_stage():
    first, last = lines()
    assert first.startswith("interview: 0/3")
    assert last.startswith("interview: 3/3")
    assert "\x1b" not in first + last


def test_where_nothing_is_called_no_failures_and_costs_are_said():
    first, last = lines(calls=False)
    assert first == "interview: 0/3 in 0.0 s"
    assert last.startswith("interview: 3/3 in ")
    assert last.endswith(" s")


def test_a_stage_without_a_step_is_not_shown():
    out = io.StringIO()
    with Display(Console(file=out, force_terminal=False)) as display:
        display.begin("nothing to do", 0)
    assert out.getvalue() == ""


def test_quiet_says_nothing():
    assert lines(quiet=True) == []


def test_on_a_terminal_there_is_a_bar():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=160, legacy_windows=False)
    with Display(console) as display:
        display.begin("interview", 2)
        display.step("interview")
        display.hear(Event(CALL, BAD, None))
        display.step("interview")
    assert "2/2" in out.getvalue()
    assert "1 failed" in out.getvalue()
