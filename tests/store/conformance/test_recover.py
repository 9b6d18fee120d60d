"""What `reap` and `bury` promise, on every store: no job stays with a worker that is gone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from leasehold.core.decide import Settlement, decide
from leasehold.core.job import Lease, State
from leasehold.core.outcome import Aborted, Crashed, Done, Expired, Outcome
from leasehold.core.policy import Backoff, Policy
from leasehold.store.contract import NEVER_BEGUN, Answer, Hold, Store, Verdict
from tests.databases import HeldClock
from tests.store.conformance.scenes import again, ask, everything, fate, hold, ids, kinds, look_at, new, running


async def lost_once(store: Store, clock: HeldClock, lease: Lease) -> Settlement:
    """Let the lease run out and be recovered."""
    clock.step(lease.lease_s)
    ((reaped, settlement),) = await store.reap(10, fate)
    assert reaped == lease
    return settlement


# --- reap -------------------------------------------------------------------------------------------------------------


async def test_a_lease_is_live_until_its_very_end(store: Store, clock: HeldClock) -> None:
    lease = await running(store, lease_s=30.0)
    clock.step(29.999999)
    before = await everything(store)
    assert await store.reap(10, fate) == []
    assert await everything(store) == before
    clock.step(0.000001)
    assert [reaped.job_id for reaped, _ in await store.reap(10, fate)] == [lease.job_id]


async def test_a_lease_that_was_extended_is_left(store: Store, clock: HeldClock) -> None:
    kept, silent = await running(store), await running(store)
    clock.step(20)
    assert await store.extend([hold(kept)]) == {hold(kept): Verdict.KEPT}
    clock.step(20)
    assert [reaped.job_id for reaped, _ in await store.reap(10, fate)] == [silent.job_id]
    assert (await look_at(store, kept.job_id)).status is State.PROCESSING


@pytest.mark.requirement("R1.5")
async def test_a_lost_job_goes_back_to_wait_with_its_lock_fields_cleared(store: Store, clock: HeldClock) -> None:
    lease = await running(store, lease_s=30.0)
    clock.step(10)
    await store.extend([hold(lease)])
    beat = clock.now
    clock.step(30)
    await store.reap(10, fate)
    job = await look_at(store, lease.job_id)
    assert (job.status, job.attempt_count) == (State.QUEUED, 1)
    assert (job.locked_by, job.lease_expires_at, job.last_heartbeat_at, job.started_at) == (None,) * 4
    assert job.next_earliest_run_at == clock.now + timedelta(seconds=1)
    event = (await store.timeline(lease.job_id))[-1]
    assert (event.kind, event.at, event.attempt, event.epoch) == ("requeued:stale", clock.now, 1, 1)
    assert event.data == {
        "type": "reaper:requeued",
        "table": "lease",
        "reason": "lease_expired",
        "details": {
            "worker": "w1",
            "attempt": 1,
            "delay_s": 1.0,
            "lease_expires_at": clock.now.isoformat(),
            "last_heartbeat_at": beat.isoformat(),
        },
    }


@pytest.mark.requirement("R1.5")
async def test_the_wait_grows_with_every_loss_and_no_loss_is_dispatched_at_once(store: Store, clock: HeldClock) -> None:
    lease = await running(store, max_attempts=9)
    for wait in (1, 30, 120, 600, 600):
        settlement = await lost_once(store, clock, lease)
        assert settlement.delay_s == wait
        assert (await look_at(store, lease.job_id)).next_earliest_run_at == clock.now + timedelta(seconds=wait)
        clock.step(wait - 0.001)
        assert (await store.promote(10), await ids(store, 1)) == (0, [])
        clock.step(0.001)
        assert await store.promote(10) == 1
        lease = await again(store)


@pytest.mark.requirement("R1.5")
async def test_the_waits_after_losses_are_a_table_that_can_be_chosen(store: Store, clock: HeldClock) -> None:
    policy = Policy(loss=Backoff(7, 9, jitter=0))
    lease = await running(store, max_attempts=9)
    for wait in (7, 9, 9):
        clock.step(lease.lease_s)
        await store.reap(1, lambda lost, outcome: decide(lost, outcome, policy, 0.5))
        assert (await store.look()).due_in_s == wait
        clock.step(wait)
        await store.promote(1)
        lease = await again(store)


@pytest.mark.requirement("R1.5")
async def test_a_job_released_by_a_shutdown_is_ready_at_once(store: Store) -> None:
    lease = await running(store)
    await store.settle([fate(lease, Aborted())])
    assert await kinds(store, lease.job_id) == ["created", "processing", "aborted:shutdown", "requeued:stale"]
    assert (await again(store)).job_id == lease.job_id


@pytest.mark.requirement("R1.6")
async def test_a_lost_job_without_attempts_left_fails_for_good(store: Store, clock: HeldClock) -> None:
    lease = await running(store, max_attempts=2)
    await lost_once(store, clock, lease)
    clock.step(1)
    await store.promote(1)
    lease = await again(store)
    beat = clock.now
    await lost_once(store, clock, lease)
    job = await look_at(store, lease.job_id)
    assert (job.status, job.fail_code, job.fail_reason) == (State.FAILED, "timeout", "lease_expired")
    assert (job.locked_by, job.lease_expires_at, job.last_heartbeat_at, job.next_earliest_run_at) == (None,) * 4
    assert (job.attempt_count, job.finished_at) == (2, clock.now)
    assert await kinds(store, lease.job_id) == ["created", "processing", "requeued:stale", "processing", "failed"]
    event = (await store.timeline(lease.job_id))[-1]
    details = {
        "worker": "w1",
        "attempt": 2,
        "lease_expires_at": clock.now.isoformat(),
        "last_heartbeat_at": beat.isoformat(),
    }
    assert (event.data["type"], event.data["table"]) == ("reaper:failed(timeout)", "lease")
    assert (event.data["details"], event.data["by"]) == (details, "reaper")


async def test_at_most_the_limit_is_settled_and_a_second_reap_goes_on(store: Store, clock: HeldClock) -> None:
    job_ids = await store.enqueue([new() for _ in range(5)])
    await store.claim(ask(5))
    clock.step(30)
    first = [lease.job_id for lease, _ in await store.reap(3, fate)]
    assert (await store.counts())[0].processing == 2
    second = [lease.job_id for lease, _ in await store.reap(3, fate)]
    assert (len(first), len(second)) == (3, 2)
    assert sorted(first + second) == job_ids


async def test_reaping_again_changes_nothing(store: Store, clock: HeldClock) -> None:
    lease = await running(store)
    await lost_once(store, clock, lease)
    before = await everything(store)
    assert await store.reap(10, fate) == []
    assert await everything(store) == before


async def test_every_lease_is_settled_as_decide_says_of_expired(store: Store, clock: HeldClock) -> None:
    lease = await running(store)
    asked: list[tuple[Lease, Outcome]] = []

    def all_done(expired: Lease, outcome: Outcome) -> Settlement:
        asked.append((expired, outcome))
        return fate(expired, Done('"as decided"'))

    clock.step(30)
    ((reaped, settlement),) = await store.reap(10, all_done)
    assert [(expired, type(outcome)) for expired, outcome in asked] == [(lease, Expired)]
    assert (reaped, settlement) == (lease, fate(lease, Done('"as decided"')))
    assert (await look_at(store, lease.job_id)).result == "as decided"


class NoFateError(Exception):
    """The test's own."""


