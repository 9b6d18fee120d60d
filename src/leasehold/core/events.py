"""The timeline's vocabulary: every kind of event, and the order in which kinds that share an instant are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

CREATED: Final = "created"
PROCESSING: Final = "processing"
PROGRESS: Final = "progress"
RETRY: Final = "retry"
SNOOZED: Final = "snoozed"
RELEASED: Final = "released"
CHECKPOINTED: Final = "checkpointed"
ABORTED: Final = "aborted:shutdown"
REQUEUED: Final = "requeued:stale"
DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"

# Order = (at, epoch, rank of the kind, id). The epoch comes before the rank: under a held clock a whole recovery and
# the next run share one instant, and `processing` of run 2 must still come after `requeued:stale` of run 1.
RANKS: Final[dict[str, int]] = {
    CREATED: 0,
    PROCESSING: 1,
    PROGRESS: 3,
    ABORTED: 5,
    RETRY: 6,
    SNOOZED: 6,
    RELEASED: 6,
    CHECKPOINTED: 6,
    REQUEUED: 7,
    DONE: 9,
    FAILED: 9,
    CANCELLED: 9,
}
RANK_OF_OTHERS: Final = 4


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that is about to be written; the store adds when, which attempt and which epoch."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """One row of a job's timeline."""

    job_id: int
    at: datetime
    kind: str
    attempt: int
    epoch: int
    data: dict[str, Any] = field(default_factory=dict)


def rank_of(kind: str) -> int:
    """Where a kind stands among events of one instant and one epoch."""
    return RANKS.get(kind, RANK_OF_OTHERS)
