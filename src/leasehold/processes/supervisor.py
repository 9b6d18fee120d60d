"""The parent of the worker processes: starts them, keeps their leases, settles their deaths. Runs no user code.

Nothing here knows what a job is about. A worker process that dies is buried at once by the undertaker and replaced; one
that was told to stop and does not is killed, and its jobs go back uncharged, because it was our doing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Final
from uuid import UUID

import msgspec

from leasehold.core.errors import LeaseholdError
from leasehold.core.facts import Fact, ProcessDied, ProcessStarted
from leasehold.core.policy import Backoff
from leasehold.processes.early import STOPPING
from leasehold.processes.keeper import Keeper, Kept
from leasehold.processes.orders import LINE_MAX, Begin, Hello, Orders, Seat, write_line
from leasehold.processes.slot_table import ReplyTable, ReplyWriter, SlotReader, SlotTable
from leasehold.processes.tree import MARK, Death, become_subreaper, kill_tree, peek_dead, reap, reap_adopted
from leasehold.processes.undertaker import Corpse, bury
from leasehold.store.contract import Decide, Store

KILL_AFTER_S: Final = 1.0
LOOK_EVERY_S: Final = 1.0
STEADY_AFTER_S: Final = 10.0
RESTART: Final = Backoff(0, "2s", factor=2, cap="30s", jitter=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """What to supervise. `entry` is the module that a worker process runs."""

    target: str
    entry: str
    host: str
    processes: int = 1
    concurrency: int = 10
    queues: tuple[str, ...] | None = None
    heartbeat_s: float = 10.0
    shutdown_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """The database stands. `spared`: processes that may be ours and no worker's (those of the private database)."""

    begin: Begin
    spared: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class _Child:
    """One worker process. `hello` came once it is known what it found."""

    number: int
    name: str
    mark: str
    process: subprocess.Popen[bytes]
    orders: int
    answers: BinaryIO
    tables: tuple[SlotTable, ReplyTable]
    slots: SlotReader
    replies: ReplyWriter
    born_s: float
    greeting: asyncio.Task[None] | None = None
    kept: Kept | None = None
    told_to_stop: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid


