"""The clock of leases: the one place in `processes` that reads it. Local deadlines use `time.monotonic` where they are.

A lease runs out while the machine sleeps. `CLOCK_MONOTONIC` of Linux stands still then, so a worker that wakes up late
would believe that its lease is fresh; `CLOCK_BOOTTIME` counts the sleep. Every process of one machine reads the same
value, so times written by one into shared memory are compared by another.
"""

from __future__ import annotations

import sys
import time
from typing import Final

if sys.platform == "linux":
    _CLOCK: Final = time.CLOCK_BOOTTIME
else:  # macOS has no BOOTTIME, but its CLOCK_MONOTONIC counts sleep (time.monotonic reads another clock there)
    _CLOCK: Final = time.CLOCK_MONOTONIC


def now_ns() -> int:
    """Nanoseconds since the machine started, time asleep included."""
    return time.clock_gettime_ns(_CLOCK)
