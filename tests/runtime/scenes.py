"""What the runtime's tests say over and over: a lease, a task, a worker on the memory store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self
from uuid import UUID, uuid4

from leasehold.app.app import App
from leasehold.core.facts import Fact
from leasehold.core.job import Lease, NewJob
from leasehold.core.settings import Settings
from leasehold.runtime.book import Standing
from leasehold.runtime.clock import SystemClock
from leasehold.runtime.registry import TaskSpec
from leasehold.runtime.worker import Worker, WorkerOptions
from leasehold.store.contract import Store

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def a_lease(**given: Any) -> Lease:
    values: dict[str, Any] = {
        "job_id": 1,
        "queue": "default",
        "task": "clip",
        "payload": "{}",
        "priority": 0,
        "token": uuid4(),
        "attempt": 1,
        "epoch": 1,
        "losses": 0,
        "max_attempts": 3,
        "lease_s": 30.0,
        "timeout_s": 3600.0,
        "worker": "w1",
        "created_at": NOON,
        "started_at": NOON,
    }
    return Lease(**{**values, **given})


def spec_of(fn: Callable[..., Any], **options: Any) -> TaskSpec:
    app = App(settings=Settings())
    app.task(**options)(fn)
    (spec,) = app.registry
    return spec


@dataclass
class PaperBook:
    """The worker's book in a list: every entry in its order."""

    entries: list[tuple[str, int]] = field(default_factory=list)
    standings: dict[int, Standing] = field(default_factory=dict)
    clock_ns: int = 0
    delays_ns: list[int] = field(default_factory=list)

    def now_ns(self) -> int:
        self.clock_ns += self.delays_ns.pop(0) if self.delays_ns else 0
        return self.clock_ns

    def claimed(self, slot: int, lease: Lease, sent_ns: int) -> None:
        del lease, sent_ns
        self.entries.append(("claimed", slot))

    def running(self, slot: int) -> None:
        self.entries.append(("running", slot))

    def ended(self, slot: int) -> None:
        self.entries.append(("ended", slot))

    def empty(self, slot: int) -> None:
        self.entries.append(("empty", slot))

    def standing(self, slot: int) -> Standing:
        return self.standings.get(slot, Standing.HELD)

    def order(self, slot: int = 0) -> list[str]:
        return [entry for entry, entered in self.entries if entered == slot]


class Certainty:
    """Chance without chance."""

    def token(self) -> UUID:
        return uuid4()

    def rand(self) -> float:
        return 0.0


@dataclass
class Works:
    """A worker at work on a store, with what it told."""

    app: App
    store: Store
    book: PaperBook = field(default_factory=PaperBook)
    facts: list[Fact] = field(default_factory=list)
    concurrency: int = 2
    shutdown_s: float = 5.0

    def __post_init__(self) -> None:
        self.told = asyncio.Condition()
        self.worker = Worker(
            WorkerOptions(
                name="w1",
                concurrency=self.concurrency,
                poll_s=0.05,
                watch_every_s=0.01,
                shutdown_s=self.shutdown_s,
            ),
            self.store,
            self.app.registry,
            self.book,
            policy_of=lambda spec: self.app.settings.policy(spec.retry if spec else None),
            emit=self.facts.append,
            clock=SystemClock(),
            chance=Certainty(),
        )

    def of(self, kind: type[Fact]) -> Sequence[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    async def until(self, kind: type[Fact], count: int = 1) -> Sequence[Any]:
        async with asyncio.timeout(10):
            while len(self.of(kind)) < count:
                await asyncio.sleep(0.005)
        return self.of(kind)

    async def __aenter__(self) -> Self:
        self.running = asyncio.create_task(self.worker.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.worker.stop()
        async with asyncio.timeout(10):
            await self.running


async def enqueue(store: Store, *tasks: str, **wishes: Any) -> list[int]:
    return await store.enqueue([NewJob(task=task, **{"payload": "{}", **wishes}) for task in tasks])
