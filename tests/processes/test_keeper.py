"""The keeper extends what a worker says it holds, and nothing else. On a real server, with real tables."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

from leasehold.core.decide import Settlement, decide
from leasehold.core.errors import StoreUnreachableError
from leasehold.core.facts import Fact, HeartbeatFailed, LeasesKept, SlotUnreadable, StaleTokenRefused
from leasehold.core.job import Lease, NewJob
from leasehold.core.outcome import Done, Outcome
from leasehold.core.policy import Policy
from leasehold.observe.log import line_of
from leasehold.processes.book import SharedBook
from leasehold.processes.boottime import now_ns
from leasehold.processes.keeper import Keeper, Kept
from leasehold.processes.slot_table import (
    ReplyReader,
    ReplyTable,
    ReplyWriter,
    SlotReader,
    SlotTable,
    SlotWriter,
)
from leasehold.runtime.book import Standing
from leasehold.store.contract import Ask, Hold, Verdict
from leasehold.store.postgres.store import PostgresStore
from tests.databases import DatabaseClock

SLOTS = 4
LEASE_S = 0.6


@dataclass
class Desk:
    """A worker's two tables, seen from both sides."""

    pid: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        self.slots, self.replies = SlotTable.create(SLOTS), ReplyTable.create(SLOTS)
        writer = ReplyWriter(self.replies.fd, SLOTS)
        self.book = SharedBook(SlotWriter(self.slots.fd, SLOTS), ReplyReader(self.replies.fd, SLOTS))
        self.kept = Kept("w1", self.pid, SlotReader(self.slots.fd, SLOTS), writer, LEASE_S)
        self.beats = ReplyReader(self.replies.fd, SLOTS)

    def close(self) -> None:
        self.slots.close()
        self.replies.close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(dsn, clock=time.monotonic)
    yield store
    await store.close()


async def claimed(store: PostgresStore, count: int = 1) -> tuple[Lease, ...]:
    await store.enqueue([NewJob(task="clip", payload="{}", lease_s=LEASE_S)] * count)
    return await store.claim(Ask(worker="w1", token=uuid4(), slots=count, tasks=("clip",)))


@asynccontextmanager
async def keeping(dsn: str, desk: Desk, facts: list[Fact]) -> AsyncIterator[Keeper]:
    keeper = Keeper(lambda: PostgresStore(dsn, clock=time.monotonic), facts.append, heartbeat_s=10.0)
    keeper.keep(desk.kept)
    keeper.start()
    try:
        yield keeper
    finally:
        await asyncio.to_thread(keeper.stop)


