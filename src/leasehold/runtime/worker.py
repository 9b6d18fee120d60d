"""The worker's loop: claim -> execute -> decide -> settle, the last two in one round trip with the next claim.

One loop owns all state here; handlers run in tasks and threads beside it and hand back their outcome. What the store
says was applied is what is told. It never knows in which process it lives: the book, the clock and chance are given.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from leasehold.core.decide import Settlement, decide
from leasehold.core.errors import StoreError, StoreUnreachableError
from leasehold.core.facts import (
    Fact,
    JobEnded,
    JobStarted,
    LateClaim,
    LeaseLost,
    StaleTokenRefused,
    StoreFailed,
    WorkerStarted,
    WorkerStopped,
)
from leasehold.core.job import Lease
from leasehold.core.outcome import Aborted, Failed, Outcome, Released
from leasehold.core.policy import Backoff, Policy
from leasehold.runtime.book import Book, Standing
from leasehold.runtime.clock import Chance, Clock
from leasehold.runtime.context import Job
from leasehold.runtime.execute import Attempt, Interruption, decoded
from leasehold.runtime.reaper import Recovery
from leasehold.runtime.registry import Registry, TaskSpec
from leasehold.store.contract import Answer, Ask, Hold, Store

SPARE_THREADS: Final = 32
AGAIN: Final = Backoff("200ms", factor=2, cap="15s")
RELEASE_PART: Final = 0.2
RELEASE_MOST_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker works."""

    name: str
    concurrency: int
    queues: tuple[str, ...] | None = None
    poll_s: float = 1.0
    reap_every_s: float = 60.0
    watch_every_s: float = 0.5
    shutdown_s: float = 30.0


@dataclass(slots=True, eq=False)
class _Run:
    """One job in hand, from its claim until the store has answered its settle."""

    slot: int
    lease: Lease
    attempt: Attempt | None = None
    began_s: float = 0.0
    settlement: Settlement | None = None
    progress: deque[tuple[int, str | None]] = field(default_factory=deque)
    telling: asyncio.Task[None] | None = None


