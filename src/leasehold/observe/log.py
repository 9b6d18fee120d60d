"""All the words of the logs are here: fact -> one structured line. Payloads and secrets never appear."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, Final, TextIO, assert_never

import msgspec
import structlog

from leasehold.core.facts import (
    Fact,
    HeartbeatFailed,
    JobEnded,
    JobRecovered,
    JobStarted,
    LateClaim,
    LeaseLost,
    LeasesKept,
    ProcessDied,
    ProcessStarted,
    SlotUnreadable,
    StaleTokenRefused,
    StoreFailed,
    WorkerStarted,
    WorkerStopped,
)
from leasehold.core.job import Lease, State

DEGRADED_AFTER: Final = 3
_LINE_ENDS: Final = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}

Line = tuple[str, str, dict[str, Any]]


class Log:
    """Writes facts as lines: JSON for machines, columns where a person is watching."""

    def __init__(self, stream: TextIO | None = None) -> None:
        out = stream or sys.stderr
        renderer: Any = (
            structlog.dev.ConsoleRenderer() if out.isatty() else structlog.processors.JSONRenderer(serializer=_json)
        )
        self._logger = structlog.wrap_logger(
            structlog.WriteLogger(out),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                _when_and_what_first,
                renderer,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        ).bind()  # bound once: unbound, it would be put together anew for every line

    def hear(self, fact: Fact) -> None:
        """Write the fact's line, if it has one."""
        line = line_of(fact)
        if line is not None:
            level, event, facts = line
            write: Callable[..., None] = getattr(self._logger, level)
            write(event, **facts)

    def counters(self, who: str, counted: dict[str, float]) -> None:
        """Write what was counted: the last line of a process."""
        self._logger.info("WORKER_COUNTERS", worker=who, counters=counted)


def line_of(fact: Fact) -> Line | None:  # noqa: C901, PLR0911, PLR0912 - one answer per kind of fact
    """Level, word and particulars; None where there is nothing to say."""
    match fact:
        case WorkerStarted(worker, tasks, concurrency):
            return "info", "WORKER_START", {"worker": worker, "tasks": list(tasks), "concurrency": concurrency}
        case WorkerStopped(worker):
            return "info", "WORKER_STOP", {"worker": worker}
        case JobStarted(lease):
            return "info", "JOB_START", _of(lease)
        case JobEnded():
            return _ended(fact)
        case JobRecovered(lease, outcome, settlement):
            will_retry = settlement.state is State.QUEUED
            particulars = {
                "outcome": type(outcome).__name__.lower(),
                "will_retry": will_retry,
                "delay_s": settlement.delay_s,
            }
            return "warning", "JOB_RECOVERED", {**_of(lease), **particulars}
        case StaleTokenRefused(job_id, attempt, worker, what):
            particulars = {"job_id": job_id, "attempt": attempt, "worker": worker, "what": what}
            return "warning", "STALE_TOKEN_REJECTED", particulars
        case LeaseLost(lease):
            return "warning", "JOB_LEASE_LOST", _of(lease)
        case LateClaim(worker, jobs):
            return "warning", "LATE_CLAIM_RELEASED", {"worker": worker, "jobs": jobs}
        case LeasesKept():
            return None
        case HeartbeatFailed(failures, error):
            particulars = {"failures_in_a_row": failures, "error": error}
            if failures > DEGRADED_AFTER:
                return "warning", "HEARTBEAT_DEGRADED", particulars
            return "info", "HEARTBEAT_FAILED", particulars
        case SlotUnreadable(worker, slot):
            return "error", "SLOT_UNREADABLE", {"worker": worker, "slot": slot}
        case StoreFailed(worker, doing, error):
            return "error", "STORE_FAILED", {"worker": worker, "doing": doing, "error": error}
        case ProcessDied(worker, pid, evidence):
            return "error", "WORKER_PROCESS_DIED", {"worker": worker, "pid": pid, **evidence}
        case ProcessStarted(worker, pid):
            return "info", "WORKER_PROCESS_START", {"worker": worker, "pid": pid}
        case _:
            assert_never(fact)


def _ended(fact: JobEnded) -> Line:
    lease, settlement = fact.lease, fact.settlement
    particulars = {**_of(lease), "duration_s": round(fact.duration_s, 4)}
    if settlement.state is State.DONE:
        return "info", "JOB_SUCCESS", particulars
    if settlement.state is State.QUEUED:
        told = settlement.events[-1]
        if told.kind != "retry":
            return "info", "JOB_RETURNED", {**particulars, "because": told.kind, "delay_s": settlement.delay_s}
        error = told.data["error"]
        particulars |= {"fatal": False, "will_retry": True, "delay_s": settlement.delay_s}
        return "warning", "JOB_FAILED", {**particulars, "code": error["code"], "error": error["reason"]}
    if settlement.state is State.CANCELLED:
        return "info", "JOB_CANCELLED", {**particulars, "reason": settlement.reason}
    particulars |= {"fatal": lease.attempts_left > 0, "will_retry": False}
    return "error", "JOB_FAILED", {**particulars, "code": settlement.code, "error": settlement.reason}


def _of(lease: Lease) -> dict[str, Any]:
    return {
        "job_id": lease.job_id,
        "task": lease.task,
        "queue": lease.queue,
        "attempt": lease.attempt,
        "max_attempts": lease.max_attempts,
        "worker": lease.worker,
        "queued_at": lease.created_at.isoformat(),
        "started_at": lease.started_at.isoformat(),
    }


def _when_and_what_first(_logger: object, _method: str, line: MutableMapping[str, Any]) -> dict[str, Any]:
    return {name: line.pop(name) for name in ("timestamp", "level", "event")} | dict(line)


def _json(line: dict[str, Any], **_: object) -> str:
    text = msgspec.json.encode(line, enc_hook=str).decode()
    # JSON allows these inside a text, but many a reader of lines ends one there.
    return text if text.isascii() else text.translate(_LINE_ENDS)
