"""A play that leaves an earlier one at a round: who plays in which round, and who answers there.

The rounds before are the earlier play's: they are answered from its journal, recorded failures
included, and by nobody else, so that both plays share them to the letter.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from personae.errors import ReplayMissError
from personae.records import Call, Failure, Model, Record, Reply
from personae.records.call import Refusing

_AFTER_A_ROUND = frozenset({"belief", "self_belief", "env_belief", "concluded"})


class Cast(Record):
    """Who plays from a round on.

    Attributes:
        characters: the model of whoever has none of its own.
        by_name: models of single characters.
    """

    from_round: int = Field(default=1, ge=1)
    characters: str
    by_name: dict[str, str] = {}
    narrator: str

    def of(self, name: str) -> str:
        """Who plays a character."""
        return self.by_name.get(name, self.characters)

    @property
    def ids(self) -> tuple[str, ...]:
        """All models, each once."""
        return tuple(dict.fromkeys([self.characters, *self.by_name.values(), self.narrator]))


class Branching(Record):
    """Where a play leaves an earlier one (`arguments.branch` of its manifest).

    Attributes:
        parent: the directory of the earlier play, as it was given.
        plays: SHA-256 of the earlier play's plays.jsonl, content and not bytes.
        from_round: the first round that is played anew.
        casts: who played the rounds before, by the rounds they began in.
    """

    parent: str
    plays: str
    from_round: int = Field(ge=1)
    casts: tuple[Cast, ...] = Field(min_length=1)


def cast_in(casts: Sequence[Cast], now: int) -> Cast:
    """Who plays in a round: the last that has begun by then."""
    begun = [cast for cast in casts if cast.from_round <= now]
    return begun[-1] if begun else casts[0]


class EarlierRounds:
    """The `Model` of a branch: rounds before it come from the journal, the others are asked.

    A play does not ask what nobody would read: after its last round neither beliefs nor whether the
    story is concluded. A branch that goes on after that round asks for these.
    """

    def __init__(self, kept: Model, live: Model, from_round: int) -> None:
        self._kept, self._live, self._from = kept, live, from_round

    async def refuse(self, calls: Sequence[Call], failure: Failure) -> None:
        """Passed on for the rounds of the branch; those before it stay as they are."""
        own = [call for call in calls if int(call.meta["round"]) >= self._from]
        if own and isinstance(self._live, Refusing):
            await self._live.refuse(own, failure)

    async def ask(self, call: Call) -> Reply:
        """The reply.

        Raises:
            ReplayMissError: the journal lacks a call of an earlier round.
        """
        now = int(call.meta["round"])
        if now >= self._from:
            return await self._live.ask(call)
        try:
            return await self._kept.ask(call)
        except ReplayMissError as miss:
            if now == self._from - 1 and call.meta["step"] in _AFTER_A_ROUND:
                return await self._live.ask(call)
            raise ReplayMissError(
                f"round {now} cannot be taken over: the earlier play's journal does not hold the "
                f"{call.meta['step']} of {call.meta['character']} in scene {call.meta['scene']}; "
                "something that it was played from has changed since"
            ) from miss
