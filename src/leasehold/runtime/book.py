"""The worker's book: what it holds, said before anything is done with it, so that others can keep and settle it.

The order matters. `claimed` comes before anything is done with a job, `running` before the handler's first instruction,
`ended` after the result is encoded, `empty` only after the store has answered the settle. Where the book lies, and who
reads it, is not the runtime's business.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from leasehold.core.job import Lease


class Standing(Enum):
    """What is known of a lease from its keeper."""

    HELD = "held"
    LOST = "lost"
    CANCELLED = "cancelled"


class Book(Protocol):
    """Where a worker says what it holds."""

    def now_ns(self) -> int:
        """The clock of leases."""
        ...

    def claimed(self, slot: int, lease: Lease, sent_ns: int) -> None:
        """The slot holds this lease; the claim was sent at `sent_ns`."""
        ...

    def running(self, slot: int) -> None:
        """The handler is about to begin."""
        ...

    def ended(self, slot: int) -> None:
        """The handler has ended and its outcome is encoded."""
        ...

    def empty(self, slot: int) -> None:
        """The store has answered the settle."""
        ...

    def standing(self, slot: int) -> Standing:
        """Whether the lease in the slot still stands: by the keeper's last word, and by the clock."""
        ...
