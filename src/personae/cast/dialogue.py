"""A dialogue with characters of a cast, and the prompts that they answer.

What was said stays as the tokens it was said in: those that were drawn are fed again as they were
drawn, not as a tokenizer would cut their text. So all that was fed once is a prefix of what is fed
later, and its keys and values are used again (`cast.generate`).

Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from personae.cast.forgetting import profile_text as card_profile
from personae.cast.layout import (
    Layout,
    Tokens,
    layout_of,
    messages_for,
    scene_system_text,
    system_text,
)
from personae.errors import BadRequestError, UsageError
from personae.records import Language, Message
from personae.records.cast import CastTurn, Mode
from personae.records.language import written_in

if TYPE_CHECKING:
    from personae.cast.generate import CastGenerator, Generated, Prompt
    from personae.cast.store import Cast


def profile_text(cast: Cast, name: str) -> str:
    """What stands of a character in its system message: nothing, where its blocks know it."""
    card = cast.cards.get(name)
    if card is None or cast.character(name).how != "profile":
        return ""
    return card_profile(card)


def own_system(cast: Cast, name: str, language: Language) -> str:
    """The system message under which a character of this cast was trained.

    One that lives by its profile has that in mode `speaker` too: nothing else knows of it.

    Raises:
        UsageError: the cast has no such character.
    """
    profile = profile_text(cast, name)
    if cast.manifest.mode == "speaker" and not profile:
        return scene_system_text(language)
    return system_text(name, language, profile)


def system_for(cast: Cast, name: str, language: Language, given: str | None) -> str:
    """The system message that a character gets: the given one, or the cast's own where it is None.

    A character that lives by its profile alone (`--how profile`) gets that in any case, before the
    given one.

    Raises:
        UsageError: the cast has no such character.
    """
    if given is None:
        return own_system(cast, name, language)
    profile = profile_text(cast, name)
    return f"{system_text(name, language, profile)}\n\n{given}" if profile else given


def with_system(cast: Cast, name: str, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Messages to a character, with the system message that `system_for` gives.

    Raises:
        UsageError: the cast has no such character.
    """
    language = written_in(m.content for m in messages)
    brought = bool(messages) and messages[0].role == "system"
    told = system_for(cast, name, language, messages[0].content if brought else None)
    return (Message(role="system", content=told), *messages[brought:])


def chat_prompt(
    layout: Layout, mode: Mode, messages: Sequence[Message], character: str | None
) -> Prompt:
    """The prompt for a chat's next answer by one character.

    Args:
        messages: the assistant's are the character's own.
        character: None: the base alone, whatever the mode.

    Raises:
        BadRequestError: the layout cannot hold these messages.
    """
    from personae.cast.generate import Prompt

    if mode == "full" or character is None:
        try:
            ids = layout.prompt_ids(messages)
        except UsageError as error:
            raise BadRequestError(str(error)) from None
        return Prompt(ids, (character,) * len(ids))
    first = messages[0] if messages[0].role == "system" else None
    turns = []
    for message in messages[1:] if first else messages:
        if message.role == "system":
            raise BadRequestError("a system message can only be the first")
        if not message.content.strip():
            raise BadRequestError("in mode `speaker` nobody can say nothing: a message is empty")
        speaker = character if message.role == "assistant" else None
        turns.append(CastTurn(speaker=speaker, text=message.content))
    return turns_prompt(layout, mode, first.content if first else "", turns, character)


def turns_prompt(
    layout: Layout,
    mode: Mode,
    system: str,
    turns: Sequence[CastTurn],
    character: str,
    *,
    known: Collection[str] | None = None,
) -> Prompt:
    """The prompt for a character's next words after what was said by whomever.

    Args:
        known: who has blocks; what anybody else says is computed by the base alone. None: all.
    """
    from personae.cast.generate import Prompt

    if mode == "full":
        ids = layout.prompt_ids(messages_for(turns, character, system, mode))
        return Prompt(ids, (character,) * len(ids))
    made = layout.scene(system, turns).and_then(
        layout.header(turns[-1] if turns else None, character, system=bool(system.strip()))
    )
    if known is None:
        return Prompt(made.ids, made.speaker)
    return Prompt(made.ids, tuple(who if who in known else None for who in made.speaker))


def spaced(mode: Mode, character: str | None) -> bool:
    """Whether an answer begins with a space that is not part of it.

    In mode `speaker` the words stand behind `Name:`.
    """
    return mode == "speaker" and character is not None


async def unspaced(pieces: AsyncIterator[str]) -> AsyncIterator[str]:
    """Pieces of an answer without the space that it begins with; none is empty."""
    first = True
    async for piece in pieces:
        shown = piece.removeprefix(" ") if first else piece
        first = False
        if shown:
            yield shown


@dataclass(frozen=True)
class _Said:
    """A turn; `drawn` are the tokens of a generated one, its end left out."""

    turn: CastTurn
    drawn: tuple[int, ...] | None = None


