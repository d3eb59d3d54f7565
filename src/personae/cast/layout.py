"""How a dialogue lies before the model: one layout for training and for generation.

Two modes (docs/cast-data.md). `full`: a character sees the dialogue as its own, everybody else's
utterances are the user's, its own the assistant's. `speaker`: nothing depends on who speaks next;
the person's utterances are user messages, those of characters assistant messages that begin with
the name, so one KV cache serves a whole cast (compare aLoRA, arXiv 2504.12397, which switches an
adapter on at the header of the turn).

**Ids are made piece by piece.** What generation feeds is a prompt up to the header of the answer,
then ids that it drew itself, then the end of the turn, then the next piece; text that is tokenised
in one go may merge letters over those borders. So the pieces are tokenised one by one here, for
training too, and what was fed once never changes when the dialogue goes on.

**The template is measured, not parsed.** What a chat template writes between two messages is found
by rendering messages whose contents are marks. A template that takes no system message gets it as
the front of the first user message; one that demands turns about gets neighbours of the user as
one message, and neighbours of the assistant with the end of a turn between them.

Nothing here needs torch; the tokenizer is one of transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from personae.errors import UsageError
from personae.models.local.template import defuse
from personae.prompts import render
from personae.records import Language, Message
from personae.records.cast import CastTurn, Mode

Role = Literal["system", "user", "assistant"]
Before = Literal["start", "system", "user", "assistant"]

JOIN = "\n\n"
"""Between neighbours that a template wants as one message."""
_MARKS = tuple(f"mark{n}of{n}" for n in range(4))
_MAX_GLUE = 20_000


def system_text(name: str, language: Language, profile: str = "") -> str:
    """The system message of a character in mode `full` (prompts/LANGUAGE/cast/system.md)."""
    (message,) = render("cast/system", language, name=name, profile=profile.strip())
    return message.content


def scene_system_text(language: Language) -> str:
    """The system message of every dialogue in mode `speaker`: it names nobody."""
    (message,) = render("cast/scene_system", language)
    return message.content


def messages_for(
    history: Sequence[CastTurn], character: str | None, system: str, mode: Mode
) -> tuple[Message, ...]:
    """A dialogue as messages of a chat.

    Args:
        history: what was said.
        character: who is to speak next (mode `full`); mode `speaker` does not look at it.
        system: the system message; "" is none.

    In mode `full` neighbours among the others' turns become one message, and other characters are
    named in it (`Name: ...`); the character's own neighbours stay apart: each ended once.

    Raises:
        UsageError: mode `full` without a character.
    """
    if mode == "full" and character is None:
        raise UsageError("in mode `full` a dialogue is laid out for one character: name it")
    made = [Message(role="system", content=system.strip())] if system.strip() else []
    for turn in history:
        text = turn.text.strip()
        if mode == "full" and turn.speaker == character:
            made.append(Message(role="assistant", content=text))
            continue
        said = text if turn.speaker is None else f"{turn.speaker}: {text}"
        if mode == "speaker":
            made.append(Message(role="user" if turn.speaker is None else "assistant", content=said))
        elif made and made[-1].role == "user":
            made[-1] = Message(role="user", content=made[-1].content + JOIN + said)
        else:
            made.append(Message(role="user", content=said))
    return tuple(made)


class Piece(NamedTuple):
    """Text that is tokenised by itself.

    Attributes:
        supervised: its tokens are to be predicted.
        speaker: whose tokens they are; None: nobody's, the base alone reads them.
    """

    text: str
    supervised: bool = False
    speaker: str | None = None


class Tokens(NamedTuple):
    """Token ids, and for each whether it is to be predicted and whose it is."""

    ids: tuple[int, ...] = ()
    supervised: tuple[bool, ...] = ()
    speaker: tuple[str | None, ...] = ()

    def and_then(self, other: Tokens) -> Tokens:
        """These, then those."""
        return Tokens(
            self.ids + other.ids,
            self.supervised + other.supervised,
            self.speaker + other.speaker,
        )


@dataclass(frozen=True)
class Layout:
    """What a tokenizer's chat template writes around messages (`layout_of`).

    Attributes:
        between: text between the content of a message of the first role (or `start`) and that of
            a message of the second.
        lead: white space that the template writes before an answer and not at the end of a
            prompt; it is drawn with the answer.
        end: what ends the assistant's turn; its last token is what generation stops at.
        control: texts of control tokens, which no content may spell.
        tokenizer: of transformers.
    """

    between: Mapping[tuple[Before, Role], str]
    lead: str
    end: str
    control: tuple[str, ...]
    tokenizer: Any

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids that end a turn of the assistant."""
        return self.tokens([Piece(self.end)]).ids

    # Mode `full`, and any chat.

    def prompt_segments(self, messages: Sequence[Message]) -> list[Piece]:
        """The pieces of a chat, up to where the assistant's next message begins.

        A piece is everything up to an answer, or an answer with the end of its turn (supervised).
        """
        pieces: list[Piece] = []
        before: Before = "start"
        text = ""
        for message in messages:
            text += self._glue(before, message.role)
            if message.role == "assistant":
                pieces += self._answer(Piece(text), self.lead, message.content, None)
                text = ""
            else:
                text += self.plain(message.content)
            before = message.role
        pieces.append(Piece(text + self._glue(before, "assistant")))
        return pieces

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """What generation feeds for a chat, the header of the answer included."""
        return self.tokens(self.prompt_segments(messages)).ids

    # Mode `speaker`.

    def opening(self, system: str) -> Tokens:
        """The tokens before the first turn; the base alone reads them."""
        return self.tokens(self._opening(system))

    def turn(self, before: CastTurn | None, turn: CastTurn, *, system: bool = True) -> Tokens:
        """The tokens that one more turn adds, whatever comes after it.

        Args:
            before: the turn before it; None for the first.
            turn: what is said; a character's words are supervised, its header is not.
            system: whether an `opening` stands before the first turn.
        """
        return self.tokens(self._turn(self._before(before, system), turn))

    def header(self, before: CastTurn | None, name: str, *, system: bool = True) -> Tokens:
        """The tokens that stand before a character's words: its message's header and `Name:`.

        What generation draws next begins with a space.
        """
        return self.tokens([Piece(self._header(self._before(before, system), name), speaker=name)])

    def scene(self, system: str, turns: Iterable[CastTurn]) -> Tokens:
        """A whole dialogue: its opening and all turns."""
        pieces, before = self._opening(system), self._before(None, bool(system.strip()))
        for turn in turns:
            pieces += self._turn(before, turn)
            before = self._before(turn, True)
        return self.tokens(pieces)

    def tokens(self, pieces: Iterable[Piece]) -> Tokens:
        """The ids of pieces, each tokenised by itself."""
        ones = [piece for piece in pieces if piece.text]
        if not ones:
            return Tokens()
        ids: list[int] = []
        supervised: list[bool] = []
        speaker: list[str | None] = []
        found = self.tokenizer(
            [piece.text for piece in ones], add_special_tokens=False, verbose=False
        )
        for piece, made in zip(ones, found["input_ids"], strict=True):
            ids += made
            supervised += [piece.supervised] * len(made)
            speaker += [piece.speaker] * len(made)
        return Tokens(tuple(ids), tuple(supervised), tuple(speaker))

    def plain(self, content: str) -> str:
        """Content without white space around it and without a control token in it.

        Half of a surrogate pair, which no tokenizer takes, becomes U+FFFD.
        """
        if not content.isascii():
            content = content.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return defuse(content.strip(), self.control)[0]

    def _opening(self, system: str) -> list[Piece]:
        if not system.strip():
            return []
        return [Piece(self._glue("start", "system") + self.plain(system))]

    def _turn(self, before: Before, turn: CastTurn) -> list[Piece]:
        if turn.speaker is None:
            return [Piece(self._glue(before, "user") + self.plain(turn.text))]
        header = Piece(self._header(before, turn.speaker), speaker=turn.speaker)
        return self._answer(header, " ", turn.text, turn.speaker)

    def _answer(self, header: Piece, lead: str, text: str, speaker: str | None) -> list[Piece]:
        return [
            header,
            Piece(lead + self.plain(text), True, speaker),
            Piece(self.end, True, speaker),
        ]

    def _header(self, before: Before, name: str) -> str:
        return self._glue(before, "assistant") + self.lead + self.plain(name) + ":"

    def _before(self, turn: CastTurn | None, system: bool) -> Before:
        if turn is None:
            return "system" if system else "start"
        return "user" if turn.speaker is None else "assistant"

    def _glue(self, before: Before, role: Role) -> str:
        if role == "system" and before != "start":
            raise UsageError("a system message can only be the first")
        text = self.between[before, role]
        return text.removeprefix(self.end) if before == "assistant" else text


