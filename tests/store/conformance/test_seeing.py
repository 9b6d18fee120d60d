"""What `look`, `get`, `find`, `timeline` and `counts` promise, on every store."""

from __future__ import annotations

from leasehold.core.job import State
from leasehold.core.outcome import Cancelled, Done, Failed, Outcome, Snoozed
from leasehold.store.contract import Look, QueueCounts, Store
from tests.databases import HeldClock
from tests.store.conformance.scenes import ask, fate, hold, kinds, look_at, new, running


async def test_a_look_at_an_empty_store_awaits_nothing(store: Store) -> None:
    assert await store.look() == Look(None, None)


async def test_a_look_says_when_the_next_job_becomes_due(store: Store, clock: HeldClock) -> None:
    await store.enqueue([new(delay_s=50), new(delay_s=20.5), new()])
    assert await store.look() == Look(20.5, None)
    clock.step(25)
    assert await store.look() == Look(-4.5, None)


async def test_a_look_says_when_the_earliest_lease_of_anybody_ends(store: Store, clock: HeldClock) -> None:
    first = await running(store, worker="w1", lease_s=30.0)
    clock.step(5)
    await running(store, worker="w2", lease_s=27.0)
    assert await store.look() == Look(None, 25)
    await store.extend([hold(first)])
    assert await store.look() == Look(None, 27)


async def test_a_job_that_never_was_is_nobody(store: Store) -> None:
    assert await store.get(10**12) is None
    assert await store.timeline(10**12) == []


async def test_a_job_can_be_seen_in_every_state(store: Store, clock: HeldClock) -> None:
    leases = [await running(store) for _ in range(4)]
    outcomes: tuple[Outcome, ...] = (Done(), Failed("F", "no", retryable=False), Cancelled(), Snoozed(9))
    await store.settle([fate(lease, outcome) for lease, outcome in zip(leases, outcomes, strict=True)])
    held = await running(store)
    (delayed,) = await store.enqueue([new(delay_s=60)])
    seen = [(await look_at(store, lease.job_id)).status for lease in (*leases, held)]
    assert seen == [State.DONE, State.FAILED, State.CANCELLED, State.QUEUED, State.PROCESSING]
    assert ((await look_at(store, delayed)).next_earliest_run_at or clock.now).minute == 1


async def test_the_newest_jobs_are_found_first(store: Store) -> None:
    job_ids = await store.enqueue([new() for _ in range(5)])
    assert [job.id for job in await store.find(limit=3)] == job_ids[:1:-1]
    assert [job.id for job in await store.find()] == job_ids[::-1]


async def test_jobs_are_found_by_status_and_queue(store: Store) -> None:
    mail = await running(store, queue="mail")
    (media,) = await store.enqueue([new(queue="media")])
    assert [job.id for job in await store.find(status=State.PROCESSING)] == [mail.job_id]
    assert [job.id for job in await store.find(queue="media")] == [media]
    assert await store.find(status=State.PROCESSING, queue="media") == []
    assert await store.find(status=State.DONE) == []


async def test_what_is_found_is_what_is_got(store: Store) -> None:
    lease = await running(store)
    await store.progress(hold(lease), 10, "note")
    await store.enqueue([new(delay_s=3)])
    for job in await store.find():
        assert await store.get(job.id) == job


async def test_a_timeline_is_told_in_the_order_in_which_it_happened(store: Store, clock: HeldClock) -> None:
    lease = await running(store)
    for _ in range(2):
        clock.step(1)
        await store.progress(hold(lease), 50, None)
    clock.step(1)
    await store.settle([fate(lease, Done())])
    timeline = await store.timeline(lease.job_id)
    assert await kinds(store, lease.job_id) == ["created", "processing", "progress", "progress", "done"]
    assert [event.at for event in timeline] == sorted(event.at for event in timeline)
    assert {event.job_id for event in timeline} == {lease.job_id}


async def test_jobs_are_counted_queue_by_queue_and_by_where_they_stand(store: Store) -> None:
    assert await store.counts() == []
    failed, done = await running(store, queue="mail"), await running(store, queue="mail")
    await store.settle([fate(failed, Failed("F", "no", retryable=False)), fate(done, Done())])
    await store.enqueue([new(queue="mail", delay_s=5), new(queue="mail"), new(queue="mail")])
    await store.enqueue([new("asr", queue="media"), new("asr", queue="media")])
    await store.claim(ask(1, tasks=("asr",)))
    assert await store.counts() == [QueueCounts("mail", 2, 1, 0, 1), QueueCounts("media", 1, 0, 1, 0)]


async def test_a_queue_whose_jobs_all_succeeded_is_not_counted(store: Store) -> None:
    lease = await running(store)
    await store.settle([fate(lease, Done())])
    assert await store.counts() == []
