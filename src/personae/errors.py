"""Every error that Personae raises, drawn once.

::

    PersonaeError
    ├── UsageError                 the command or its input is wrong; exit code 2
    │   ├── InputError             a file or a value: names the file, the place and the mend
    │   └── MissingKeyError        a provider's key is not in the environment
    ├── TransportError             one exchange with a model failed; carries `cause` and `retryable`
    │   ├── RateLimitError         429 or its like; may carry `retry_after` seconds
    │   ├── TimeoutExceededError   no answer within the time allowed
    │   ├── ServerError            5xx, a broken connection, a body cut short
    │   ├── AuthenticationError    wrong key or no permission; the run stops
    │   ├── RefusedConnectionError nothing listens at the address; the run stops when it stays so
    │   ├── BadRequestError        the endpoint rejects the call as it is (400, 404, 422)
    │   ├── ContextLengthError     the prompt does not fit the model
    │   ├── ContentFilterError     the provider withheld the answer
    │   └── UnsupportedError       the endpoint cannot do what the call needs
    ├── WeightsError               weights cannot be fetched, checked or stored
    ├── StoppedEarlyError          a cap or Ctrl-C ended the run; resumable; exit code 3
    ├── ReplayMissError            a replayed call is not in the journal
    ├── OutputError                a file cannot be written (full disk, no permission)
    └── JournalError               the journal file is full, locked, foreign or damaged

A failure of one exchange is *recorded* (see `personae.records.Failure`); it does not end a run,
unless no later call could fare better (`fatal`).
"""

from __future__ import annotations

from pathlib import Path


class PersonaeError(Exception):
    """Base of every error that Personae raises on purpose."""

    exit_code = 1


class UsageError(PersonaeError):
    """The command, or what it was given, is wrong and must be changed by the user."""

    exit_code = 2


class InputError(UsageError):
    """A file or value cannot be used.

    Args:
        what: what is wrong, one clause.
        path: the file, where there is one.
        place: line, key or position inside it.
        mend: what the user can do about it.

    """

    def __init__(
        self, what: str, *, path: Path | str | None = None, place: str = "", mend: str = ""
    ) -> None:
        self.what, self.path, self.place, self.mend = what, path, place, mend
        head = str(path) if path is not None else ""
        if place:
            head = f"{head}, {place}" if head else place
        text = f"{head}: {what}" if head else what
        if mend:
            text = f"{text.rstrip('.')}. {mend}"
        super().__init__(text)


class MissingKeyError(UsageError):
    """A provider needs a key that is neither in the environment nor in `.env`."""


class TransportError(PersonaeError):
    """One exchange with a model failed.

    Attributes:
        cause: short stable name of the cause, recorded and counted (`timeout`, `rate_limit` ...).
        retryable: whether the same exchange may succeed later in this run.
        fatal: whether every later exchange with this endpoint must fail too (wrong key, say).

    """

    cause = "transport"
    retryable = False
    fatal = False


class RateLimitError(TransportError):
    """The endpoint asks for fewer calls; `retry_after` is its wish in seconds, if it gave one."""

    cause = "rate_limit"
    retryable = True

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TimeoutExceededError(TransportError):
    """No complete answer within the time allowed."""

    cause = "timeout"
    retryable = True


class ServerError(TransportError):
    """5xx, a connection that broke, or a body that ended before its end."""

    cause = "server"
    retryable = True


class AuthenticationError(TransportError):
    """The key is wrong or may not use this model (401, 403)."""

    cause = "authentication"
    fatal = True


class RefusedConnectionError(TransportError):
    """Nothing listens at the address, or its name does not resolve."""

    cause = "connection_refused"
    retryable = True
    fatal = True


class BadRequestError(TransportError):
    """The endpoint rejects the call as it stands (400, 404, 422)."""

    cause = "bad_request"


class ContextLengthError(TransportError):
    """The prompt and the wanted answer do not fit the model's context."""

    cause = "context_length"


class ContentFilterError(TransportError):
    """The provider withheld the answer."""

    cause = "content_filter"


class UnsupportedError(TransportError):
    """The endpoint cannot do what the call needs (log-probabilities of given text, say)."""

    cause = "unsupported"


class WeightsError(PersonaeError):
    """A model's weights cannot be fetched, are not the pinned ones, or cannot be stored."""


class StoppedEarlyError(PersonaeError):
    """A cap on calls or cost, or Ctrl-C, ended the run; what was answered is kept; resumable."""

    exit_code = 3


class ReplayMissError(PersonaeError):
    """A replay met a call that the journal does not hold."""


class OutputError(PersonaeError):
    """A file cannot be written; the one that was there before is still there."""


class JournalError(PersonaeError):
    """The journal cannot be opened or written (disk full, locked, not a journal, damaged)."""
