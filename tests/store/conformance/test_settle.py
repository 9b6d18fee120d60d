"""What `settle` and `settle_and_claim` promise, on every store: every outcome, every answer, every timeline."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from leasehold.core.job import Lease, State
from leasehold.core.outcome import (
    Aborted,
    By,
    Cancelled,
    Checkpointed,
    Crashed,
    Done,
    Expired,
    Failed,
    Outcome,
    Released,
    Snoozed,
    TimedOut,
)
from leasehold.store.contract import Answer, Cycle, Store
from tests.databases import HeldClock
from tests.store.conformance.scenes import again, ask, everything, fate, hold, ids, kinds, look_at, new, running

TRANSIENT = Failed("IO", "disk was busy", retryable=True, error={"type": "OSError"})
FATAL = Failed("INPUT_TOO_LARGE", "5 GiB", retryable=False)
LOST_EVIDENCE = {"worker": "w1", "attempt": 1}


# --- every outcome that ends a job ------------------------------------------------------------------------------------

ENDS: list[tuple[Outcome, str, str | None, str | None, dict[str, Any]]] = [
    (Done('{"n": 1}'), "done", None, None, {"by": "worker"}),
    (Cancelled("not wanted"), "cancelled", None, "not wanted", {"by": "worker", "reason": "not wanted"}),
    (Cancelled(), "cancelled", None, None, {"by": "worker"}),
    (
        FATAL,
        "failed",
        "INPUT_TOO_LARGE",
        "5 GiB",
        {"by": "worker", "error": {"code": "INPUT_TOO_LARGE", "reason": "5 GiB"}},
    ),
    (
        TRANSIENT,
        "failed",
        "RETRIES_EXHAUSTED",
        "disk was busy",
        {"by": "worker", "error": {"code": "IO", "reason": "disk was busy", "type": "OSError"}},
    ),
    (
        TimedOut(5.0),
        "failed",
        "RETRIES_EXHAUSTED",
        "execution_timeout",
        {
            "by": "worker",
            "error": {"code": "execution_timeout", "reason": "execution_timeout", "after_s": 5.0},
        },
    ),
    (
        Crashed({"signal": 9}),
        "failed",
        "worker_lost",
        "worker_lost",
        {
            "by": "supervisor",
            "type": "supervisor:failed(worker_lost)",
            "table": "lease",
            "details": {**LOST_EVIDENCE, "signal": 9},
        },
    ),
    (
        Expired({"silent_s": 30}),
        "failed",
        "timeout",
        "lease_expired",
        {
            "by": "reaper",
            "type": "reaper:failed(timeout)",
            "table": "lease",
            "details": {**LOST_EVIDENCE, "silent_s": 30},
        },
    ),
]


@pytest.mark.parametrize("outcome, status, code, reason, told", ENDS, ids=lambda value: type(value).__name__)
async def test_an_outcome_that_ends_the_job_is_written_with_its_timeline(  # noqa: PLR0913, PLR0917 - a row of the table
    store: Store,
    clock: HeldClock,
    outcome: Outcome,
    status: str,
    code: str | None,
    reason: str | None,
    told: dict[str, Any],
) -> None:
    lease = await running(store, max_attempts=1)
    clock.step(5)
    assert await store.settle([fate(lease, outcome)]) == (Answer.APPLIED,)
    job = await look_at(store, lease.job_id)
    assert (job.status, job.fail_code, job.fail_reason) == (status, code, reason)
    assert (job.started_at, job.finished_at) == (lease.started_at, clock.now)
    assert (job.locked_by, job.lease_expires_at, job.last_heartbeat_at, job.next_earliest_run_at) == (None,) * 4
    assert job.attempt_count == 1
    assert await kinds(store, lease.job_id) == ["created", "processing", status]
    end = (await store.timeline(lease.job_id))[-1]
    assert (end.at, end.attempt, end.epoch) == (clock.now, 1, 1)
    assert end.data == told | ({"code": code, "reason": reason} if code else {})


@pytest.mark.parametrize("text", [None, "null", "0", '""', '{"a": [1.5, null, "é"]}', "[]", "1.5e-7"])
async def test_a_result_comes_back_as_it_was_written(store: Store, text: str | None) -> None:
    lease = await running(store)
    await store.settle([fate(lease, Done(text))])
    assert (await look_at(store, lease.job_id)).result == (None if text is None else json.loads(text))


async def test_an_error_comes_back_as_it_was_written(store: Store) -> None:
    lease = await running(store)
    error = {"type": "E", "trace": ["a", "b"], "status": 500, "ratio": 0.25, "nothing": None}
    await store.settle([fate(lease, Failed("C", "why", retryable=False, error=error))])
    written = {"code": "C", "reason": "why", **error}
    assert (await look_at(store, lease.job_id)).error == written
    assert (await store.timeline(lease.job_id))[-1].data["error"] == written


async def test_a_dead_letter_is_counted_where_it_failed(store: Store) -> None:
    lease = await running(store, queue="media")
    await store.settle([fate(lease, FATAL)])
    (counts,) = await store.counts()
    assert (counts.queue, counts.dead, counts.processing) == ("media", 1, 0)


# --- every outcome after which the job goes on ------------------------------------------------------------------------


def requeued(reason: str, **details: object) -> dict[str, Any]:
    return {"type": "reaper:requeued", "table": "lease", "reason": reason, "details": details}


RETURNS: list[tuple[Outcome, float, int, list[tuple[str, dict[str, Any]]]]] = [
    (
        TRANSIENT,
        30.0,
        1,
        [("retry", {"delay_s": 30.0, "error": {"code": "IO", "reason": "disk was busy", "type": "OSError"}})],
    ),
    (
        TimedOut(5.0),
        30.0,
        1,
        [
            (
                "retry",
                {
                    "delay_s": 30.0,
                    "error": {"code": "execution_timeout", "reason": "execution_timeout", "after_s": 5.0},
                },
            )
        ],
    ),
    (
        Crashed({"signal": 9}),
        1.0,
        1,
        [("requeued:stale", requeued("worker_lost", **LOST_EVIDENCE, signal=9, delay_s=1.0))],
    ),
    (Expired(), 1.0, 1, [("requeued:stale", requeued("lease_expired", **LOST_EVIDENCE, delay_s=1.0))]),
    (Aborted(), 0.0, 0, [("aborted:shutdown", {}), ("requeued:stale", requeued("shutdown", worker="w1"))]),
    (Released("no slot", 5.0), 5.0, 0, [("released", {"reason": "no slot"})]),
    (Released("no slot"), 0.0, 0, [("released", {"reason": "no slot"})]),
    (Snoozed(60.0), 60.0, 0, [("snoozed", {"delay_s": 60.0})]),
    (Checkpointed('{"at": 7}'), 0.0, 0, [("checkpointed", {"data": '{"at": 7}'})]),
]


@pytest.mark.parametrize("outcome, delay_s, attempt, told", RETURNS, ids=lambda value: type(value).__name__)
async def test_an_outcome_after_which_the_job_goes_on_is_written_with_its_timeline(  # noqa: PLR0913, PLR0917 - a row of the table
    store: Store,
    clock: HeldClock,
    outcome: Outcome,
    delay_s: float,
    attempt: int,
    told: list[tuple[str, dict[str, Any]]],
) -> None:
    lease = await running(store)
    clock.step(5)
    assert await store.settle([fate(lease, outcome)]) == (Answer.APPLIED,)
    job = await look_at(store, lease.job_id)
    assert (job.status, job.attempt_count) == (State.QUEUED, attempt)
    assert (job.locked_by, job.lease_expires_at, job.last_heartbeat_at, job.started_at) == (None,) * 4
    timeline = await store.timeline(lease.job_id)
    assert [(event.kind, event.data) for event in timeline[2:]] == told
    assert {(event.attempt, event.epoch, event.at) for event in timeline[2:]} == {(1, 1, clock.now)}
    if delay_s:
        assert job.next_earliest_run_at == clock.now + timedelta(seconds=delay_s)
        clock.step(delay_s - 0.001)
        assert await store.promote(10) == 0
        clock.step(0.001)
        assert await store.promote(10) == 1
    second = await again(store)
    assert (second.job_id, second.attempt, second.epoch) == (lease.job_id, attempt + 1, 2)


async def test_each_run_is_told_before_the_next_even_within_one_instant(store: Store) -> None:
    lease = await running(store)
    for outcome in (Aborted(), Released("r"), Snoozed(0), Checkpointed()):
        await store.settle([fate(lease, outcome)])
        lease = await again(store)
    await store.settle([fate(lease, Done())])
    assert await kinds(store, lease.job_id) == [
        "created",
        *("processing", "aborted:shutdown", "requeued:stale"),
        *("processing", "released"),
        *("processing", "snoozed"),
        *("processing", "checkpointed"),
        *("processing", "done"),
    ]
    assert [event.epoch for event in await store.timeline(lease.job_id)] == [0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


# --- the token --------------------------------------------------------------------------------------------------------


async def recovered(store: Store, clock: HeldClock) -> tuple[Lease, Lease]:
    """A stale lease and the live one of the same job."""
    stale = await running(store, max_attempts=9)
    clock.step(30)
    await store.reap(1, fate)
    clock.step(1)
    await store.promote(1)
    return stale, await again(store, worker="w2")


OUTCOMES: list[Outcome] = [end[0] for end in ENDS] + [returns[0] for returns in RETURNS]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda value: type(value).__name__)
async def test_a_token_that_is_not_current_changes_nothing(store: Store, clock: HeldClock, outcome: Outcome) -> None:
    stale, live = await recovered(store, clock)
    before = await everything(store)
    assert await store.settle([fate(stale, outcome)]) == (Answer.LOST,)
    assert await everything(store) == before
    assert await store.settle([fate(live, Done())]) == (Answer.APPLIED,)


async def test_a_token_that_waits_for_its_recovery_is_lost(store: Store, clock: HeldClock) -> None:
    stale = await running(store)
    clock.step(30)
    await store.reap(1, fate)
    before = await everything(store)
    assert await store.settle([fate(stale, Done())]) == (Answer.LOST,)
    clock.step(1)
    assert await store.promote(1) == 1
    assert await store.settle([fate(stale, Done())]) == (Answer.LOST,)
    assert (await everything(store)).timelines == before.timelines


async def test_the_right_token_of_another_job_is_lost(store: Store) -> None:
    one, other = await running(store), await running(store)
    before = await everything(store)
    crossed = [
        fate(replace(one, token=other.token), Done()),
        fate(replace(other, token=one.token), FATAL),
    ]
    assert await store.settle(crossed) == (Answer.LOST, Answer.LOST)
    assert await everything(store) == before


async def test_the_same_token_on_two_jobs_of_one_claim_ends_each_alone(store: Store) -> None:
    await store.enqueue([new(), new()])
    one, other = await store.claim(ask(2))
    assert one.token == other.token
    assert await store.settle([fate(one, Done())]) == (Answer.APPLIED,)
    assert (await look_at(store, other.job_id)).status is State.PROCESSING
    assert await store.settle([fate(other, Done())]) == (Answer.APPLIED,)


async def test_a_job_that_never_was_is_lost(store: Store) -> None:
    lease = await running(store)
    assert await store.settle([fate(replace(lease, job_id=10**12), Done())]) == (Answer.LOST,)


async def test_a_token_that_was_never_given_is_lost_on_a_job_that_ended(store: Store) -> None:
    lease = await running(store)
    await store.settle([fate(lease, Done())])
    before = await everything(store)
    assert await store.settle([fate(replace(lease, token=uuid4()), Done())]) == (Answer.LOST,)
    assert await everything(store) == before


# --- the repeat -------------------------------------------------------------------------------------------------------


OF_WORKERS = [outcome for outcome in OUTCOMES if not isinstance(outcome, Crashed | Expired)]


@pytest.mark.parametrize("outcome", OF_WORKERS, ids=lambda value: type(value).__name__)
async def test_a_repeat_after_a_lost_reply_answers_already_and_changes_nothing(store: Store, outcome: Outcome) -> None:
    lease = await running(store, max_attempts=1)
    settlement = fate(lease, outcome)
    assert await store.settle([settlement]) == (Answer.APPLIED,)
    before = await everything(store)
    assert await store.settle([settlement]) == (Answer.ALREADY,)
    assert await everything(store) == before


@pytest.mark.parametrize(
    "outcome",
    [Crashed(), Expired(), Aborted(by=By.SUPERVISOR), Released("our doing", by=By.SUPERVISOR)],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_who_was_given_up_by_others_is_lost_and_not_already_settled(
    store: Store, outcome: Outcome, max_attempts: int
) -> None:
    lease = await running(store, max_attempts=max_attempts)
    await store.settle([fate(lease, outcome)])
    assert await store.settle([fate(lease, Done())]) == (Answer.LOST,)


async def test_a_repeat_still_answers_already_after_the_job_went_on(store: Store, clock: HeldClock) -> None:
    first = await running(store)
    retry = fate(first, TRANSIENT)
    await store.settle([retry])
    clock.step(30)
    await store.promote(1)
    assert await store.settle([retry]) == (Answer.ALREADY,)
    second = await again(store)
    before = await everything(store)
    assert await store.settle([retry]) == (Answer.ALREADY,)
    assert await everything(store) == before
    await store.settle([fate(second, Done())])
    assert await store.settle([retry]) == (Answer.LOST,)
    assert await store.settle([fate(second, Done())]) == (Answer.ALREADY,)


async def test_a_repeat_is_known_by_the_last_run_alone(store: Store) -> None:
    first = await running(store)
    await store.settle([fate(first, Aborted())])
    second = await again(store)
    await store.settle([fate(second, Aborted())])
    assert await store.settle([fate(first, Aborted()), fate(second, Aborted())]) == (Answer.LOST, Answer.ALREADY)


# --- batches ----------------------------------------------------------------------------------------------------------


async def test_a_batch_of_every_outcome_is_answered_in_its_order(store: Store, clock: HeldClock) -> None:
    await store.enqueue([new() for _ in OUTCOMES])
    leases = await store.claim(ask(len(OUTCOMES)))
    stale = leases[::4]
    await store.settle([fate(lease, Crashed()) for lease in stale])
    clock.step(2)
    batch = [fate(lease, outcome) for lease, outcome in zip(leases, OUTCOMES, strict=True)]
    answers = await store.settle(batch)
    assert list(answers) == [Answer.LOST if lease in stale else Answer.APPLIED for lease in leases]
    for lease, settlement in zip(leases, batch, strict=True):
        job = await look_at(store, lease.job_id)
        assert job.status == (State.QUEUED if lease in stale else settlement.state)


async def test_a_stale_and_a_live_settlement_of_one_job_may_share_a_batch(store: Store, clock: HeldClock) -> None:
    stale, live = await recovered(store, clock)
    batch = [fate(stale, FATAL), fate(live, Done('"mine"')), fate(stale, FATAL)]
    assert await store.settle(batch) == (Answer.LOST, Answer.APPLIED, Answer.LOST)
    job = await look_at(store, live.job_id)
    assert (job.status, job.result) == (State.DONE, "mine")


async def test_one_settlement_twice_in_a_batch_is_applied_once(store: Store) -> None:
    lease = await running(store)
    done = fate(lease, Done())
    assert await store.settle([done, done]) == (Answer.APPLIED, Answer.ALREADY)
    assert await kinds(store, lease.job_id) == ["created", "processing", "done"]


async def test_an_empty_batch_has_no_answers(store: Store) -> None:
    assert await store.settle([]) == ()


# --- settle_and_claim -------------------------------------------------------------------------------------------------


async def test_settle_and_claim_gives_what_settle_and_then_claim_give(store: Store) -> None:
    seen = []
    for together in (True, False):
        low, middle, high = await store.enqueue([new(priority=priority) for priority in (-1, 0, 1)])
        await store.enqueue([new(queue="mail")])
        (lease,) = await store.claim(ask(1))
        assert lease.job_id == high
        await store.progress(hold(lease), 30, "half")
        done, asked = fate(lease, Done('{"n": 1}')), ask(5)
        if together:
            cycle = await store.settle_and_claim([done], asked)
        else:
            cycle = Cycle(await store.settle([done]), await store.claim(asked))
        assert [taken.job_id - low for taken in cycle.leases] == [middle - low, 3, 0]
        assert {(taken.attempt, taken.epoch, taken.token) for taken in cycle.leases} == {(1, 1, asked.token)}
        told = [(event.kind, event.at, event.epoch, event.data) for event in await store.timeline(high)]
        job = await look_at(store, high)
        seen.append((cycle.answers, told, job.status, job.result, job.progress, job.attempt_count, job.finished_at))
        await store.settle([fate(taken, Done()) for taken in cycle.leases])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("waiting", [0, 2])
async def test_settle_and_claim_answers_each_settlement_like_settle(
    store: Store, clock: HeldClock, waiting: int
) -> None:
    stale, live = await recovered(store, clock)
    ended = await running(store)
    done = fate(ended, Done())
    await store.settle([done])
    waits = await store.enqueue([new() for _ in range(waiting)])
    cycle = await store.settle_and_claim([done, fate(live, Done("[1]"))], ask(5))
    assert cycle.answers == (Answer.ALREADY, Answer.APPLIED)
    assert [lease.job_id for lease in cycle.leases] == waits
    cycle = await store.settle_and_claim([fate(stale, Done())], ask(5))
    assert (cycle.answers, cycle.leases) == ((Answer.LOST,), ())


@pytest.mark.parametrize("waiting", [0, 2])
async def test_settle_and_claim_with_a_token_that_is_not_current_changes_nothing(
    store: Store, clock: HeldClock, waiting: int
) -> None:
    stale, live = await recovered(store, clock)
    other = await running(store)
    waits = await store.enqueue([new() for _ in range(waiting)])
    held = [live.job_id, other.job_id]
    before = [(await store.get(job_id), await store.timeline(job_id)) for job_id in held]
    crossed = replace(other, token=live.token)
    cycle = await store.settle_and_claim([fate(stale, Done()), fate(crossed, Done())], ask(5))
    assert cycle.answers == (Answer.LOST, Answer.LOST)
    assert [lease.job_id for lease in cycle.leases] == waits
    assert [(await store.get(job_id), await store.timeline(job_id)) for job_id in held] == before


async def test_settle_and_claim_takes_failures_too(store: Store) -> None:
    failed, aborted = await running(store), await running(store)
    (fresh,) = await store.enqueue([new()])
    cycle = await store.settle_and_claim([fate(failed, FATAL), fate(aborted, Aborted())], ask(5))
    assert cycle.answers == (Answer.APPLIED, Answer.APPLIED)
    assert sorted(lease.job_id for lease in cycle.leases) == sorted([aborted.job_id, fresh])


async def test_settle_and_claim_with_nothing_to_settle_claims(store: Store) -> None:
    (job_id,) = await store.enqueue([new()])
    cycle = await store.settle_and_claim([], ask(1))
    assert (cycle.answers, [lease.job_id for lease in cycle.leases]) == ((), [job_id])


async def test_settle_and_claim_of_twins_ends_the_live_one(store: Store, clock: HeldClock) -> None:
    stale, live = await recovered(store, clock)
    cycle = await store.settle_and_claim([fate(stale, Done('"late"')), fate(live, Done('"mine"'))], ask(1))
    assert cycle.answers == (Answer.LOST, Answer.APPLIED)
    assert (await look_at(store, live.job_id)).result == "mine"
    assert await ids(store, 1) == []
