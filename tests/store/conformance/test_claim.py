"""What `enqueue`, `claim` and `promote` promise, on every store."""

from __future__ import annotations

import itertools
import json

import pytest

from leasehold.core.errors import StoreError
from leasehold.core.job import State
from leasehold.core.outcome import Aborted, Crashed, Done, Expired, Failed, Released, Snoozed
from leasehold.store.contract import Store
from tests.databases import HeldClock
from tests.store.conformance.scenes import again, ask, everything, fate, hold, ids, kinds, look_at, new, running

# --- enqueue ----------------------------------------------------------------------------------------------------------


async def test_ids_come_back_in_the_order_given(store: Store) -> None:
    jobs = [new(payload=json.dumps({"n": n}), delay_s=n % 3, priority=n % 5) for n in range(20)]
    job_ids = await store.enqueue(jobs)
    assert [json.loads((await look_at(store, job_id)).payload) for job_id in job_ids] == [{"n": n} for n in range(20)]


async def test_no_jobs_are_enqueued_as_no_jobs(store: Store) -> None:
    assert await store.enqueue([]) == []


async def test_new_jobs_are_written_all_or_none(store: Store) -> None:
    before = await everything(store)
    with pytest.raises(StoreError):
        await store.enqueue([new(), new(payload="{torn"), new()])
    assert await everything(store) == before


async def test_a_job_carries_what_was_asked_for(store: Store, clock: HeldClock) -> None:
    asked = new("render", queue="media", priority=7, max_attempts=5, lease_s=12.5, timeout_s=90.0, payload='{"a": [1]}')
    (job_id,) = await store.enqueue([asked])
    job = await look_at(store, job_id)
    assert (job.task, job.queue, job.priority, job.max_attempts) == ("render", "media", 7, 5)
    assert (job.status, job.attempt_count, job.created_at) == (State.QUEUED, 0, clock.now)
    (lease,) = await store.claim(ask(tasks=("render",)))
    assert (lease.lease_s, lease.timeout_s, lease.max_attempts, lease.priority) == (12.5, 90.0, 5, 7)
    assert json.loads(lease.payload) == {"a": [1]}
    assert (lease.created_at, lease.started_at) == (clock.now, clock.now)


@pytest.mark.parametrize("count", [1, 3])
async def test_a_job_without_a_timeout_has_none(store: Store, count: int) -> None:
    await store.enqueue([new(timeout_s=None)] * count)
    assert [lease.timeout_s for lease in await store.claim(ask(count))] == [None] * count


# --- claim ------------------------------------------------------------------------------------------------------------


async def test_at_most_the_asked_slots_are_taken(store: Store) -> None:
    await store.enqueue([new() for _ in range(5)])
    assert len(await store.claim(ask(3))) == 3
    assert len(await store.claim(ask(3))) == 2
    assert await store.claim(ask(3)) == ()


async def test_a_job_is_given_to_one_worker_only(store: Store) -> None:
    job_ids = await store.enqueue([new() for _ in range(6)])
    first = await ids(store, 4, worker="w1")
    second = await ids(store, 4, worker="w2")
    assert sorted(first + second) == job_ids


async def test_jobs_of_one_lane_are_taken_in_the_order_in_which_they_became_due(store: Store, clock: HeldClock) -> None:
    late, soon, sooner = await store.enqueue([new(delay_s=9), new(delay_s=5), new(delay_s=3)])
    (now,) = await store.enqueue([new()])
    clock.step(10)
    await store.promote(10)
    assert await ids(store, 10) == [now, sooner, soon, late]


async def test_higher_priority_is_taken_first(store: Store) -> None:
    low, high, middle = await store.enqueue([new(priority=-100), new(priority=100), new(priority=0)])
    assert [await ids(store, 1) for _ in range(3)] == [[high], [middle], [low]]


async def test_a_job_that_is_not_due_is_left(store: Store, clock: HeldClock) -> None:
    (job_id,) = await store.enqueue([new(delay_s=5)])
    clock.step(4.999)
    assert await store.promote(10) == 0
    assert await ids(store, 1) == []
    clock.step(0.001)
    assert await store.promote(10) == 1
    assert await ids(store, 1) == [job_id]


