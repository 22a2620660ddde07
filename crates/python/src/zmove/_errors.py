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
        #: state, 422 it makes no sense, 503 too many requests at once; 0 where
        #: the answer was none of HTTP, or TLS has failed.
        self.status = status
        #: The exit code of the command that was run for it, as of ``zmove submit``.
        self.exit = exit


class WaitTimeout(ZmoveError, TimeoutError):
    """The job has not ended in time, and goes on."""
