"""The worker's loop, on the memory store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from leasehold.app.app import App
from leasehold.core.decide import Settlement
from leasehold.core.errors import StoreError, StoreUnreachableError
from leasehold.core.facts import JobEnded, JobStarted, LateClaim, LeaseLost, StaleTokenRefused, StoreFailed
from leasehold.core.job import State
from leasehold.core.settings import Settings
from leasehold.runtime.book import Standing
from leasehold.runtime.context import Job
from leasehold.store.contract import Answer, Ask, Cycle, Hold
from leasehold.store.memory import MemoryStore
from tests.runtime.scenes import PaperBook, Works, enqueue
from tests.store.conformance.scenes import ask


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=lambda: datetime.now(UTC))


@pytest.fixture
def app() -> App:
    return App(settings=Settings())


async def test_a_job_is_written_into_the_book_before_and_after_every_step(app: App, store: MemoryStore) -> None:
    seen: list[list[str]] = []
    book = PaperBook()

    @app.task
    async def clip() -> None:
        seen.append(book.order())

    (job_id,) = await enqueue(store, "clip")
    async with Works(app, store, book) as works:
        await works.until(JobEnded)

    assert seen == [["claimed", "running"]]
    assert book.order() == ["claimed", "running", "ended", "empty"]
    assert (await status(store, job_id)) is State.DONE


async def test_a_claim_that_was_answered_too_late_is_released_unrun(app: App, store: MemoryStore) -> None:
    starts: list[int] = []

    @app.task(lease="30s")
    async def clip(job: Job) -> None:
        starts.append(job.epoch)

    (job_id,) = await enqueue(store, "clip")
    slow = PaperBook(delays_ns=[0, 10_000_000_001])  # sent at 0, read when a third of the lease had gone
    async with Works(app, store, slow) as works:
        await works.until(JobEnded, 2)

    assert [fact.jobs for fact in works.of(LateClaim)] == [1]
    assert starts == [2]
    assert await kinds(store, job_id) == ["created", "processing", "released", "processing", "done"]
    assert slow.order()[:3] == ["claimed", "ended", "empty"]
    job = await store.get(job_id)
    assert job is not None
    assert job.attempt_count == 1


async def test_an_undecodable_payload_is_dead_in_one_attempt_and_its_neighbours_run(
    app: App, store: MemoryStore
) -> None:
    @app.task
    async def greet(name: str) -> str:
        return name

    good = await enqueue(store, *["greet"] * 5, payload='{"name": "Ada"}')
    (bad,) = await enqueue(store, "greet", payload='{"nom": "Ada"}')
    async with Works(app, store) as works:
        await works.until(JobEnded, 6)

    assert {await status(store, job_id) for job_id in good} == {State.DONE}
    job = await store.get(bad)
    assert job is not None
    assert (job.status, job.fail_code, job.attempt_count) == (State.FAILED, "payload_undecodable", 1)


async def test_a_handler_that_stops_for_its_lost_lease_offers_nothing_and_is_charged_by_who_recovers_it(
    app: App, store: MemoryStore
) -> None:
    begun = asyncio.Event()

    @app.task
    async def clip(job: Job) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            assert job.lost

    (job_id,) = await enqueue(store, "clip")
    async with Works(app, store) as works:
        await begun.wait()
        works.book.standings[0] = Standing.LOST  # by its own clock: in the store the lease still stands
        await works.until(LeaseLost)

    job = await store.get(job_id)
    assert job is not None
    assert (job.status, job.attempt_count) == (State.PROCESSING, 1)
    assert works.book.order() == ["claimed", "running", "empty"]


async def test_what_a_handler_offers_in_spite_of_its_lost_lease_is_decided_by_the_store(
    app: App, store: MemoryStore
) -> None:
    begun = asyncio.Event()

    @app.task
    async def stubborn(job: Job) -> str:
        if job.epoch > 1:
            return "second"
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "first"
        return "slept"

    (job_id,) = await enqueue(store, "stubborn")
    async with Works(app, store) as works:
        await begun.wait()
        await store.bury("w1", {}, works.worker.decide)
        works.book.standings[0] = Standing.LOST
        (refused,) = await works.until(StaleTokenRefused)
        works.book.standings.clear()
        await works.until(JobEnded)

    assert (refused.job_id, refused.what) == (job_id, "settle")
    job = await store.get(job_id)
    assert job is not None
    assert job.result == "second"


class Unreliable(MemoryStore):
    """A store whose replies get lost: the work is done, the answer is an error."""

    lost = 3

    async def settle_and_claim(self, settlements: Sequence[Settlement], ask: Ask) -> Cycle:
        cycle = await super().settle_and_claim(settlements, Ask(worker=ask.worker, token=ask.token, slots=1, tasks=()))
        if self.lost:
            self.lost -= 1
            raise StoreUnreachableError("the reply was lost")
        return cycle


async def test_a_settle_whose_reply_was_lost_is_repeated_and_counts_once(app: App) -> None:
    @app.task
    async def clip() -> None: ...

    store = Unreliable(clock=lambda: datetime.now(UTC))
    (job_id,) = await enqueue(store, "clip")
    async with Works(app, store) as works:
        await works.until(JobEnded)

    assert len(works.of(StoreFailed)) == 3
    assert len(works.of(JobEnded)) == 1
    assert works.of(StaleTokenRefused) == []
    assert await kinds(store, job_id) == ["created", "processing", "done"]


class Squeamish(MemoryStore):
    """A store that cannot take one kind of result, and refuses the whole batch that carries it."""

    async def settle(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        if any(settlement.result == '"poison"' for settlement in settlements):
            raise StoreError("cannot be stored")
        return await super().settle(settlements)


async def test_a_result_that_the_database_refuses_costs_no_other_job(app: App) -> None:
    ready = asyncio.Barrier(2)

    @app.task
    async def give(what: str) -> str:
        await ready.wait()
        return what

    store = Squeamish(clock=lambda: datetime.now(UTC))
    (bad,) = await enqueue(store, "give", payload='{"what": "poison"}')
    (good,) = await enqueue(store, "give", payload='{"what": "honey"}')
    async with Works(app, store) as works:
        await works.until(JobEnded, 2)

    assert await status(store, good) is State.DONE
    job = await store.get(bad)
    assert job is not None
    assert (job.status, job.fail_code) == (State.FAILED, "outcome_unstorable")


async def test_nothing_is_told_that_the_store_did_not_apply(app: App, store: MemoryStore) -> None:
    @app.task
    async def clip() -> None: ...

    await enqueue(store, *["clip"] * 20)
    async with Works(app, store) as works:
        ended = await works.until(JobEnded, 20)

    assert sorted(fact.lease.job_id for fact in ended) == list(range(1, 21))


async def test_no_more_runs_at_once_than_there_are_slots(app: App, store: MemoryStore) -> None:
    running: list[int] = []
    most = 0

    @app.task
    async def clip(job: Job) -> None:
        nonlocal most
        running.append(job.id)
        most = max(most, len(running))
        await asyncio.sleep(0.005)
        running.remove(job.id)

    await enqueue(store, *["clip"] * 30)
    async with Works(app, store, concurrency=3) as works:
        await works.until(JobEnded, 30)

    assert most == 3


async def test_a_worker_that_was_told_to_stop_before_it_began_takes_nothing(app: App, store: MemoryStore) -> None:
    @app.task
    async def clip() -> None: ...

    (job_id,) = await enqueue(store, "clip")
    works = Works(app, store)
    works.worker.stop()
    async with works:
        await works.running

    assert await status(store, job_id) is State.QUEUED


async def test_a_worker_recovers_what_expired_before_it_came(app: App) -> None:
    now = datetime.now(UTC)
    times = [now]
    store = MemoryStore(clock=lambda: times[-1])

    @app.task
    async def clip() -> None: ...

    (job_id,) = await enqueue(store, "clip", lease_s=1.0)
    await store.claim(ask())
    times.append(datetime.fromtimestamp(now.timestamp() + 5, UTC))
    async with Works(app, store) as works:
        await asyncio.sleep(0.05)
        times.append(datetime.fromtimestamp(now.timestamp() + 10, UTC))
        await works.until(JobEnded)

    assert await kinds(store, job_id) == ["created", "processing", "requeued:stale", "processing", "done"]


async def test_a_handler_is_cancelled_at_the_shutdown_so_that_it_can_clear_up(app: App, store: MemoryStore) -> None:
    cleared = asyncio.Event()

    @app.task
    async def clip() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleared.set()

    (job_id,) = await enqueue(store, "clip")
    async with Works(app, store, shutdown_s=0.4) as works:
        await works.until(JobStarted)

    assert cleared.is_set()
    assert await kinds(store, job_id) == ["created", "processing", "aborted:shutdown", "requeued:stale"]


async def test_a_handler_that_will_not_be_cancelled_is_abandoned_and_its_job_handed_back(
    app: App, store: MemoryStore
) -> None:
    let_go = asyncio.Event()

    @app.task
    async def clip() -> None:
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()

    (job_id,) = await enqueue(store, "clip")
    try:
        async with Works(app, store, shutdown_s=0.4) as works:
            await works.until(JobStarted)
    finally:
        let_go.set()

    assert await kinds(store, job_id) == ["created", "processing", "aborted:shutdown", "requeued:stale"]


class SlowToTell(MemoryStore):
    """A store that takes its time with progress."""

    async def progress(self, hold: Hold, pct: int, note: str | None) -> bool:
        await asyncio.sleep(0.05)
        return await super().progress(hold, pct, note)


async def test_the_last_progress_is_told_before_the_end(app: App) -> None:
    @app.task
    async def clip(job: Job) -> None:
        job.progress(50)
        job.progress(100)

    store = SlowToTell(clock=lambda: datetime.now(UTC))
    (job_id,) = await enqueue(store, "clip")
    async with Works(app, store) as works:
        await works.until(JobEnded)

    assert await kinds(store, job_id) == ["created", "processing", "progress", "progress", "done"]
    assert works.of(StaleTokenRefused) == []


async def test_a_thread_that_does_not_end_is_abandoned_at_the_shutdown_and_its_job_handed_back(
    app: App, store: MemoryStore
) -> None:
    release = asyncio.Event()

    @app.task
    def stubborn(job: Job) -> None:
        job.lost.wait(2)
        release.is_set()

    (job_id,) = await enqueue(store, "stubborn")
    async with Works(app, store, shutdown_s=0.2) as works:
        await works.until(JobStarted)

    assert await kinds(store, job_id) == ["created", "processing", "aborted:shutdown", "requeued:stale"]


async def status(store: MemoryStore, job_id: int) -> Any:
    job = await store.get(job_id)
    return job.status if job else None


async def kinds(store: MemoryStore, job_id: int) -> list[str]:
    return [event.kind for event in await store.timeline(job_id)]