class Dialogue:
    """A dialogue in which characters of a cast take turns.

    Args:
        generator: where the characters speak.
        language: of the cast's own system message.
        system: takes its place, in mode `full` for every character.
    """

    def __init__(
        self, generator: CastGenerator, *, language: Language = "en", system: str | None = None
    ) -> None:
        self._generator = generator
        self._mode: Mode = generator.cast.manifest.mode
        self._language, self._system = language, system
        self._layout = layout_of(generator.base.tokenizer)
        self._control = frozenset(generator.base.tokenizer.all_special_ids)
        self._said: list[_Said] = []

    @property
    def turns(self) -> tuple[CastTurn, ...]:
        """What was said."""
        return tuple(one.turn for one in self._said)

    def say(self, text: str, speaker: str | None = None) -> None:
        """Add an utterance: the person's, or one that a character is given to have said.

        Raises:
            UsageError: it is empty.
        """
        if not text.strip():
            raise UsageError("an utterance says something")
        self._said.append(_Said(CastTurn(speaker=speaker, text=text)))

    def prompt(self, character: str) -> Prompt:
        """What that character would answer to now.

        Raises:
            UsageError: the cast has no such character.
        """
        from personae.cast.generate import Prompt

        if character not in self._generator.characters:
            self._generator.cast.character(character)
        made = self._full(character) if self._mode == "full" else self._scene(character)
        return Prompt(made.ids, made.speaker)

    async def reply(
        self, character: str, *, heard: Callable[[str], None] | None = None, **sampling: Any
    ) -> Generated:
        """Have a character speak; what it says becomes part of the dialogue.

        Args:
            heard: is told each piece of its text as it comes.
            sampling: `max_tokens`, `temperature`, `top_p`, `seed`, `stop` of `generate.Wanted`.

        Cancelled, it leaves the dialogue as it was.

        Raises:
            UsageError: the cast has no such character.
            ContextLengthError: the dialogue does not fit any more.
            ServerError: the model failed.
        """
        from personae.cast.generate import Wanted

        speech = self._generator.stream(Wanted(self.prompt(character), character, **sampling))
        async with speech:
            async for piece in speech:
                if heard is not None:
                    heard(piece)
            found = await speech.done()
        text = found.text.strip()
        if text:
            whole = found.text == self._text(found.ids) and not self._control & set(found.ids)
            turn = CastTurn(speaker=character, text=text)
            self._said.append(_Said(turn, found.ids if whole else None))
        return found

    async def stream(self, character: str, **sampling: Any) -> AsyncIterator[str]:
        """The same piece by piece."""
        import asyncio

        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        task = asyncio.create_task(self.reply(character, heard=pieces.put_nowait, **sampling))
        task.add_done_callback(lambda _t: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            await task
        finally:
            task.cancel()

    def _text(self, ids: Sequence[int]) -> str:
        text: str = self._generator.base.tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _system_for(self, character: str) -> str:
        cast, language = self._generator.cast, self._language
        if cast.manifest.of(character) is None:  # only the generator has learnt of it
            own = scene_system_text(language)
            if self._mode == "full":
                own = system_text(character, language)
            return own if self._system is None else self._system
        return system_for(cast, character, language, self._system)

    def _full(self, character: str) -> Tokens:
        """The dialogue as one character sees it; all of it under its blocks."""
        system = self._system_for(character)
        pieces = self._layout.prompt_segments(
            messages_for(self.turns, character, system, self._mode)
        )
        own = iter([one for one in self._said if one.turn.speaker == character])
        made = Tokens()
        content = True  # of the two supervised pieces of an answer the first, its words
        for piece in pieces:
            drawn = None
            if piece.supervised:
                drawn = next(own).drawn if content else None
                content = not content
            part = self._layout.tokens([piece])
            made = made.and_then(part if drawn is None else _tokens(drawn, None))
        return made._replace(speaker=(character,) * len(made.ids))

    def _scene(self, character: str) -> Tokens:
        """The dialogue as everybody sees it, and the header of that character's next turn.

        Who lives by its profile alone has that before it, and so a cache of its own.
        """
        system = self._system_for(character)
        opened = bool(system.strip())
        made, before = self._layout.opening(system), None
        for one in self._said:
            speaker = one.turn.speaker
            if one.drawn is None or speaker is None:
                made = made.and_then(self._layout.turn(before, one.turn, system=opened))
            else:
                header = self._layout.header(before, speaker, system=opened)
                words = _tokens((*one.drawn, *self._layout.end_ids), speaker)
                made = made.and_then(header).and_then(words)
            before = one.turn
        made = made.and_then(self._layout.header(before, character, system=opened))
        known = self._generator.characters
        return made._replace(speaker=tuple(who if who in known else None for who in made.speaker))


def _tokens(ids: Sequence[int], speaker: str | None) -> Tokens:
    return Tokens(tuple(ids), (True,) * len(ids), (speaker,) * len(ids))