async def test_a_decision_that_breaks_leaves_everything_as_it_was(store: Store, clock: HeldClock) -> None:
    await store.enqueue([new() for _ in range(3)])
    leases = await store.claim(ask(3))
    clock.step(30)
    before = await everything(store)

    def breaks(lease: Lease, outcome: Outcome) -> Settlement:
        if lease.job_id == leases[-1].job_id:
            raise NoFateError
        return fate(lease, outcome)

    with pytest.raises(NoFateError):
        await store.reap(10, breaks)
    with pytest.raises(NoFateError):
        await store.bury("w1", {}, breaks)
    assert await everything(store) == before
    assert len(await store.reap(10, fate)) == 3


async def test_a_job_is_suspect_after_two_losses(store: Store, clock: HeldClock) -> None:
    (job_id,) = await store.enqueue([new(max_attempts=9)])
    ranks = []
    for wait in (1, 30, 120):
        settlement = await lost_once(store, clock, await again(store))
        ranks.append(settlement.rank)
        clock.step(wait)
        await store.promote(1)
    assert ranks == [-1, -2, -2]
    assert await ids(store, 1) == [job_id]


# --- bury -------------------------------------------------------------------------------------------------------------


async def test_what_a_dead_worker_holds_is_settled_as_its_fates_say(store: Store, clock: HeldClock) -> None:
    await store.enqueue([new() for _ in range(3)])
    ran, ended, claimed = await store.claim(ask(3, worker="dead"))
    clock.step(1)
    fates: dict[Hold, Outcome] = {hold(ran): Crashed({"signal": 9}), hold(ended): Done("1")}
    buried = await store.bury("dead", fates, fate)
    outcomes = {lease.job_id: outcome for lease, outcome, _ in buried}
    assert outcomes == {
        ran.job_id: Crashed({"signal": 9}),
        ended.job_id: Done("1"),
        claimed.job_id: NEVER_BEGUN,
    }
    jobs = [await look_at(store, lease.job_id) for lease in (ran, ended, claimed)]
    assert [(job.status, job.attempt_count) for job in jobs] == [
        (State.QUEUED, 1),
        (State.DONE, 1),
        (State.QUEUED, 0),
    ]
    assert await kinds(store, ran.job_id) == ["created", "processing", "requeued:stale"]
    assert await kinds(store, claimed.job_id) == ["created", "processing", "released"]
    assert (await store.timeline(claimed.job_id))[-1].data == {"reason": NEVER_BEGUN.reason}


