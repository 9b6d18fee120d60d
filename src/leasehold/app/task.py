"""A task as the program sees it: a function that can be enqueued, typed like the function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, ParamSpec, TypeVar

import msgspec

from leasehold.app.client import Client
from leasehold.core.errors import UnstorablePayloadError
from leasehold.core.job import Job, NewJob, State
from leasehold.runtime.registry import TaskSpec

P = ParamSpec("P")
R = TypeVar("R")

PAYLOAD_MAX: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class JobRef(Generic[R]):
    """A job that was enqueued."""

    id: int
    task: str
    _client: Client

    def status(self) -> State | None:
        """Where the job stands; None if it is gone."""
        return _status(self._client.call(lambda store: store.get(self.id)))

    async def astatus(self) -> State | None:
        """Where the job stands; None if it is gone."""
        return _status(await self._client.acall(lambda store: store.get(self.id)))

    def __repr__(self) -> str:
        return f"<job {self.id}: {self.task}>"


class Task(Generic[P, R]):
    """A registered function. Call `enqueue` with the function's own arguments; `fn` is the function itself."""

    def __init__(self, spec: TaskSpec, client: Client) -> None:
        self.spec = spec
        self.fn = spec.fn
        self._client = client

    @property
    def name(self) -> str:
        """The name by which jobs find it."""
        return self.spec.name

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobRef[R]:
        """Write a job and return at once."""
        new = self._new(args, kwargs)
        return self._ref(self._client.call(lambda store: store.enqueue([new])))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobRef[R]:
        """Write a job, from async code."""
        new = self._new(args, kwargs)
        return self._ref(await self._client.acall(lambda store: store.enqueue([new])))

    def _ref(self, ids: list[int]) -> JobRef[R]:
        return JobRef(ids[0], self.name, self._client)

    def _new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        spec = self.spec
        return NewJob(
            task=spec.name,
            payload=_encoded(spec, spec.arguments(args, kwargs)),
            queue=spec.queue,
            max_attempts=spec.max_attempts,
            lease_s=spec.lease_s,
            timeout_s=spec.timeout_s,
        )

    def __repr__(self) -> str:
        return f"<task {self.name}>"


def _encoded(spec: TaskSpec, arguments: dict[str, Any]) -> str:
    try:
        payload = msgspec.json.encode(arguments).decode()
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise UnstorablePayloadError(f"{type(error).__name__}: {error}.", task=spec.name) from error
    if "\\u0000" in payload:
        raise UnstorablePayloadError("A text contains NUL, which PostgreSQL cannot store.", task=spec.name)
    if len(payload) > PAYLOAD_MAX:
        raise UnstorablePayloadError("They are too large.", task=spec.name, bytes=len(payload), most=PAYLOAD_MAX)
    return payload


def _status(job: Job | None) -> State | None:
    return job.status if job is not None else None
