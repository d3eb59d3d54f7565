"""Transfer dialogues: the character changes from turn to turn (Neeko, section 4, appendix A.3).

"We systematically substituted the dialogue content in each round with content from various
characters through random selection." Here, each dialogue begins as one of one character; some of
its rounds, one at least and never all, give way to rounds of others. The released script took
"Caesar" and "Julius Caesar" for two and made dialogues of one character (4 of 90), drew partly
without its seed, and could use a round twice; here none of these happens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from personae.errors import InputError
from personae.interview.names import Names, alike, names_of
from personae.interview.people import Interviewee
from personae.interview.questions import TOPICS, script_id
from personae.records import InterviewScript, Language, ScriptTurn
from personae.records.similarity import normalised

TURNS = 5
"""Rounds of a transfer dialogue (appendix A.3)."""
ATTEMPTS = 50
"""At a dialogue that has not been made before."""


class _Round(NamedTuple):
    """A question to a character, and where it is from; equal keys are equal questions."""

    asked: str
    script: str
    number: int
    key: str


def transfer_scripts(
    scripts: Sequence[InterviewScript],
    people: Sequence[Interviewee],
    count: int,
    *,
    turns: int = TURNS,
    seed: int = 0,
    live: bool = False,
) -> tuple[InterviewScript, ...]:
    """`count` transfer dialogues, the same for the same arguments; fewer are the first of more.

    Every dialogue has two characters at least, and asks nothing twice; each character is the one
    that is given way from in every `len(people)`-th. Location and status are those of the script it
    begins as. Scripts that are transfer dialogues themselves stand as they are, before those made;
    nothing is made where there is nothing else.

    Args:
        scripts: what rounds are taken from: single questions and replayed dialogues; of `live`
            ones, what the dialogues are about (without any, the plain `TOPICS`). A live dialogue
            begins with what is asked of its first character.
        turns: rounds of a dialogue, two at least.
        live: the interviewer finds the words; only who is asked is drawn.

    Raises:
        InputError: fewer than two people, or too few different questions for so many dialogues.
        ValueError: fewer than two turns.
    """
    if turns < 2:
        raise ValueError("a transfer dialogue has two turns at least")
    given = [script for script in scripts if script.kind == "transfer"][:count]
    names = list(dict.fromkeys(person.name for person in people))
    if len(names) < 2:
        raise InputError("a transfer dialogue needs two characters", mend="Give another card")
    rest = [script for script in scripts if script.kind != "transfer"]
    seen = {script.id for script in given}
    made: list[InterviewScript] = list(given)
    if len(made) == count or (given and not rest):
        return tuple(made)
    maker = _Maker(rest, people, names, turns, seed, live)
    for number in range(count - len(given)):
        for attempt in range(ATTEMPTS):
            script = maker.dialogue(number, attempt)
            if script is not None and script.id not in seen:
                break
        else:
            raise InputError(
                f"these questions give {len(made)} different transfer dialogues of {turns} turns, "
                f"not {count}",
                mend="Give more questions, or ask for fewer with --limit",
            )
        assert script is not None
        seen.add(script.id)
        made.append(script)
    return tuple(made)


class _Maker:
    """Dialogues out of the same material."""

    def __init__(
        self,
        scripts: Sequence[InterviewScript],
        people: Sequence[Interviewee],
        names: Sequence[str],
        turns: int,
        seed: int,
        live: bool,
    ) -> None:
        self.turns, self.seed, self.live = turns, seed, live
        called = Names(names_of(people))
        # By whom they ask, under one name each: what is called "Caesar" here is no second person.
        self.scripts: dict[str, list[InterviewScript]] = {name: [] for name in names}
        for script in scripts:
            known = called.find(script.characters[0])
            if known is None:
                raise InputError(
                    f"a question to {script.characters[0]}, who is not among the characters",
                    path=script.source or None,
                    mend="Give the card, too",
                )
            self.scripts[known].append(script)
        self.rounds = {name: _rounds(some) for name, some in self.scripts.items()}
        self.language: Language = next((s.language for s in scripts), people[0].language)
        self.by_id = {script.id: script for script in scripts}
        asked = list(names) if live else [name for name in names if self.rounds[name]]
        # Two cards of one character ("Caesar", "Julius Caesar") never take turns with each other.
        self.others = {
            name: others
            for name in asked
            if (others := [other for other in asked if not alike(other, name)])
        }
        if not self.others:
            raise InputError(
                "there are questions to fewer than two characters",
                mend="Give questions to each of them, or --interviewer MODEL, who finds the words",
            )
        self.bases = list(self.others)

    def dialogue(self, number: int, attempt: int) -> InterviewScript | None:
        """The dialogue of that number; another attempt is another draw; None: that one failed."""
        draw = random.Random(f"{self.seed}/{number}/{attempt}")  # noqa: S311  (no secret)
        return self._live(draw, number) if self.live else self._replayed(draw, number)

    def _live(self, draw: random.Random, number: int) -> InterviewScript:
        asked = [self.bases[number % len(self.bases)]]
        while len(asked) < self.turns:
            asked.append(draw.choice(self.others[asked[-1]]))
        topic, topic_id, start = self._topic(draw, asked[0])
        turns = tuple(ScriptTurn(character=name) for name in asked)
        return self._script(turns, topic, topic_id, start, [start] if start else [], {})

    def _topic(self, draw: random.Random, first: str) -> tuple[str, str, InterviewScript | None]:
        """What is asked of the first character, if anything; else one of the plain topics."""
        if self.scripts[first]:
            start = draw.choice(self.scripts[first])
            led = start.topic if start.kind == "multi" else ""
            return led or start.turns[0].asked or start.topic, start.topic_id, start
        topic = draw.choice([topic for topic in TOPICS if not topic.tempting])
        return topic.names[self.language], topic.id, None

    def _replayed(self, draw: random.Random, number: int) -> InterviewScript | None:
        base = self.bases[number % len(self.bases)]
        replayed = [s for s in self.scripts[base] if s.mode == "replayed"]
        long = [script for script in replayed if len(script.turns) >= self.turns]
        start = draw.choice(long or [s for s in self.scripts[base] if s.turns[0].asked])
        own = list(_of(start))
        others = self.others[base]
        # With few questions to the character, more of its rounds have to give way.
        fewest = max(1, self.turns - len(self.rounds[base]))
        given_way = set(draw.sample(range(self.turns), draw.randint(fewest, self.turns - 1)))
        chosen: dict[int, tuple[str, _Round]] = {}
        used: set[str] = set()
        # Those that stay are chosen first: what they give way to must not say the same.
        for place in sorted(range(self.turns), key=lambda place: place in given_way):
            options = draw.sample(others, len(others)) if place in given_way else [base]
            here = own[place] if place < len(own) and place not in given_way else None
            if here is not None and here.key not in used:
                found: tuple[str, _Round] | None = (base, here)
            else:
                found = self._unused(draw, options, used)
            if found is None:
                return None
            chosen[place] = found
            used.add(found[1].key)
        in_order = [chosen[place] for place in range(self.turns)]
        turns = tuple(ScriptTurn(character=name, asked=one.asked) for name, one in in_order)
        scripts = [self.by_id[one.script] for _, one in in_order]
        rounds = [[one.script, one.number] for _, one in in_order]
        return self._script(turns, start.topic, "", start, scripts, {"rounds": rounds})

    def _unused(
        self, draw: random.Random, names: Sequence[str], used: set[str]
    ) -> tuple[str, _Round] | None:
        """A round that was not used, of the first of these characters who has one."""
        for name in names:
            fresh = [one for one in self.rounds[name] if one.key not in used]
            if fresh:
                return name, draw.choice(fresh)
        return None

    def _script(
        self,
        turns: tuple[ScriptTurn, ...],
        topic: str,
        topic_id: str,
        start: InterviewScript | None,
        used: Sequence[InterviewScript],
        extra: dict[str, object],
    ) -> InterviewScript:
        return InterviewScript(
            id=script_id("transfer", turns, topic),
            kind="transfer",
            language=start.language if start is not None else self.language,
            topic=topic,
            topic_id=topic_id,
            tempting=any(script.tempting for script in used),
            location=start.location if start is not None else "",
            status=start.status if start is not None else "",
            turns=turns,
            source=f"drawn with seed {self.seed} (appendix A.3)",
            extra=extra,
        )


def _rounds(scripts: Sequence[InterviewScript]) -> list[_Round]:
    """All questions of scripts, each once."""
    found: dict[str, _Round] = {}
    for script in scripts:
        for one in _of(script):
            found.setdefault(one.key, one)
    return list(found.values())


def _of(script: InterviewScript) -> Iterator[_Round]:
    for number, turn in enumerate(script.turns):
        if turn.asked is not None:
            yield _Round(turn.asked, script.id, number, normalised(turn.asked))
