"""A dead worker's jobs: charged by how far it was with each."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from leasehold.core.decide import Settlement, decide
from leasehold.core.facts import Fact, JobRecovered
from leasehold.core.job import Lease, NewJob, State
from leasehold.core.outcome import Aborted, Crashed, Outcome, Released
from leasehold.core.policy import Policy
from leasehold.processes.book import SharedBook
from leasehold.processes.boottime import now_ns
from leasehold.processes.slot_table import ReplyReader, ReplyTable, SlotReader, SlotTable, SlotWriter
from leasehold.processes.tree import Death
from leasehold.processes.undertaker import Corpse, bury
from leasehold.store.contract import Ask
from leasehold.store.postgres.store import PostgresStore

SLOTS = 8


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(dsn, clock=time.monotonic)
    yield store
    await store.close()


def settled(lease: Lease, outcome: Outcome) -> Settlement:
    return decide(lease, outcome, Policy(), 0.0)


async def buried(store: PostgresStore, *, told_to_stop: bool = False) -> dict[str, JobRecovered]:
    """A worker that died with one job of each kind: not in its table, claimed, running, ended."""
    slots, replies = SlotTable.create(SLOTS), ReplyTable.create(SLOTS)
    book = SharedBook(SlotWriter(slots.fd, SLOTS), ReplyReader(replies.fd, SLOTS))
    kinds = ["unmentioned", "claimed", "running", "ended"]
    await store.enqueue([NewJob(task=kind, payload="{}") for kind in kinds])
    leases = await store.claim(Ask(worker="w1", token=uuid4(), slots=4, tasks=tuple(kinds)))
    for slot, lease in enumerate(leases):
        if lease.task != "unmentioned":
            book.claimed(slot, lease, now_ns())
        if lease.task in ("running", "ended"):
            book.running(slot)
        if lease.task == "ended":
            book.ended(slot)
    facts: list[Fact] = []
    corpse = Corpse("w1", 12345, SlotReader(slots.fd, SLOTS), Death(12345, 9, None), told_to_stop)
    assert await bury(corpse, store, settled, facts.append)
    slots.close()
    replies.close()
    return {fact.lease.task: fact for fact in facts if isinstance(fact, JobRecovered)}


async def test_a_dead_workers_jobs_are_charged_by_how_far_it_was_with_each(store: PostgresStore) -> None:
    recovered = await buried(store)

    assert isinstance(recovered["unmentioned"].outcome, Released)
    assert isinstance(recovered["claimed"].outcome, Released)
    assert isinstance(recovered["running"].outcome, Crashed)
    assert isinstance(recovered["ended"].outcome, Crashed)
    carried = {kind: (fact.settlement.attempt, fact.settlement.losses) for kind, fact in recovered.items()}
    # What had ended is charged, but is no suspect: its handler did not do it.
    assert carried == {"unmentioned": (0, 0), "claimed": (0, 0), "running": (1, 1), "ended": (1, 0)}
    assert all(fact.settlement.state is State.QUEUED for fact in recovered.values())


async def test_the_jobs_of_a_worker_that_we_ended_are_not_charged(store: PostgresStore) -> None:
    recovered = await buried(store, told_to_stop=True)

    assert isinstance(recovered["running"].outcome, Aborted)
    assert {fact.settlement.attempt for fact in recovered.values()} == {0}


async def test_what_is_buried_is_buried_once(store: PostgresStore) -> None:
    recovered = await buried(store)

    again = await store.bury("w1", {}, settled)

    assert len(recovered) == 4
    assert again == []
