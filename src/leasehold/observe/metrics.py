"""The names of all metrics, and what each fact adds to them.

The dotted names are the sources' own; Prometheus text shows dots as underscores and ends counters in `_total`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from prometheus_client import CollectorRegistry, Counter, Gauge

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
from leasehold.core.job import State
from leasehold.core.outcome import Aborted, Crashed, Expired


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric by its dotted name."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def prometheus(self) -> str:
        """The name in Prometheus text, without the ending that the client adds to counters."""
        return self.name.replace(".", "_").removesuffix("_total")


HEARTBEATS: Final = Metric("worker.heartbeats_total", "leases extended by a heartbeat")
HEARTBEAT_FAILURES: Final = Metric("worker.heartbeat_failures_total", "heartbeats that failed")
RECOVERED: Final = Metric("worker.recovered_jobs_total", "jobs taken back from a lost or stopped worker", ("reason",))
RETRIES: Final = Metric("worker.retry_attempts_total", "attempts that will be tried again after a failure", ("code",))
STALE: Final = Metric(
    "worker.stale_token_rejects_total", "writes refused because their token is not current", ("what",)
)
INFLIGHT: Final = Metric("worker.inflight_jobs", "jobs in hand")
ENDED: Final = Metric("worker.jobs_ended_total", "attempts that ended for good", ("status",))
REQUEUES: Final = Metric("reaper.requeues", "expired leases put back to wait")
FAILURES: Final = Metric("reaper.failures", "expired leases whose job had no attempts left")

ALL: Final = (HEARTBEATS, HEARTBEAT_FAILURES, RECOVERED, RETRIES, STALE, INFLIGHT, ENDED, REQUEUES, FAILURES)


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counters = {
            metric: Counter(metric.prometheus, metric.meaning, metric.labels, registry=self.registry)
            for metric in ALL
            if metric is not INFLIGHT
        }
        self._running: set[int] = set()
        self._inflight = Gauge(INFLIGHT.prometheus, INFLIGHT.meaning, registry=self.registry)

    def hear(self, fact: Fact) -> None:  # noqa: C901, PLR0912 - one answer per kind of fact
        """Add what the fact adds."""
        match fact:
            case JobStarted(lease):
                self._running.add(lease.job_id)
                self._inflight.set(len(self._running))
            case JobEnded(lease, settlement, _):
                self._let_go(lease.job_id)
                if settlement.state is not State.QUEUED:
                    self._count(ENDED, settlement.state.value)
                elif settlement.attempt and settlement.events and settlement.events[0].kind == "retry":
                    self._count(RETRIES, settlement.events[0].data["error"]["code"])
                if any(event.kind == "aborted:shutdown" for event in settlement.events):
                    self._count(RECOVERED, "shutdown")
            case LeaseLost(lease):
                self._let_go(lease.job_id)
            case JobRecovered(_, outcome, settlement):
                self._recovered(outcome, settlement.state)
            case StaleTokenRefused(job_id, _, _, what):
                self._count(STALE, what)
                if what == "settle":
                    self._let_go(job_id)
            case LeasesKept(count):
                self._counters[HEARTBEATS].inc(count)
            case HeartbeatFailed():
                self._count(HEARTBEAT_FAILURES)
            case LateClaim() | SlotUnreadable() | StoreFailed():
                pass
            case ProcessDied() | ProcessStarted() | WorkerStarted() | WorkerStopped():
                pass
            case _:
                assert_never(fact)

    def counted(self) -> dict[str, float]:
        """Everything that is not zero, by its dotted name."""
        dotted = {metric.prometheus: metric.name for metric in ALL}
        return {
            dotted[family.name] + _labelled(sample.labels): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.value and not sample.name.endswith("_created")
        }

    def _let_go(self, job_id: int) -> None:
        self._running.discard(job_id)  # it may never have begun
        self._inflight.set(len(self._running))

    def _count(self, metric: Metric, *labels: str) -> None:
        counter = self._counters[metric]
        (counter.labels(*labels) if labels else counter).inc()

    def _recovered(self, outcome: object, state: State) -> None:
        match outcome:
            case Expired():
                self._count(RECOVERED, "lease_expired")
                self._count(REQUEUES if state is State.QUEUED else FAILURES)
            case Crashed():
                self._count(RECOVERED, "worker_lost")
            case Aborted():
                self._count(RECOVERED, "shutdown")
            case _:
                pass  # released: it had not begun, so there was nothing to recover


def _labelled(labels: dict[str, str]) -> str:
    return "{" + ",".join(f"{name}={value}" for name, value in labels.items()) + "}" if labels else ""
