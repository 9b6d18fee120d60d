"""The program whose jobs the acceptance tests run. Every start of a handler is written to a log beside the database."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

from leasehold import App, Backoff, Fatal, Job, Retry

app = App()

SOON = Backoff("10ms", jitter=0)


def started(job: Job, log: str) -> None:
    """One line per start: job, attempt, process."""
    with Path(log).open("a", encoding="utf-8") as lines:
        lines.write(f"{job.id} {job.attempt} {os.getpid()}\n")


@app.task(lease="1s")
async def work(job: Job, log: str, seconds: float) -> str:
    started(job, log)
    await asyncio.sleep(seconds)
    return f"attempt {job.attempt}"


@app.task(lease="1s")
async def work_once(job: Job, log: str, seconds: float) -> str:
    """Long at its first attempt only."""
    started(job, log)
    await asyncio.sleep(seconds if job.attempt == 1 else 0)
    return f"attempt {job.attempt}"


@app.task(lease="1s")
def hold_until(job: Job, log: str, release: str) -> str:
    """A thread that goes on, whatever happens to its lease, until a file appears; later attempts return at once."""
    started(job, log)
    while job.attempt == 1 and not Path(release).exists():
        time.sleep(0.01)
    return f"attempt {job.attempt}"


@app.task(lease="1s")
async def block_the_loop(job: Job, log: str, seconds: float) -> str:
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
    started(job, log)
    return "slept"


@app.task(lease="1s")
async def hold_the_gil(job: Job, log: str, exponent: int) -> int:
    power: int = 3**exponent  # one call into C that gives the GIL to nobody
    started(job, log)
    return power.bit_length()


@app.task(retry=Backoff("10ms", jitter=0, attempts=3))
async def fail(job: Job, log: str, how: str) -> None:
    started(job, log)
    match how:
        case "fatal":
            raise Fatal("INPUT_TOO_LARGE", "it has 3 GB")
        case "retry":
            raise Retry("not yet")
        case "exit":
            raise SystemExit(3)
        case _:
            raise ConnectionError(how)


@app.task(retry=SOON, timeout="300ms")
async def too_long(job: Job, log: str) -> None:
    started(job, log)
    await asyncio.sleep(60)


@app.task
async def tell_progress(job: Job, points: list[float]) -> str:
    for point in points:
        job.progress(point)
    return "told"


@app.task(lease="1s")
async def count_together(job: Job, folder: str, seconds: float) -> int:
    """How many of us ran at once, seen by a file each."""
    mine = Path(folder) / str(job.id)
    mine.touch()
    await asyncio.sleep(seconds / 2)
    together = len(list(Path(folder).iterdir()))
    await asyncio.sleep(seconds / 2)
    mine.unlink()
    return together


@app.task
async def kill_at_once() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
async def leave_a_child_and_die(pids: str) -> None:
    """A child that left our session; then we die without a word."""
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)  # noqa: ASYNC220 - it must outlive nobody
    Path(pids).write_text(str(child.pid), encoding="utf-8")
    os._exit(3)
