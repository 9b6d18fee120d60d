"""What the conformance tests say over and over: a new job, a wish to claim, a fate, and everything that can be seen."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from leasehold.core.decide import Settlement, decide
from leasehold.core.events import Event
from leasehold.core.job import Job, Lease, NewJob
from leasehold.core.outcome import Outcome
from leasehold.core.policy import Policy
from leasehold.store.contract import Ask, Hold, Look, QueueCounts, Store
from leasehold.store.postgres.store import PostgresStore

POLICY = Policy()


def new(task: str = "clip", **wishes: Any) -> NewJob:
    return NewJob(task=task, **{"payload": "{}", **wishes})


def ask(
    slots: int = 1,
    *,
    worker: str = "w1",
    tasks: tuple[str, ...] = ("clip",),
    queues: tuple[str, ...] | None = None,
    token: UUID | None = None,
) -> Ask:
    return Ask(worker=worker, token=token or uuid4(), slots=slots, tasks=tasks, queues=queues)


def fate(lease: Lease, outcome: Outcome) -> Settlement:
    """What the default policy says, without chance."""
    return decide(lease, outcome, POLICY, 0.0)


def hold(lease: Lease) -> Hold:
    return Hold(lease.job_id, lease.token)


async def running(store: Store, *, worker: str = "w1", **wishes: Any) -> Lease:
    """A job that was enqueued and claimed; nothing else may wait for its task."""
    (job_id,) = await store.enqueue([new(**wishes)])
    lease = await again(store, worker=worker)
    assert lease.job_id == job_id
    return lease


async def again(store: Store, *, worker: str = "w1") -> Lease:
    """The one job that waits, claimed."""
    (lease,) = await store.claim(ask(worker=worker))
    return lease


async def ids(store: Store, slots: int, **wishes: Any) -> list[int]:
    """The jobs that a claim takes, in its order."""
    return [lease.job_id for lease in await store.claim(ask(slots, **wishes))]


async def look_at(store: Store, job_id: int) -> Job:
    job = await store.get(job_id)
    assert job is not None
    return job


async def kinds(store: Store, job_id: int) -> list[str]:
    return [event.kind for event in await store.timeline(job_id)]


def always_sweeping(dsn: str) -> PostgresStore:
    """A store whose monotonic clock leaps at every look: it discovers lanes and claims from zero each time."""
    leaps = itertools.count(0.0, 10.0)
    return PostgresStore(dsn, clock=lambda: next(leaps))


@dataclass(frozen=True)
class Seen:
    """Everything that anybody can see of a store."""

    jobs: list[Job]
    timelines: list[list[Event]]
    counts: list[QueueCounts]
    look: Look


async def everything(store: Store) -> Seen:
    jobs = await store.find(limit=10_000)
    timelines = [await store.timeline(job.id) for job in jobs]
    return Seen(jobs, timelines, await store.counts(), await store.look())
