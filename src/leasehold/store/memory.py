"""The store as its own specification: every sentence of the contract in few lines, with a clock that the caller gives.

For unit tests, for the simulation, and as the model that PostgreSQL is compared with. It is no production store:
nothing outlives the process, nothing is shared with another one, and there is no transaction of yours to join. Every
operation runs from its first line to its last without a pause, so interleavings, locks and lost connections are
PostgreSQL's to show.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from leasehold.core import events
from leasehold.core.decide import Settlement
from leasehold.core.errors import StoreError
from leasehold.core.events import Event, NewEvent, rank_of
from leasehold.core.fairness import Lane, shares
from leasehold.core.job import Job, LaneKind, Lease, NewJob, State, rank
from leasehold.core.outcome import By, Expired, Outcome
from leasehold.store.contract import NEVER_BEGUN, Answer, Ask, Cycle, Decide, Hold, Look, QueueCounts, Verdict


@dataclass(slots=True)
class _Waiting:
    """A job that waits: for its turn (`seq`), or for its time (`due_at`)."""

    rank: int
    seq: int
    due_at: datetime | None


@dataclass(slots=True)
class _Held:
    """A job in somebody's hands."""

    lease: Lease
    last_heartbeat_at: datetime
    expires_at: datetime
    deadline: datetime | None
    progress: int | None = None
    progress_note: str | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    """A job that ended; `last` is the lease it ended in."""

    settlement: Settlement
    last: _Held
    at: datetime


@dataclass(slots=True)
class _Record:
    """A job: what was asked for, what it carries from attempt to attempt, and where it stands."""

    id: int
    asked: NewJob
    created_at: datetime
    run_at: datetime
    stands: _Waiting | _Held | _Ended
    attempt: int = 0
    epoch: int = 0
    losses: int = 0
    last_token: UUID | None = None
    told: list[Event] = field(default_factory=list)

    @property
    def lane(self) -> Lane:
        assert isinstance(self.stands, _Waiting)
        return Lane(self.stands.rank, self.asked.queue)

    def is_current(self, token: UUID) -> bool:
        return isinstance(self.stands, _Held) and self.stands.lease.token == token

    def tell(self, at: datetime, event: NewEvent) -> None:
        self.told.append(Event(self.id, at, event.kind, self.attempt, self.epoch, event.data))


