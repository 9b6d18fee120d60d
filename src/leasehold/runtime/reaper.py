"""Recovery: one bounded pass over what is due and what was left behind.

Every worker's loop recovers, so nothing hangs on a leader. A pass says when it wants to come back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from leasehold.core.facts import Fact, JobRecovered
from leasehold.core.outcome import Expired
from leasehold.runtime.clock import Clock
from leasehold.store.contract import Decide, Store

BATCH: Final = 100
SOONEST_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Report:
    """What a pass did, and in how many seconds the next one is wanted."""

    worked: int
    next_in_s: float


class Recovery:
    """Promotes what is due, recovers what expired."""

    def __init__(  # noqa: PLR0913 - everything that it may not make for itself
        self,
        store: Store,
        decide: Decide,
        emit: Callable[[Fact], None],
        clock: Clock,
        *,
        poll_s: float,
        reap_every_s: float,
    ) -> None:
        self._store = store
        self._decide = decide
        self._emit = emit
        self._clock = clock
        self._poll_s = poll_s
        self._reap_every_s = reap_every_s
        self._reap_at = float("-inf")

    async def step(self) -> Report:
        """One pass, bounded."""
        promoted = await self._store.promote(BATCH)
        reaped = await self._reap() if self._clock.monotonic() >= self._reap_at else 0
        look = await self._store.look()
        if look.expiry_in_s is not None:
            self._reap_at = min(self._reap_at, self._clock.monotonic() + max(look.expiry_in_s, 0.0))
        if BATCH in (promoted, reaped):
            return Report(promoted + reaped, 0.0)
        awaited = [wait for wait in (look.due_in_s, look.expiry_in_s) if wait is not None]
        return Report(promoted + reaped, max(min([self._poll_s, *awaited]), SOONEST_S))

    async def drain(self) -> int:
        """Recover until nothing is left: the start of a worker."""
        total = 0
        while (count := await self._reap()) > 0:
            total += count
        return total

    async def _reap(self) -> int:
        reaped = await self._store.reap(BATCH, self._decide)
        self._reap_at = self._clock.monotonic() + self._reap_every_s
        for lease, settlement in reaped:
            self._emit(JobRecovered(lease, Expired(), settlement))
        return len(reaped)
