"""What every store promises. One conformance test stands for each sentence here (`tests/store/conformance`).

Three rules hold for all of it. Every write to a leased job carries the lease's token, and a token that is not current
changes nothing: that is an answer (`LOST`), not an exception. Time is the store's own clock; no caller's clock decides
anything. What the store reports as applied is what happened, and the only thing anybody may announce.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol
from uuid import UUID

from leasehold.core.decide import Settlement
from leasehold.core.events import Event
from leasehold.core.job import Job, Lease, NewJob, State
from leasehold.core.outcome import By, Outcome, Released

NEVER_BEGUN: Final = Released("its worker died before it began", by=By.SUPERVISOR)


class Answer(StrEnum):
    """What became of a settlement."""

    APPLIED = "applied"
    ALREADY = "already settled by you"
    LOST = "lease lost"


class Verdict(StrEnum):
    """What became of a heartbeat."""

    KEPT = "kept"
    BUSY = "busy"
    LOST = "lost"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A wish to claim. `token` is fresh and random for every ask; `tasks` are those that the worker knows."""

    worker: str
    token: UUID
    slots: int
    tasks: tuple[str, ...]
    queues: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """A lease as its keeper names it: the pair that every write must show."""

    job_id: int
    token: UUID


@dataclass(frozen=True, slots=True)
class Look:
    """When there is something to do next, in seconds from now; None: nothing is awaited."""

    due_in_s: float | None
    expiry_in_s: float | None


@dataclass(frozen=True, slots=True)
class Cycle:
    """The reply to `settle_and_claim`."""

    answers: tuple[Answer, ...]
    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many jobs a queue holds, by where they stand."""

    queue: str
    ready: int
    scheduled: int
    processing: int
    dead: int


Decide = Callable[[Lease, Outcome], Settlement]


class Store(Protocol):
    """The operations, each with its promise."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        """Write new jobs, all or none, in one round trip; the ids come back in the order given."""
        ...

    async def claim(self, ask: Ask) -> tuple[Lease, ...]:
        """Take at most `ask.slots` due jobs of the tasks asked for.

        A job is given to one worker only. An attempt counts from here on. A job that is not due, or whose task the
        worker does not know, is left. Recovered jobs come before fresh ones, with at most half of the slots while fresh
        ones wait.
        """
        ...

    async def extend(self, holds: Sequence[Hold]) -> dict[Hold, Verdict]:
        """Extend each lease that is still held with this token, never past its deadline.

        A lease that is gone or another's is LOST and stays untouched. A row that somebody has locked is BUSY: it is not
        waited for and not lost.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        """End attempts. The timeline's rows are written in the same statement.

        A token that is not current changes nothing. A repeat after a lost reply answers ALREADY; any other token LOST.
        """
        ...

    async def settle_and_claim(self, settlements: Sequence[Settlement], ask: Ask) -> Cycle:
        """Both at once, as `settle` and `claim` promise; one round trip where the settlements are plain successes."""
        ...

    async def reap(self, limit: int, decide: Decide) -> list[tuple[Lease, Settlement]]:
        """Settle at most `limit` leases that have run out, as `decide` says of `Expired`, in one transaction.

        A live lease is left. Any number of reapers may run at once: each expired lease is settled by one of them.
        """
        ...

    async def bury(
        self, worker: str, fates: Mapping[Hold, Outcome], decide: Decide
    ) -> list[tuple[Lease, Outcome, Settlement]]:
        """Settle everything that a dead worker still holds: as `fates` says; what it does not name was never begun."""
        ...

    async def promote(self, limit: int) -> int:
        """Move at most `limit` jobs that have become due to where they are claimed; says how many."""
        ...

    async def progress(self, hold: Hold, pct: int, note: str | None) -> bool:
        """Store the progress of a held job and write it to the timeline; False if the lease is lost."""
        ...

    async def look(self) -> Look:
        """When the next job becomes due, and when the earliest lease of anybody ends."""
        ...

    async def get(self, job_id: int) -> Job | None:
        """A job as it stands now."""
        ...

    async def find(self, *, status: State | None = None, queue: str | None = None, limit: int = 20) -> list[Job]:
        """The newest jobs first."""
        ...

    async def timeline(self, job_id: int) -> list[Event]:
        """Everything that happened to a job, in the order in which it happened."""
        ...

    async def counts(self) -> list[QueueCounts]:
        """How many jobs wait, wait for later, run and lie dead, queue by queue."""
        ...

    async def close(self) -> None:
        """Give back every connection."""
        ...
