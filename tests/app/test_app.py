"""The user's face: tasks and enqueuing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from leasehold import App, Backoff, Job
from leasehold.core.durations import Duration
from leasehold.core.errors import (
    InsideLoopError,
    SchemaError,
    StoreUnreachableError,
    TaskExistsError,
    UnstorablePayloadError,
    WrongArgumentsError,
    WrongDurationError,
    WrongTaskError,
)
from leasehold.core.job import State
from leasehold.core.settings import Settings


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    app = App(dsn, settings=Settings())
    yield app
    app.close()


def test_a_task_is_enqueued_like_its_function_is_called(app: App) -> None:
    @app.task(queue="media", lease="45s", timeout="20m", retry=Backoff("30s", attempts=5))
    async def clip(job: Job, source: str, start: float, end: float = 1.5) -> dict[str, str]:
        return {source: f"{start}{end}{job.id}"}

    ref = clip.enqueue("talk.mp4", end=20, start=10)

    row = app.job(ref.id)
    assert row is not None
    assert (row.task, row.queue, row.status, row.max_attempts) == ("clip", "media", State.QUEUED, 5)
    assert row.payload == '{"end": 20, "start": 10, "source": "talk.mp4"}'
    assert ref.status() is State.QUEUED
    assert [event.kind for event in app.timeline(ref.id)] == ["created"]


def test_a_function_that_wants_no_job_needs_none(app: App) -> None:
    @app.task
    def add(a: int, b: int = 2) -> int:
        return a + b

    ref = add.enqueue(1)

    row = app.job(ref.id)
    assert row is not None
    assert row.payload == '{"a": 1}'
    assert add.fn(1) == 3


def test_arguments_that_do_not_fit_are_refused_before_anything_is_written(app: App) -> None:
    @app.task
    async def clip(job: Job, source: str, start: float) -> None: ...

    with pytest.raises(WrongArgumentsError, match=r"clip\(source: str, start: float\): missing .* 'start'"):
        clip.enqueue("talk.mp4")  # type: ignore[call-arg]
    with pytest.raises(WrongArgumentsError, match="unexpected keyword argument 'end'"):
        clip.enqueue("talk.mp4", 1, end=2)  # type: ignore[call-arg]
    assert app.jobs() == []


@pytest.mark.parametrize("value", ["a\x00b", "\ud800", object(), {1, 2, object()}, "x" * 300_000], ids=lambda _: "")
def test_arguments_that_cannot_be_stored_are_refused_before_anything_is_written(app: App, value: Any) -> None:
    @app.task
    async def keep(what: str) -> None: ...

    with pytest.raises(UnstorablePayloadError):
        keep.enqueue(value)
    assert app.jobs() == []


def test_a_second_task_of_one_name_is_refused(app: App) -> None:
    @app.task(name="clip")
    async def one() -> None: ...

    with pytest.raises(TaskExistsError, match="name='clip'"):

        @app.task(name="clip")
        async def two() -> None: ...


def nothing() -> None: ...


def test_what_cannot_be_a_task_is_refused(app: App) -> None:
    with pytest.raises(WrongTaskError, match="by position"):

        @app.task
        async def many(*sources: str) -> None: ...

    with pytest.raises(WrongTaskError, match="1 to 200 characters"):
        app.task(name="x" * 201)(print)
    with pytest.raises(WrongTaskError, match="longer than nothing"):
        app.task(lease=0)(nothing)
    for wrong in ("30", "soon", -1, float("nan"), True):
        with pytest.raises(WrongDurationError):
            app.task(lease=wrong)(nothing)


@pytest.mark.parametrize("lease", ["90s", "1m30s", 90, 90.0, timedelta(seconds=90)])
def test_a_duration_is_written_as_one_likes(app: App, lease: Duration) -> None:
    @app.task(lease=lease)
    async def clip() -> None: ...

    assert clip.spec.lease_s == 90.0


async def test_a_blocking_call_inside_a_running_loop_is_refused(app: App) -> None:
    @app.task
    async def clip() -> None: ...

    with pytest.raises(InsideLoopError, match="aenqueue"):
        clip.enqueue()

    ref = await clip.aenqueue()
    assert await ref.astatus() is State.QUEUED


def test_one_app_serves_several_loops_and_threads(app: App) -> None:
    @app.task
    async def clip(number: int) -> None: ...

    async def enqueue(number: int) -> int:
        return (await clip.aenqueue(number)).id

    ids = [asyncio.run(enqueue(number)) for number in range(2)] + [clip.enqueue(2).id]

    assert ids == [1, 2, 3]


def test_a_forked_copy_opens_its_own_connection(app: App) -> None:
    @app.task
    async def clip(who: str) -> None: ...

    clip.enqueue("parent")
    if (child := os.fork()) == 0:
        signal.alarm(20)  # a copy that waits for its parent's loop would wait for ever
        try:
            clip.enqueue("child")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    clip.enqueue("parent again")

    assert len(app.jobs()) == 3


def test_a_database_of_the_users_is_not_changed_without_being_asked(empty_dsn: str) -> None:
    app = App(empty_dsn, settings=Settings())
    try:
        with pytest.raises(SchemaError, match="leasehold migrate"):
            app.jobs()
    finally:
        app.close()


def test_a_database_that_is_not_there_is_said_to_be(dsn: str) -> None:
    app = App(dsn.replace("host=", "host=/nowhere"), settings=Settings())
    try:
        with pytest.raises(StoreUnreachableError):
            app.jobs()
    finally:
        app.close()


def test_importing_the_package_imports_and_starts_next_to_nothing() -> None:
    program = "import sys, threading, leasehold; print(threading.active_count(), 'asyncpg' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["1", "False"]
