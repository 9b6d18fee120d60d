"""What only a real server can show: many at once, and rows that somebody has locked."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest

from leasehold.core.decide import Settlement
from leasehold.core.job import Lease, State
from leasehold.core.outcome import Done, Expired
from leasehold.store.contract import Answer, Verdict
from leasehold.store.postgres.statements import statement
from leasehold.store.postgres.store import PostgresStore
from tests.databases import DatabaseClock
from tests.store.conformance.scenes import always_sweeping, ask, everything, fate, hold, look_at, new, running
from tests.store.postgres.sessions import Session

AT_ONCE_S = 2.0  # far below every lock's and statement's timeout: who waits for a lock does not make it

Stores = Callable[[], PostgresStore]


@pytest.fixture
async def stores(dsn: str) -> AsyncIterator[Callable[[], PostgresStore]]:
    """Makes stores on one database, each with connections of its own."""
    made: list[PostgresStore] = []

    def another() -> PostgresStore:
        made.append(always_sweeping(dsn))
        return made[-1]

    yield another
    for store in made:
        await store.close()


@pytest.fixture
async def somebody(dsn: str) -> AsyncIterator[Session]:
    """Another session, with a transaction open; it is rolled back in the end."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("begin")
    yield connection
    await connection.close()


async def test_a_locked_lease_is_busy_and_nobody_waits_for_it(stores: Stores, somebody: Session) -> None:
    store = stores()
    await store.enqueue([new(), new()])
    locked, free = await store.claim(ask(2))
    await somebody.execute("select 1 from leasehold.lease where job_id = $1 for update", locked.job_id)
    before = await look_at(store, locked.job_id)
    started = time.monotonic()
    verdicts = await store.extend([hold(locked), hold(free)])
    assert time.monotonic() - started < AT_ONCE_S
    assert verdicts == {hold(locked): Verdict.BUSY, hold(free): Verdict.KEPT}
    assert await look_at(store, locked.job_id) == before
    await somebody.execute("rollback")
    assert await store.extend([hold(locked)]) == {hold(locked): Verdict.KEPT}


async def test_a_locked_lease_of_another_token_is_lost_and_not_busy(stores: Stores, somebody: Session) -> None:
    store = stores()
    await store.enqueue([new(), new()])
    (one,), (other,) = await store.claim(ask(1)), await store.claim(ask(1))
    await somebody.execute("select 1 from leasehold.lease for update")
    crossed = type(hold(one))(one.job_id, other.token)
    assert await store.extend([crossed]) == {crossed: Verdict.LOST}


async def test_a_job_that_is_to_be_cancelled_hears_it_at_its_beat(stores: Stores, somebody: Session) -> None:
    store = stores()
    lease = await running(store)
    await somebody.execute("update leasehold.lease set cancel_requested = true")
    await somebody.execute("commit")
    assert await store.extend([hold(lease)]) == {hold(lease): Verdict.CANCEL}


async def test_eight_claimers_take_each_of_two_thousand_jobs_once(stores: Stores) -> None:
    job_ids = await stores().enqueue([new() for _ in range(2000)])

    async def drain(store: PostgresStore) -> list[int]:
        taken: list[int] = []
        while leases := await store.claim(ask(50)):
            taken += [lease.job_id for lease in leases]
        return taken

    each = await asyncio.gather(*(drain(stores()) for _ in range(8)))
    assert Counter(itertools.chain.from_iterable(each)) == Counter(job_ids)
    (counts,) = await stores().counts()
    assert (counts.ready, counts.processing) == (0, 2000)


async def test_a_claim_skips_jobs_that_somebody_is_taking(stores: Stores, somebody: Session) -> None:
    first, second = await stores().enqueue([new(), new()])
    await somebody.execute("select 1 from leasehold.ready where job_id = $1 for update", first)
    started = time.monotonic()
    assert [lease.job_id for lease in await stores().claim(ask(2))] == [second]
    assert time.monotonic() - started < AT_ONCE_S


