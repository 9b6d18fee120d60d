"""The one fate function: what becomes of a job when an attempt ends.

Handler results, exceptions, timeouts, shutdowns, crashes and expired leases are all outcomes of this function; there is
no second place that knows about retries. It is pure: chance comes in as `rand` (0 <= rand < 1), time does not come in
at all (delays are relative, and the database's clock makes them absolute).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_never
from uuid import UUID

from leasehold.core import events
from leasehold.core.events import NewEvent
from leasehold.core.job import LaneKind, Lease, State, rank
from leasehold.core.outcome import (
    Aborted,
    By,
    Cancelled,
    Checkpointed,
    Crashed,
    Done,
    Expired,
    Failed,
    Outcome,
    Released,
    Snoozed,
    TimedOut,
)
from leasehold.core.policy import Policy

RETRIES_EXHAUSTED = "RETRIES_EXHAUSTED"
WORKER_LOST = "worker_lost"
TIMEOUT = "timeout"
LEASE_EXPIRED = "lease_expired"
EXECUTION_TIMEOUT = "execution_timeout"
SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The end of an attempt, ready to be written. `attempt` and `losses` are what the job carries on."""

    job_id: int
    queue: str
    token: UUID
    state: State
    by: By
    attempt: int
    losses: int
    rank: int
    delay_s: float = 0.0
    code: str | None = None
    reason: str | None = None
    error: dict[str, Any] | None = None
    result: str | None = None
    data: dict[str, Any] | None = None
    events: tuple[NewEvent, ...] = ()

    def __post_init__(self) -> None:
        assert self.state is not State.PROCESSING, "an attempt that ended is no longer processing"
        assert self.state is State.QUEUED or not self.delay_s, "a job that ended waits for nothing"
        assert (self.code is not None) == (self.state is State.FAILED), "a failed job, and only that, has a code"


def decide(  # noqa: C901, PLR0911 - the whole vocabulary in one place is the point
    lease: Lease, outcome: Outcome, policy: Policy, rand: float
) -> Settlement:
    """What becomes of the job of `lease` after `outcome`."""
    match outcome:
        case Done(result):
            return _ended(lease, State.DONE, result=result)
        case Cancelled(reason):
            return _ended(lease, State.CANCELLED, reason=reason or None)
        case Failed():
            return _after_failure(lease, outcome, policy, rand)
        case TimedOut(after_s):
            return _after_failure(lease, _as_failure(after_s), policy, rand)
        case Crashed(evidence, blamed):
            return _after_loss(lease, policy, rand, By.SUPERVISOR, WORKER_LOST, evidence, blamed=blamed)
        case Expired(evidence):
            return _after_loss(lease, policy, rand, By.REAPER, LEASE_EXPIRED, evidence, blamed=True)
        case Aborted(by):
            requeued = _requeued_event(SHUTDOWN, {"worker": lease.worker})
            return _uncharged(lease, 0.0, by, NewEvent(events.ABORTED), requeued)
        case Released(reason, delay_s, by):
            return _uncharged(lease, delay_s, by, NewEvent(events.RELEASED, {"reason": reason}))
        case Snoozed(delay_s):
            return _uncharged(lease, delay_s, By.WORKER, NewEvent(events.SNOOZED, {"delay_s": delay_s}))
        case Checkpointed(data):
            return _uncharged(lease, 0.0, By.WORKER, NewEvent(events.CHECKPOINTED, {"data": data}))
        case _:
            assert_never(outcome)


def is_suspect(losses: int, attempts_left: int) -> bool:
    """Whether the job's next run must be alone: it lost its worker twice, or once with one attempt left."""
    return losses >= 2 or (losses == 1 and attempts_left <= 1)  # noqa: PLR2004 - the definition itself


def _as_failure(after_s: float) -> Failed:
    return Failed(EXECUTION_TIMEOUT, EXECUTION_TIMEOUT, retryable=True, error={"after_s": after_s})


def _after_failure(lease: Lease, failure: Failed, policy: Policy, rand: float) -> Settlement:
    error = {"code": failure.code, "reason": failure.reason, **failure.error}
    if not failure.retryable:
        return _ended(lease, State.FAILED, code=failure.code, reason=failure.reason, error=error)
    if lease.attempts_left <= 0:
        return _ended(lease, State.FAILED, code=RETRIES_EXHAUSTED, reason=failure.reason, error=error)
    nth = lease.attempt - lease.losses
    delay_s = policy.failure.delay_s(nth, rand, at_least_s=failure.retry_after_s)
    retry = NewEvent(events.RETRY, {"delay_s": round(delay_s, 3), "error": error})
    return _requeued(lease, lease.attempt, lease.losses, delay_s, By.WORKER, retry)


def _after_loss(  # noqa: PLR0913, PLR0917 - each is a fact of the loss
    lease: Lease, policy: Policy, rand: float, by: By, reason: str, evidence: dict[str, Any], *, blamed: bool
) -> Settlement:
    losses = lease.losses + blamed
    details = {"worker": lease.worker, "attempt": lease.attempt, **evidence}
    if lease.attempts_left <= 0:
        code = TIMEOUT if by is By.REAPER else WORKER_LOST
        kind = "reaper:failed(timeout)" if by is By.REAPER else "supervisor:failed(worker_lost)"
        data = {"type": kind, "table": "lease", "details": details}
        return _ended(lease, State.FAILED, code=code, reason=reason, data=data, by=by, losses=losses)
    delay_s = policy.loss.delay_s(lease.losses + 1, rand)
    event = _requeued_event(reason, {**details, "delay_s": round(delay_s, 3)})
    return _requeued(lease, lease.attempt, losses, delay_s, by, event)


def _requeued_event(reason: str, details: dict[str, Any]) -> NewEvent:
    data = {"type": "reaper:requeued", "table": "lease", "reason": reason, "details": details}
    return NewEvent(events.REQUEUED, data)


def _uncharged(lease: Lease, delay_s: float, by: By, *told: NewEvent) -> Settlement:
    return _requeued(lease, lease.attempt - 1, lease.losses, delay_s, by, *told)


def _requeued(lease: Lease, attempt: int, losses: int, delay_s: float, by: By, *told: NewEvent) -> Settlement:
    lane = LaneKind.SUSPECT if is_suspect(losses, lease.max_attempts - attempt) else LaneKind.RECOVERED
    return Settlement(
        job_id=lease.job_id,
        queue=lease.queue,
        token=lease.token,
        state=State.QUEUED,
        by=by,
        attempt=attempt,
        losses=losses,
        rank=rank(lease.priority, lane),
        delay_s=delay_s,
        events=told,
    )


def _ended(  # noqa: PLR0913 - each is a fact of the end
    lease: Lease,
    state: State,
    *,
    code: str | None = None,
    reason: str | None = None,
    error: dict[str, Any] | None = None,
    result: str | None = None,
    data: dict[str, Any] | None = None,
    by: By = By.WORKER,
    losses: int | None = None,
) -> Settlement:
    return Settlement(
        job_id=lease.job_id,
        queue=lease.queue,
        token=lease.token,
        state=state,
        by=by,
        attempt=lease.attempt,
        losses=lease.losses if losses is None else losses,
        rank=rank(lease.priority, LaneKind.FRESH),
        code=code,
        reason=reason,
        error=error,
        result=result,
        data=data,
    )
