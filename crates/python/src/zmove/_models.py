"""What the runner tells, as objects. Moments are seconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Dict, List, Mapping, Optional, Type, TypeVar

T = TypeVar("T")


def of(kind: Type[T], value: Mapping[str, Any]) -> T:
    """An object of what was told. What a later release tells beside it is passed over."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value[name] for name in value if name in names})


@dataclass(frozen=True)
class Event:
    """Something that has happened to a job."""

    number: int
    job: int
    time: int
    #: A state, or the name of an event of the transfer.
    event: str
    attempt: int
    message: Optional[str] = None


@dataclass(frozen=True)
class Change:
    """What a transfer would do with an entry."""

    #: ``added``, ``changed`` or ``removed``.
    event: str
    path: str
    why: Optional[str] = None


@dataclass(frozen=True)
class Plan:
    """What a transfer would do."""

    added: int
    changed: int
    removed: int
    files: int
    bytes: int
    #: The first of the entries.
    sample: List[Change]


@dataclass(frozen=True)
class Status:
    """The runner at this moment."""

    version: str
    pid: int
    host: str
    time: int
    #: How many jobs are in each state that has some.
    jobs: Dict[str, int]
    #: The number of the last event.
    last_event: int


@dataclass(frozen=True)
class Notice:
    """A message of the stream of events."""

    #: ``hello``, ``job``, ``progress``, ``counts`` or ``daemon``, as ``docs/schema/openapi.json`` says.
    kind: str
    #: The number of the event, which a later stream may go on from; none of what has none.
    number: Optional[int]
    data: Any

    @property
    def event(self) -> Optional[Event]:
        """What has happened to a job, if that is what it tells."""
        told = self.data.get("event") if self.kind == "job" else None
        return of(Event, told) if told else None