async def test_what_a_dead_worker_never_began_is_ready_at_once(store: Store) -> None:
    lease = await running(store, worker="dead")
    await store.bury("dead", {}, fate)
    assert await ids(store, 1) == [lease.job_id]


async def test_other_workers_are_left_when_one_is_buried(store: Store) -> None:
    dead, living = await running(store, worker="dead"), await running(store, worker="living")
    before = await look_at(store, living.job_id)
    assert [lease for lease, _, _ in await store.bury("dead", {hold(living): Crashed()}, fate)] == [dead]
    assert await look_at(store, living.job_id) == before
    assert await store.settle([fate(living, Done())]) == (Answer.APPLIED,)


async def test_a_fate_with_a_token_that_is_not_current_counts_for_nothing(store: Store, clock: HeldClock) -> None:
    old = await running(store, worker="dead")
    await lost_once(store, clock, old)
    clock.step(1)
    await store.promote(1)
    new_lease = await again(store, worker="dead")
    ((lease, outcome, _),) = await store.bury("dead", {hold(old): Crashed()}, fate)
    assert (lease, outcome) == (new_lease, NEVER_BEGUN)


async def test_burying_again_changes_nothing(store: Store) -> None:
    await running(store, worker="dead")
    await store.bury("dead", {}, fate)
    before = await everything(store)
    assert await store.bury("dead", {}, fate) == []
    assert await everything(store) == before


async def test_a_buried_workers_late_settle_is_lost_whether_its_job_was_begun_or_not(store: Store) -> None:
    await store.enqueue([new(), new()])
    begun, not_begun = await store.claim(ask(2, worker="dead"))
    await store.bury("dead", {hold(begun): Crashed()}, fate)
    assert await store.settle([fate(begun, Done()), fate(not_begun, Done())]) == (Answer.LOST, Answer.LOST)
