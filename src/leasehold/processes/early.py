"""Catches a signal that comes before anybody is ready for it.

Imports take a tenth of a second; a SIGTERM in that time kills a process that has no handler, or is lost where it is PID
1. So this is installed first and imports next to nothing; who takes over asks whether it came.
"""

from __future__ import annotations

import signal
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT)


class EarlySignals:
    """Remembers SIGTERM and SIGINT until somebody takes over."""

    def __init__(self) -> None:
        self.came = False
        for number in STOPPING:
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.came = True
