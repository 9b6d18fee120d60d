"""`leasehold demo`: a private database, a worker that is killed in the middle, and jobs that survive it.

Everything it starts lives in a fresh temporary folder and is gone when it ends, however it ends. The jobs are those of
`demo_jobs`; the worker is the real one, a process of its own; what is shown is read through the `App`, as a program of
yours would. With a terminal there are progress bars, without one plain lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from leasehold import embedded
from leasehold.app.database import HOME
from leasehold.cli import demo_jobs, show
from leasehold.core import events
from leasehold.core.errors import LeaseholdError
from leasehold.core.events import Event
from leasehold.core.job import Job, State
from leasehold.core.settings import Settings
from leasehold.embedded.place import base_of
from leasehold.runtime.clock import SystemClock

SURVIVED: Final = [events.CREATED, events.PROCESSING, events.REQUEUED, events.PROCESSING, events.DONE]
PATIENCE_S: Final = 90.0
LOOK_EVERY_S: Final = 0.1
STOP_WITHIN_S: Final = 15.0
WELL_UNDER_WAY_PCT: Final = 20
VICTIMS: Final = 2
# As the console script does it. -P: a file of the working directory must not take the place of a library of ours.
COMMAND_LINE: Final = [sys.executable, "-P", "-c", "from leasehold.cli.main import main; main()"]

News = tuple[datetime, Text]


class DemoFailedError(LeaseholdError):
    """The demo did not show what it should."""

    remedy = "If this machine is not very busy, please report it with the lines above."


class _Told(Exception):  # noqa: N818 - somebody's wish, not an error
    """A signal asked us to stop."""


class _Signals:
    """Notes that we are asked to stop; looked at between two steps, so that nothing is ever left half begun."""

    def __init__(self) -> None:
        self.came: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.came.append(number)

    def heed(self) -> None:
        """Stop here if asked to."""
        if self.came:
            raise _Told


def play(*, stay: bool) -> int:
    """Play it: the exit code, 0 only if every job ended well and one of them survived its worker."""
    signals = _Signals()
    console = Console(force_terminal=sys.stdout.isatty(), highlight=False)
    leasehold = _command()
    console.print(
        "Leasehold: jobs that survive their worker.\n\nStarting a private PostgreSQL in a temporary folder ..."
    )
    try:
        with _private_folder() as folder, _database(folder):
            signals.heed()
            demo_jobs.enqueue_all()
            console.print("Six jobs are enqueued, and a worker is started that takes five at a time.\n")
            signals.heed()
            with _worker(folder / "worker.log") as worker:
                _Show(console, signals, worker, folder / "worker.log").run()
                if stay:
                    _stay(console, signals, folder, worker, leasehold)
    except _Told:
        console.print("\nStopped. Nothing is left running.")
        return 128 + signals.came[0]
    console.print(
        f"\nNext:  {leasehold} worker app.py    run jobs of your own; the README has the program", soft_wrap=True
    )
    console.print(
        f"       {leasehold} demo --stay      see this again, and look around while it stays up", soft_wrap=True
    )
    return 0


# --- the scenery, each with its end -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """A fresh folder, which is also where the `App` looks for its private database."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-demo-"))
    try:
        if os.geteuid() == 0:
            folder.chmod(0o711)  # root's PostgreSQL runs as another account, which must pass through here
        with contextlib.chdir(folder):
            yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def _database(folder: Path) -> Iterator[None]:
    home = folder / HOME
    try:
        with embedded.start(home):
            try:
                yield
            finally:
                demo_jobs.app.close()
    finally:
        embedded.stop(home)
        if (data := base_of(home)) != home:
            shutil.rmtree(data)  # root's, where its temporary folder is closed to the server's account


