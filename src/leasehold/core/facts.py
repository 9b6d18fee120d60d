"""What happened, as values. A fact is made where it happened, after the database said so, and read by who tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leasehold.core.decide import Settlement
from leasehold.core.job import Lease
from leasehold.core.outcome import Outcome


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker process claims from now on."""

    worker: str
    tasks: tuple[str, ...]
    concurrency: int


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """A worker process has let go of everything and ends."""

    worker: str


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A handler is about to begin."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class JobEnded:
    """An attempt was settled, and the store applied it."""

    lease: Lease
    settlement: Settlement
    duration_s: float


@dataclass(frozen=True, slots=True)
class JobRecovered:
    """An attempt whose worker was lost, or that was stopped with its worker, was settled by somebody else."""

    lease: Lease
    outcome: Outcome
    settlement: Settlement


@dataclass(frozen=True, slots=True)
class StaleTokenRefused:
    """A write showed a token that is not current, and changed nothing."""

    job_id: int
    attempt: int
    worker: str
    what: str


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A handler was stopped because its lease was lost, and had nothing more to say."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class LateClaim:
    """A claim's reply was read so late that its leases had lost a third of their time: they were released unrun."""

    worker: str
    jobs: int


@dataclass(frozen=True, slots=True)
class LeasesKept:
    """One heartbeat extended so many leases."""

    count: int


@dataclass(frozen=True, slots=True)
class HeartbeatFailed:
    """A heartbeat could not be sent or was not answered."""

    failures_in_a_row: int
    error: str


@dataclass(frozen=True, slots=True)
class SlotUnreadable:
    """A slot of a worker's table cannot be read: its lease is not extended, and its job is recovered later."""

    worker: str
    slot: int


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The database did not do what a worker asked; the worker goes on trying."""

    worker: str
    doing: str
    error: str


@dataclass(frozen=True, slots=True)
class ProcessDied:
    """A worker process ended without being told to."""

    worker: str
    pid: int
    evidence: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """A worker process was started."""

    worker: str
    pid: int


Fact = (
    WorkerStarted
    | WorkerStopped
    | JobStarted
    | JobEnded
    | JobRecovered
    | StaleTokenRefused
    | LeaseLost
    | LateClaim
    | LeasesKept
    | HeartbeatFailed
    | SlotUnreadable
    | StoreFailed
    | ProcessDied
    | ProcessStarted
)
