"""Memory and PostgreSQL side by side: whatever is done to both, in whatever order, both answer and show the same.

Left out is what the contract leaves open: which of several expired leases a bounded reap takes, and in which order jobs
that return within one batch stand in line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, ClassVar, TypeVar
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from leasehold.core.decide import Settlement
from leasehold.core.job import Job, Lease, NewJob, State
from leasehold.core.outcome import (
    Aborted,
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
from leasehold.store.contract import Answer, Ask, Hold, Store
from leasehold.store.memory import MemoryStore
from tests.databases import DatabaseClock
from tests.store.conformance.scenes import always_sweeping, everything, fate, hold

T = TypeVar("T")
ALL = 1000
MICROSECOND = 0.000001

workers = st.sampled_from(["w1", "w2"])
new_jobs = st.builds(
    NewJob,
    task=st.sampled_from(["clip", "clip", "burn"]),
    payload=st.just("{}"),
    queue=st.sampled_from(["media", "mail"]),
    priority=st.sampled_from([0, 0, 0, 5]),
    delay_s=st.sampled_from([0.0, 0.0, 0.0, 1.0, 30.0]),
    max_attempts=st.integers(1, 3),
    lease_s=st.sampled_from([10.0, 30.0]),
    timeout_s=st.sampled_from([None, 15.0, 3600.0]),
)
asks = st.builds(
    Ask,
    worker=workers,
    token=st.builds(uuid4),
    slots=st.integers(1, 4),
    tasks=st.sampled_from([("clip",), ("clip", "burn")]),
    queues=st.sampled_from([None, None, ("media",)]),
)
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(
    [
        Done(),
        Done('{"n": [1, null]}'),
        Failed("IO", "busy", retryable=True, error={"status": 503}),
        Failed("IO", "busy", retryable=True, retry_after_s=100.0),
        Failed("BAD", "no", retryable=False),
        TimedOut(15.0),
        Crashed({"signal": 9}),
        Expired({}),
        Aborted(),
        Released("no slot"),
        Released("no slot", 5.0),
        Snoozed(7.0),
        Checkpointed('"here"'),
        Cancelled("enough"),
    ]
)
picks = st.integers(0, ALL)


class SideBySide(RuleBasedStateMachine):
    """What may happen, done to both."""

    clock: ClassVar[DatabaseClock]
    runner: ClassVar[asyncio.Runner]

    def __init__(self) -> None:
        super().__init__()
        self.clock.rewind()
        self.stores: tuple[Store, Store] = (MemoryStore(self.clock), always_sweeping(self.clock.dsn))
        self.given: list[Lease] = []
        self.applied: set[Hold] = set()
        self.ended: dict[int, Job] = {}

    def teardown(self) -> None:
        for store in self.stores:
            self.runner.run(store.close())

    def both(self, call: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        specified, answered = (self.runner.run(call(store)) for store in self.stores)
        assert answered == specified
        result: T = answered
        return result

    def lease(self, pick: int) -> Lease:
        return self.given[pick % len(self.given)]

    # --- what may happen ----------------------------------------------------------------------------------------------

    @rule(jobs=st.lists(new_jobs, min_size=1, max_size=3))
    def enqueue(self, jobs: list[NewJob]) -> None:
        self.both(lambda store: store.enqueue(jobs))

    @rule(ask=asks)
    def claim(self, ask: Ask) -> None:
        self.note_given(self.both(lambda store: store.claim(ask)))

    @precondition(lambda self: self.given)
    @rule(which=st.lists(picks, min_size=1, max_size=4))
    def extend(self, which: list[int]) -> None:
        holds = [hold(self.lease(pick)) for pick in which]
        self.both(lambda store: store.extend(holds))

    @precondition(lambda self: self.given)
    @rule(ends=st.lists(st.tuples(picks, outcomes), min_size=1, max_size=4))
    def settle(self, ends: list[tuple[int, Outcome]]) -> None:
        settlements = one_at_once(fate(self.lease(pick), outcome) for pick, outcome in ends)
        self.note_applied(settlements, self.both(lambda store: store.settle(settlements)))

    @precondition(lambda self: self.given)
    @rule(which=st.lists(picks, max_size=3), ask=asks)
    def settle_and_claim(self, which: list[int], ask: Ask) -> None:
        settlements = [fate(self.lease(pick), Done("1")) for pick in which]
        cycle = self.both(lambda store: store.settle_and_claim(settlements, ask))
        self.note_applied(settlements, cycle.answers)
        self.note_given(cycle.leases)

    @precondition(lambda self: self.given)
    @rule(pick=picks, pct=st.integers(0, 100), note=st.sampled_from([None, "half way"]))
    def progress(self, pick: int, pct: int, note: str | None) -> None:
        held = hold(self.lease(pick))
        self.both(lambda store: store.progress(held, pct, note))

    @rule()
    def reap(self) -> None:
        self.both(lambda store: by_job(store.reap(ALL, fate)))

    @rule(worker=workers, named=st.lists(st.tuples(picks, outcomes), max_size=3))
    def bury(self, worker: str, named: list[tuple[int, Outcome]]) -> None:
        # Everything it ever held has a fate, so that what goes back to the line at once is at most one job.
        fates: dict[Hold, Outcome] = {hold(lease): Crashed() for lease in self.given if lease.worker == worker}
        for pick, outcome in named[: 1 if fates else 0]:
            fates[hold(self.lease(pick))] = outcome
        self.both(lambda store: by_job(store.bury(worker, fates, fate)))

    @rule()
    def promote(self) -> None:
        self.both(lambda store: store.promote(ALL))

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, 10.0, 30.0, 120.0]))
    def step(self, seconds: float) -> None:
        self.clock.step(seconds)

    @rule(beside=st.sampled_from([-MICROSECOND, 0.0, MICROSECOND]), what=st.sampled_from(["due_in_s", "expiry_in_s"]))
    def step_to_what_is_awaited(self, beside: float, what: str) -> None:
        awaited = getattr(self.both(lambda store: store.look()), what)
        if awaited is not None and awaited + beside > 0:
            self.clock.step(awaited + beside)

    # --- what always holds --------------------------------------------------------------------------------------------

    def note_given(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            earlier = [given.epoch for given in self.given if given.job_id == lease.job_id]
            assert lease.epoch == len(earlier) + 1, "the epoch counts the acquisitions"
            assert lease.attempt <= lease.max_attempts, "no job runs more often than it may"
            self.given.append(lease)

    def note_applied(self, settlements: Iterable[Settlement], answers: Iterable[Answer]) -> None:
        for settlement, answer in zip(settlements, answers, strict=True):
            held = Hold(settlement.job_id, settlement.token)
            if answer is Answer.APPLIED:
                assert held not in self.applied, "no attempt ends twice"
                self.applied.add(held)

    @invariant()
    def both_show_the_same(self) -> None:
        seen = self.both(everything)
        for job in seen.jobs:
            assert job.id not in self.ended or self.ended[job.id] == job, "what ended stays as it ended"
            if job.status.terminal:
                self.ended[job.id] = job
        standing = sum(counts.ready + counts.scheduled + counts.processing for counts in seen.counts)
        assert standing == len(seen.jobs) - len(self.ended), "every job stands in one place"


def one_at_once(settlements: Iterable[Settlement]) -> list[Settlement]:
    """A batch of which at most one job goes back to the line at once."""
    batch: list[Settlement] = []
    for settlement in settlements:
        at_once = settlement.state is State.QUEUED and not settlement.delay_s
        if not at_once or not any(other.state is State.QUEUED and not other.delay_s for other in batch):
            batch.append(settlement)
    return batch


async def by_job(call: Awaitable[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    return sorted(await call, key=lambda settled: settled[0].job_id)


@pytest.mark.parametrize(
    "examples, steps", [pytest.param(30, 25), pytest.param(200, 50, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_both_stores_give_the_same_answers_and_show_the_same(
    database_clock: DatabaseClock, examples: int, steps: int
) -> None:
    with asyncio.Runner() as here:

        class Here(SideBySide):
            clock = database_clock
            runner = here

        run_state_machine_as_test(
            Here,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow],
                print_blob=True,
            ),
        )
