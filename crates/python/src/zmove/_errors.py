"""Exceptions of the client."""

from __future__ import annotations

from typing import Optional


class ZmoveError(Exception):
    """Base class of all exceptions of this package."""


class NotRunning(ZmoveError):
    """No runner answers. Start ``zmove runner --http``."""


class ApiError(ZmoveError):
    """The runner has refused a request."""

    def __init__(self, status: int, error: str, exit: Optional[int] = None) -> None:
        super().__init__(error)
        #: The HTTP status: 401 wrong token, 404 no such job, 409 not possible in the job's state, 422 invalid
        #: request, 503 too many concurrent requests. 0 if the response was not HTTP or if TLS failed.
        self.status = status
        #: The exit code of the command that the runner ran for the request, such as ``zmove submit``.
        self.exit = exit


class WaitTimeout(ZmoveError, TimeoutError):
    """The job has not ended within the timeout. It continues."""
