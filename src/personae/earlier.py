"""What a branch takes over from the play that it leaves: journal, vectors, the rounds before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from personae.journal.client import Client
from personae.journal.store import Journal, copy_database, copy_journal
from personae.records import Backend, Call, Language, Model
from personae.session import JOURNAL, Run, repair_messages
from personae.world.branching import Branching, EarlierRounds


def begin_branch(branch: Branching, vectors: str, journal: Path) -> None:
    """Begin a branch's journal with the calls of the rounds before it; keep their vectors too.

    Later rounds of the earlier play stay behind: they are played anew, a person in them is asked
    anew, and their cost is not this play's.

    Raises:
        JournalError: the earlier play's journal cannot be read, or the copy not be written.
    """
    parent = Path(branch.parent)
    # The journal comes last: it is what says that the rest is there.
    if (parent / vectors).is_file():
        copy_database(parent / vectors, journal.with_name(vectors))
    copy_journal(parent / JOURNAL, journal, lambda call: _round(call) < branch.from_round)


def _round(call: Call) -> int:
    """The round that a call belongs to; every call of a play has one."""
    return int(call.meta["round"])


@contextlib.contextmanager
def earlier_rounds(run: Run, branch: Branching | None, language: Language) -> Iterator[Model]:
    """Who answers in an open run: its client, in a branch's earlier rounds the journal alone."""
    if branch is None:
        yield run.client
        return
    own = run.client.journal
    # A dry run has written none: it reads what it would begin with.
    journal = own or Journal(Path(branch.parent) / JOURNAL, read_only=True)

    def nobody(model_id: str) -> Backend:
        raise AssertionError(f"{model_id} is asked in a replay")

    kept = Client(
        journal,
        nobody,
        repair=repair_messages(language),
        prices=run.options.prices,
        replay=True,
        observe=run.options.observe,
    )
    try:
        yield EarlierRounds(kept, run.client, branch.from_round)
    finally:
        if own is None:
            journal.close()