@contextlib.contextmanager
def _worker(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`leasehold worker`, in a session of its own: a Ctrl-C in this terminal is for us, who stop it in good order."""
    arguments = ["worker", demo_jobs.__name__, "--concurrency", "5"]
    with log.open("wb") as out:
        worker = subprocess.Popen(  # noqa: S603 - a fixed command, no shell
            [*COMMAND_LINE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=_without_settings(os.environ),
            start_new_session=True,
        )
    try:
        yield worker
    finally:
        worker.terminate()
        try:
            worker.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            worker.kill()  # its worker processes see that it is gone, and end
            worker.wait()


def _without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The user's environment without any setting of Leasehold's: the demo is the same everywhere."""
    settings = demo_jobs.app.settings
    names = tuple(told.name for told in Settings().told())
    kept = {name: value for name, value in environment.items() if not name.startswith(names)}
    return kept | {"WORKER_SHUTDOWN_TIMEOUT_MS": str(settings.worker_shutdown_timeout_ms)}


# --- the play ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Show:
    """What happens, and how it is shown: new lines above, the jobs below."""

    console: Console
    signals: _Signals
    worker: subprocess.Popen[bytes]
    log: Path
    clock: SystemClock = field(default_factory=SystemClock)
    pids: dict[str, int] = field(default_factory=dict)
    log_lines: int = 0
    told: dict[int, int] = field(default_factory=dict)

    def run(self) -> None:
        """Work, the kill in the middle of it, recovery, the end; raises if it did not come to that."""
        began_s = self.clock.monotonic()
        with Live(console=self.console, auto_refresh=False) as live:
            self._watch(live, self._half_way, began_s)
            pid = list(self.pids.values())[-1]
            live.console.print(
                f"\nkill -9 {pid}        the worker process, in the middle of its jobs\n", style="bold red"
            )
            os.kill(pid, signal.SIGKILL)
            jobs = self._watch(live, _over, began_s)
        self._close(jobs, self.clock.monotonic() - began_s)

    def _watch(self, live: Live, enough: Callable[[list[Job]], bool], began_s: float) -> list[Job]:
        while not enough(jobs := self._look(live)):
            self._pause(began_s)
        return jobs

    def _half_way(self, jobs: list[Job]) -> bool:
        """Some are done, some well under way: so it is seen that only those are run again that had to be."""
        if _over(jobs):
            raise DemoFailedError("All jobs had ended before the worker could be killed.")
        under_way = [job for job in jobs if (job.progress or 0) >= WELL_UNDER_WAY_PCT and job.locked_by in self.pids]
        return len(under_way) >= VICTIMS and any(job.status is State.DONE for job in jobs)

    def _pause(self, began_s: float) -> None:
        """Wait for the next look; the worker's end is one as well."""
        if self.clock.monotonic() - began_s > PATIENCE_S:
            raise DemoFailedError(
                f"It is not over after {PATIENCE_S:g} seconds.",
                jobs=[f"{job.id} {job.status}" for job in demo_jobs.app.jobs()],
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.worker.wait(LOOK_EVERY_S)
            last_words = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
            raise DemoFailedError(f"The worker ended by itself with {code}.", last_words=last_words)
        self.signals.heed()

    # --- looking ------------------------------------------------------------------------------------------------------

    def _look(self, live: Live) -> list[Job]:
        news = self._news_of_processes()
        jobs = sorted(demo_jobs.app.jobs(), key=lambda job: job.id)
        for job in jobs:
            news += self._news_of(job)
        for _, line in sorted(news, key=lambda item: item[0]):
            live.console.print(line, soft_wrap=True)
        live.update(self._table(jobs), refresh=True)
        return jobs

    def _news_of_processes(self) -> list[News]:
        """What the worker's log says of its processes: it alone knows their pids."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        news: list[News] = []
        for fact in _facts(lines[self.log_lines :]):
            if fact["event"] == "WORKER_PROCESS_START":
                self.pids[fact["worker"]] = fact["pid"]
                news.append(_news(fact, f"process {fact['pid']} starts"))
            elif fact["event"] == "WORKER_PROCESS_DIED":
                how = f"signal {fact['signal']}" if fact["signal"] else f"exit code {fact['exit_code']}"
                news.append(_news(fact, f"process {fact['pid']} died, {how}"))
        self.log_lines = len(lines)
        return news

    def _news_of(self, job: Job) -> list[News]:
        timeline = _without_progress(demo_jobs.app.timeline(job.id))
        fresh = timeline[self.told.get(job.id, 1) :]  # what is known from the start: it was created
        self.told[job.id] = len(timeline)
        return [
            (event.at, Text.assemble(f"job {job.id} ", show.coloured(event.kind), self._words(event)))
            for event in fresh
        ]

    def _words(self, event: Event) -> str:
        match event.kind:
            case events.PROCESSING:
                return f", attempt {event.attempt}, in process {self.pids.get(event.data['worker'], '?')}"
            case events.REQUEUED:
                return f", it lost its worker and is due again in {event.data['details']['delay_s']:.1f} s"
            case _:
                return ""

    def _table(self, jobs: Sequence[Job]) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("job", "task", "status", "attempt", "progress", "process", "note"):
            table.add_column(name, no_wrap=True)
        for job in jobs:
            done = 100 if job.status is State.DONE else job.progress or 0
            table.add_row(
                str(job.id),
                job.task,
                show.coloured(job.status.value),
                f"{job.attempt_count}/{job.max_attempts}",
                ProgressBar(total=100, completed=done, width=20),
                str(self.pids.get(job.locked_by or "", "")),
                job.progress_note or "",
            )
        return Group(Text(), table)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _close(self, jobs: Sequence[Job], took_s: float) -> None:
        """Judge what was seen; then one survivor's story, the sum, and what to try next."""
        timelines = {job.id: _without_progress(demo_jobs.app.timeline(job.id)) for job in jobs}
        kinds = {number: [event.kind for event in timeline] for number, timeline in timelines.items()}
        survivors = [number for number, told in kinds.items() if told == SURVIVED]
        if not all(job.status is State.DONE for job in jobs):
            raise DemoFailedError("Not every job ended well.", timelines=kinds)
        if not survivors:
            raise DemoFailedError("No job lost its worker and was run again.", timelines=kinds)
        killed = sum(told.count(events.REQUEUED) for told in kinds.values())
        self.console.print(f"\n\nThe life of job {survivors[0]}, without its progress:\n", style="bold")
        self.console.print(show.timeline_table(timelines[survivors[0]]))
        words = f"\n{len(jobs)} jobs, {killed} runs killed, none lost, {took_s:.1f} seconds."
        self.console.print(words, style="bold green")


def _stay(console: Console, signals: _Signals, folder: Path, worker: subprocess.Popen[bytes], leasehold: str) -> None:
    """Keep everything up until we are asked to stop, which is then no failure."""
    elsewhere = [name for name in ("LEASEHOLD_DSN", "DATABASE_URL") if name in os.environ]
    without = " ".join(["env", *(f"-u {name}" for name in elsewhere), ""]) if elsewhere else ""
    look = f"cd {folder}; {without}{leasehold} jobs ls"
    console.print(f"\nWorker and database stay up until Ctrl-C. To look: {look}", soft_wrap=True)
    while not signals.came:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(LOOK_EVERY_S)
            raise DemoFailedError("The worker ended by itself.")


def _over(jobs: Sequence[Job]) -> bool:
    return all(job.status.terminal for job in jobs)


def _facts(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The log's lines as values; what is no JSON was not written by the log."""
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):
            fact = json.loads(line)
            if isinstance(fact, dict) and "event" in fact:
                yield fact


def _news(fact: Mapping[str, Any], words: str) -> News:
    return datetime.fromisoformat(fact["timestamp"]), Text(words)


def _without_progress(timeline: Sequence[Event]) -> list[Event]:
    return [event for event in timeline if event.kind != events.PROGRESS]


def _command() -> str:
    """`leasehold` as the user's shell finds it: `make demo` does not activate its environment."""
    return "leasehold" if os.environ.get("VIRTUAL_ENV") == sys.prefix else str(Path(sys.argv[0]).absolute())
