"""A worker process is dead: what it held is settled at once, without waiting for its leases.

By now everything that it started is dead too, so nothing of it can act when its jobs are given to others; and it is
still a zombie, so its pid (which is its session) cannot be anybody else's. Killing and reaping are the supervisor's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from leasehold.core.errors import StoreError
from leasehold.core.facts import Fact, JobRecovered, StoreFailed
from leasehold.core.outcome import Aborted, By, Crashed, Outcome
from leasehold.processes.slot_table import Held, SlotReader, SlotState
from leasehold.processes.tree import Death
from leasehold.store.contract import NEVER_BEGUN, Decide, Hold, Store

TRIES: Final = 10
BETWEEN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Corpse:
    """A dead worker process and its table. `told_to_stop`: we ended it, so its jobs are not charged."""

    name: str
    pid: int
    slots: SlotReader
    death: Death
    told_to_stop: bool


def fates(corpse: Corpse) -> dict[Hold, Outcome]:
    """What becomes of each job by how far its worker was with it. What the table does not name was never begun."""
    evidence: dict[str, Any] = {"pid": corpse.pid, "signal": corpse.death.signal, "exit_code": corpse.death.exit_code}
    return {
        Hold(held.job_id, UUID(bytes=held.token)): _fate(held.state, evidence, corpse)
        for _, held in corpse.slots.held()
        if isinstance(held, Held)  # what cannot be read is released like what was never written
    }


def _fate(state: SlotState, evidence: dict[str, Any], corpse: Corpse) -> Outcome:
    if state is SlotState.CLAIMED:
        return NEVER_BEGUN
    if corpse.told_to_stop:
        return Aborted(By.SUPERVISOR)
    return Crashed(evidence, blamed=state is SlotState.RUNNING)


async def bury(corpse: Corpse, store: Store, decide: Decide, emit: Callable[[Fact], None]) -> bool:
    """Settle the jobs; its tree must be dead. False if the database could not be reached: then their leases run out."""
    found = fates(corpse)
    for _ in range(TRIES):
        try:
            buried = await store.bury(corpse.name, found, decide)
        except StoreError as error:
            emit(StoreFailed(corpse.name, "settling a dead worker's jobs", str(error)))
            await asyncio.sleep(BETWEEN_S)
        else:
            for lease, outcome, settlement in buried:
                emit(JobRecovered(lease, outcome, settlement))
            return True
    return False
