"""Puts the worker together: the supervisor on one side, a worker process on the other."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from pathlib import Path

import msgspec

from leasehold import embedded
from leasehold.app.app import App
from leasehold.app.database import Address, Database, fit, stand
from leasehold.app.load import load
from leasehold.core.decide import Settlement, decide
from leasehold.core.errors import LeaseholdError
from leasehold.core.job import Lease
from leasehold.core.outcome import Outcome
from leasehold.core.policy import Policy
from leasehold.core.settings import Settings
from leasehold.observe.log import Log
from leasehold.observe.metrics import Metrics
from leasehold.observe.signals import Signals
from leasehold.processes.book import SharedBook
from leasehold.processes.early import STOPPING, EarlySignals
from leasehold.processes.orders import EXIT_CONFIGURATION, Begin, Hello, Orders, Seat, read_line, write_line
from leasehold.processes.slot_table import ReplyReader, SlotWriter
from leasehold.processes.supervisor import Prepared, Supervisor, SupervisorOptions
from leasehold.runtime.clock import SystemChance, SystemClock
from leasehold.runtime.registry import TaskSpec
from leasehold.runtime.worker import Worker, WorkerOptions
from leasehold.store.postgres.door import DoorSettings
from leasehold.store.postgres.store import PostgresStore

ENTRY = "leasehold.app.child"


async def supervise(  # noqa: PLR0913 - the options of `leasehold worker`
    target: str,
    settings: Settings,
    early: EarlySignals,
    *,
    processes: int = 1,
    concurrency: int | None = None,
    queues: tuple[str, ...] | None = None,
) -> int:
    """Run `leasehold worker`: the exit code."""
    chance, clock, log, metrics = SystemChance(), SystemClock(), Log(), Metrics()
    signals = Signals(log.hear, metrics.hear)
    policy = settings.policy()
    shares: list[Database] = []

    async def prepare(hello: Hello) -> Prepared:
        database = await asyncio.to_thread(stand, Address(hello.dsn, Path(hello.home)))
        shares.append(database)
        await fit(database)
        if database.server is None:
            return Prepared(Begin(database.dsn, None))
        # As PID 1 we are given every orphan, also those that a private database makes of itself when it starts.
        info = embedded.running(Path(hello.home))
        return Prepared(Begin(database.dsn, hello.home), frozenset({info.pid, info.minder} if info else ()))

    def settled(lease: Lease, outcome: Outcome) -> Settlement:
        return decide(lease, outcome, policy, chance.rand())

    supervisor = Supervisor(
        SupervisorOptions(
            target=target,
            entry=ENTRY,
            host=socket.gethostname(),
            processes=processes,
            concurrency=max((concurrency or settings.max_concurrency) // processes, 1),
            queues=queues,
            heartbeat_s=settings.heartbeat_interval_sec,
            shutdown_s=settings.worker_shutdown_timeout_ms / 1000,
        ),
        prepare=prepare,
        connect=lambda dsn: _store(dsn, "supervisor", clock),
        decide=settled,
        emit=signals.emit,
        token=chance.token,
        monotonic=clock.monotonic,
    )
    try:
        return await supervisor.run(stop_at_once=early.came)
    finally:
        if counted := metrics.counted() | signals.counted():
            log.counters("supervisor", counted)
        for database in shares:
            database.close()


def sit(arguments: list[str], early: EarlySignals) -> int:
    """Be a worker process: load the program, say what was found, wait for the word, work until told to stop."""
    seat = Seat.from_arguments(arguments)
    line = read_line(seat.orders)
    if line is None or early.came:
        return 0
    orders = msgspec.json.decode(line, type=Orders)
    try:
        app = load(orders.target)
    except LeaseholdError as error:
        print(f"leasehold: {error}", file=sys.stderr)  # noqa: T201 - said to the person who started the worker
        return EXIT_CONFIGURATION
    leases_s = [spec.lease_s for spec in app.registry] or [app.settings.lease_s]
    address = app.address()
    try:
        write_line(seat.answers, Hello(address.dsn, str(address.home), min(leases_s)))
    except BrokenPipeError:
        return 0  # its supervisor is gone, before it took anything
    line = read_line(seat.orders)
    if line is None or early.came:
        return 0
    begin = msgspec.json.decode(line, type=Begin)
    server = embedded.start(Path(begin.home)) if begin.home is not None else None
    try:
        asyncio.run(_work(seat, orders, app, begin, early))
    finally:
        if server is not None:
            server.close()
    return 0


async def _work(seat: Seat, orders: Orders, app: App, begin: Begin, early: EarlySignals) -> None:
    settings, clock, log, metrics = app.settings, SystemClock(), Log(), Metrics()
    signals = Signals(log.hear, metrics.hear)

    of_unknown = settings.policy()
    policies = {spec.name: settings.policy(spec.retry) for spec in app.registry}

    def policy_of(spec: TaskSpec | None) -> Policy:
        return policies[spec.name] if spec is not None else of_unknown

    slots = orders.concurrency
    store = _store(begin.dsn, "worker", clock)
    worker = Worker(
        WorkerOptions(
            name=orders.name,
            concurrency=slots,
            queues=orders.queues,
            reap_every_s=settings.reaper_interval_sec,
            shutdown_s=settings.worker_shutdown_timeout_ms / 1000,
        ),
        store,
        app.registry,
        SharedBook(SlotWriter(seat.slots, slots), ReplyReader(seat.replies, slots)),
        policy_of=policy_of,
        emit=signals.emit,
        clock=clock,
        chance=SystemChance(),
    )
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        loop.add_signal_handler(number, worker.stop)
    threading.Thread(target=_watch_parent, args=(seat.orders, loop, worker), name="parent-watch", daemon=True).start()
    if early.came:
        worker.stop()
    try:
        await worker.run()
    finally:
        await store.close()
        log.counters(orders.name, metrics.counted() | signals.counted())


def _watch_parent(orders: int, loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
    """The pipe of orders ends with the supervisor: then this process stops too."""
    while read_line(orders) is not None:
        pass
    loop.call_soon_threadsafe(worker.stop)


def _store(dsn: str, role: str, clock: SystemClock) -> PostgresStore:
    return PostgresStore(dsn, clock=clock.monotonic, settings=DoorSettings(application_name=f"leasehold-{role}"))