class Worker:
    """Claims and runs jobs until it is told to stop."""

    def __init__(  # noqa: PLR0913 - everything that it may not make for itself
        self,
        options: WorkerOptions,
        store: Store,
        registry: Registry,
        book: Book,
        *,
        policy_of: Callable[[TaskSpec | None], Policy],
        emit: Callable[[Fact], None],
        clock: Clock,
        chance: Chance,
    ) -> None:
        self._options = options
        self._store = store
        self._registry = registry
        self._book = book
        self._policy_of = policy_of
        self._emit = emit
        self._clock = clock
        self._chance = chance
        self._recovery = Recovery(
            store, self.decide, emit, clock, poll_s=options.poll_s, reap_every_s=options.reap_every_s
        )
        self._threads = ThreadPoolExecutor(options.concurrency + SPARE_THREADS, thread_name_prefix="handler")
        self._free = list(reversed(range(options.concurrency)))
        self._runs: set[_Run] = set()
        self._ended: list[_Run] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._stopping = False
        self._hungry = True
        self._look_at = float("-inf")
        self._failures = 0
        self._loop: asyncio.AbstractEventLoop
        self._thread = 0

    def decide(self, lease: Lease, outcome: Outcome) -> Settlement:
        """The fate function with this worker's policies."""
        return decide(lease, outcome, self._policy_of(self._registry.get(lease.task)), self._chance.rand())

    async def run(self) -> None:
        """Work until `stop` was called and everything in hand is settled."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._emit(WorkerStarted(self._options.name, self._registry.names(), self._options.concurrency))
        watching = asyncio.create_task(self._watch())
        try:
            await self._guarded("recovering", self._recovery.drain)
            while not (self._stopping and not self._runs):
                await self._turn()
                if watching.done():
                    watching.result()  # it never ends but by a defect, and without it nobody would be fenced
        finally:
            watching.cancel()
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._emit(WorkerStopped(self._options.name))

    def stop(self) -> None:
        """Claim nothing more, let jobs end, and release in time what does not."""
        if self._stopping:
            return
        self._stopping = True
        self._wake.set()
        for run in self._runs:
            if run.attempt is not None:
                run.attempt.job.stopping.set()
        # Releasing must fit inside the time that a platform grants, or it kills us in the middle of it.
        margin_s = min(RELEASE_MOST_S, self._options.shutdown_s * RELEASE_PART)
        loop = asyncio.get_running_loop()
        loop.call_later(self._options.shutdown_s - margin_s, self._abort)
        loop.call_later(self._options.shutdown_s - margin_s / 2, self._abandon)

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        self._wake.clear()
        if self._clock.monotonic() >= self._look_at:
            await self._guarded("looking", self._look)
        batch, self._ended = self._ended, []
        slots = 0 if self._stopping else len(self._free) + len(batch)
        if batch or (slots and self._hungry):
            try:
                await self._cycle(batch, slots)
            except StoreError as error:
                self._ended = batch + self._ended
                await self._failed("settling and claiming", error)
            else:
                self._failures = 0
        else:
            await self._idle()

    async def _cycle(self, batch: list[_Run], slots: int) -> None:
        settlements = [run.settlement for run in batch if run.settlement is not None]
        assert len(settlements) == len(batch), "what ended was decided"
        if not slots:
            self._settled(batch, await self._store.settle(settlements))
            return
        ask = Ask(
            worker=self._options.name,
            token=self._chance.token(),
            slots=slots,
            tasks=self._registry.names(),
            queues=self._options.queues,
        )
        sent_ns = self._book.now_ns()
        if batch:
            cycle = await self._store.settle_and_claim(settlements, ask)
            self._settled(batch, cycle.answers)
            leases = cycle.leases
        else:
            leases = await self._store.claim(ask)
        self._hungry = bool(leases)
        self._take(leases, sent_ns)

    async def _idle(self) -> None:
        wait_s = self._look_at - self._clock.monotonic()
        if wait_s > 0 and not self._ended:
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        report = await self._recovery.step()
        self._look_at = self._clock.monotonic() + report.next_in_s
        self._hungry = True

    async def _guarded(self, doing: str, act: Callable[[], object]) -> None:
        try:
            await act()  # type: ignore[misc]  # a coroutine function whose result nobody wants
        except StoreError as error:
            await self._failed(doing, error)

    async def _failed(self, doing: str, error: StoreError) -> None:
        self._emit(StoreFailed(self._options.name, doing, str(error)))
        self._failures += 1
        if not isinstance(error, StoreUnreachableError):
            await self._settle_alone()
        # Full jitter: when a database comes back, its workers must not all come at once.
        await self._clock.sleep(AGAIN.delay_s(self._failures, 0.0) * self._chance.rand())

    async def _settle_alone(self) -> None:
        """The database refused a batch: settle its jobs one by one, so that an unstorable one costs no other."""
        batch, self._ended = self._ended, []
        for run in batch:
            assert run.settlement is not None, "what ended was decided"
            try:
                self._settled([run], await self._store.settle([run.settlement]))
            except StoreUnreachableError:
                self._ended.append(run)
            except StoreError as error:
                refused = Failed("outcome_unstorable", str(error), retryable=False)
                run.settlement = self.decide(run.lease, refused)
                self._ended.append(run)

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _take(self, leases: tuple[Lease, ...], sent_ns: int) -> None:
        runs: list[_Run] = []
        for lease in leases:
            run = _Run(self._free.pop(), lease)
            self._book.claimed(run.slot, lease, sent_ns)
            self._runs.add(run)
            runs.append(run)
        late = 0
        for run in runs:
            if self._stopping:
                self._end(run, Released("its worker was told to stop before it began"))
            elif self._book.now_ns() - sent_ns > run.lease.lease_s * 1e9 / 3:
                late += 1
                self._end(run, Released("its claim was answered too late to begin safely"))
            else:
                self._begin(run)
        if late:
            self._emit(LateClaim(self._options.name, late))

    def _begin(self, run: _Run) -> None:
        spec = self._registry.get(run.lease.task)
        if spec is None:
            self._end(run, Released("this worker does not know its task", delay_s=5.0))
            return
        arguments = decoded(spec, run.lease.payload)
        if isinstance(arguments, Failed):
            self._end(run, arguments)
            return
        job = Job(
            run.lease,
            arguments,
            report=lambda pct, note: self._reported(run, pct, note),
            monotonic=self._clock.monotonic,
        )
        run.attempt = Attempt(spec, job, self._threads)
        task = asyncio.create_task(self._work(run, run.attempt), name=f"job-{run.lease.job_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, run: _Run, attempt: Attempt) -> None:
        run.began_s = self._clock.monotonic()
        self._book.running(run.slot)
        self._emit(JobStarted(run.lease))
        outcome = await attempt.run()
        if run.telling is not None:
            await asyncio.wait({run.telling})  # the last progress belongs before the end
        if outcome is None:
            self._let_go(run)
        else:
            self._end(run, outcome)

    def _let_go(self, run: _Run) -> None:
        """Forget a job whose lease was lost: whoever holds it now, or recovers it, settles it."""
        if run.settlement is None:
            self._emit(LeaseLost(run.lease))
            self._leave(run)
            self._wake.set()

    def _leave(self, run: _Run) -> None:
        self._book.empty(run.slot)
        self._free.append(run.slot)
        self._runs.discard(run)

    def _end(self, run: _Run, outcome: Outcome) -> None:
        if run.settlement is None:  # else it was abandoned, and its settle is under way
            run.settlement = self.decide(run.lease, outcome)
            self._book.ended(run.slot)
            self._ended.append(run)
            self._wake.set()

    def _settled(self, batch: list[_Run], answers: tuple[Answer, ...]) -> None:
        now_s = self._clock.monotonic()
        for run, answer in zip(batch, answers, strict=True):
            assert run.settlement is not None, "what was settled was decided"
            self._leave(run)
            if answer is Answer.LOST:
                self._stale(run, "settle")
            else:
                duration_s = now_s - run.began_s if run.attempt is not None else 0.0
                self._emit(JobEnded(run.lease, run.settlement, duration_s))

    def _stale(self, run: _Run, what: str) -> None:
        self._emit(StaleTokenRefused(run.lease.job_id, run.lease.attempt, self._options.name, what))

    # --- meanwhile ----------------------------------------------------------------------------------------------------

    def _reported(self, run: _Run, pct: int, note: str | None) -> None:
        if threading.get_ident() == self._thread:
            self._keep_progress(run, pct, note)
        else:
            self._loop.call_soon_threadsafe(self._keep_progress, run, pct, note)

    def _keep_progress(self, run: _Run, pct: int, note: str | None) -> None:
        if run.settlement is None:
            run.progress.append((pct, note))
            if run.telling is None or run.telling.done():
                run.telling = asyncio.create_task(self._tell_progress(run))

    async def _tell_progress(self, run: _Run) -> None:
        hold = Hold(run.lease.job_id, run.lease.token)
        while run.progress:
            pct, note = run.progress.popleft()
            try:
                held = await self._store.progress(hold, pct, note)
            except StoreError as error:
                self._emit(StoreFailed(self._options.name, "telling progress", str(error)))
            else:
                if not held:
                    self._stale(run, "progress")

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(self._options.watch_every_s)
            for run in self._runs:
                if run.attempt is None or run.settlement is not None or run.attempt.interruption is not None:
                    continue
                match self._book.standing(run.slot):
                    case Standing.LOST:
                        run.attempt.interrupt(Interruption.LOST)
                    case Standing.CANCELLED:
                        run.attempt.interrupt(Interruption.CANCELLED)
                    case Standing.HELD:
                        pass

    def _abort(self) -> None:
        for run in self._runs:
            if run.attempt is not None:
                run.attempt.interrupt(Interruption.SHUTDOWN)

    def _abandon(self) -> None:
        for run in self._runs:
            self._end(run, Aborted())