async def until(condition: object, *, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


def settled(lease: Lease, outcome: Outcome) -> Settlement:
    return decide(lease, outcome, Policy(), 0.0)


async def test_a_lease_that_a_worker_says_it_holds_is_kept_and_one_it_does_not_mention_runs_out(
    dsn: str, desk: Desk, store: PostgresStore
) -> None:
    mentioned, unmentioned = await claimed(store, 2)
    desk.book.claimed(0, mentioned, now_ns())
    desk.book.running(0)
    facts: list[Fact] = []

    reaped: list[int] = []
    async with keeping(dsn, desk, facts), asyncio.timeout(20):
        while not reaped or len([fact for fact in facts if isinstance(fact, LeasesKept)]) < 6:
            reaped += [lease.job_id for lease, _ in await store.reap(10, settled)]
            await asyncio.sleep(0.02)

    assert reaped == [unmentioned.job_id]
    assert desk.book.standing(0) is Standing.HELD


async def test_a_beat_whose_row_is_gone_is_a_verdict_for_that_lap_and_for_no_other(
    dsn: str, desk: Desk, store: PostgresStore
) -> None:
    first, second = await claimed(store, 2)
    desk.book.claimed(0, first, now_ns())
    desk.book.running(0)
    await store.bury("w1", {Hold(second.job_id, second.token): Done()}, settled)
    facts: list[Fact] = []

    async with keeping(dsn, desk, facts):
        await until(lambda: any(isinstance(fact, StaleTokenRefused) for fact in facts))
        assert desk.book.standing(0) is Standing.LOST
        (third,) = await store.claim(Ask(worker="w1", token=uuid4(), slots=1, tasks=("clip",)))
        desk.book.claimed(0, third, now_ns())
        desk.book.running(0)
        assert desk.book.standing(0) is Standing.HELD
        kept = len(facts)
        await until(lambda: any(isinstance(fact, LeasesKept) for fact in facts[kept:]))
        assert desk.book.standing(0) is Standing.HELD


async def test_a_row_that_somebody_holds_in_a_transaction_is_left_for_the_next_beat_and_stops_no_other(
    dsn: str, desk: Desk, store: PostgresStore
) -> None:
    leases = await claimed(store, 2)
    for slot, lease in enumerate(leases):
        desk.book.claimed(slot, lease, now_ns())
        desk.book.running(slot)
    facts: list[Fact] = []

    held = PostgresStore(dsn, clock=time.monotonic)
    async with held._side.transaction() as transaction:
        await transaction.value("select 1 from leasehold.lease where job_id = $1 for update", leases[0].job_id)
        verdicts = await store.extend([Hold(lease.job_id, lease.token) for lease in leases])
        async with keeping(dsn, desk, facts):
            await until(lambda: sum(isinstance(fact, LeasesKept) for fact in facts) >= 2)
    await held.close()

    assert list(verdicts.values()) == [Verdict.BUSY, Verdict.KEPT]
    assert not any(isinstance(fact, StaleTokenRefused | HeartbeatFailed) for fact in facts)


async def test_a_slot_that_cannot_be_read_is_not_extended_and_somebody_hears_of_it_once(
    dsn: str, desk: Desk, store: PostgresStore
) -> None:
    (lease,) = await claimed(store)
    desk.book.claimed(1, lease, now_ns())
    os.pwrite(desk.slots.fd, b"\xff" * 88, 256 + 144)  # both halves of slot 1: what a checksum is for
    os.pwrite(desk.slots.fd, b"\xff" * 88, 256 + 32)
    facts: list[Fact] = []

    async with keeping(dsn, desk, facts), asyncio.timeout(20):
        while not await store.reap(10, settled):
            await asyncio.sleep(0.02)

    assert facts == [SlotUnreadable("w1", 1)]


async def test_a_stopped_worker_is_not_kept(dsn: str, store: PostgresStore) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as worker:  # noqa: ASYNC220 - at once
        desk = Desk(worker.pid)
        (lease,) = await claimed(store)
        desk.book.claimed(0, lease, now_ns())
        desk.book.running(0)
        worker.send_signal(signal.SIGSTOP)
        facts: list[Fact] = []
        try:
            async with keeping(dsn, desk, facts), asyncio.timeout(20):
                while not await store.reap(10, settled):
                    await asyncio.sleep(0.02)
        finally:
            worker.kill()
        desk.close()

    assert not any(isinstance(fact, LeasesKept) for fact in facts)


@pytest.mark.requirement("R1.4")
@pytest.mark.parametrize("heartbeat_s, interval_s", [(10.0, LEASE_S / 3), (0.1, 0.1)], ids=["a third", "configured"])
async def test_a_lease_is_beaten_at_the_configured_interval_or_a_third_of_its_length_if_that_is_shorter(
    dsn: str, desk: Desk, store: PostgresStore, heartbeat_s: float, interval_s: float
) -> None:
    (lease,) = await claimed(store)
    sent_ns = now_ns()
    desk.book.claimed(0, lease, sent_ns)
    at_ns: list[int] = [sent_ns]
    keeper = Keeper(
        lambda: PostgresStore(dsn, clock=time.monotonic), lambda _: at_ns.append(now_ns()), heartbeat_s=heartbeat_s
    )
    keeper.keep(desk.kept)
    keeper.start()
    try:
        await until(lambda: len(at_ns) > 4)
    finally:
        await asyncio.to_thread(keeper.stop)

    # Never sooner: over four beats, what the answers took cancels out but for one.
    assert (at_ns[4] - at_ns[0]) / 1e9 >= 3.5 * interval_s


@pytest.mark.requirement("R1.2")
async def test_a_batch_of_heartbeats_is_one_statement_that_moves_every_lease_at_under_a_millisecond_a_job(
    dsn: str, held_clock: DatabaseClock, store: PostgresStore
) -> None:
    del dsn
    await store.enqueue([NewJob(task="clip", payload="{}")] * 500)
    leases = await store.claim(Ask(worker="w1", token=uuid4(), slots=500, tasks=("clip",)))
    holds = [Hold(lease.job_id, lease.token) for lease in leases]
    await store.extend(holds)
    held_clock.step(7)

    began = time.perf_counter()
    verdicts = await store.extend(holds)
    per_job_s = (time.perf_counter() - began) / len(holds)

    assert set(verdicts.values()) == {Verdict.KEPT}
    assert per_job_s < 0.001
    for lease in leases[::100]:
        job = await store.get(lease.job_id)
        assert job is not None
        assert job.last_heartbeat_at is not None
        assert job.lease_expires_at is not None
        assert (job.last_heartbeat_at - lease.started_at).total_seconds() == 7
        assert (job.lease_expires_at - lease.started_at).total_seconds() == 7 + lease.lease_s


class SlowStore(PostgresStore):
    """While the beat is out, the worker goes on; then the beat comes back with a loss."""

    meanwhile: Callable[[], None]

    async def extend(self, holds: Sequence[Hold]) -> dict[Hold, Verdict]:
        self.meanwhile()
        return dict.fromkeys(holds, Verdict.LOST)


@pytest.mark.parametrize("case", ["reused", "ended", "running"])
async def test_a_loss_counts_only_for_the_lap_that_was_asked_for_and_not_while_its_settle_may_be_on_its_way(
    dsn: str, desk: Desk, store: PostgresStore, case: str
) -> None:
    first, second = await claimed(store, 2)
    # Sent a beat's interval ago: it is due at once.
    desk.book.claimed(0, first, now_ns() - int(LEASE_S / 2 * 1e9))
    desk.book.running(0)
    beats = 0

    def go_on() -> None:
        nonlocal beats
        beats += 1
        if case == "ended":
            desk.book.ended(0)
        elif case == "reused" and beats == 1:
            desk.book.empty(0)
            desk.book.claimed(0, second, now_ns())
            desk.book.running(0)

    slow = SlowStore(dsn, clock=time.monotonic)
    slow.meanwhile = go_on
    facts: list[Fact] = []
    keeper = Keeper(lambda: slow, facts.append, heartbeat_s=10.0)
    await keeper._beat(slow, [desk.kept])

    assert beats == 1
    assert [type(fact) for fact in facts] == ([StaleTokenRefused] if case == "running" else [])
    assert desk.book.standing(0) is (Standing.LOST if case == "running" else Standing.HELD)


class DeadStore(PostgresStore):
    async def extend(self, holds: Sequence[Hold]) -> dict[Hold, Verdict]:
        raise StoreUnreachableError("cut", leases=len(holds))


@pytest.mark.requirement("R1.3")
async def test_more_than_three_failed_heartbeats_in_a_row_are_a_warning(
    dsn: str, desk: Desk, store: PostgresStore
) -> None:
    (lease,) = await claimed(store)
    desk.book.claimed(0, lease, now_ns())
    facts: list[Fact] = []
    keeper = Keeper(lambda: DeadStore(dsn, clock=time.monotonic), facts.append, heartbeat_s=10.0)
    keeper.keep(desk.kept)
    keeper.start()
    try:
        await until(lambda: len(facts) >= 5)
    finally:
        await asyncio.to_thread(keeper.stop)

    lines = [line_of(fact) for fact in facts[:5]]
    assert [(line[0], line[1]) for line in lines if line] == [
        *[("info", "HEARTBEAT_FAILED")] * 3,
        *[("warning", "HEARTBEAT_DEGRADED")] * 2,
    ]


async def test_a_worker_that_nobody_kept_stops_believing_in_its_lease_before_it_ends(
    desk: Desk, store: PostgresStore
) -> None:
    (lease,) = await claimed(store)
    sent_ns = now_ns()
    desk.book.claimed(0, lease, sent_ns)

    async with asyncio.timeout(20):
        while desk.book.standing(0) is Standing.HELD:
            await asyncio.sleep(0.005)

    assert (now_ns() - sent_ns) / 1e9 >= LEASE_S * 0.9
    desk.book.claimed(0, lease, now_ns() - int(LEASE_S * 0.95 * 1e9))
    assert desk.book.standing(0) is Standing.LOST


async def test_a_lease_is_never_extended_past_its_deadline(
    dsn: str, held_clock: DatabaseClock, store: PostgresStore
) -> None:
    del dsn
    await store.enqueue([NewJob(task="clip", payload="{}", lease_s=10, timeout_s=15)])
    (lease,) = await store.claim(Ask(worker="w1", token=uuid4(), slots=1, tasks=("clip",)))
    for _ in range(3):
        held_clock.step(4.9)
        await store.extend([Hold(lease.job_id, lease.token)])

    held_clock.step(0.4)
    assert [reaped.job_id for reaped, _ in await store.reap(10, settled)] == [lease.job_id]
