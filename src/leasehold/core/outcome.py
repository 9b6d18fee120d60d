"""How an attempt can end: the whole vocabulary. One function, `decide`, turns each into what becomes of the job."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class By(StrEnum):
    """Who ended the attempt. Only a worker's own end answers its repeat with `already settled by you`."""

    WORKER = "worker"
    SUPERVISOR = "supervisor"
    REAPER = "reaper"


@dataclass(frozen=True, slots=True)
class Done:
    """The handler returned; `result` is JSON text, already storable."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised, or the job could not be run. `retryable` was judged by the policy; `error` is storable."""

    code: str
    reason: str
    retryable: bool
    error: dict[str, Any] = field(default_factory=dict)
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The attempt ran longer than its execution timeout, although its worker was healthy."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process of the attempt was seen to die; `evidence` says how (signal, exit code, pid).

    `blamed` is whether the job may have done it: not where its handler had already ended.
    """

    evidence: dict[str, Any] = field(default_factory=dict)
    blamed: bool = True


@dataclass(frozen=True, slots=True)
class Expired:
    """The lease ran out: its worker fell silent."""

    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Aborted:
    """The worker was told to stop and the job outlived the time it was given."""

    by: By = By.WORKER


@dataclass(frozen=True, slots=True)
class Released:
    """The attempt was never begun, or ended by our doing: hand the job back uncharged."""

    reason: str
    delay_s: float = 0.0
    by: By = By.WORKER


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked to come back later."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The handler reached a safe point during shutdown; the next attempt goes on from `data` (JSON text)."""

    data: str | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job is no longer wanted."""

    reason: str = ""


Outcome = Done | Failed | TimedOut | Crashed | Expired | Aborted | Released | Snoozed | Checkpointed | Cancelled
