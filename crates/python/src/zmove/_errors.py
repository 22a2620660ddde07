"""What may go wrong."""

from __future__ import annotations

from typing import Optional


class ZmoveError(Exception):
    """Anything that goes wrong here."""


class NotRunning(ZmoveError):
    """Nobody answers: ``zmove runner --http`` is to be started."""


class ApiError(ZmoveError):
    """The runner refuses what was asked."""

    def __init__(self, status: int, error: str, exit: Optional[int] = None) -> None:
        super().__init__(error)
        #: The status of HTTP: 401 not this runner's token, 404 no such job, 409 not in that
        #: state, 422 it makes no sense, 503 too many of this client or in all; 0 where
        #: the answer was none of HTTP, or TLS has failed.
        self.status = status
        #: The exit code of the command that was run for it, as of ``zmove submit``.
        self.exit = exit


class TlsError(ApiError):
    """TLS cannot be spoken: a file is of no use, or one end does not take the other's certificate."""

    def __init__(self, cause: str, error: str) -> None:
        super().__init__(0, error)
        #: What is wrong: ``file``, one of this client's; of the runner's certificate its ``authority``, its ``name``,
        #: or that it is ``expired`` or ``not yet valid``; ``client`` where the runner does not take this client's;
        #: ``other`` else.
        self.cause = cause


class WaitTimeout(ZmoveError, TimeoutError):
    """The job has not ended in time, and goes on."""
