"""The keeper: extends the leases of what workers say they hold, from a thread and a connection of its own.

It never runs user code and no handler can hold it up. It reads every worker's slot table, extends in one batch what is
due, and answers into the reply tables. It extends what a worker *says* it holds, never "everything of worker W": a
claim whose reply was lost leaves a lease that nobody runs, and that must run out.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from leasehold.core.errors import StoreError
from leasehold.core.facts import Fact, HeartbeatFailed, LeasesKept, SlotUnreadable, StaleTokenRefused
from leasehold.processes.boottime import now_ns
from leasehold.processes.slot_table import Held, ReplyWriter, SlotReader, SlotState
from leasehold.processes.slot_table import Verdict as Told
from leasehold.processes.tree import stopped
from leasehold.store.contract import Hold, Store, Verdict

SECOND_NS: Final = 1_000_000_000
TICK_LEAST_S: Final = 0.05
TICK_MOST_S: Final = 1.0


@dataclass(slots=True, eq=False)
class Kept:
    """A worker process as its keeper sees it. `beats` is when the last accepted beat of each slot's lap was sent."""

    name: str
    pid: int
    slots: SlotReader
    replies: ReplyWriter
    shortest_lease_s: float
    beats: dict[int, tuple[int, int]] = field(default_factory=dict)
    unreadable: set[int] = field(default_factory=set)

    def last_beat_ns(self, slot: int, held: Held) -> int:
        """When this lap was last known to be held: by its claim, or by a beat."""
        lap, sent_ns = self.beats.get(slot, (0, 0))
        return sent_ns if lap == held.lap else held.sent_ns


@dataclass(frozen=True, slots=True)
class _Beat:
    kept: Kept
    slot: int
    held: Held

    @property
    def hold(self) -> Hold:
        return Hold(self.held.job_id, UUID(bytes=self.held.token))


class Keeper:
    """Beats until it is told to stop."""

    def __init__(self, connect: Callable[[], Store], emit: Callable[[Fact], None], *, heartbeat_s: float) -> None:
        self._connect = connect
        self._emit = emit
        self._heartbeat_s = heartbeat_s
        self._workers: tuple[Kept, ...] = ()
        self._changing = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self._failures = 0

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Beat no more; waits for the last beat."""
        self._stop.set()
        self._thread.join(timeout=5)

    def keep(self, worker: Kept) -> None:
        """Keep this worker's leases from now on."""
        with self._changing:
            self._workers = (*self._workers, worker)

    def drop(self, worker: Kept) -> None:
        """Keep them no longer: the worker is dead, and its table is settled."""
        with self._changing:
            self._workers = tuple(other for other in self._workers if other is not worker)

    def _run(self) -> None:
        asyncio.run(self._beat_on())

    async def _beat_on(self) -> None:
        store = self._connect()
        try:
            while not self._stop.is_set():
                workers = self._workers
                await self._beat(store, workers)
                shortest_s = min((worker.shortest_lease_s for worker in workers), default=TICK_MOST_S)
                await asyncio.sleep(min(max(shortest_s / 6, TICK_LEAST_S), TICK_MOST_S))
        finally:
            await store.close()

    async def _beat(self, store: Store, workers: Sequence[Kept]) -> None:
        sent_ns = now_ns()
        for worker in workers:
            worker.replies.beat(sent_ns)
        due = [beat for worker in workers if not stopped(worker.pid) for beat in self._due(worker, sent_ns)]
        if not due:
            return
        shortest_s = min(beat.held.lease_ns for beat in due) / SECOND_NS
        try:
            async with asyncio.timeout(shortest_s / 3):
                verdicts = await store.extend(list({beat.hold for beat in due}))
        except (StoreError, TimeoutError) as error:
            self._failures += 1
            self._emit(HeartbeatFailed(self._failures, str(error) or type(error).__name__))
            return
        self._failures = 0
        for beat in due:
            self._answer(beat, verdicts[beat.hold], sent_ns)
        kept = sum(verdict in (Verdict.KEPT, Verdict.CANCEL) for verdict in verdicts.values())
        if kept:
            self._emit(LeasesKept(kept))

    def _due(self, worker: Kept, sent_ns: int) -> list[_Beat]:
        due: list[_Beat] = []
        for slot, held in worker.slots.held():
            if not isinstance(held, Held):
                if slot not in worker.unreadable:
                    self._emit(SlotUnreadable(worker.name, slot))
                worker.unreadable.add(slot)
            else:
                interval_ns = min(self._heartbeat_s * SECOND_NS, held.lease_ns / 3)
                if sent_ns - worker.last_beat_ns(slot, held) >= interval_ns:
                    due.append(_Beat(worker, slot, held))
        return due

    def _answer(self, beat: _Beat, verdict: Verdict, sent_ns: int) -> None:
        worker, slot, held = beat.kept, beat.slot, beat.held
        match verdict:
            case Verdict.KEPT | Verdict.CANCEL:
                worker.beats[slot] = (held.lap, sent_ns)
                told = Told.KEPT if verdict is Verdict.KEPT else Told.CANCEL
                worker.replies.answer(slot, held.lap, sent_ns, told)
            case Verdict.LOST:
                # A row that is missing because its settle has just been applied is no loss: the slot has moved on by
                # then.
                again = worker.slots.read(slot)
                if isinstance(again, Held) and again.lap == held.lap and again.state is not SlotState.ENDED:
                    worker.beats[slot] = (held.lap, sent_ns)
                    worker.replies.answer(slot, held.lap, worker.last_beat_ns(slot, held), Told.LOST)
                    self._emit(StaleTokenRefused(held.job_id, held.attempt, worker.name, "heartbeat"))
            case Verdict.BUSY:
                pass  # somebody's transaction holds the row: the next beat will tell
