"""The user's face: an `App` holds the tasks and knows the database."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from leasehold.app.client import Client
from leasehold.app.database import Address
from leasehold.app.task import Task
from leasehold.core.durations import Duration, seconds
from leasehold.core.errors import WrongTaskError
from leasehold.core.events import Event
from leasehold.core.job import Job as JobRow
from leasehold.core.job import State
from leasehold.core.policy import Backoff
from leasehold.core.settings import Settings
from leasehold.runtime.context import Job
from leasehold.runtime.registry import Registry, TaskSpec, arguments_of
from leasehold.store.contract import QueueCounts

P = ParamSpec("P")
R = TypeVar("R")

NAME_MAX = 200
DEFAULT_TIMEOUT = "1h"


class Register(Protocol):
    """What `@app.task(...)` gives: takes the function, gives the task, typed like the function without its `Job`."""

    @overload
    def __call__(self, fn: Callable[Concatenate[Job, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Job, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...


class App:
    """Your tasks and their database.

    Without a DSN it is LEASEHOLD_DSN, else DATABASE_URL, else a private PostgreSQL in `./.leasehold` that starts by
    itself. Making an App opens no connection and starts no thread.
    """

    def __init__(self, dsn: str | None = None, *, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.from_environment(os.environ)
        self.registry = Registry()
        self._dsn = dsn
        self._client = Client(self.address)

    def address(self) -> Address:
        """Where the database is."""
        return Address.find(self._dsn, self.settings)

    @overload
    def task(self, fn: Callable[Concatenate[Job, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[Concatenate[Job, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        lease: Duration | None = None,
        timeout: Duration | None = DEFAULT_TIMEOUT,
        retry: Backoff | None = None,
    ) -> Register: ...
    def task(  # noqa: PLR0913 - the options of a task
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        lease: Duration | None = None,
        timeout: Duration | None = DEFAULT_TIMEOUT,
        retry: Backoff | None = None,
    ) -> Any:
        """Register a function; its name is the task's (`name=` gives another), a `Job` comes first if it wants one."""

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            spec = self._spec(function, name=name, queue=queue, lease=lease, timeout=timeout, retry=retry)
            self.registry.add(spec)
            return Task(spec, self._client)

        return register if fn is None else register(fn)

    # --- looking ------------------------------------------------------------------------------------------------------

    def job(self, job_id: int) -> JobRow | None:
        """A job as it stands now."""
        return self._client.call(lambda store: store.get(job_id))

    async def ajob(self, job_id: int) -> JobRow | None:
        """A job as it stands now."""
        return await self._client.acall(lambda store: store.get(job_id))

    def jobs(self, *, status: State | None = None, queue: str | None = None, limit: int = 20) -> list[JobRow]:
        """The newest jobs first."""
        return self._client.call(lambda store: store.find(status=status, queue=queue, limit=limit))

    async def ajobs(self, *, status: State | None = None, queue: str | None = None, limit: int = 20) -> list[JobRow]:
        """The newest jobs first."""
        return await self._client.acall(lambda store: store.find(status=status, queue=queue, limit=limit))

    def timeline(self, job_id: int) -> list[Event]:
        """Everything that happened to a job."""
        return self._client.call(lambda store: store.timeline(job_id))

    async def atimeline(self, job_id: int) -> list[Event]:
        """Everything that happened to a job."""
        return await self._client.acall(lambda store: store.timeline(job_id))

    def counts(self) -> list[QueueCounts]:
        """How many jobs wait, wait for later, run and lie dead, queue by queue."""
        return self._client.call(lambda store: store.counts())

    async def acounts(self) -> list[QueueCounts]:
        """How many jobs wait, wait for later, run and lie dead, queue by queue."""
        return await self._client.acall(lambda store: store.counts())

    def close(self) -> None:
        """Give the connection back, and the share in the private database. A later call opens them again."""
        self._client.close()

    def _spec(  # noqa: PLR0913 - the options of a task
        self,
        fn: Callable[..., Any],
        *,
        name: str | None,
        queue: str,
        lease: Duration | None,
        timeout: Duration | None,
        retry: Backoff | None,
    ) -> TaskSpec:
        if not callable(fn):
            raise WrongTaskError("A task is a function.", given=fn)
        known = name or cast("str", getattr(fn, "__name__", ""))
        for what, text in (("name", known), ("queue", queue)):
            if not 1 <= len(text) <= NAME_MAX or "\x00" in text:
                raise WrongTaskError(f"A task's {what} has 1 to {NAME_MAX} characters.", given=text)
        signature, wants_job = arguments_of(fn, known)
        lease_s = seconds(lease) if lease is not None else self.settings.lease_s
        timeout_s = seconds(timeout) if timeout is not None else None
        if not lease_s or timeout_s == 0:
            raise WrongTaskError(
                "A lease and a timeout are longer than nothing.", task=known, lease=lease, timeout=timeout
            )
        return TaskSpec(
            name=known,
            fn=fn,
            queue=queue,
            lease_s=lease_s,
            timeout_s=timeout_s,
            max_attempts=(retry.attempts if retry else None) or self.settings.attempts,
            retry=retry,
            wants_job=wants_job,
            is_async=inspect.iscoroutinefunction(fn),
            signature=signature,
        )
