"""The values that travel: `NewJob` goes in, a `Lease` comes out to be run, a `Job` is what anybody may look at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

PRIORITY_MIN: Final = -100
PRIORITY_MAX: Final = 100


class State(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    PROCESSING = "processing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether the job has ended."""
        return self in (State.DONE, State.FAILED, State.CANCELLED)


class LaneKind(StrEnum):
    """What kind of lane a job waits in: recovered ones before fresh ones, suspects in a lane of their own."""

    FRESH = "fresh"
    RECOVERED = "recovered"
    SUSPECT = "suspect"


_LANE_STEP: Final = {LaneKind.FRESH: 0, LaneKind.RECOVERED: 1, LaneKind.SUSPECT: 2}


def rank(priority: int, lane: LaneKind) -> int:
    """The lane as the number that the store orders by: the lower, the earlier."""
    assert PRIORITY_MIN <= priority <= PRIORITY_MAX, priority
    return -3 * priority - _LANE_STEP[lane]


def kind_of_lane(rank_: int) -> LaneKind:
    """The lane that a rank names."""
    return (LaneKind.FRESH, LaneKind.RECOVERED, LaneKind.SUSPECT)[-rank_ % 3]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A request that is about to be written. `payload` is JSON text."""

    task: str
    payload: str
    queue: str = "default"
    priority: int = 0
    delay_s: float = 0.0
    max_attempts: int = 3
    lease_s: float = 30.0
    timeout_s: float | None = 3600.0

    def __post_init__(self) -> None:
        assert self.max_attempts >= 1, self.max_attempts
        assert self.lease_s > 0, self.lease_s
        assert PRIORITY_MIN <= self.priority <= PRIORITY_MAX, self.priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right of one worker to run one job until the lease ends. Every write about the job shows `token`."""

    job_id: int
    queue: str
    task: str
    payload: str
    priority: int
    token: UUID
    attempt: int
    epoch: int
    losses: int
    max_attempts: int
    lease_s: float
    timeout_s: float | None
    worker: str
    created_at: datetime
    started_at: datetime

    @property
    def attempts_left(self) -> int:
        """How many more runs the job has after this one."""
        return self.max_attempts - self.attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as anybody may look at it: the columns of the view `jobs`."""

    id: int
    queue: str
    task: str
    status: State
    priority: int
    payload: str
    attempt_count: int
    max_attempts: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    last_heartbeat_at: datetime | None
    lease_expires_at: datetime | None
    locked_by: str | None
    next_earliest_run_at: datetime | None
    progress: int | None
    progress_note: str | None
    fail_code: str | None
    fail_reason: str | None
    error: dict[str, Any] | None
    result: Any
