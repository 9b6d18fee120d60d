"""What `extend` and `progress` promise, on every store: a lease is kept by who holds it, and by nobody else."""

from __future__ import annotations

from uuid import uuid4

import pytest

from leasehold.core.outcome import Aborted, Done
from leasehold.store.contract import Hold, Store, Verdict
from tests.databases import HeldClock
from tests.store.conformance.scenes import again, ask, everything, fate, hold, look_at, new, running


async def test_a_lease_that_is_still_held_is_extended_by_its_own_length(store: Store, clock: HeldClock) -> None:
    lease = await running(store, lease_s=20.0)
    clock.step(7)
    assert await store.extend([hold(lease)]) == {hold(lease): Verdict.KEPT}
    job = await look_at(store, lease.job_id)
    assert job.last_heartbeat_at == clock.now
    assert job.lease_expires_at is not None
    assert (job.lease_expires_at - clock.now).total_seconds() == 20


async def test_a_lease_is_never_extended_past_its_deadline(store: Store, clock: HeldClock) -> None:
    lease = await running(store, lease_s=30.0, timeout_s=50.0)
    for _ in range(4):
        clock.step(15)
        assert await store.extend([hold(lease)]) == {hold(lease): Verdict.KEPT}
        job = await look_at(store, lease.job_id)
        assert job.lease_expires_at is not None
        assert (job.lease_expires_at - lease.started_at).total_seconds() <= 50
    assert [reaped.job_id for reaped, _ in await store.reap(10, fate)] == [lease.job_id]


async def test_a_lease_without_a_timeout_is_extended_for_ever(store: Store, clock: HeldClock) -> None:
    lease = await running(store, lease_s=30.0, timeout_s=None)
    clock.step(1_000_000)
    assert await store.extend([hold(lease)]) == {hold(lease): Verdict.KEPT}
    assert await store.reap(10, fate) == []


async def test_a_beat_never_shortens_a_lease(store: Store, clock: HeldClock) -> None:
    lease = await running(store, lease_s=30.0, timeout_s=10.0)
    before = (await look_at(store, lease.job_id)).lease_expires_at
    clock.step(5)
    await store.extend([hold(lease)])
    assert (await look_at(store, lease.job_id)).lease_expires_at == before


async def test_a_lease_that_ran_out_but_was_not_recovered_is_still_held(store: Store, clock: HeldClock) -> None:
    lease = await running(store, lease_s=30.0)
    clock.step(31)
    assert await store.extend([hold(lease)]) == {hold(lease): Verdict.KEPT}
    assert await store.reap(10, fate) == []


async def test_a_lease_that_is_gone_is_lost_and_stays_untouched(store: Store) -> None:
    ended, returned = await running(store), await running(store)
    await store.settle([fate(ended, Done()), fate(returned, Aborted())])
    before = await everything(store)
    gone = [hold(ended), hold(returned), Hold(10**12, uuid4())]
    assert await store.extend(gone) == dict.fromkeys(gone, Verdict.LOST)
    assert await everything(store) == before


async def test_a_lease_that_is_anothers_is_lost_and_stays_untouched(store: Store, clock: HeldClock) -> None:
    stale = await running(store, lease_s=30.0)
    clock.step(30)
    await store.reap(1, fate)
    clock.step(1)
    await store.promote(1)
    live = await again(store, worker="w2")
    clock.step(5)
    before = await everything(store)
    assert await store.extend([hold(stale)]) == {hold(stale): Verdict.LOST}
    assert await everything(store) == before
    assert await store.extend([hold(stale), hold(live)]) == {hold(stale): Verdict.LOST, hold(live): Verdict.KEPT}


async def test_the_right_token_of_another_job_keeps_nothing(store: Store, clock: HeldClock) -> None:
    one, other = await running(store), await running(store)
    clock.step(5)
    before = await everything(store)
    crossed = [Hold(one.job_id, other.token), Hold(other.job_id, one.token)]
    assert set((await store.extend(crossed)).values()) == {Verdict.LOST}
    assert await everything(store) == before


async def test_one_beat_carries_many_leases(store: Store, clock: HeldClock) -> None:
    await store.enqueue([new() for _ in range(50)])
    leases = await store.claim(ask(50))
    clock.step(10)
    holds = [hold(lease) for lease in leases]
    assert await store.extend(holds) == dict.fromkeys(holds, Verdict.KEPT)
    assert (await store.look()).expiry_in_s == 30


async def test_a_beat_for_nothing_is_answered_with_nothing(store: Store) -> None:
    assert await store.extend([]) == {}


# --- progress ---------------------------------------------------------------------------------------------------------


async def test_progress_of_a_held_job_is_stored_and_told(store: Store, clock: HeldClock) -> None:
    lease = await running(store)
    clock.step(2)
    assert await store.progress(hold(lease), 40, "cutting")
    clock.step(2)
    assert await store.progress(hold(lease), 80, None)
    job = await look_at(store, lease.job_id)
    assert (job.progress, job.progress_note) == (80, None)
    told = [event for event in await store.timeline(lease.job_id) if event.kind == "progress"]
    assert [event.data for event in told] == [{"pct": 40, "note": "cutting"}, {"pct": 80, "note": None}]
    assert [(event.attempt, event.epoch) for event in told] == [(1, 1), (1, 1)]


async def test_progress_reported_in_one_instant_is_told_in_its_order(store: Store) -> None:
    lease = await running(store)
    for pct in (10, 90, 20):
        await store.progress(hold(lease), pct, None)
    told = [event.data["pct"] for event in await store.timeline(lease.job_id) if event.kind == "progress"]
    assert told == [10, 90, 20]


async def test_progress_of_a_lost_lease_changes_nothing(store: Store) -> None:
    ended, other = await running(store), await running(store)
    await store.settle([fate(ended, Done())])
    before = await everything(store)
    for lost in (hold(ended), Hold(other.job_id, ended.token), Hold(other.job_id, uuid4()), Hold(10**12, other.token)):
        assert not await store.progress(lost, 50, "late")
    assert await everything(store) == before


@pytest.mark.parametrize("outcome, kept", [(Done(), 60), (Aborted(), None)])
async def test_progress_outlives_the_job_but_not_the_attempt(
    store: Store, outcome: Done | Aborted, kept: int | None
) -> None:
    lease = await running(store)
    await store.progress(hold(lease), 60, "note")
    await store.settle([fate(lease, outcome)])
    job = await look_at(store, lease.job_id)
    assert (job.progress, job.progress_note) == (kept, None)