def layout_of(tokenizer: Any) -> Layout:
    """Measure a tokenizer's chat template.

    Raises:
        UsageError: there is no template, or it cannot hold a dialogue of two turns.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(
            "this model brings no chat template, so no dialogue can be laid out for it; take the "
            "instruct version of the model"
        )
    control = _control(tokenizer)
    found = _Measured(tokenizer)
    between: dict[tuple[Before, Role], str] = {}
    plain = found.glue("user", "assistant", "user")
    if plain is None:
        raise UsageError("this model's chat template refuses a dialogue of user and assistant")
    between["start", "user"], written, answered, asked = plain
    between["user", "assistant"] = asked
    lead = written.removeprefix(asked) if written.startswith(asked) else ""
    if lead.strip():  # more than white space: what generation is fed decides
        lead = ""
    end = _end_of_turn(answered, control, tokenizer)

    def ended(text: str) -> str:
        return text if text.startswith(end) else end + text

    between["assistant", "user"] = ended(answered)
    # The header of an answer is always the one that generation is fed: some templates write
    # another one around an answer that is given (Qwen 3 an empty thought, before the last).
    again = found.glue("user", "assistant")
    next_answer = ended(again[2] if again else "")
    between["assistant", "assistant"] = end + "\n" if next_answer == end else next_answer
    twice = found.glue("user", "user")
    between["user", "user"] = twice[1] if twice else JOIN
    if not twice and asked.startswith(end):  # both roles' messages end in the same way
        between["user", "user"] = between["assistant", "user"]
    first = found.glue("assistant", "user")
    between["start", "assistant"] = (
        first[0].removesuffix(lead) if first else between["start", "user"] + asked
    )
    told = found.glue("system", "user", "assistant", "user")
    if told:
        between["start", "system"], between["system", "user"] = told[0], told[1]
        opens = found.glue("system")
        plainly = opens is not None and opens[0] == told[0]
        between["system", "assistant"] = opens[1] if opens and plainly else told[1] + asked
    else:
        between["start", "system"] = between["start", "user"]
        between["system", "user"], between["system", "assistant"] = JOIN, asked
    return Layout(between, lead, end, control, tokenizer)


class _Measured:
    """What a template writes before, between and after messages of marks."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def glue(self, *roles: Role) -> tuple[str, ...] | None:
        """Text before each message and, last, up to where an answer begins; None if refused."""
        from jinja2 import TemplateError

        marks = _MARKS[: len(roles)]
        chat = [{"role": r, "content": m} for r, m in zip(roles, marks, strict=True)]
        try:
            text = self._tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError):
            return None
        made = []
        for mark in marks:
            head, found, text = text.partition(mark)
            if not found:  # left out, or put elsewhere
                return None
            made.append(head)
        made.append(text)
        return None if any(m in g for g in made for m in marks) or _long(made) else tuple(made)


def _long(texts: Sequence[str]) -> bool:
    return sum(map(len, texts)) > _MAX_GLUE


def _end_of_turn(answered: str, control: Sequence[str], tokenizer: Any) -> str:
    """What ends the assistant's message: up to the first control token behind it."""
    places = [(answered.find(token), token) for token in control if token in answered]
    if places:
        at, token = min(places, key=lambda found: (found[0], -len(found[1])))
        if not answered[:at].strip():
            return answered[: at + len(token)]
    if tokenizer.eos_token:
        return str(tokenizer.eos_token)
    raise UsageError("neither this model's chat template nor its tokenizer says how a turn ends")


def _control(tokenizer: Any) -> tuple[str, ...]:
    """Texts that the tokenizer reads as control tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    found = {str(token) for token in tokenizer.all_special_tokens}
    found |= {str(token) for token in added if getattr(token, "special", False)}
    # Shorter ones would make plain words of a text fall apart (as the header of a GGUF is read).
    return tuple(sorted(token for token in found if len(token.strip()) >= 3))
