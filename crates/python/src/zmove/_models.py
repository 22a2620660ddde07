"""Objects for the responses of the runner. Timestamps are in seconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Dict, List, Mapping, Optional, Type, TypeVar

T = TypeVar("T")


def of(kind: Type[T], value: Mapping[str, Any]) -> T:
    """Creates an object from a response. Ignores unknown fields, which later releases may add."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value[name] for name in value if name in names})


@dataclass(frozen=True)
class Event:
    """An event of a job."""

    number: int
    job: int
    time: int
    #: A state of the job, or the name of an event of the transfer.
    event: str
    attempt: int
    message: Optional[str] = None


@dataclass(frozen=True)
class Change:
    """A change that a transfer would make to an entry."""

    #: ``added``, ``changed`` or ``removed``.
    event: str
    path: str
    why: Optional[str] = None


@dataclass(frozen=True)
class Plan:
    """The changes that a transfer would make."""

    added: int
    changed: int
    removed: int
    files: int
    bytes: int
    #: The first entries.
    sample: List[Change]


@dataclass(frozen=True)
class Status:
    """The current status of the runner."""

    version: str
    pid: int
    host: str
    time: int
    #: Number of jobs in each state that has any.
    jobs: Dict[str, int]
    #: The number of the last event.
    last_event: int


@dataclass(frozen=True)
class Notice:
    """A message of the stream of events."""

    #: ``hello``, ``job``, ``progress``, ``counts`` or ``daemon``, as in ``docs/schema/openapi.json``.
    kind: str
    #: The number of the event, from which a later stream can resume. ``None`` for a message without a number.
    number: Optional[int]
    data: Any

    @property
    def event(self) -> Optional[Event]:
        """The event of a job, if this is a message about one."""
        told = self.data.get("event") if self.kind == "job" else None
        return of(Event, told) if told else None
