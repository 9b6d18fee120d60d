"""What each command does. The words it prints are in `show`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Final

import cyclopts
from cyclopts import Parameter
from rich.console import Console

import leasehold
from leasehold.app.app import App
from leasehold.app.database import running_version, schema_plan, take_migrations
from leasehold.app.worker import supervise
from leasehold.cli import show
from leasehold.core.errors import ConfigurationError, LeaseholdError, NoSuchJobError
from leasehold.core.job import State
from leasehold.core.settings import Settings
from leasehold.processes.early import EarlySignals

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

_early: list[EarlySignals] = []

commands = cyclopts.App(
    name="leasehold",
    help="Jobs that survive their worker: a durable job runtime on PostgreSQL.",
    version=lambda: show.versions(leasehold.__version__, *asyncio.run(running_version(_settings()))),
    version_flags=["--version"],
    version_format="plaintext",
)
jobs = cyclopts.App(name="jobs", help="Look at jobs.")
commands.command(jobs)


def run(arguments: list[str], early: EarlySignals | None) -> int:
    """Run a command: the exit code. Errors of ours are one line, not a trace."""
    _early[:] = [early] if early is not None else []
    try:
        result = commands(arguments, result_action="return_value")
    except LeaseholdError as error:
        print(f"leasehold: {error}", file=sys.stderr)  # noqa: T201 - the command line speaks
        return EXIT_USAGE if isinstance(error, ConfigurationError) else EXIT_FAILED
    except KeyboardInterrupt:
        return 130
    return result if isinstance(result, int) else 0


@commands.command
def worker(
    app: str,
    *,
    processes: int = 1,
    concurrency: int | None = None,
    queues: str | None = None,
) -> int:
    """Run the jobs of an App until told to stop (Ctrl-C or SIGTERM).

    Parameters
    ----------
    app
        A module (`shop.jobs`), a module and its object (`shop.jobs:app`), or a file (`app.py`).
    processes
        How many worker processes.
    concurrency
        How many jobs at once, over all processes; MAX_CONCURRENCY (10) where it is not given.
    queues
        Claim only from these queues (names with commas between them); all where it is not given.

    """
    if processes < 1 or (concurrency is not None and concurrency < processes):
        raise ConfigurationError(
            "A worker has at least one process, and each process at least one job at a time.",
            processes=processes,
            concurrency=concurrency,
        )
    wanted = tuple(name.strip() for name in queues.split(",") if name.strip()) if queues is not None else None
    early = _early[0] if _early else EarlySignals()
    return asyncio.run(supervise(app, _settings(), early, processes=processes, concurrency=concurrency, queues=wanted))


@commands.command
def migrate(*, check: bool = False, sql: bool = False) -> int:
    """Bring the database's schema to this version. The private database migrates itself.

    Parameters
    ----------
    check
        Change nothing: say what is missing, with exit code 1 if something is.
    sql
        Change nothing: print the SQL of what is missing.

    """
    if check or sql:
        version, missing = asyncio.run(schema_plan(_settings()))
        if sql:
            for migration in missing:
                print(f"-- {migration.version:04d} {migration.name}\n{migration.script}")  # noqa: T201 - to be piped
            return 0
        Console().print(show.plan(version, missing))
        return EXIT_FAILED if missing else 0
    Console().print(show.taken(asyncio.run(take_migrations(_settings()))))
    return 0


@jobs.command
def ls(
    *, status: State | None = None, queue: str | None = None, limit: Annotated[int, Parameter(alias="-n")] = 20
) -> None:
    """List the newest jobs.

    Parameters
    ----------
    status
        Only jobs that stand so.
    queue
        Only jobs of this queue.
    limit
        How many at most.

    """
    app = App(settings=_settings())
    try:
        Console().print(show.jobs_table(app.jobs(status=status, queue=queue, limit=max(limit, 1)), app.counts()))
    finally:
        app.close()


@jobs.command(name="show")
def show_job(job_id: int) -> None:
    """Show one job: how it stands, and everything that happened to it.

    Parameters
    ----------
    job_id
        The job's number.

    """
    app = App(settings=_settings())
    try:
        job = app.job(job_id)
        if job is None:
            raise NoSuchJobError(job_id=job_id)
        console = Console()
        console.print(show.job_card(job))
        console.print(show.timeline_table(app.timeline(job_id)))
    finally:
        app.close()


@commands.command
def config(*, changed: bool = False) -> None:
    """Show every setting: its value, its default, and where the value came from.

    Parameters
    ----------
    changed
        Only those that differ from their default.

    """
    Console().print(
        show.settings_table([told for told in _settings().told() if not changed or told.source != "default"])
    )


@commands.command
def demo(*, stay: bool = False) -> int:
    """See it work: jobs on a private database, a worker that is killed in the middle, and jobs that survive it.

    Parameters
    ----------
    stay
        Keep the worker and the database up at the end, until Ctrl-C.

    """
    from leasehold.cli.demo import play  # noqa: PLC0415 - only the demo needs it

    return play(stay=stay)


def _settings() -> Settings:
    return Settings.from_environment(os.environ)