class Supervisor:
    """Runs worker processes until it is told to stop."""

    def __init__(  # noqa: PLR0913 - everything that it may not make for itself
        self,
        options: SupervisorOptions,
        *,
        prepare: Callable[[Hello], Awaitable[Prepared]],
        connect: Callable[[str], Store],
        decide: Decide,
        emit: Callable[[Fact], None],
        token: Callable[[], UUID],
        monotonic: Callable[[], float],
    ) -> None:
        self._options = options
        self._prepare = prepare
        self._connect = connect
        self._decide = decide
        self._emit = emit
        self._token = token
        self._monotonic = monotonic
        self._children: dict[int, _Child] = {}
        self._dying: set[int] = set()
        self._begin: Begin | None = None
        self._spared: frozenset[int] = frozenset()
        self._births_and_sweeps = asyncio.Lock()
        self._store: Store | None = None
        self._keeper: Keeper | None = None
        self._stopping = False
        self._told_to_stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._early_deaths = 0
        self._exit_code = 0
        self._failure: LeaseholdError | None = None
        self._broken: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, *, stop_at_once: bool = False) -> int:
        """Supervise until everything has ended; the exit code."""
        loop = asyncio.get_running_loop()
        for stopping in STOPPING:
            loop.add_signal_handler(stopping, self.stop)
        loop.add_signal_handler(signal.SIGCHLD, self._changed.set)
        if stop_at_once:
            return 0
        try:
            for number in range(self._options.processes):
                await self._spawn(number)
                if number == 0 and not await self._first_hello():
                    break
            while not (self._stopping and not self._children):
                await self._turn()
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            await self._close()
        if self._failure is not None:
            raise self._failure
        return self._exit_code

    def stop(self) -> None:
        """Tell every worker process to stop; kill those that do not."""
        if self._stopping:
            return
        self._stopping = True
        self._told_to_stop.set()
        self._changed.set()
        for child in self._children.values():
            self._tell_to_stop(child)
        loop = asyncio.get_running_loop()
        loop.call_later(self._options.shutdown_s + KILL_AFTER_S, self._kill_the_rest)

    # --- births -------------------------------------------------------------------------------------------------------

    async def _spawn(self, number: int) -> None:
        # A sweep must not meet a worker between its fork and its exec: it has no mark yet, and nobody knows its pid.
        async with self._births_and_sweeps:
            if self._stopping:
                return  # it was told meanwhile, and would not have told this one
            child = self._born(number)
        self._emit(ProcessStarted(child.name, child.pid))
        child.greeting = self._in_background(self._greet(child))

    def _born(self, number: int) -> _Child:
        mark = str(self._token())
        name = f"{self._options.host}:{number}:{mark[:8]}"
        tables = (SlotTable.create(self._options.concurrency), ReplyTable.create(self._options.concurrency))
        replies = ReplyWriter(tables[1].fd, tables[1].slots)
        orders_read, orders_write = os.pipe()
        answers_read, answers_write = os.pipe()
        seat = Seat(orders_read, answers_write, tables[0].fd, tables[1].fd)
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module, never a stranger's text
            # -P: a file of the working directory must not take the place of a library of ours.
            [sys.executable, "-P", "-m", self._options.entry, *seat.arguments()],
            pass_fds=(seat.orders, seat.answers, seat.slots, seat.replies),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, MARK: mark},
        )
        os.close(orders_read)
        os.close(answers_write)
        slots = SlotReader(tables[0].fd, tables[0].slots)
        child = _Child(
            number,
            name,
            mark,
            process,
            orders_write,
            os.fdopen(answers_read, "rb"),
            tables,
            slots,
            replies,
            self._monotonic(),
        )
        self._children[child.pid] = child
        orders = Orders(self._options.target, name, self._options.concurrency, self._options.queues)
        self._tell(child, orders)
        return child

    async def _greet(self, child: _Child) -> None:
        # On the loop, not in a thread: the few threads are for sweeps, which must not wait for somebody's slow imports.
        reader = asyncio.StreamReader(limit=LINE_MAX)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), child.answers)
        try:
            line = await reader.readline()
        finally:
            transport.close()
        if not line:
            return  # it died first, which SIGCHLD tells
        hello = msgspec.json.decode(line, type=Hello)
        if self._begin is None:
            try:
                prepared = await self._prepare(hello)
            except LeaseholdError as error:
                self._failure = error
                self.stop()
                self._hang_up(child)
                return
            # From here on orphans come to us; not earlier, or a private database that was just started would be one.
            become_subreaper()
            self._begin, self._spared = prepared.begin, prepared.spared
            dsn = self._begin.dsn
            self._store = self._connect(dsn)
            self._keeper = Keeper(lambda: self._connect(dsn), self._emit, heartbeat_s=self._options.heartbeat_s)
            self._keeper.start()
        child.kept = Kept(child.name, child.pid, child.slots, child.replies, hello.shortest_lease_s)
        assert self._keeper is not None, "the first hello made it"
        self._keeper.keep(child.kept)
        self._tell(child, self._begin)
        self._changed.set()

    def _tell(self, child: _Child, message: Orders | Begin) -> None:
        if child.orders >= 0:
            with suppress(BrokenPipeError):  # it died meanwhile, which SIGCHLD tells
                write_line(child.orders, message)

    async def _first_hello(self) -> bool:
        while self._begin is None and not self._stopping:
            await self._turn()
        return self._begin is not None

    def _hang_up(self, child: _Child) -> None:
        """End the pipe of orders: who still waits for its first word there stops waiting."""
        if child.orders >= 0:
            os.close(child.orders)
            child.orders = -1

    # --- deaths -------------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        self._changed.clear()
        if self._broken is not None:
            raise self._broken
        for death in peek_dead(set(self._children) - self._dying):
            self._dying.add(death.pid)
            self._in_background(self._see_off(self._children[death.pid], death))
        reap_adopted(set(self._children))
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _see_off(self, child: _Child, death: Death) -> None:
        if self._begin is None and death.exit_code:
            self._exit_code = death.exit_code  # it never got to work and has said why; another would say the same
            self.stop()
        elif not (self._stopping and death.exit_code == 0):
            evidence = {"signal": death.signal, "exit_code": death.exit_code}
            self._emit(ProcessDied(child.name, child.pid, evidence))
        await self._sweep(child)
        if not self._stopping:
            self._in_background(self._replace(child))
        if self._store is not None:
            corpse = Corpse(child.name, child.pid, child.slots, death, child.told_to_stop)
            await bury(corpse, self._store, self._decide, self._emit)
        self._forget(child)
        self._changed.set()

    async def _sweep(self, child: _Child) -> None:
        """Kill everything that the worker process started. It stays a zombie until then: its pid is nobody else's."""
        async with self._births_and_sweeps:
            known = (set(self._children) | self._spared) - {child.pid}
            await asyncio.to_thread(kill_tree, child.pid, child.mark, known=known)

    async def _replace(self, child: _Child) -> None:
        try:
            async with asyncio.timeout(self._restart_in_s(child)):
                await self._told_to_stop.wait()
        except TimeoutError:
            await self._spawn(child.number)

    def _forget(self, child: _Child) -> None:
        if child.kept is not None and self._keeper is not None:
            self._keeper.drop(child.kept)
        reap(child.pid)
        child.process.returncode = 0  # reaped here: Popen must not wait for it again
        del self._children[child.pid]
        self._dying.discard(child.pid)
        self._hang_up(child)
        if child.greeting is not None:
            child.greeting.cancel()  # a fork of its own may hold the pipe open
        for table in child.tables:
            table.close()

    def _restart_in_s(self, child: _Child) -> float:
        if self._monotonic() - child.born_s >= STEADY_AFTER_S:
            self._early_deaths = 0
            return 0.0
        self._early_deaths += 1
        return RESTART.delay_s(self._early_deaths, 0.0)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _tell_to_stop(self, child: _Child) -> None:
        child.told_to_stop = True
        self._signal(child, signal.SIGTERM)

    def _kill_the_rest(self) -> None:
        for child in self._children.values():
            self._signal(child, signal.SIGKILL)

    def _signal(self, child: _Child, number: int) -> None:
        # Not through Popen: it would poll first, and so reap a death that has not been looked at yet.
        if child.pid not in self._dying:
            os.kill(child.pid, number)

    async def _close(self) -> None:
        for child in list(self._children.values()):
            os.kill(child.pid, signal.SIGKILL)
            await self._sweep(child)
            self._forget(child)
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.stop)
        if self._store is not None:
            await self._store.close()

    def _in_background(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error  # a defect of ours: end loudly, rather than go on without an undertaker
            self._changed.set()