async def test_a_job_whose_task_the_worker_does_not_know_is_left(store: Store) -> None:
    unknown, known = await store.enqueue([new("burn"), new("clip")])
    before = await look_at(store, unknown)
    assert await ids(store, 10, tasks=("clip", "asr")) == [known]
    assert await look_at(store, unknown) == before
    assert await ids(store, 10, tasks=("burn",)) == [unknown]


async def test_only_the_queues_asked_for_are_claimed(store: Store) -> None:
    media, mail, other = await store.enqueue([new(queue=queue) for queue in ("media", "mail", "other")])
    assert sorted(await ids(store, 10, queues=("media", "mail"))) == [media, mail]
    assert await ids(store, 10, queues=()) == []
    assert await ids(store, 10) == [other]


async def test_an_attempt_counts_when_it_is_claimed(store: Store, clock: HeldClock) -> None:
    lease = await running(store)
    assert (lease.attempt, lease.epoch, lease.losses) == (1, 1, 0)
    assert (await look_at(store, lease.job_id)).attempt_count == 1
    clock.step(30)
    await store.reap(1, fate)
    clock.step(1)
    await store.promote(1)
    lease = await again(store)
    assert (lease.attempt, lease.epoch, lease.losses) == (2, 2, 1)


@pytest.mark.parametrize("lease_s", [0.5, 30.0, 600.0])
async def test_a_lease_ends_its_own_length_after_the_claim(store: Store, clock: HeldClock, lease_s: float) -> None:
    clock.step(100)
    lease = await running(store, lease_s=lease_s)
    job = await look_at(store, lease.job_id)
    assert job.lease_expires_at is not None
    assert (job.lease_expires_at - clock.now).total_seconds() == lease_s
    assert (job.status, job.locked_by, job.last_heartbeat_at) == (State.PROCESSING, "w1", clock.now)
    assert (job.started_at, job.next_earliest_run_at) == (clock.now, None)


async def test_a_lease_carries_the_token_of_its_ask(store: Store) -> None:
    await store.enqueue([new(), new(), new()])
    asked = ask(2)
    both = await store.claim(asked)
    (third,) = await store.claim(ask(2))
    assert [lease.token for lease in both] == [asked.token, asked.token]
    assert third.token != asked.token


async def test_the_epoch_always_grows_and_is_never_handed_back(store: Store) -> None:
    await store.enqueue([new()])
    told = []
    for outcome in (Aborted(), Released("not begun"), Snoozed(0), Aborted()):
        lease = await again(store)
        told.append((lease.epoch, lease.attempt))
        await store.settle([fate(lease, outcome)])
    assert told == [(1, 1), (2, 1), (3, 1), (4, 1)]


async def test_a_claim_is_told_with_its_worker_attempt_and_epoch(store: Store, clock: HeldClock) -> None:
    (job_id,) = await store.enqueue([new(queue="media")])
    clock.step(3)
    await store.claim(ask(worker="host:7"))
    created, processing = await store.timeline(job_id)
    assert (created.kind, created.attempt, created.epoch) == ("created", 0, 0)
    assert created.data == {"queue": "media", "task": "clip"}
    assert (processing.kind, processing.attempt, processing.epoch) == ("processing", 1, 1)
    assert (processing.data, processing.at) == ({"worker": "host:7"}, clock.now)


# --- recovered and fresh ----------------------------------------------------------------------------------------------


async def returned(store: Store, count: int) -> list[int]:
    """Jobs that came back, and wait."""
    await store.enqueue([new() for _ in range(count)])
    leases = await store.claim(ask(count))
    await store.settle([fate(lease, Aborted()) for lease in leases])
    return [lease.job_id for lease in leases]


@pytest.mark.parametrize("slots, half", [(2, 1), (3, 2), (4, 2), (7, 4)])
async def test_recovered_jobs_come_first_with_at_most_half_of_the_slots_while_fresh_ones_wait(
    store: Store, slots: int, half: int
) -> None:
    recovered = await returned(store, 10)
    fresh = await store.enqueue([new() for _ in range(10)])
    taken = await ids(store, slots)
    assert set(taken[:half]) <= set(recovered)
    assert set(taken[half:]) <= set(fresh)
    assert len(taken) == slots


