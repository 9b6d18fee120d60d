"""Runs a handler: `(lease, task) -> Outcome`. Never raises; whatever a handler does becomes an outcome.

An attempt can be ended from outside for one reason (`Interruption`); the handler sees a `CancelledError`, and what it
does after that decides: a value that it still returns is its result.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from enum import StrEnum
from typing import Any

import msgspec

from leasehold.core import storable
from leasehold.core.durations import seconds
from leasehold.core.errors import Cancel, Fatal, Retry, Snooze, WrongArgumentsError
from leasehold.core.outcome import Aborted, Cancelled, Done, Failed, Outcome, Snoozed, TimedOut
from leasehold.runtime.context import Job
from leasehold.runtime.registry import TaskSpec

PAYLOAD_UNDECODABLE = "payload_undecodable"
RESULT_UNSTORABLE = "result_unstorable"


class Interruption(StrEnum):
    """Why an attempt was ended from outside."""

    LOST = "lost"
    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"
    TIMED_OUT = "timed out"


class Attempt:
    """One run of one handler, inside the task that calls `run`."""

    def __init__(self, spec: TaskSpec, job: Job, threads: Executor) -> None:
        self.job = job
        self._spec = spec
        self._threads = threads
        self._task: asyncio.Task[Any] | None = None
        self._interruption: Interruption | None = None

    @property
    def interruption(self) -> Interruption | None:
        """Why the attempt was ended from outside, if it was."""
        return self._interruption

    async def run(self) -> Outcome | None:
        """The outcome; never raises. None: the handler stopped because its lease was lost; there is nothing to say."""
        self._task = asyncio.current_task()
        timer = self._timer(self._spec.timeout_s)
        try:
            return Done(storable.result(await self._called()))
        except asyncio.CancelledError:
            return self._interrupted()
        except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt of a handler are outcomes too
            return outcome_of(error)
        finally:
            self._task = None
            if timer is not None:
                timer.cancel()

    def interrupt(self, why: Interruption) -> None:
        """End the attempt. A thread cannot be cancelled: it is told through the job's signals."""
        if self._interruption is not None or self._task is None:
            return
        self._interruption = why
        if why is Interruption.LOST:
            self.job.lost.set()
        elif why is Interruption.CANCELLED:
            self.job.cancelled.set()
        # What a thread has finished after its lease was lost may be offered once with its token: the database decides.
        if self._spec.is_async or why in (Interruption.TIMED_OUT, Interruption.SHUTDOWN):
            self._task.cancel()

    def _timer(self, timeout_s: float | None) -> asyncio.TimerHandle | None:
        if timeout_s is None:
            return None
        return asyncio.get_running_loop().call_later(timeout_s, self.interrupt, Interruption.TIMED_OUT)

    def _called(self) -> Coroutine[Any, Any, Any]:
        call = _bound(self._spec.fn, self.job if self._spec.wants_job else None, self.job.payload)
        if self._spec.is_async:
            coroutine: Coroutine[Any, Any, Any] = call()
            return coroutine
        return self._in_thread(call)

    async def _in_thread(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the handler returns
        # A handler's SystemExit would end the thread's future as a BaseException; it travels as a value instead.
        kind, value = await asyncio.get_running_loop().run_in_executor(self._threads, _caught, call)
        if kind == "raised":
            raise value
        return value

    def _interrupted(self) -> Outcome | None:
        match self._interruption:
            case Interruption.TIMED_OUT:
                return TimedOut(self._spec.timeout_s or 0.0)
            case Interruption.CANCELLED:
                return Cancelled("cancelled while it ran")
            case Interruption.SHUTDOWN:
                return Aborted()
            case Interruption.LOST:
                # Not released: a job that freezes its worker each time would run for ever, free of charge.
                return None
            case None:
                return Failed("CancelledError", "the handler was cancelled by its own code", retryable=True)


def decoded(spec: TaskSpec, payload: str) -> dict[str, Any] | Failed:
    """The arguments of a job, or why they cannot be had."""
    try:
        return spec.arguments((), msgspec.json.decode(payload, type=dict[str, Any]))
    except (WrongArgumentsError, msgspec.MsgspecError, RecursionError, ValueError) as error:
        return Failed(PAYLOAD_UNDECODABLE, storable.said(error), retryable=False)


def outcome_of(error: BaseException) -> Outcome:  # noqa: PLR0911 - one answer per word of a handler
    """What a handler's exception means for its job."""
    match error:
        case Snooze():
            return Snoozed(seconds(error.delay))
        case Cancel():
            return Cancelled(storable.text(error.reason))
        case Fatal():
            return _failed(error, storable.text(error.code), retryable=False)
        case Retry():
            after_s = seconds(error.after) if error.after is not None else 0.0
            return _failed(error, "RETRY", retryable=True, retry_after_s=after_s)
        case storable.UnstorableResultError():
            return _failed(error, RESULT_UNSTORABLE, retryable=False)
        case ValueError():
            return _failed(error, type(error).__name__, retryable=False)
        case _:
            return _failed(error, type(error).__name__, retryable=True)


def _failed(error: BaseException, code: str, *, retryable: bool, retry_after_s: float = 0.0) -> Failed:
    return Failed(
        code,
        storable.said(error) or type(error).__name__,
        retryable=retryable,
        error={"type": type(error).__name__, "trace": _trace(error)},
        retry_after_s=retry_after_s,
    )


def _trace(error: BaseException) -> str:
    try:
        return storable.text("".join(traceback.format_exception(error)), storable.TRACE_MAX)
    except Exception as broken:  # noqa: BLE001 - formatting calls the handler's own __str__ and __repr__
        return f"<no trace: {type(broken).__name__}>"


def _bound(fn: Callable[..., Any], job: Job | None, arguments: dict[str, Any]) -> Callable[[], Any]:
    return lambda: fn(job, **arguments) if job is not None else fn(**arguments)


def _caught(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "returned", call()
    except BaseException as error:  # noqa: BLE001 - see _in_thread
        return "raised", error
