"""The client, and the jobs that it knows."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Union,
)
from urllib.parse import urlencode

from ._errors import NotRunning, WaitTimeout, ZmoveError
from ._models import Change, Event, Notice, Plan, Status, of
from ._options import FILES, Options
from ._wire import Wire

if TYPE_CHECKING:
    from typing_extensions import Unpack

Path_ = Union[str, "os.PathLike[str]"]

#: States that nothing leads out of.
FINAL = frozenset(["done", "failed", "cancelled", "expired"])
#: How soon a stream or a wait looks for the runner again, at first and at most.
PAUSE_MIN, PAUSE_MAX = 0.1, 2.0


class Client:
    """Asks a runner that serves its API (``zmove runner --http``).

    Without arguments it is that of this user, over its socket. With ``address`` (``http://127.0.0.1:PORT``) it is
    asked over the loopback, with a token: by default that in the file ``token`` in the directory of jobs, which is
    read again where the runner has begun anew. The socket needs none, and nobody else can take its place.

    With ``https://HOST:PORT`` the client reaches it from another host, through a reverse proxy. ``token`` is the content
    of the file ``token`` there. ``tls`` states which authorities are trusted, by default those of this host:
    ``ssl.create_default_context(cafile="ca.pem")``.
    """

    def __init__(
        self,
        address: Optional[str] = None,
        token: Optional[str] = None,
        *,
        socket: Optional[Path_] = None,
        tls: Optional[ssl.SSLContext] = None,
        timeout: float = 60.0,
    ) -> None:
        self._wire = Wire(address, token, Path(socket) if socket is not None else None, tls, timeout)

    def submit(
        self,
        sources: Union[Path_, Iterable[Path_]],
        target: Path_,
        *,
        after: Iterable[Union[int, "Job"]] = (),
        **options: Unpack[Options],
    ) -> "Job":
        """Submits a transfer as a job, as ``zmove submit`` does and with its options, and returns at once.

        Paths of this host that are relative begin at the present directory. With a ``submission_id`` a second call
        returns the job of the first, also where that has ended or failed, or the sources have changed since: nothing is
        done again. It names one submission, not a task: repeat it where you do not know whether the first has arrived.
        """
        order = _transfer(sources, target, options)
        order["after"] = [job.id if isinstance(job, Job) else job for job in after]
        return Job(self, self._wire.ask("POST", "/api/v1/jobs", order))

    def plan(
        self, sources: Union[Path_, Iterable[Path_]], target: Path_, **options: Unpack[Options]
    ) -> Plan:
        """What a transfer would do, as ``zmove copy --dry-run`` tells it; nothing is done."""
        told = self._wire.ask("POST", "/api/v1/plans", _transfer(sources, target, options))
        return of(Plan, dict(told, sample=[of(Change, change) for change in told["sample"]]))

    def job(self, id: int) -> "Job":
        """The job of this number."""
        return Job(self, self._wire.ask("GET", f"/api/v1/jobs/{id}"))

    def jobs(self, states: Iterable[str] = ()) -> Iterator["Job"]:
        """All jobs, or those in these states, the newest first."""
        query: Dict[str, Any] = {"limit": 500}
        if states := ",".join(states):
            query["state"] = states
        while True:
            told = self._wire.ask("GET", f"/api/v1/jobs?{urlencode(query)}")
            for job in told["jobs"]:
                yield Job(self, job)
            if told.get("next") is None:
                return
            query["before"] = told["next"]

    def status(self) -> Status:
        """The runner at this moment."""
        return of(Status, self._wire.ask("GET", "/api/v1/status"))

    async def events(self, last: Optional[int] = None) -> AsyncIterator[Notice]:
        """What happens to all jobs, as it happens: without end, and across restarts of the runner.

        With ``last``, the number of an event that was seen, it goes on after that one. Where a stream breaks it is
        taken up after the last event that it told, so that none is left out and none comes twice.
        """
        pause = PAUSE_MIN
        while True:
            try:
                async for kind, number, data in self._wire.stream("/api/v1/events", last):
                    pause = PAUSE_MIN
                    if number is not None:
                        last = number
                    yield Notice(kind, number, data)
            except NotRunning:
                if last is None:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX)

    async def wait_for(self, job: Union[int, "Job"], timeout: Optional[float] = None) -> "Job":
        """Waits for the end of a job by the stream of events, and returns it as it is then."""
        id = job.id if isinstance(job, Job) else job
        try:
            return await asyncio.wait_for(self._end_of(id), timeout)
        except asyncio.TimeoutError:
            raise WaitTimeout(f"job {id} has not ended within {timeout} s") from None

    async def _end_of(self, id: int) -> "Job":
        notices = self.events()
        try:
            async for notice in notices:
                event = notice.event
                # It may have ended before the stream began, or was taken up.
                if notice.kind == "hello" or (event and event.job == id and event.event in FINAL):
                    job = await asyncio.get_running_loop().run_in_executor(None, self.job, id)
                    if job.ended:
                        return job
        finally:
            await notices.aclose()  # type: ignore[attr-defined]
        raise AssertionError("the stream has no end")


class Job:
    """A job as it was when it was last asked for; ``refresh`` asks again.

    The fields are those of ``docs/schema/job.json``: ``job.bytes_per_second``, ``job.eta_seconds``, ...
    """

    def __init__(self, client: Client, told: Mapping[str, Any]) -> None:
        self._client = client
        self._told = dict(told)

    def __getattr__(self, name: str) -> Any:
        # Copies and pickles look for names before there is anything.
        told = self.__dict__.get("_told", {})
        if name in told:
            return told[name]
        raise AttributeError(f"a job has no '{name}'")

    def __repr__(self) -> str:
        return f"<Job {self.id} ({self.label}): {self.state}>"

    @property
    def id(self) -> int:
        """The job's number."""
        return int(self._told["id"])

    @property
    def label(self) -> str:
        """The user's name for it."""
        return str(self._told["label"])

    @property
    def state(self) -> str:
        """``waiting``, ``queued``, ``running``, ``paused``, ``done``, ``failed``, ``cancelled`` or ``expired``."""
        return str(self._told["state"])

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it."""
        return self.state in FINAL

    @property
    def message(self) -> Optional[str]:
        """Why it is as it is, where there is something to say."""
        return self._told.get("message")

    @property
    def files(self) -> Optional[int]:
        """Files that all of its attempts have moved; ``files_done`` of ``files_found`` are at the target."""
        return self._told.get("files")

    @property
    def bytes(self) -> Optional[int]:
        """Bytes, counted as ``files`` are."""
        return self._told.get("bytes")

    def as_dict(self) -> Dict[str, Any]:
        """All that was told of it."""
        return dict(self._told)

    def refresh(self) -> "Job":
        """Asks for it anew."""
        return self._now("GET", "")

    def wait(self, timeout: Optional[float] = None) -> "Job":
        """Waits for its end, also across restarts of the runner. Raises ``WaitTimeout``."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = PAUSE_MIN
        while not self.ended:
            left = PAUSE_MAX if until is None else until - time.monotonic()
            if left <= 0:
                raise WaitTimeout(f"job {self.id} is {self.state} after {timeout} s")
            time.sleep(min(pause, left))
            pause = min(1.5 * pause, PAUSE_MAX)
            try:
                self.refresh()
            except NotRunning:
                # The job goes on without its runner, and another one will come; or the time is over.
                continue
        return self

    def raise_for_status(self) -> "Job":
        """Raises ``JobFailed``, ``JobCancelled`` or ``JobExpired`` if it has ended so; returns it else."""
        kinds = {"failed": JobFailed, "cancelled": JobCancelled, "expired": JobExpired}
        if self.state in kinds:
            raise kinds[self.state](self)
        return self

    def pause(self) -> "Job":
        """Holds it; what is at the target stays."""
        return self._now("POST", "/pause")

    def resume(self) -> "Job":
        """Lets it go on."""
        return self._now("POST", "/resume")

    def cancel(self) -> "Job":
        """Ends it, and its schedule."""
        return self._now("POST", "/cancel")

    def rerun(self) -> "Job":
        """Submits once more what it has done, as another job."""
        return Job(self._client, self._ask("POST", "/rerun"))

    def log(self) -> str:
        """The last that its processes have said."""
        return str(self._ask("GET", "/log"))

    def events(self, after: int = 0) -> List[Event]:
        """What has happened to it after the event of this number."""
        events: List[Event] = []
        while True:
            told = self._ask("GET", f"/events?after={after}&limit=500")
            events.extend(of(Event, event) for event in told["events"])
            if told.get("next") is None:
                return events
            after = told["next"]

    def _now(self, method: str, what: str) -> "Job":
        self._told = self._ask(method, what)
        return self

    def _ask(self, method: str, what: str) -> Any:
        return self._client._wire.ask(method, f"/api/v1/jobs/{self.id}{what}")


class JobError(ZmoveError):
    """A job has not ended well."""

    def __init__(self, job: Job) -> None:
        why = f": {job.message}" if job.message else ""
        end = {"failed": "has failed", "cancelled": "was cancelled", "expired": "has expired"}
        super().__init__(f"job {job.id} ({job.label}) {end.get(job.state, f'is {job.state}')}{why}")
        self.job = job


class JobFailed(JobError):
    """It has failed for good."""


class JobCancelled(JobError):
    """Somebody has ended it."""


class JobExpired(JobError):
    """Its deadline is over."""


def _transfer(
    sources: Union[Path_, Iterable[Path_]], target: Path_, options: Mapping[str, Any]
) -> Dict[str, Any]:
    one = isinstance(sources, (str, os.PathLike))
    paths: Iterable[Path_] = [sources] if one else sources  # type: ignore[list-item,assignment]
    order: Dict[str, Any] = {name: _value(name, value) for name, value in options.items()}
    order.update(sources=[_absolute(path) for path in paths], target=_absolute(target))
    return order


def _value(name: str, value: Any) -> Any:
    """A value of an option: what can be iterated is a list, and files begin here."""
    if name in FILES and isinstance(value, (str, os.PathLike)):
        return _absolute(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return [_value(name, one) for one in value]


def _absolute(path: Path_) -> str:
    """A path of this host from ``/`` on, with the slash at its end, which means something."""
    text = os.fspath(path)
    if ":" in text.split("/")[0] or text.startswith("/") or not text:
        return text
    end = "/" if text.endswith("/") else ""
    return os.path.join(os.getcwd(), text).rstrip("/") + end


__all__ = ["Client", "Job", "JobCancelled", "JobError", "JobExpired", "JobFailed"]
