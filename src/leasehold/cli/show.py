"""How things look in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from leasehold.app.database import Migration
from leasehold.core.durations import spoken
from leasehold.core.events import Event
from leasehold.core.job import Job, State
from leasehold.core.settings import Told
from leasehold.store.contract import QueueCounts

COLOURS = {
    "queued": "cyan",
    "processing": "yellow",
    "done": "green",
    "failed": "red",
    "cancelled": "magenta",
    "requeued:stale": "bold red",
    "retry": "red",
}
PAYLOAD_MAX = 60


def versions(package: str, schema: int, server: str | None) -> str:
    """The lines of `--version`."""
    return f"leasehold {package}\nschema    {schema}\nserver    {server or 'none running here'}"


def plan(version: int, missing: Sequence[Migration]) -> str:
    """What `migrate --check` says."""
    if not missing:
        return f"The schema is at version {version}: nothing to do."
    steps = ", ".join(f"{migration.version:04d} {migration.name}" for migration in missing)
    return f"The schema is at version {version}. Missing: {steps}. Run `leasehold migrate`."


def taken(migrations: Sequence[Migration]) -> str:
    """What `migrate` says."""
    if not migrations:
        return "The schema is up to date: nothing was changed."
    return "\n".join(f"applied {migration.version:04d} {migration.name}" for migration in migrations)


def jobs_table(jobs: Sequence[Job], counts: Sequence[QueueCounts]) -> RenderableType:
    """The newest jobs, and what waits."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "task", "queue", "status", "attempt", "progress", "created", "why"):
        table.add_column(name, justify="right" if name in ("id", "attempt", "progress") else "left")
    for job in jobs:
        table.add_row(
            str(job.id),
            job.task,
            job.queue,
            coloured(job.status.value),
            f"{job.attempt_count}/{job.max_attempts}",
            f"{job.progress}%" if shows_progress(job) else "",
            moment(job.created_at),
            Text(job.fail_code or (f"due {moment(job.next_earliest_run_at)}" if job.next_earliest_run_at else "")),
        )
    lines = [
        f"{count.queue}: {count.ready} ready, {count.scheduled} later, {count.processing} processing, {count.dead} dead"
        for count in counts
    ]
    return Group(table if jobs else Text("No jobs."), Text("\n".join(lines), style="dim"))


def job_card(job: Job) -> RenderableType:
    """One job as it stands."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    payload = job.payload if len(job.payload) <= PAYLOAD_MAX else f"{job.payload[:PAYLOAD_MAX]}…"
    rows: list[tuple[str, object]] = [
        ("job", job.id),
        ("task", job.task),
        ("queue", job.queue),
        ("status", coloured(job.status.value)),
        ("attempt", f"{job.attempt_count} of {job.max_attempts}"),
        ("progress", f"{job.progress}% {job.progress_note or ''}" if shows_progress(job) else None),
        ("worker", job.locked_by),
        ("lease ends", job.lease_expires_at and moment(job.lease_expires_at)),
        ("due", job.next_earliest_run_at and moment(job.next_earliest_run_at)),
        ("failed with", job.fail_code and f"{job.fail_code}: {job.fail_reason or ''}"),
        ("result", job.result),
        ("arguments", payload),
    ]
    for name, value in rows:
        if value is not None:
            table.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    return Group(table, Text())


def shows_progress(job: Job) -> bool:
    """A job that is done is done, whatever it said last."""
    return job.progress is not None and job.status is not State.DONE


def timeline_table(timeline: Sequence[Event]) -> RenderableType:
    """Everything that happened, with the time since the job was made."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("after", "event", "attempt", ""):
        table.add_column(name, justify="right" if name == "after" else "left")
    for event in timeline:
        after_s = (event.at - timeline[0].at).total_seconds()
        attempt = str(event.attempt) if event.attempt else ""
        table.add_row(spoken(round(after_s, 2)), coloured(event.kind), attempt, Text(particulars(event), style="dim"))
    return table


def particulars(event: Event) -> str:
    """What is worth a line of an event's data."""
    data = {**event.data, **event.data.get("details", {})}
    names = ("worker", "reason", "signal", "exit_code", "delay_s", "pct", "note", "code", "by")
    return "  ".join(f"{name} {data[name]}" for name in names if data.get(name) is not None)


def settings_table(told: Sequence[Told]) -> RenderableType:
    """Every setting."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("setting", "value", "default", "from", "meaning"):
        table.add_column(name, overflow="fold")
    for setting in told:
        style = "bold" if setting.source != "default" else ""
        table.add_row(
            Text(setting.name, style=style),
            worded(setting.value),
            worded(setting.default),
            setting.source,
            setting.meaning,
        )
    return table


def worded(value: object) -> str:
    """A value as it would be written in the environment."""
    if value is None or value == {}:
        return "unset"
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def coloured(word: str) -> Text:
    """A word in its colour."""
    return Text(word, style=COLOURS.get(word, ""))


def moment(at: datetime) -> str:
    """A time of the day here."""
    return at.astimezone().strftime("%d %b %H:%M:%S")
