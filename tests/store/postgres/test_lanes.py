"""Hints and discovery, with the monotonic clock held: they save work and never cost a job."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from leasehold.core.fairness import Lane
from leasehold.core.job import Lease
from leasehold.core.outcome import Done
from leasehold.store.postgres.lanes import HINT_LAG_S, HINT_LAG_SEQ, SWEEP_S, Lanes
from leasehold.store.postgres.store import PostgresStore
from tests.store.conformance.scenes import ask, fate, ids, new

LANE = Lane(0, "default")


class Stopwatch:
    """Monotonic time, held."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def hint(lanes: Lanes) -> int:
    ((_, from_seq),) = lanes.shares(1)
    return from_seq


def test_a_hint_lags_behind_the_head_in_time() -> None:
    watch = Stopwatch()
    lanes = Lanes(watch)
    lanes.discovered([LANE])
    assert hint(lanes) == 0, "the first look is a sweep"
    lanes.claimed([(LANE, 500)])
    assert hint(lanes) == 0, "what commits a little late is still seen"
    watch.now += HINT_LAG_S
    lanes.claimed([(LANE, 900)])
    assert hint(lanes) == 500


def test_a_hint_lags_behind_the_head_in_number() -> None:
    lanes = Lanes(Stopwatch())
    lanes.discovered([LANE])
    hint(lanes)
    lanes.claimed([(LANE, 10_000)])
    assert hint(lanes) == 10_000 - HINT_LAG_SEQ


def test_a_lane_is_swept_from_zero_once_a_second() -> None:
    watch = Stopwatch()
    lanes = Lanes(watch)
    lanes.discovered([LANE])
    hint(lanes)
    lanes.claimed([(LANE, 10_000)])
    watch.now += SWEEP_S / 2
    assert hint(lanes) == 10_000
    watch.now += SWEEP_S / 2
    assert (hint(lanes), hint(lanes)) == (0, 10_000)


def test_lanes_are_discovered_once_a_second_and_when_they_were_forgotten() -> None:
    watch = Stopwatch()
    lanes = Lanes(watch)
    assert lanes.stale()
    lanes.discovered([LANE])
    assert not lanes.stale()
    watch.now += SWEEP_S
    assert lanes.stale()
    lanes.discovered([LANE])
    lanes.forget()
    assert lanes.stale()


def test_a_hint_never_goes_back_while_its_lane_is_known() -> None:
    watch = Stopwatch()
    lanes = Lanes(watch)
    lanes.discovered([LANE])
    hint(lanes)
    lanes.claimed([(LANE, 10_000)])
    lanes.claimed([(LANE, 7)])
    lanes.discovered([LANE])
    watch.now += HINT_LAG_S
    assert hint(lanes) == 10_000


@pytest.fixture
async def watch() -> Stopwatch:
    return Stopwatch()


@pytest.fixture
async def store(dsn: str, watch: Stopwatch) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(dsn, clock=watch)
    yield made
    await made.close()


async def test_a_job_that_committed_late_is_found_by_the_sweep(
    dsn: str, store: PostgresStore, watch: Stopwatch
) -> None:
    slow = await asyncpg.connect(dsn)
    await slow.execute("begin")
    late = await slow.fetchval("select leasehold.enqueue('clip')")
    await store.enqueue([new() for _ in range(HINT_LAG_SEQ + 10)])
    assert len(await store.claim(ask(HINT_LAG_SEQ + 10))) == HINT_LAG_SEQ + 10
    await slow.execute("commit")
    await slow.close()
    assert await ids(store, 1) == [], "it lies before the hint"
    watch.now += SWEEP_S
    assert await ids(store, 1) == [late]


async def test_a_job_of_a_new_lane_is_found_within_a_second(store: PostgresStore, watch: Stopwatch) -> None:
    first, second = await store.enqueue([new(), new()])
    assert await ids(store, 1) == [first]
    (other,) = await store.enqueue([new(queue="other", priority=9)])
    assert await ids(store, 1) == [second]
    watch.now += SWEEP_S
    assert await ids(store, 1) == [other]


async def test_a_look_makes_the_next_claim_discover(store: PostgresStore) -> None:
    assert await ids(store, 1) == []
    (job_id,) = await store.enqueue([new()])
    await store.look()
    assert await ids(store, 1) == [job_id]


async def test_only_the_queues_asked_for_are_claimed_whatever_was_asked_for_before(store: PostgresStore) -> None:
    media, mail = await store.enqueue([new(queue="media"), new(queue="mail")])
    assert await ids(store, 1, tasks=("nothing",)) == []
    assert await ids(store, 5, queues=("mail",)) == [mail]
    assert await ids(store, 5, queues=("mail",)) == []
    assert await ids(store, 5) == [media]


async def test_a_worker_that_settles_as_it_claims_drains_a_queue_through_its_hints(
    store: PostgresStore, watch: Stopwatch
) -> None:
    job_ids = await store.enqueue([new() for _ in range(400)])
    leases: tuple[Lease, ...] = ()
    taken: list[int] = []
    for _ in range(41):
        cycle = await store.settle_and_claim([fate(lease, Done()) for lease in leases], ask(10))
        leases = cycle.leases
        taken += [lease.job_id for lease in leases]
        watch.now += HINT_LAG_S / 2
    assert taken == job_ids
    assert await store.counts() == []
