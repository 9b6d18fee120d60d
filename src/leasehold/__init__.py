"""Leasehold: jobs that survive their worker. The public names, nothing else.

They are looked up when they are first used: a worker process must be able to catch a signal before a tenth of a second
of imports has gone by.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.app.app import App
    from leasehold.app.task import JobRef, Task
    from leasehold.core.errors import Cancel, Fatal, LeaseholdError, Retry, Snooze
    from leasehold.core.policy import Backoff
    from leasehold.runtime.context import Job

__version__ = "0.1.0"

__all__ = ["App", "Backoff", "Cancel", "Fatal", "Job", "JobRef", "LeaseholdError", "Retry", "Snooze", "Task"]

_HOMES = {
    "App": "leasehold.app.app",
    "Backoff": "leasehold.core.policy",
    "Cancel": "leasehold.core.errors",
    "Fatal": "leasehold.core.errors",
    "Job": "leasehold.runtime.context",
    "JobRef": "leasehold.app.task",
    "LeaseholdError": "leasehold.core.errors",
    "Retry": "leasehold.core.errors",
    "Snooze": "leasehold.core.errors",
    "Task": "leasehold.app.task",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