async def test_promoters_at_once_move_each_job_once(held_clock: DatabaseClock, stores: Stores) -> None:
    store = stores()
    await store.enqueue([new(delay_s=1) for _ in range(500)])
    held_clock.step(1)

    async def drain(promoter: PostgresStore) -> int:
        moved = 0
        while count := await promoter.promote(20):
            moved += count
        return moved

    assert sum(await asyncio.gather(*(drain(stores()) for _ in range(4)))) == 500
    (counts,) = await store.counts()
    assert (counts.ready, counts.scheduled) == (500, 0)


@pytest.mark.requirement("R1.8")
async def test_reapers_at_once_settle_each_expired_lease_once(held_clock: DatabaseClock, stores: Stores) -> None:
    store = stores()
    job_ids = await store.enqueue([new() for _ in range(300)])
    await store.claim(ask(300))
    held_clock.step(30)

    async def drain(reaper: PostgresStore) -> list[int]:
        reaped: list[int] = []
        while settled := await reaper.reap(7, fate):
            reaped += [lease.job_id for lease, _ in settled]
        return reaped

    each = await asyncio.gather(*(drain(stores()) for _ in range(4)))
    assert sorted(itertools.chain.from_iterable(each)) == job_ids
    for job_id in job_ids[::50]:
        kinds = [event.kind for event in await store.timeline(job_id)]
        assert kinds == ["created", "processing", "requeued:stale"]


@pytest.mark.requirement("R1.8")
async def test_a_reaper_skips_what_another_has_in_hand_and_does_not_wait(
    held_clock: DatabaseClock, stores: Stores, somebody: Session
) -> None:
    store = stores()
    await store.enqueue([new() for _ in range(10)])
    await store.claim(ask(10))
    held_clock.step(30)
    in_hand = {row["job_id"] for row in await somebody.fetch(statement("expired"), 4)}
    started = time.monotonic()
    reaped = {lease.job_id for lease, _ in await store.reap(100, fate)}
    assert time.monotonic() - started < AT_ONCE_S
    assert (len(in_hand), len(reaped)) == (4, 6)
    assert not in_hand & reaped
    await somebody.execute("rollback")  # the other reaper died: its work is anybody's again
    assert {lease.job_id for lease, _ in await store.reap(100, fate)} == in_hand


class NoFateError(Exception):
    """The test's own."""


@pytest.mark.requirement("R1.8")
async def test_a_reaper_that_breaks_half_way_has_settled_nothing(held_clock: DatabaseClock, stores: Stores) -> None:
    store = stores()
    await store.enqueue([new() for _ in range(3)])
    await store.claim(ask(3))
    held_clock.step(30)
    before = await everything(store)
    decided: list[int] = []

    def breaks(lease: Lease, outcome: Expired) -> Settlement:
        decided.append(lease.job_id)
        if len(decided) == 3:
            raise NoFateError
        return fate(lease, outcome)

    with pytest.raises(NoFateError):
        await store.reap(10, breaks)  # type: ignore[arg-type]
    assert await everything(store) == before
    assert len(await stores().reap(10, fate)) == 3


async def test_of_a_settle_and_a_reap_of_one_expired_lease_one_wins(held_clock: DatabaseClock, stores: Stores) -> None:
    for _ in range(20):
        worker, reaper = stores(), stores()
        lease = await running(worker, max_attempts=1)
        held_clock.step(30)
        (answer,), reaped = await asyncio.gather(worker.settle([fate(lease, Done())]), reaper.reap(1, fate))
        job = await look_at(worker, lease.job_id)
        if answer is Answer.APPLIED:
            assert (reaped, job.status) == ([], State.DONE)
        else:
            assert (answer, len(reaped), job.status) == (Answer.LOST, 1, State.FAILED)
        await worker.close()
        await reaper.close()
