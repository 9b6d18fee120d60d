"""What a handler may do and know: the `Job` it is given.

It carries the facts of the attempt, takes progress, and tells three things that may happen meanwhile: `lost` (the lease
is gone), `cancelled` (nobody wants the job any more), `stopping` (the worker is told to stop). It may be used from the
event loop and from a handler's thread alike; what reaches the database is the worker's business.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any
from uuid import UUID

from leasehold.core.job import Lease
from leasehold.core.storable import text
from leasehold.core.throttle import LastTold, worth_telling

NOTE_MAX = 500


class Signal:
    """Something that may happen while a handler runs: ask `is_set()`, `wait()` in a thread, or `await` it.

    Every job has three and few are ever asked, so what waiting needs is made by the first who waits.
    """

    __slots__ = ("_event", "_happened", "_waiters")

    def __init__(self) -> None:
        self._happened = False
        self._event: threading.Event | None = None
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] | None = None

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._happened

    def __bool__(self) -> bool:
        return self._happened

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until it happens, or `timeout` seconds; says whether it has."""
        with _making:
            if self._event is None:
                self._event = threading.Event()
        return self._happened or self._event.wait(timeout)

    def __await__(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with _making:
            if not self._happened:
                self._waiters = [*(self._waiters or ()), (loop, waiter)]
        if not self._happened:
            yield from waiter

    def set(self) -> None:
        """It has happened."""
        with _making:
            self._happened = True
            event, waiters, self._waiters = self._event, self._waiters, None
        if event is not None:
            event.set()
        for loop, waiter in waiters or ():
            loop.call_soon_threadsafe(_wake, waiter)


_making = threading.Lock()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


Report = Callable[[int, str | None], None]


class Job:
    """The job that a handler is working on."""

    def __init__(
        self, lease: Lease, arguments: dict[str, Any], *, report: Report, monotonic: Callable[[], float]
    ) -> None:
        self._lease = lease
        self._report = report
        self._monotonic = monotonic
        self._told: LastTold | None = None
        self.payload = arguments
        self.lost = Signal()
        self.cancelled = Signal()
        self.stopping = Signal()

    @property
    def id(self) -> int:
        """The job's number."""
        return self._lease.job_id

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self._lease.queue

    @property
    def task(self) -> str:
        """The name of its task."""
        return self._lease.task

    @property
    def attempt(self) -> int:
        """Which run this is, from 1."""
        return self._lease.attempt

    @property
    def epoch(self) -> int:
        """How often the job was ever taken, this time included; grows even where an attempt is handed back."""
        return self._lease.epoch

    @property
    def token(self) -> UUID:
        """The token of this attempt's lease."""
        return self._lease.token

    def progress(self, pct: float, note: str | None = None) -> None:
        """Say how far the job is, 0 to 100. Told when it rose by a point, after half a second, or at 100."""
        point = min(max(int(pct), 0), 100)
        now = self._monotonic()
        if worth_telling(point, now, self._told):
            self._told = LastTold(point, now, self._told.before + 1 if self._told else 0)
            self._report(point, text(note, NOTE_MAX) if note is not None else None)
