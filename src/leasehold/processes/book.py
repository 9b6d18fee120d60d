"""The worker's book in shared memory: written into the slot table, read from the reply table."""

from __future__ import annotations

from typing import Final

from leasehold.core.job import Lease
from leasehold.processes.boottime import now_ns
from leasehold.processes.slot_table import ReplyReader, SlotState, SlotWriter, Verdict
from leasehold.runtime.book import Standing

SECOND_NS: Final = 1_000_000_000
FENCE_PART: Final = 0.9  # of a lease; a worker that was not heard of for longer stops before somebody else may begin


class SharedBook:
    """Keeps `runtime.book.Book` on the two tables."""

    def __init__(self, slots: SlotWriter, replies: ReplyReader) -> None:
        self._slots = slots
        self._replies = replies
        self._laps: dict[int, tuple[int, int, int]] = {}

    def now_ns(self) -> int:
        """The clock of leases."""
        return now_ns()

    def claimed(self, slot: int, lease: Lease, sent_ns: int) -> None:
        """The slot holds this lease."""
        lease_ns = int(lease.lease_s * SECOND_NS)
        timeout_ns = int((lease.timeout_s or 0) * SECOND_NS)
        lap = self._slots.put(
            slot,
            job_id=lease.job_id,
            token=lease.token.bytes,
            epoch=lease.epoch,
            lease_ns=lease_ns,
            sent_ns=sent_ns,
            start_ns=0,
            deadline_ns=sent_ns + timeout_ns if timeout_ns else 0,
            queue=0,
            stage=0,
            attempt=lease.attempt,
            group=0,
        )
        self._laps[slot] = (lap, sent_ns, lease_ns)

    def running(self, slot: int) -> None:
        """The handler is about to begin."""
        self._slots.state(slot, SlotState.RUNNING)

    def ended(self, slot: int) -> None:
        """The handler has ended and its outcome is encoded."""
        self._slots.state(slot, SlotState.ENDED)

    def empty(self, slot: int) -> None:
        """The store has answered the settle."""
        self._slots.clear(slot)

    def standing(self, slot: int) -> Standing:
        """By the keeper's last word about this lap, and by the clock since the last accepted beat was sent."""
        lap, sent_ns, lease_ns = self._laps[slot]
        answer = self._replies.answer(slot, lap)
        if answer is not None:
            if answer.verdict is Verdict.LOST:
                return Standing.LOST
            sent_ns = max(sent_ns, answer.sent_ns)
        if now_ns() - sent_ns > lease_ns * FENCE_PART:
            return Standing.LOST
        if answer is not None and answer.verdict is Verdict.CANCEL:
            return Standing.CANCELLED
        return Standing.HELD