class MemoryStore:
    """Keeps the contract in a dictionary."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._now = clock
        self._numbers = itertools.count(1)  # of jobs, and of places in line
        self._jobs: dict[int, _Record] = {}
        self._turn = 0

    # --- enqueue ------------------------------------------------------------------------------------------------------

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        """Write new jobs, all or none."""
        for job in jobs:
            _refuse_unreadable(job.payload)
        return [self._added(job, self._now()) for job in jobs]

    def _added(self, job: NewJob, now: datetime) -> int:
        number, run_at = next(self._numbers), now + timedelta(seconds=job.delay_s)
        waiting = _Waiting(rank(job.priority, LaneKind.FRESH), number, run_at if job.delay_s > 0 else None)
        record = self._jobs[number] = _Record(number, job, now, run_at, waiting)
        record.tell(now, NewEvent(events.CREATED, {"queue": job.queue, "task": job.task}))
        return number

    # --- claim and settle ---------------------------------------------------------------------------------------------

    async def claim(self, ask: Ask) -> tuple[Lease, ...]:
        """Take due jobs, lane by lane."""
        assert ask.slots > 0, "who has no free slot does not ask"
        self._turn += 1
        line = [(waiting.rank, waiting.seq, job) for job, waiting in self._waiting() if waiting.due_at is None]
        line = sorted(place for place in line if ask.queues is None or place[2].asked.queue in ask.queues)
        picked: list[tuple[int, int, _Record]] = []
        for share in shares({job.lane for _, _, job in line}, ask.slots, self._turn):
            known = [place for place in line if place[2].lane == share.lane and place[2].asked.task in ask.tasks]
            picked += known[: share.quota]
        return tuple(self._leased(job, ask) for _, _, job in sorted(picked[: ask.slots]))

    def _leased(self, job: _Record, ask: Ask) -> Lease:
        now, asked = self._now(), job.asked
        job.attempt += 1
        job.epoch += 1
        lease = Lease(
            job_id=job.id,
            queue=asked.queue,
            task=asked.task,
            payload=asked.payload,
            priority=asked.priority,
            token=ask.token,
            attempt=job.attempt,
            epoch=job.epoch,
            losses=job.losses,
            max_attempts=asked.max_attempts,
            lease_s=asked.lease_s,
            timeout_s=asked.timeout_s,
            worker=ask.worker,
            created_at=job.created_at,
            started_at=now,
        )
        deadline = None if asked.timeout_s is None else now + timedelta(seconds=asked.timeout_s)
        job.stands = _Held(lease, now, now + timedelta(seconds=asked.lease_s), deadline)
        job.tell(now, NewEvent(events.PROCESSING, {"worker": ask.worker}))
        return lease

    async def settle(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        """End attempts, each with its token."""
        return tuple(self._settled(settlement) for settlement in settlements)

    def _settled(self, settlement: Settlement) -> Answer:
        job = self._jobs.get(settlement.job_id)
        if job is None:
            return Answer.LOST
        if not job.is_current(settlement.token):
            return Answer.ALREADY if job.last_token == settlement.token else Answer.LOST
        assert isinstance(job.stands, _Held)
        now, held = self._now(), job.stands
        for event in settlement.events:
            job.tell(now, event)
        job.attempt, job.losses = settlement.attempt, settlement.losses
        job.last_token = settlement.token if settlement.by is By.WORKER else None
        if settlement.state is State.QUEUED:
            due_at = now + timedelta(seconds=settlement.delay_s) if settlement.delay_s > 0 else None
            job.stands = _Waiting(settlement.rank, 0 if due_at else next(self._numbers), due_at)
        else:
            job.stands = _Ended(settlement, held, now)
            job.tell(now, NewEvent(settlement.state, _end_told(settlement)))
        return Answer.APPLIED

    async def settle_and_claim(self, settlements: Sequence[Settlement], ask: Ask) -> Cycle:
        """Both."""
        return Cycle(await self.settle(settlements), await self.claim(ask))

    # --- keeping and recovering ---------------------------------------------------------------------------------------

    async def extend(self, holds: Sequence[Hold]) -> dict[Hold, Verdict]:
        """Extend the leases that are still held."""
        return {hold: self._extended(hold) for hold in holds}

    def _extended(self, hold: Hold) -> Verdict:
        held = self._held(hold)
        if held is None:
            return Verdict.LOST
        now = self._now()
        until = now + timedelta(seconds=held.lease.lease_s)
        held.last_heartbeat_at = now
        held.expires_at = max(held.expires_at, min(until, held.deadline or until))
        return Verdict.KEPT

    async def reap(self, limit: int, decide: Decide) -> list[tuple[Lease, Settlement]]:
        """Settle leases that have run out."""
        expired = [held for held in self._leases() if held.expires_at <= self._now()][:limit]
        reaped = [(held.lease, decide(held.lease, Expired(_evidence(held)))) for held in expired]
        self._settle_held(settlement for _, settlement in reaped)
        return reaped

    async def bury(
        self, worker: str, fates: Mapping[Hold, Outcome], decide: Decide
    ) -> list[tuple[Lease, Outcome, Settlement]]:
        """Settle everything that a dead worker still holds."""
        buried: list[tuple[Lease, Outcome, Settlement]] = []
        for lease in [held.lease for held in self._leases() if held.lease.worker == worker]:
            outcome = fates.get(Hold(lease.job_id, lease.token), NEVER_BEGUN)
            buried.append((lease, outcome, decide(lease, outcome)))
        self._settle_held(settlement for _, _, settlement in buried)
        return buried

    def _settle_held(self, settlements: Iterable[Settlement]) -> None:
        # All are decided before the first is written: a `decide` that raises leaves everything as it was.
        for settlement in list(settlements):
            answer = self._settled(settlement)
            assert answer is Answer.APPLIED, "nobody comes between"

    async def promote(self, limit: int) -> int:
        """Move due jobs to where they are claimed."""
        now = self._now()
        due = [(waiting.due_at, job.id, waiting) for job, waiting in self._waiting() if waiting.due_at]
        due = sorted((due_at, number, waiting) for due_at, number, waiting in due if due_at <= now)[:limit]
        for _, _, waiting in due:
            waiting.seq, waiting.due_at = next(self._numbers), None
        return len(due)

    async def progress(self, hold: Hold, pct: int, note: str | None) -> bool:
        """Store the progress of a held job."""
        held = self._held(hold)
        if held is None:
            return False
        held.progress, held.progress_note = pct, note
        self._jobs[hold.job_id].tell(self._now(), NewEvent(events.PROGRESS, {"pct": pct, "note": note}))
        return True

    async def look(self) -> Look:
        """When there is something to do next."""
        due = min((waiting.due_at for _, waiting in self._waiting() if waiting.due_at), default=None)
        expiry = min((held.expires_at for held in self._leases()), default=None)
        return Look(self._from_now(due), self._from_now(expiry))

    def _from_now(self, at: datetime | None) -> float | None:
        return None if at is None else (at - self._now()).total_seconds()

    # --- seeing -------------------------------------------------------------------------------------------------------

    async def get(self, job_id: int) -> Job | None:
        """A job as it stands now."""
        return _seen(self._jobs[job_id]) if job_id in self._jobs else None

    async def find(self, *, status: State | None = None, queue: str | None = None, limit: int = 20) -> list[Job]:
        """The newest jobs first."""
        newest = [_seen(self._jobs[number]) for number in sorted(self._jobs, reverse=True)]
        return [job for job in newest if status in (None, job.status) and queue in (None, job.queue)][:limit]

    async def timeline(self, job_id: int) -> list[Event]:
        """Everything that happened to a job, in order."""
        told = self._jobs[job_id].told if job_id in self._jobs else []
        return sorted(told, key=lambda event: (event.at, event.epoch, rank_of(event.kind)))

    async def counts(self) -> list[QueueCounts]:
        """How many jobs wait, wait for later, run and lie dead."""
        tally: dict[str, dict[str, int]] = {}
        for job in self._jobs.values():
            if column := _counted(job):
                line = tally.setdefault(job.asked.queue, dict.fromkeys(("ready", "scheduled", "processing", "dead"), 0))
                line[column] += 1
        return [QueueCounts(queue, **tally[queue]) for queue in sorted(tally)]

    async def close(self) -> None:
        """There are no connections to give back."""

    def _waiting(self) -> Iterable[tuple[_Record, _Waiting]]:
        return ((job, job.stands) for job in self._jobs.values() if isinstance(job.stands, _Waiting))

    def _leases(self) -> Iterable[_Held]:
        return (job.stands for job in self._jobs.values() if isinstance(job.stands, _Held))

    def _held(self, hold: Hold) -> _Held | None:
        job = self._jobs.get(hold.job_id)
        return job.stands if job and job.is_current(hold.token) and isinstance(job.stands, _Held) else None


def _refuse_unreadable(payload: str) -> None:
    try:
        json.loads(payload)
    except ValueError as error:
        raise StoreError("A payload is not JSON; nothing was written.") from error


def _evidence(held: _Held) -> dict[str, Any]:
    return {
        "lease_expires_at": held.expires_at.isoformat(),
        "last_heartbeat_at": held.last_heartbeat_at.isoformat(),
    }


def _end_told(end: Settlement) -> dict[str, Any]:
    told = {"code": end.code, "reason": end.reason, "error": end.error, "by": end.by}
    return {name: value for name, value in told.items() if value is not None} | (end.data or {})


def _status(job: _Record) -> State:
    match job.stands:
        case _Waiting():
            return State.QUEUED
        case _Held():
            return State.PROCESSING
        case _Ended(settlement):
            return settlement.state


def _counted(job: _Record) -> str | None:
    match job.stands:
        case _Waiting(due_at=due_at):
            return "scheduled" if due_at else "ready"
        case _Held():
            return "processing"
        case _Ended(settlement):
            return "dead" if settlement.state is State.FAILED else None


def _seen(job: _Record) -> Job:
    stands, asked = job.stands, job.asked
    held = stands if isinstance(stands, _Held) else None
    waiting = stands if isinstance(stands, _Waiting) else None
    ended = stands if isinstance(stands, _Ended) else None
    last = held or (ended.last if ended else None)
    end = ended.settlement if ended else None
    return Job(
        id=job.id,
        queue=asked.queue,
        task=asked.task,
        status=_status(job),
        priority=asked.priority,
        payload=asked.payload,
        attempt_count=job.attempt,
        max_attempts=asked.max_attempts,
        created_at=job.created_at,
        started_at=last.lease.started_at if last else None,
        finished_at=ended.at if ended else None,
        last_heartbeat_at=held.last_heartbeat_at if held else None,
        lease_expires_at=held.expires_at if held else None,
        locked_by=held.lease.worker if held else None,
        next_earliest_run_at=(waiting.due_at or job.run_at) if waiting else None,
        progress=last.progress if last else None,
        progress_note=held.progress_note if held else None,
        fail_code=end.code if end else None,
        fail_reason=end.reason if end else None,
        error=end.error if end else None,
        result=json.loads(end.result) if end and end.result is not None else None,
    )
