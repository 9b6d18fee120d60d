"""The one fate function: every outcome settles, attempts are bounded, losses and failures have tables of their own."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from leasehold.core.decide import decide, is_suspect
from leasehold.core.job import PRIORITY_MAX, PRIORITY_MIN, LaneKind, Lease, State, kind_of_lane
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
from leasehold.core.policy import Backoff, Policy

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOKEN = UUID(int=1)
# Each table has waits of its own, so that a wait tells which table it is from.
POLICY = Policy(failure=Backoff(10, 11, 12, jitter=0), loss=Backoff(20, 21, 22, jitter=0))


def lease_of(*, attempt: int = 1, max_attempts: int = 3, losses: int = 0, epoch: int = 0, priority: int = 0) -> Lease:
    return Lease(
        job_id=7,
        queue="media",
        task="clip",
        payload="{}",
        priority=priority,
        token=TOKEN,
        attempt=attempt,
        epoch=max(epoch, attempt),
        losses=losses,
        max_attempts=max_attempts,
        lease_s=30.0,
        timeout_s=3600.0,
        worker="w1",
        created_at=NOW,
        started_at=NOW,
    )


@st.composite
def leases(draw: st.DrawFn) -> Lease:
    """Any lease that a store can give: as many losses as earlier attempts at most."""
    max_attempts = draw(st.integers(1, 30))
    attempt = draw(st.integers(1, max_attempts))
    losses = draw(st.integers(0, attempt - 1))
    epoch = attempt + draw(st.integers(0, 10))
    priority = draw(st.integers(PRIORITY_MIN, PRIORITY_MAX))
    return lease_of(attempt=attempt, max_attempts=max_attempts, losses=losses, epoch=epoch, priority=priority)


chances = st.floats(0, 1, exclude_max=True)
waits = st.floats(0, 10_000)
who = st.sampled_from([By.WORKER, By.SUPERVISOR])
words = st.text(max_size=10)
evidence: st.SearchStrategy[dict[str, Any]] = st.dictionaries(st.sampled_from(["signal", "pid"]), st.integers())
failed = st.builds(Failed, words, words, retryable=st.booleans(), error=evidence, retry_after_s=waits)
charged = st.one_of(
    failed.filter(lambda failure: failure.retryable),
    st.builds(TimedOut, waits),
    st.builds(Crashed, evidence),
    st.builds(Expired, evidence),
)
losses = st.one_of(st.builds(Crashed, evidence), st.builds(Expired, evidence))
uncharged = st.one_of(
    st.builds(Aborted, who),
    st.builds(Released, words, waits, who),
    st.builds(Snoozed, waits),
    st.builds(Checkpointed, st.none() | words),
)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    charged, uncharged, failed, st.builds(Done, st.none() | words), st.builds(Cancelled, words)
)


@given(leases(), outcomes, chances)
def test_every_outcome_settles_the_attempt_it_was_given(lease: Lease, outcome: Outcome, rand: float) -> None:
    settlement = decide(lease, outcome, POLICY, rand)
    assert (settlement.job_id, settlement.queue, settlement.token) == (lease.job_id, lease.queue, lease.token)
    assert settlement.state is State.QUEUED or settlement.state.terminal
    assert settlement.delay_s >= 0
    assert settlement.losses >= lease.losses


@given(leases(), outcomes, chances)
def test_a_settlement_is_the_same_whenever_it_is_asked_for(lease: Lease, outcome: Outcome, rand: float) -> None:
    assert decide(lease, outcome, POLICY, rand) == decide(lease, outcome, POLICY, rand)


@given(leases(), outcomes, chances)
def test_a_job_that_goes_on_has_an_attempt_left_and_an_event_that_says_why(
    lease: Lease, outcome: Outcome, rand: float
) -> None:
    settlement = decide(lease, outcome, POLICY, rand)
    if settlement.state is State.QUEUED:
        assert 0 <= settlement.attempt < lease.max_attempts
        assert settlement.events
        assert (settlement.code, settlement.result) == (None, None)


@given(st.integers(1, 10), st.lists(outcomes, min_size=1, max_size=60), chances)
def test_a_job_never_runs_more_often_than_its_attempts_and_what_spent_none(
    max_attempts: int, told: list[Outcome], rand: float
) -> None:
    attempt, lost, runs, spent = 0, 0, 0, 0
    for outcome in told:
        runs, attempt = runs + 1, attempt + 1
        assert attempt <= max_attempts
        lease = lease_of(attempt=attempt, max_attempts=max_attempts, losses=lost, epoch=runs)
        settlement = decide(lease, outcome, POLICY, rand)
        if settlement.state.terminal:
            break
        spent += settlement.attempt == lease.attempt
        attempt, lost = settlement.attempt, settlement.losses
        assert attempt == spent
    assert spent < max_attempts


@given(leases(), uncharged, chances)
def test_what_was_not_the_jobs_doing_hands_its_attempt_back(lease: Lease, outcome: Outcome, rand: float) -> None:
    settlement = decide(lease, outcome, POLICY, rand)
    assert (settlement.state, settlement.attempt) == (State.QUEUED, lease.attempt - 1)
    assert settlement.losses == lease.losses
    assert settlement.by is getattr(outcome, "by", By.WORKER)


@given(leases(), charged, chances)
def test_what_was_the_jobs_doing_spends_its_attempt_and_fails_it_with_the_last(
    lease: Lease, outcome: Outcome, rand: float
) -> None:
    settlement = decide(lease, outcome, POLICY, rand)
    assert settlement.attempt == lease.attempt
    assert (settlement.state is State.FAILED) == (lease.attempts_left == 0)


@given(leases(), losses, chances)
def test_a_loss_is_counted_and_known_by_who_saw_it(lease: Lease, outcome: Outcome, rand: float) -> None:
    settlement = decide(lease, outcome, POLICY, rand)
    assert settlement.losses == lease.losses + 1
    assert settlement.by is (By.REAPER if isinstance(outcome, Expired) else By.SUPERVISOR)


@given(leases(), failed, chances)
def test_a_fatal_failure_ends_the_job_with_its_own_code(lease: Lease, failure: Failed, rand: float) -> None:
    assume(not failure.retryable)
    settlement = decide(lease, failure, POLICY, rand)
    assert (settlement.state, settlement.code, settlement.reason) == (State.FAILED, failure.code, failure.reason)


@pytest.mark.requirement("R1.13")
@pytest.mark.requirement("R3.2")
@pytest.mark.parametrize(
    "outcome, code, reason",
    [
        (Failed("IO", "busy", retryable=True), "RETRIES_EXHAUSTED", "busy"),
        (TimedOut(5.0), "RETRIES_EXHAUSTED", "execution_timeout"),
        (Crashed(), "worker_lost", "worker_lost"),
        (Expired(), "timeout", "lease_expired"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_last_attempt_fails_with_the_code_of_its_end(outcome: Outcome, code: str, reason: str) -> None:
    settlement = decide(lease_of(attempt=3), outcome, POLICY, 0)
    assert (settlement.state, settlement.code, settlement.reason) == (State.FAILED, code, reason)


def test_losses_and_failures_wait_by_tables_of_their_own() -> None:
    attempt, lost, told = 0, 0, []
    for outcome in (Crashed(), Failed("E", "", retryable=True), Expired(), TimedOut(1.0), Crashed()):
        attempt += 1
        settlement = decide(lease_of(attempt=attempt, max_attempts=99, losses=lost), outcome, POLICY, 0)
        attempt, lost = settlement.attempt, settlement.losses
        told.append(settlement.delay_s)
    assert told == [20, 10, 21, 11, 22]


@given(leases(), waits, chances)
def test_a_retry_never_comes_before_its_retry_after(lease: Lease, retry_after_s: float, rand: float) -> None:
    assume(lease.attempts_left > 0)
    failure = Failed("HTTP_429", "slow down", retryable=True, retry_after_s=retry_after_s)
    jittery = Policy(failure=Backoff(10, jitter=1.0))
    assert decide(lease, failure, jittery, rand).delay_s >= retry_after_s


@given(leases(), waits, chances)
def test_a_handlers_wish_to_come_back_is_kept_to_the_second(lease: Lease, delay_s: float, rand: float) -> None:
    assert decide(lease, Snoozed(delay_s), POLICY, rand).delay_s == delay_s
    assert decide(lease, Released("no slot", delay_s), POLICY, rand).delay_s == delay_s


@given(leases(), chances)
def test_a_shutdown_and_a_checkpoint_go_back_at_once(lease: Lease, rand: float) -> None:
    assert decide(lease, Aborted(), POLICY, rand).delay_s == 0
    assert decide(lease, Checkpointed("{}"), POLICY, rand).delay_s == 0


@pytest.mark.parametrize(
    "lost, left, alone",
    [
        (0, 0, False),
        (0, 1, False),
        (0, 9, False),
        (1, 9, False),
        (1, 2, False),
        (1, 1, True),
        (2, 9, True),
        (3, 1, True),
    ],
)
def test_a_suspect_lost_its_worker_twice_or_once_with_one_attempt_left(lost: int, left: int, alone: bool) -> None:  # noqa: FBT001 - a row of the table
    assert is_suspect(lost, left) is alone


@given(leases(), st.one_of(charged, uncharged), chances)
def test_a_job_that_goes_on_stands_in_the_kind_of_lane_what_is_known_of_it(
    lease: Lease, outcome: Outcome, rand: float
) -> None:
    settlement = decide(lease, outcome, POLICY, rand)
    if settlement.state is State.QUEUED:
        left = lease.max_attempts - settlement.attempt
        alone = settlement.losses >= 2 or (settlement.losses == 1 and left == 1)
        assert kind_of_lane(settlement.rank) is (LaneKind.SUSPECT if alone else LaneKind.RECOVERED)


@given(leases(), st.builds(Failed, words, words, retryable=st.booleans(), error=evidence), chances)
def test_an_error_is_kept_whatever_becomes_of_the_job(lease: Lease, failure: Failed, rand: float) -> None:
    settlement = decide(lease, failure, POLICY, rand)
    kept = settlement.error or settlement.events[0].data["error"]
    assert kept == {"code": failure.code, "reason": failure.reason, **failure.error}


def test_a_settlement_that_contradicts_itself_is_refused() -> None:
    sound = decide(lease_of(), Done(), POLICY, 0)
    wrongs: list[dict[str, Any]] = [
        {"state": State.PROCESSING},
        {"delay_s": 5.0},
        {"code": "E"},
        {"state": State.FAILED},
    ]
    for wrong in wrongs:
        with pytest.raises(AssertionError):
            replace(sound, **wrong)
