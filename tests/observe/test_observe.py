"""What is said of what happened: one line and the right counters for each fact, and no harm to who tells it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from leasehold.core.decide import decide
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
from leasehold.core.outcome import Aborted, Cancelled, Crashed, Done, Expired, Failed, Outcome, Released, Snoozed
from leasehold.core.policy import Policy
from leasehold.observe.log import Log
from leasehold.observe.metrics import Metrics
from leasehold.observe.signals import Signals
from tests.runtime.scenes import a_lease

SECRET = "the payload is a secret"


def ended(outcome: Outcome, **lease: Any) -> JobEnded:
    held = a_lease(payload=json.dumps({"card": SECRET}), **lease)
    return JobEnded(held, decide(held, outcome, Policy(), 0.0), 1.23456)


def recovered(outcome: Outcome, **lease: Any) -> JobRecovered:
    held = a_lease(**lease)
    return JobRecovered(held, outcome, decide(held, outcome, Policy(), 0.0))


def lines(*facts: Fact) -> list[dict[str, Any]]:
    out = io.StringIO()
    log = Log(out)
    for fact in facts:
        log.hear(fact)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def counted(*facts: Fact) -> dict[str, float]:
    metrics = Metrics()
    for fact in facts:
        metrics.hear(fact)
    return metrics.counted()


TRANSIENT = Failed("ConnectionError", "gone", retryable=True)
FATAL = Failed("INPUT_TOO_LARGE", "3 GB", retryable=False)

TOLD = [
    (WorkerStarted("w1", ("clip",), 10), "info", "WORKER_START", {"tasks": ["clip"], "concurrency": 10}),
    (WorkerStopped("w1"), "info", "WORKER_STOP", {"worker": "w1"}),
    (JobStarted(a_lease()), "info", "JOB_START", {"job_id": 1, "attempt": 1, "max_attempts": 3, "task": "clip"}),
    (ended(Done()), "info", "JOB_SUCCESS", {"duration_s": 1.2346}),
    (
        ended(TRANSIENT),
        "warning",
        "JOB_FAILED",
        {"fatal": False, "will_retry": True, "code": "ConnectionError", "error": "gone", "delay_s": 30.0},
    ),
    (
        ended(TRANSIENT, attempt=3, epoch=3),
        "error",
        "JOB_FAILED",
        {"fatal": False, "will_retry": False, "code": "RETRIES_EXHAUSTED", "error": "gone"},
    ),
    (ended(FATAL), "error", "JOB_FAILED", {"fatal": True, "will_retry": False, "code": "INPUT_TOO_LARGE"}),
    (ended(Cancelled("not wanted")), "info", "JOB_CANCELLED", {"reason": "not wanted"}),
    (ended(Snoozed(60)), "info", "JOB_RETURNED", {"because": "snoozed", "delay_s": 60.0}),
    (ended(Aborted()), "info", "JOB_RETURNED", {"because": "requeued:stale", "delay_s": 0.0}),
    (recovered(Expired()), "warning", "JOB_RECOVERED", {"outcome": "expired", "will_retry": True, "delay_s": 1.0}),
    (StaleTokenRefused(1, 2, "w1", "settle"), "warning", "STALE_TOKEN_REJECTED", {"job_id": 1, "what": "settle"}),
    (LeaseLost(a_lease()), "warning", "JOB_LEASE_LOST", {"job_id": 1, "attempt": 1}),
    (LateClaim("w1", 3), "warning", "LATE_CLAIM_RELEASED", {"jobs": 3}),
    (HeartbeatFailed(3, "cut"), "info", "HEARTBEAT_FAILED", {"failures_in_a_row": 3}),
    (HeartbeatFailed(4, "cut"), "warning", "HEARTBEAT_DEGRADED", {"failures_in_a_row": 4, "error": "cut"}),
    (SlotUnreadable("w1", 5), "error", "SLOT_UNREADABLE", {"slot": 5}),
    (StoreFailed("w1", "looking", "gone"), "error", "STORE_FAILED", {"doing": "looking", "error": "gone"}),
    (ProcessDied("w1", 7, {"signal": 9}), "error", "WORKER_PROCESS_DIED", {"pid": 7, "signal": 9}),
    (ProcessStarted("w1", 7), "info", "WORKER_PROCESS_START", {"pid": 7}),
]


@pytest.mark.parametrize("fact, level, event, particulars", TOLD, ids=lambda value: value if type(value) is str else "")
def test_every_fact_is_one_line_with_its_word_and_its_particulars(
    fact: Fact, level: str, event: str, particulars: dict[str, Any]
) -> None:
    (line,) = lines(fact)

    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert (line["level"], line["event"]) == (level, event)
    assert particulars.items() <= line.items()


def test_a_heartbeat_that_was_kept_is_counted_and_not_told() -> None:
    assert lines(LeasesKept(3)) == []
    assert counted(LeasesKept(3), LeasesKept(2)) == {"worker.heartbeats_total": 5.0}


def test_a_payload_is_never_told() -> None:
    assert SECRET not in json.dumps(lines(ended(Done('"fine"')), ended(FATAL), ended(TRANSIENT)))


def test_a_line_stays_one_line_whatever_a_handler_said() -> None:
    (line,) = lines(ended(Failed("X", 'a\nb\r\x1b[31m"}\u2028', retryable=False)))
    assert line["error"] == 'a\nb\r\x1b[31m"}\u2028'


@pytest.mark.requirement("R3.2")
def test_each_fact_adds_to_its_counters_by_their_dotted_names() -> None:
    assert counted(ended(Done()), ended(FATAL), ended(Cancelled())) == {
        "worker.jobs_ended_total{status=done}": 1.0,
        "worker.jobs_ended_total{status=failed}": 1.0,
        "worker.jobs_ended_total{status=cancelled}": 1.0,
    }
    assert counted(JobStarted(a_lease()), ended(TRANSIENT)) == {
        "worker.retry_attempts_total{code=ConnectionError}": 1.0
    }
    assert counted(recovered(Expired()), recovered(Expired(), attempt=3, epoch=3)) == {
        "worker.recovered_jobs_total{reason=lease_expired}": 2.0,
        "reaper.requeues": 1.0,
        "reaper.failures": 1.0,
    }
    assert counted(recovered(Crashed()), recovered(Aborted()), recovered(Released("never begun"))) == {
        "worker.recovered_jobs_total{reason=worker_lost}": 1.0,
        "worker.recovered_jobs_total{reason=shutdown}": 1.0,
    }
    assert counted(StaleTokenRefused(1, 1, "w1", "settle"), HeartbeatFailed(1, "cut")) == {
        "worker.stale_token_rejects_total{what=settle}": 1.0,
        "worker.heartbeat_failures_total": 1.0,
    }


def test_the_jobs_in_hand_are_those_that_began_and_were_not_let_go() -> None:
    begun = [JobStarted(a_lease(job_id=number)) for number in (1, 2, 3)]
    never_begun = ended(Released("late"), job_id=4)

    assert counted(*begun, never_begun)["worker.inflight_jobs"] == 3
    let_go = ended(Done(), job_id=1), StaleTokenRefused(2, 1, "w1", "settle"), StaleTokenRefused(3, 1, "w1", "progress")
    assert counted(*begun, *let_go)["worker.inflight_jobs"] == 1
    assert "worker.inflight_jobs" not in counted(*begun, *let_go, LeaseLost(a_lease(job_id=3)))


def test_a_listener_that_fails_harms_nobody_else_and_is_counted() -> None:
    heard: list[Fact] = []

    def full_disk(_: Fact) -> None:
        raise OSError("no space left")

    signals = Signals(full_disk, heard.append)
    signals.emit(WorkerStopped("w1"))

    assert heard == [WorkerStopped("w1")]
    assert signals.counted() == {"observe.listener_failures_total": 1.0}