async def test_recovered_jobs_take_all_slots_when_nothing_fresh_waits(store: Store) -> None:
    recovered = await returned(store, 5)
    assert sorted(await ids(store, 5)) == recovered


async def test_with_one_slot_recovered_and_fresh_take_turns(store: Store) -> None:
    recovered = await returned(store, 3)
    await store.enqueue([new() for _ in range(3)])
    turns = [job_id in recovered for _ in range(6) for job_id in await ids(store, 1)]
    assert sum(turns) == 3
    assert all(one != other for one, other in itertools.pairwise(turns))


async def test_a_recovered_job_of_low_priority_comes_before_fresh_ones_of_high_priority(store: Store) -> None:
    recovered = await running(store, priority=-50)
    await store.settle([fate(recovered, Aborted())])
    await store.enqueue([new(priority=50) for _ in range(3)])
    assert recovered.job_id in await ids(store, 2)


async def test_suspects_come_before_other_recovered_jobs(store: Store, clock: HeldClock) -> None:
    suspect, other = await store.enqueue([new(max_attempts=2), new(max_attempts=9)])
    leases = await store.claim(ask(2))
    assert await store.bury("w1", {hold(lease): Crashed() for lease in leases}, fate)
    clock.step(1)
    await store.promote(10)
    assert await ids(store, 1) == [suspect]
    assert await ids(store, 1) == [other]


# --- promote ----------------------------------------------------------------------------------------------------------


async def test_promote_moves_at_most_its_limit_the_longest_due_first(store: Store, clock: HeldClock) -> None:
    delays = [3, 1, 4, 2]
    job_ids = await store.enqueue([new(delay_s=delay) for delay in delays])
    by_delay = [job_id for _, job_id in sorted(zip(delays, job_ids, strict=True))]
    clock.step(10)
    assert await store.promote(3) == 3
    assert await ids(store, 10) == by_delay[:3]
    assert await store.promote(3) == 1
    assert await ids(store, 10) == by_delay[3:]
    assert await store.promote(3) == 0


async def test_promote_leaves_what_a_job_carries(store: Store, clock: HeldClock) -> None:
    lease = await running(store, max_attempts=5)
    await store.settle([fate(lease, Failed("E", "why", retryable=True))])
    clock.step(30)
    before = await look_at(store, lease.job_id)
    assert await store.promote(10) == 1
    after = await look_at(store, lease.job_id)
    assert (after.attempt_count, after.status) == (before.attempt_count, before.status) == (1, State.QUEUED)
    second = await again(store)
    assert (second.attempt, second.epoch) == (2, 2)


async def test_promote_writes_no_event(store: Store, clock: HeldClock) -> None:
    (job_id,) = await store.enqueue([new(delay_s=1)])
    clock.step(1)
    await store.promote(1)
    assert await kinds(store, job_id) == ["created"]


async def test_a_job_that_ended_is_never_claimed_again(store: Store, clock: HeldClock) -> None:
    done, failed = await running(store), await running(store)
    await store.settle([fate(done, Done()), fate(failed, Failed("F", "no", retryable=False))])
    clock.step(100_000)
    assert await store.promote(10) == 0
    assert await store.reap(10, fate) == []
    assert await ids(store, 10) == []


async def test_a_job_that_returns_stands_behind_those_of_its_lane(store: Store) -> None:
    both = await returned(store, 2)
    lease = await again(store)
    await store.settle([fate(lease, Released("again"))])
    (other,) = {*both} - {lease.job_id}
    assert await ids(store, 2) == [other, lease.job_id]


async def test_a_job_lost_with_no_attempt_left_never_returns(store: Store, clock: HeldClock) -> None:
    lease = await running(store, max_attempts=1)
    await store.settle([fate(lease, Expired())])
    clock.step(100_000)
    assert await store.promote(10) == 0
    assert await ids(store, 10) == []
