"""The client and its jobs."""

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

#: Final states.
FINAL = frozenset(["done", "failed", "cancelled", "expired"])
#: Initial and maximum pause before a stream or a wait contacts the runner again, in seconds.
PAUSE_MIN, PAUSE_MAX = 0.1, 2.0


class Client:
    """A client of a runner that serves its API (``zmove runner --http``).

    Without arguments, the client uses the socket of this user's runner. The socket needs no token, and no other user
    can listen on it. With ``address`` (``http://127.0.0.1:PORT``), the client connects over the loopback with a token.
    By default this is the content of the file ``token`` in the directory of jobs, which is read again after a restart
    of the runner.

    With ``https://HOST:PORT``, the client connects from another host through a reverse proxy. ``token`` is the content
    of the file ``token`` on that host. ``tls`` selects the trusted authorities, by default those of this host. Example:
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
        """Submits a transfer as a job, with the options of ``zmove submit``, and returns immediately.

        Relative paths of this host start at the current directory. A second call with the same ``submission_id``
        returns the job of the first call, even if that job has ended or failed or the sources have changed since.
        Nothing is transferred again. The id names one submission, not a task. Repeat a call with the same id if you do
        not know whether the first call arrived.
        """
        order = _transfer(sources, target, options)
        order["after"] = [job.id if isinstance(job, Job) else job for job in after]
        return Job(self, self._wire.ask("POST", "/api/v1/jobs", order))

    def plan(
        self, sources: Union[Path_, Iterable[Path_]], target: Path_, **options: Unpack[Options]
    ) -> Plan:
        """Returns what a transfer would do, like ``zmove copy --dry-run``, without changing anything."""
        told = self._wire.ask("POST", "/api/v1/plans", _transfer(sources, target, options))
        return of(Plan, dict(told, sample=[of(Change, change) for change in told["sample"]]))

    def job(self, id: int) -> "Job":
        """Returns the job with this number."""
        return Job(self, self._wire.ask("GET", f"/api/v1/jobs/{id}"))

    def jobs(self, states: Iterable[str] = ()) -> Iterator["Job"]:
        """Yields all jobs, or the jobs in these states, newest first."""
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
        """Returns the current status of the runner."""
        return of(Status, self._wire.ask("GET", "/api/v1/status"))

    async def events(self, last: Optional[int] = None) -> AsyncIterator[Notice]:
        """Yields the events of all jobs as they happen, without end and across restarts of the runner.

        With ``last``, the number of a known event, the stream starts after that event. A broken stream resumes after
        the last event that it yielded, so that no event is lost or repeated.
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
        """Waits for the end of a job with the stream of events, and returns the ended job."""
        id = job.id if isinstance(job, Job) else job
        try:
            return await asyncio.wait_for(self._end_of(id), timeout)
        except asyncio.TimeoutError:
            raise WaitTimeout(f"job {id} did not end within {timeout} s") from None

    async def _end_of(self, id: int) -> "Job":
        notices = self.events()
        try:
            async for notice in notices:
                event = notice.event
                # The job may have ended before the stream began or resumed.
                if notice.kind == "hello" or (event and event.job == id and event.event in FINAL):
                    job = await asyncio.get_running_loop().run_in_executor(None, self.job, id)
                    if job.ended:
                        return job
        finally:
            await notices.aclose()  # type: ignore[attr-defined]
        raise AssertionError("the stream has no end")


