"""How much of the database's own speed reaches the user: a queue of no-op jobs is drained twice in one run.

*bare*: one connection that sends the worker's own statement (settle the last batch, claim the next), nothing else.
*worker*: the whole runtime in one process: claim, slot table, a task per job, decide, settle, metrics, log lines.
Both on one private PostgreSQL, by turns, the median of three. Only the ratio means anything on another machine.

    python benchmarks/drain.py [--jobs 10000] [--concurrency 10 100 500]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg

from leasehold import embedded
from leasehold.app.app import App
from leasehold.core.facts import Fact, JobEnded
from leasehold.core.job import NewJob
from leasehold.core.settings import Settings
from leasehold.observe.log import Log
from leasehold.observe.metrics import Metrics
from leasehold.observe.signals import Signals
from leasehold.processes.book import SharedBook
from leasehold.processes.slot_table import ReplyReader, ReplyTable, SlotTable, SlotWriter
from leasehold.runtime.clock import SystemChance, SystemClock
from leasehold.runtime.worker import Worker, WorkerOptions
from leasehold.store.postgres.migrate import migrate
from leasehold.store.postgres.statements import statement
from leasehold.store.postgres.store import PostgresStore

TURNS = 3
app = App(settings=Settings())


@app.task
async def nothing() -> None:
    """The job."""


async def fill(dsn: str, jobs: int) -> None:
    store = PostgresStore(dsn, clock=time.monotonic)
    new = NewJob(task="nothing", payload="{}")
    for begin in range(0, jobs, 1000):
        await store.enqueue([new] * min(1000, jobs - begin))
    await store.close()


async def bare(dsn: str, jobs: int, concurrency: int) -> float:
    connection = await asyncpg.connect(dsn)
    await connection.execute("set jit = off")
    text, hint, batch, left = statement("settle_and_claim"), 0, list[tuple[int, UUID]](), jobs
    began = time.perf_counter()
    while left or batch:
        token = uuid4()
        ids, tokens = [job_id for job_id, _ in batch], [held for _, held in batch]
        lanes = (["default"], [0], [hint], [concurrency], concurrency, "bare", token, ["nothing"])
        rows = await connection.fetch(text, *lanes, ids, tokens, "{}")
        batch = [(row["job_id"], token) for row in rows if row["task"] is not None]
        left -= len(batch)
        hint = max((row["seq"] for row in rows if row["seq"] is not None), default=hint)
    took_s = time.perf_counter() - began
    await connection.close()
    return jobs / took_s


async def worker(dsn: str, jobs: int, concurrency: int) -> float:
    slots, replies = SlotTable.create(concurrency), ReplyTable.create(concurrency)
    store, ended = PostgresStore(dsn, clock=time.monotonic), 0

    def count(fact: Fact) -> None:
        nonlocal ended
        if isinstance(fact, JobEnded):
            ended += 1
            if ended == jobs:
                running.stop()

    with open(os.devnull, "w", encoding="utf-8") as log:  # noqa: ASYNC230, PTH123 - opened once, before the clock runs
        running = Worker(
            WorkerOptions(name="bench", concurrency=concurrency),
            store,
            app.registry,
            SharedBook(SlotWriter(slots.fd, concurrency), ReplyReader(replies.fd, concurrency)),
            policy_of=lambda _: app.settings.policy(),
            emit=Signals(Log(log).hear, Metrics().hear, count).emit,
            clock=SystemClock(),
            chance=SystemChance(),
        )
        began = time.perf_counter()
        await running.run()
        took_s = time.perf_counter() - began
    await store.close()
    slots.close()
    replies.close()
    return jobs / took_s


async def measure(dsn: str, jobs: int, concurrency: int) -> None:
    ways: dict[str, Callable[[str, int, int], Awaitable[float]]] = {"bare": bare, "worker": worker}
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, drain in ways.items():
            await fill(dsn, jobs)
            seen[name].append(await drain(dsn, jobs, concurrency))
    rates = {name: statistics.median(rate) for name, rate in seen.items()}
    ratio = rates["worker"] / rates["bare"]
    print(f"{concurrency:12}  {rates['bare']:10,.0f}  {rates['worker']:10,.0f}  {ratio:6.2f}")


async def main(jobs: int, concurrencies: list[int], dsn: str) -> None:
    await migrate(dsn)
    print(f" concurrency  bare jobs/s     worker   ratio   ({jobs:,} no-op jobs, median of {TURNS})")
    for concurrency in concurrencies:
        await measure(dsn, jobs, concurrency)


if __name__ == "__main__":
    words = argparse.ArgumentParser(description="Drain a queue of no-op jobs, bare and with the whole runtime.")
    words.add_argument("--jobs", type=int, default=10_000)
    words.add_argument("--concurrency", type=int, nargs="+", default=[10, 100, 500])
    asked = words.parse_args()
    with tempfile.TemporaryDirectory(prefix="leasehold-bench-") as folder:
        Path(folder).chmod(0o755)  # as root, the server runs as somebody else, who must come through here
        home = Path(folder) / "home"
        with embedded.start(home) as server:
            asyncio.run(main(asked.jobs, asked.concurrency, server.dsn()))
        embedded.stop(home)
