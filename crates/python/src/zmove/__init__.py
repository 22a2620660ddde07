"""A client of the API of ``zmove runner --http``, which runs transfers as jobs.

    from zmove import Client

    job = Client().submit("/data/run7", "dtn.example.org:/data/")
    job.wait().raise_for_status()
"""

from ._client import Client, Job, JobCancelled, JobError, JobExpired, JobFailed
from ._errors import ApiError, NotRunning, WaitTimeout, ZmoveError
from ._models import Change, Event, Notice, Plan, Status

__all__ = [
    "ApiError",
    "Change",
    "Client",
    "Event",
    "Job",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "NotRunning",
    "Notice",
    "Plan",
    "Status",
    "WaitTimeout",
    "ZmoveError",
]
