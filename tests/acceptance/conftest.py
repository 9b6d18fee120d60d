"""Real workers for acceptance tests: `leasehold worker` as a process of its own, watched from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from leasehold.app.app import App
from leasehold.app.task import Task
from leasehold.core.events import Event
from leasehold.core.job import Job, State
from leasehold.core.settings import Settings
from tests.acceptance import shop

SHOP: Final = Path(shop.__file__)
PATIENCE_S: Final = 30.0


def until(condition: Callable[[], Any], *, within_s: float = PATIENCE_S, what: str = "it") -> Any:
    """Wait for a condition, and say what did not come."""
    deadline = time.monotonic() + within_s
    while not (seen := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {within_s:g} s")
        time.sleep(0.01)
    return seen


@dataclass
class WorkerProcess:
    """A running `leasehold worker`."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for line in self.log.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):  # a last line may be half written
                found.append(json.loads(line))
        return [line for line in found if event is None or line["event"] == event]

    def child(self) -> int:
        """The worker process that claims now."""
        names = [line["worker"] for line in self.lines("WORKER_START")]
        pids = {line["worker"]: line["pid"] for line in self.lines("WORKER_PROCESS_START")}
        return int(pids[names[-1]])

    def ready(self) -> WorkerProcess:
        until(lambda: self.lines("WORKER_START"), what="the worker's start")
        return self

    def signal(self, number: int) -> None:
        """To the supervisor and its worker processes."""
        for pid in (self.pid, *(line["pid"] for line in self.lines("WORKER_PROCESS_START"))):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, *, within_s: float = PATIENCE_S) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within_s)


@dataclass
class Site:
    """A database, a folder, and the workers started there."""

    dsn: str
    folder: Path
    app: App
    workers: list[WorkerProcess] = field(default_factory=list)

    @property
    def side_log(self) -> str:
        return str(self.folder / "starts.log")

    def worker(self, *words: str, **settings: str) -> WorkerProcess:
        log = self.folder / f"worker-{len(self.workers)}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "leasehold.cli.main", "worker", str(SHOP), *words],
                env={**os.environ, "LEASEHOLD_DSN": self.dsn, **settings},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        worker = WorkerProcess(process, log)
        self.workers.append(worker)
        return worker

    def job(self, job_id: int) -> Job:
        job = self.app.job(job_id)
        assert job is not None
        return job

    def timeline(self, job_id: int) -> list[Event]:
        return self.app.timeline(job_id)

    def kinds(self, job_id: int) -> list[str]:
        return [event.kind for event in self.timeline(job_id)]

    def starts(self, job_id: int) -> list[int]:
        """The attempts that the side log has seen."""
        path = Path(self.side_log)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [int(line.split()[1]) for line in lines if line.split()[0] == str(job_id)]

    def ended(self, job_id: int, *, within_s: float = PATIENCE_S) -> Job:
        until(lambda: self.job(job_id).status.terminal, within_s=within_s, what=f"the end of job {job_id}")
        return self.job(job_id)

    def running(self, job_id: int) -> None:
        until(lambda: self.starts(job_id), what=f"the start of job {job_id}")
        assert self.job(job_id).status is State.PROCESSING


@pytest.fixture
def site(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    # The App of the shop itself, pointed at this test's database: its tasks enqueue, the worker's copy runs them.
    app = App(dsn, settings=Settings())
    for task in vars(shop).values():
        if isinstance(task, Task):
            monkeypatch.setattr(task, "_client", app._client)
    site = Site(dsn, tmp_path, app)
    yield site
    for worker in site.workers:
        worker.signal(signal.SIGCONT)
        worker.signal(signal.SIGKILL)
        worker.process.wait()
    app.close()
    counted = [line["counters"] for worker in site.workers for line in worker.lines("WORKER_COUNTERS")]
    assert not any("observe.listener_failures_total" in counters for counters in counted)
