"""How a program talks to the store: one loop in a thread of its own per process, made at first use.

Blocking calls wait for it, awaitable ones are bridged to it, so that one connection serves any thread and any number of
event loops. A forked copy of the process notices its new pid and begins anew: it shares no connection with its parent.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from leasehold.app.database import Address, Database, fit, stand
from leasehold.core.errors import InsideLoopError
from leasehold.runtime.clock import SystemClock
from leasehold.store.contract import Store
from leasehold.store.postgres.store import PostgresStore

T = TypeVar("T")
Act = Callable[[Store], Awaitable[T]]


class Client:
    """The store, for a program that is no worker."""

    def __init__(self, address: Callable[[], Address]) -> None:
        self._address = address
        self._line: _Line | None = None
        self._making = threading.Lock()

    def call(self, act: Act[T]) -> T:
        """Do it and wait; refused inside a running loop, which it would stop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._submit(act).result()
        raise InsideLoopError

    async def acall(self, act: Act[T]) -> T:
        """Do it and await it, from any loop."""
        return await asyncio.wrap_future(self._submit(act))

    def close(self) -> None:
        """Give everything back; a later call begins anew."""
        with self._making:
            line, self._line = self._line, None
        if line is not None and line.pid == os.getpid():
            line.close()

    def _submit(self, act: Act[T]) -> Future[T]:
        with self._making:
            if self._line is None or self._line.pid != os.getpid():
                self._line = _Line(self._address())
            return self._line.submit(act)


class _Line:
    """A loop thread with its store. Belongs to the process that made it."""

    def __init__(self, address: Address) -> None:
        self.pid = os.getpid()
        self._address = address
        self._database: Database | None = None
        self._store: Store | None = None
        self._opening: asyncio.Lock | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="leasehold-client", daemon=True)
        self._thread.start()

    def submit(self, act: Act[T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(self._act(act), self._loop)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _act(self, act: Act[T]) -> T:
        return await act(await self._opened())

    async def _opened(self) -> Store:
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._store is None:
                self._database = await asyncio.to_thread(stand, self._address)
                await fit(self._database)
                self._store = PostgresStore(self._database.dsn, clock=SystemClock().monotonic)
            return self._store

    async def _close(self) -> None:
        if self._store is not None:
            await self._store.close()
        if self._database is not None:
            self._database.close()