class Job:
    """The state of a job at the last request. ``refresh`` updates it.

    The fields are those of ``docs/schema/job.json``: ``job.bytes_per_second``, ``job.eta_seconds``, ...
    """

    def __init__(self, client: Client, told: Mapping[str, Any]) -> None:
        self._client = client
        self._told = dict(told)

    def __getattr__(self, name: str) -> Any:
        # The modules copy and pickle look up names before the object is initialized.
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
        """The user's name for the job."""
        return str(self._told["label"])

    @property
    def state(self) -> str:
        """``waiting``, ``queued``, ``running``, ``paused``, ``done``, ``failed``, ``cancelled`` or ``expired``."""
        return str(self._told["state"])

    @property
    def ended(self) -> bool:
        """Whether the job is in a final state."""
        return self.state in FINAL

    @property
    def message(self) -> Optional[str]:
        """The reason for the current state, if there is one."""
        return self._told.get("message")

    @property
    def files(self) -> Optional[int]:
        """Files that all attempts have moved. ``files_done`` of ``files_found`` are at the target."""
        return self._told.get("files")

    @property
    def bytes(self) -> Optional[int]:
        """Bytes, counted like ``files``."""
        return self._told.get("bytes")

    def as_dict(self) -> Dict[str, Any]:
        """Returns all fields of the job."""
        return dict(self._told)

    def refresh(self) -> "Job":
        """Requests the current state of the job."""
        return self._now("GET", "")

    def wait(self, timeout: Optional[float] = None) -> "Job":
        """Waits for the end of the job, even across restarts of the runner. Raises ``WaitTimeout``."""
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
                # The job continues without its runner, and another runner will be started, or the timeout expires.
                continue
        return self

    def raise_for_status(self) -> "Job":
        """Raises ``JobFailed``, ``JobCancelled`` or ``JobExpired`` for such a job. Otherwise returns the job."""
        kinds = {"failed": JobFailed, "cancelled": JobCancelled, "expired": JobExpired}
        if self.state in kinds:
            raise kinds[self.state](self)
        return self

    def pause(self) -> "Job":
        """Pauses the job. Data at the target stays."""
        return self._now("POST", "/pause")

    def resume(self) -> "Job":
        """Resumes the job."""
        return self._now("POST", "/resume")

    def cancel(self) -> "Job":
        """Cancels the job and its schedule."""
        return self._now("POST", "/cancel")

    def rerun(self) -> "Job":
        """Submits the transfer again as a new job, and returns that job."""
        return Job(self._client, self._ask("POST", "/rerun"))

    def log(self) -> str:
        """Returns the most recent output of the job's processes."""
        return str(self._ask("GET", "/log"))

    def events(self, after: int = 0) -> List[Event]:
        """Returns the events of the job after event number ``after``."""
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
    """A job did not succeed."""

    def __init__(self, job: Job) -> None:
        why = f": {job.message}" if job.message else ""
        end = {"failed": "has failed", "cancelled": "was cancelled", "expired": "has expired"}
        super().__init__(f"job {job.id} ({job.label}) {end.get(job.state, f'is {job.state}')}{why}")
        self.job = job


class JobFailed(JobError):
    """The job has failed permanently."""


class JobCancelled(JobError):
    """The job was canceled."""


class JobExpired(JobError):
    """The deadline of the job has passed."""


def _transfer(
    sources: Union[Path_, Iterable[Path_]], target: Path_, options: Mapping[str, Any]
) -> Dict[str, Any]:
    one = isinstance(sources, (str, os.PathLike))
    paths: Iterable[Path_] = [sources] if one else sources  # type: ignore[list-item,assignment]
    order: Dict[str, Any] = {name: _value(name, value) for name, value in options.items()}
    order.update(sources=[_absolute(path) for path in paths], target=_absolute(target))
    return order


def _value(name: str, value: Any) -> Any:
    """Returns the JSON value of an option. Iterables become lists, and paths of files become absolute."""
    if name in FILES and isinstance(value, (str, os.PathLike)):
        return _absolute(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return [_value(name, one) for one in value]


def _absolute(path: Path_) -> str:
    """Makes a path of this host absolute. Keeps a trailing slash, which is significant."""
    text = os.fspath(path)
    if ":" in text.split("/")[0] or text.startswith("/") or not text:
        return text
    end = "/" if text.endswith("/") else ""
    return os.path.join(os.getcwd(), text).rstrip("/") + end


__all__ = ["Client", "Job", "JobCancelled", "JobError", "JobExpired", "JobFailed"]
