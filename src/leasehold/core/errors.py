"""The tree of errors, and what a handler may raise. The docstring is the message; the facts and the remedy follow it.

Raise with the particulars: `NoSuchJobError(job_id=7)`. The text is then the sentence, the particulars and what to do,
so that whoever reads a log at night has it all in one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.core.durations import Duration


class LeaseholdError(Exception):
    """Something in Leasehold failed."""

    remedy: str = ""

    def __init__(self, detail: str = "", **facts: object) -> None:
        self.detail = detail
        self.facts = facts
        super().__init__(detail)

    def __str__(self) -> str:
        sentence = " ".join((type(self).__doc__ or "").split())
        particulars = ", ".join(f"{name}={value!r}" for name, value in self.facts.items())
        parts = [sentence, self.detail, f"({particulars})" if particulars else "", self.remedy]
        return " ".join(part for part in parts if part)


# --- configuration ----------------------------------------------------------------------------------------------------


class ConfigurationError(LeaseholdError):
    """The configuration cannot work."""


class WrongSettingError(ConfigurationError):
    """A setting has a value that cannot be used; nothing was started."""

    remedy = "`leasehold config` lists every setting with its default."


class WrongDurationError(ConfigurationError):
    """That is no duration."""

    remedy = 'Write it with a unit ("30s", "20m", "1h30m", "250ms"), as a number of seconds, or as a timedelta.'


class WrongTargetError(ConfigurationError):
    """The worker cannot find your App."""

    remedy = "Name a module (`shop.jobs`), a module and its object (`shop.jobs:app`), or a file (`app.py`)."


class WrongDsnError(ConfigurationError):
    """That is no address of a database."""

    remedy = "Write it as postgresql://user:password@host:5432/database."


class TaskExistsError(ConfigurationError):
    """Two tasks have one name, so a job could not tell which of them it is for; the second was refused."""

    remedy = "Give one of them another `name=`."


class WrongTaskError(ConfigurationError):
    """A task was declared in a way that cannot work."""


# --- enqueuing --------------------------------------------------------------------------------------------------------


class EnqueueError(LeaseholdError):
    """The job was not enqueued; nothing was written."""


class WrongArgumentsError(EnqueueError):
    """The arguments do not fit the task; nothing was written."""


class UnstorablePayloadError(EnqueueError):
    """The arguments cannot be stored as JSON; nothing was written."""

    remedy = "Pass JSON values (text without NUL, numbers, lists, mappings with text keys), or a reference to the data."


class InsideLoopError(LeaseholdError):
    """A blocking call was made inside a running event loop, which it would have stopped."""

    remedy = "Use the awaitable twin: its name starts with `a` (`await task.aenqueue(...)`)."


# --- the store --------------------------------------------------------------------------------------------------------


class StoreError(LeaseholdError):
    """The database did not do what was asked."""


class StoreUnreachableError(StoreError):
    """The database cannot be reached, or did not answer in time."""

    remedy = "Jobs are safe: leases run out and are recovered. Check the DSN, the network and the server."


class SchemaError(StoreError):
    """The database's schema does not fit this version of Leasehold; no job was touched."""

    remedy = "Run `leasehold migrate` (`--check` tells what is missing, `--sql` prints it)."


class NoSuchJobError(StoreError):
    """There is no such job."""


# --- what a handler may raise -----------------------------------------------------------------------------------------


class HandlerSignal(Exception):  # noqa: N818 - a handler's word about its job, not an error of ours
    """What a handler raises to say how its attempt ends."""


class Fatal(HandlerSignal):
    """The job can never succeed: fail it now, spend no further attempt."""

    def __init__(self, code: str = "FATAL", message: str = "") -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code}: {message}" if message else code)


class Retry(HandlerSignal):
    """The attempt failed, try again; `after` is the least time to wait."""

    def __init__(self, message: str = "", *, after: Duration | None = None) -> None:
        self.after = after
        super().__init__(message)


class Snooze(HandlerSignal):
    """Not yet: come back after this long; spends no attempt."""

    def __init__(self, delay: Duration) -> None:
        self.delay = delay
        super().__init__(str(delay))


class Cancel(HandlerSignal):
    """The job is no longer wanted."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)
