"""What may go wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from ._client import Job


class ZmoveError(Exception):
    """Anything that goes wrong here."""


class NotRunning(ZmoveError):
    """Nobody answers: ``zmove runner --http`` is to be started."""


class ApiError(ZmoveError):
    """The runner refuses what was asked."""

    def __init__(self, status: int, error: str, exit: Optional[int] = None) -> None:
        super().__init__(error)
        #: The status of HTTP: 401 not this runner's token, 404 no such job, 409 not in that
        #: state, 422 it makes no sense; 0 where the answer was none of HTTP.
        self.status = status
        #: The exit code of the command that was run for it, as of ``zmove submit``.
        self.exit = exit


class WaitTimeout(ZmoveError, TimeoutError):
    """The job has not ended in time, and goes on."""


class JobError(ZmoveError):
    """A job has not ended well."""

    def __init__(self, job: "Job") -> None:
        why = f": {job.message}" if job.message else ""
        super().__init__(f"job {job.id} ({job.label}) is {job.state}{why}")
        self.job = job


class JobFailed(JobError):
    """It has failed for good."""


class JobCancelled(JobError):
    """Somebody has ended it."""


class JobExpired(JobError):
    """Its deadline is over."""
