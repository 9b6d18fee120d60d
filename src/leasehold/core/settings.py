"""Every setting with its default, unit and meaning. The environment variable is the field's name in capitals.

Wrong values and contradictions are collected and refused together, each with its name, the value given and what would
be right. A field that says nothing of its effect is read somewhere in the code; `tests/core/test_settings.py` lists
those that are not yet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

from leasehold.core.errors import WrongSettingError
from leasehold.core.policy import AFTER_FAILURE, AFTER_LOSS, Backoff, Policy

STAGE_FAMILIES: Final = ("STAGE_LEASE_SEC", "STAGE_TIMEOUT_SEC", "STAGE_SLA_FACTOR")
_STAGE_NAME: Final = re.compile(rf"({'|'.join(STAGE_FAMILIES)})_([A-Z0-9_]+)")
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off", "")


def _setting(default: Any, meaning: str, **limits: Any) -> Any:  # noqa: ANN401 - stands in for a value of the field's type
    return field(default=default, metadata={"meaning": meaning, **limits})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings in effect."""

    leasehold_dsn: str | None = _setting(
        None, "the database; else DATABASE_URL, else a private one in ./.leasehold", secret=True
    )
    database_url: str | None = _setting(None, "the database, where LEASEHOLD_DSN is not set", secret=True)

    heartbeat_interval_sec: float = _setting(
        10.0, "seconds between two heartbeats of a lease, at most a third of it", above=0
    )
    lease_timeout_sec: float | None = _setting(
        None, "seconds that a lease lasts without a heartbeat; unset: 3 heartbeats", above=0
    )
    max_attempts: int | None = _setting(
        None, "how often a job may run at all; unset: QUEUE_MAX_ATTEMPTS, else 3", least=1
    )
    max_concurrency: int = _setting(10, "how many jobs a worker runs at once", least=1)
    high_watermark: int = _setting(1000, "waiting jobs above which a loaded worker pauses", least=0)
    load_threshold: float = _setting(
        0.9, "load above which a worker with a deep queue pauses, as a part of its CPUs", above=0
    )
    pause_interval_sec: float = _setting(5.0, "seconds that such a pause lasts", above=0)
    keep_scratch_on_success: bool = _setting(default=False, meaning="keep a job's scratch folder when it is done")
    reaper_interval_sec: float = _setting(
        60.0, "seconds between two searches for expired leases nobody knew of", above=0
    )

    queue_max_attempts: int | None = _setting(None, "as MAX_ATTEMPTS, which wins over it", least=1)
    queue_retry_backoff_ms_base: float | None = _setting(
        None, "first wait after a failure; makes the backoff exponential", above=0
    )
    queue_retry_backoff_ms_max: float | None = _setting(
        None, "longest wait after a failure; makes the backoff exponential", above=0
    )
    job_max_attempts: int | None = _setting(None, "as MAX_ATTEMPTS, and wins over it", least=1)
    job_retry_backoff_ms_base: float | None = _setting(
        None, "as QUEUE_RETRY_BACKOFF_MS_BASE, and wins over it", above=0
    )
    job_retry_backoff_ms_max: float | None = _setting(None, "as QUEUE_RETRY_BACKOFF_MS_MAX, and wins over it", above=0)

    stage_sla_factor: float = _setting(1.0, "multiplies lease and timeout of every stage", above=0)
    stage_lease_sec: Mapping[str, float] = field(
        default_factory=dict, metadata={"meaning": "STAGE_LEASE_SEC_<STAGE>: lease of a stage in seconds", "above": 0}
    )
    stage_timeout_sec: Mapping[str, float] = field(
        default_factory=dict,
        metadata={"meaning": "STAGE_TIMEOUT_SEC_<STAGE>: timeout of a stage in seconds", "above": 0},
    )
    stage_sla_factors: Mapping[str, float] = field(
        default_factory=dict,
        metadata={"meaning": "STAGE_SLA_FACTOR_<STAGE>: as STAGE_SLA_FACTOR, for one stage", "above": 0},
    )

    worker_tick_runners: tuple[str, ...] | None = _setting(
        None, "the runners of a tick in their order; unset: all registered"
    )
    worker_tick_overall_max_ms: int = _setting(480_000, "longest time of a whole tick", least=1)
    worker_tick_runner_max_ms: int = _setting(60_000, "longest time of one runner in a tick", least=1)
    worker_tick_runner_max_items: int = _setting(200, "most items of one runner in a tick", least=1)
    worker_tick_shard_index: int | None = _setting(None, "which shard this worker's ticks take, from 0", least=0)
    worker_tick_shard_count: int | None = _setting(None, "how many shards there are", least=1)
    worker_busy_loop_delay_ms: int = _setting(250, "wait between two ticks while there is work", least=0)
    worker_idle_backoff_min_ms: int = _setting(1000, "first wait after a tick without work", least=0)
    worker_idle_backoff_max_ms: int = _setting(30_000, "longest wait after ticks without work", least=0)
    worker_idle_backoff_jitter_ms: int = _setting(500, "most that chance adds to an idle wait", least=0)
    worker_tick_loop_error_backoff_ms: int = _setting(30_000, "wait after a tick that failed", least=0)
    worker_tick_loop_max_jitter_ms: int = _setting(2000, "most that chance adds to any wait between ticks", least=0)
    worker_shutdown_timeout_ms: int = _setting(
        30_000, "time that running jobs are given when the worker is told to stop", least=0
    )

    outbox_batch_size: int = _setting(50, "outbox events claimed at once", least=1)
    outbox_concurrency: int = _setting(10, "outbox events handled at once", least=1)
    pdf_render_concurrency: int = _setting(2, "how many of the heavy kind (PDF rendering) run at once", least=1)
    outbox_lease_duration_ms: int = _setting(60_000, "lease of an outbox event", least=1)
    outbox_lease_heartbeat_ms: int = _setting(15_000, "heartbeat of an outbox event", least=1)
    outbox_max_attempts: int = _setting(3, "how often an outbox event is tried", least=1)
    outbox_retry_base_ms: int = _setting(5000, "first wait after an outbox event failed", least=0)
    outbox_retry_max_ms: int = _setting(120_000, "longest wait after an outbox event failed", least=0)
    outbox_retry_jitter_ms: int = _setting(500, "most that chance adds to such a wait", least=0)

    worker_api_base_url: str | None = _setting(None, "where schedulers are called over HTTP")
    worker_api_service_token: str | None = _setting(
        None, "the token of those calls (header x-service-token)", secret=True
    )

    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the settings; everything that is wrong is refused at once."""
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        wrong: list[str] = []
        for setting in _plain_fields():
            name = setting.name.upper()
            if (given := environment.get(name)) is not None and given != "":
                values[setting.name] = _taken(name, given, setting, wrong)
                sources[setting.name] = "environment"
        for attribute, stages in _stages(environment, wrong).items():
            values[attribute] = stages
            sources[attribute] = "environment"
        if wrong:
            raise WrongSettingError("; ".join(wrong) + ".")
        settings = cls(**values, sources=MappingProxyType(sources))
        settings.refuse_contradictions()
        return settings

    def refuse_contradictions(self) -> None:
        """Settings that cannot both be meant are refused together."""
        wrong: list[str] = []
        if "heartbeat_interval_sec" in self.sources and self.heartbeat_interval_sec > self.lease_s / 2:
            wrong.append(
                f"HEARTBEAT_INTERVAL_SEC={self.heartbeat_interval_sec:g} is slower than half of"
                f" LEASE_TIMEOUT_SEC={self.lease_s:g}: one late heartbeat would lose a healthy worker's lease"
            )
        if (self.worker_tick_shard_index is None) != (self.worker_tick_shard_count is None):
            wrong.append("WORKER_TICK_SHARD_INDEX and WORKER_TICK_SHARD_COUNT go together: set both or none")
        elif (self.worker_tick_shard_index or 0) >= (self.worker_tick_shard_count or 1):
            wrong.append(
                f"WORKER_TICK_SHARD_INDEX={self.worker_tick_shard_index} must be below"
                f" WORKER_TICK_SHARD_COUNT={self.worker_tick_shard_count}"
            )
        for low, high in (
            ("worker_idle_backoff_min_ms", "worker_idle_backoff_max_ms"),
            ("outbox_retry_base_ms", "outbox_retry_max_ms"),
            ("queue_retry_backoff_ms_base", "queue_retry_backoff_ms_max"),
            ("job_retry_backoff_ms_base", "job_retry_backoff_ms_max"),
        ):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and least > most:
                wrong.append(f"{low.upper()}={least:g} is above {high.upper()}={most:g}")
        if self.outbox_lease_heartbeat_ms > self.outbox_lease_duration_ms / 2:
            wrong.append(
                f"OUTBOX_LEASE_HEARTBEAT_MS={self.outbox_lease_heartbeat_ms} is slower than half of"
                f" OUTBOX_LEASE_DURATION_MS={self.outbox_lease_duration_ms}"
            )
        if wrong:
            raise WrongSettingError("; ".join(wrong) + ".")

    @property
    def lease_s(self) -> float:
        """How long a lease lasts where the task does not say."""
        return self.lease_timeout_sec or 3 * self.heartbeat_interval_sec

    @property
    def attempts(self) -> int:
        """How often a job may run where the task does not say."""
        return self.job_max_attempts or self.max_attempts or self.queue_max_attempts or 3

    @property
    def dsn(self) -> str | None:
        """The database that the environment names."""
        return self.leasehold_dsn or self.database_url

    def policy(self, retry: Backoff | None = None) -> Policy:
        """When to try again: the task's own backoff, else the settings', else the table."""
        return Policy(failure=retry or self._backoff(), loss=AFTER_LOSS)

    def _backoff(self) -> Backoff:
        for base, cap in (
            (self.job_retry_backoff_ms_base, self.job_retry_backoff_ms_max),
            (self.queue_retry_backoff_ms_base, self.queue_retry_backoff_ms_max),
        ):
            if base is not None or cap is not None:
                first_s = (base if base is not None else min(30_000.0, cap or math.inf)) / 1000
                return Backoff(first_s, factor=2, cap=max((cap or 600_000.0) / 1000, first_s))
        return AFTER_FAILURE

    def told(self) -> list[Told]:
        """Every setting as an operator wants to see it; secrets are masked."""
        return [
            Told(
                name=setting.name.upper(),
                value=_masked(getattr(self, setting.name), setting),
                default=_default(setting),
                source=self.sources.get(setting.name, "default"),
                meaning=setting.metadata["meaning"],
            )
            for setting in fields(self)
            if "meaning" in setting.metadata
        ]


@dataclass(frozen=True, slots=True)
class Told:
    """One setting as `leasehold config` shows it."""

    name: str
    value: object
    default: object
    source: str
    meaning: str


def _plain_fields() -> list[Field[Any]]:
    return [setting for setting in fields(Settings) if setting.default is not MISSING]


def _taken(name: str, given: str, setting: Field[Any], wrong: list[str]) -> object:
    kind = str(setting.type).removesuffix(" | None")
    parse, right = _KINDS[kind]
    try:
        value = parse(given.strip())
    except ValueError:
        wrong.append(f"{name}={given!r} is not {right}")
        return None
    if (fault := _out_of_bounds(value, setting)) is not None:
        wrong.append(f"{name}={given!r} must be {fault}")
    return value


def _out_of_bounds(value: Any, setting: Field[Any]) -> str | None:  # noqa: ANN401 - whatever the field's type is
    limits = setting.metadata
    if isinstance(value, float) and not math.isfinite(value):
        return "finite"
    if "above" in limits and not value > limits["above"]:
        return f"above {limits['above']}"
    if "least" in limits and not value >= limits["least"]:
        return f"at least {limits['least']}"
    return None


def _stages(environment: Mapping[str, str], wrong: list[str]) -> dict[str, dict[str, float]]:
    attributes = {
        "STAGE_LEASE_SEC": "stage_lease_sec",
        "STAGE_TIMEOUT_SEC": "stage_timeout_sec",
        "STAGE_SLA_FACTOR": "stage_sla_factors",
    }
    by_name = {setting.name: setting for setting in fields(Settings)}
    found: dict[str, dict[str, float]] = {}
    for name, given in environment.items():
        if match := _STAGE_NAME.fullmatch(name):
            attribute = attributes[match[1]]
            try:
                value = float(given)
            except ValueError:
                wrong.append(f"{name}={given!r} is not a number")
                continue
            if (fault := _out_of_bounds(value, by_name[attribute])) is not None:
                wrong.append(f"{name}={given!r} must be {fault}")
            found.setdefault(attribute, {})[match[2].lower()] = value
    return found


def _switch(given: str) -> bool:
    if given.lower() not in _TRUE + _FALSE:
        raise ValueError(given)
    return given.lower() in _TRUE


def _names(given: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in given.split(",") if name.strip())


_KINDS: Final[dict[str, tuple[Callable[[str], object], str]]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": (_switch, "a switch (1 or 0)"),
    "str": (str, "a text"),
    "tuple[str, ...]": (_names, "a list of names with commas between them"),
}


def _masked(value: object, setting: Field[Any]) -> object:
    if value is not None and setting.metadata.get("secret"):
        return "********"
    return value


def _default(setting: Field[Any]) -> object:
    return {} if setting.default is MISSING else setting.default
