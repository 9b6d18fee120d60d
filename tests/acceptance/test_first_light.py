"""A job survives its killed worker, its frozen worker, and the handler that lets nobody else run."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime

import pytest

from leasehold.core.job import State
from tests.acceptance import shop
from tests.acceptance.conftest import Site, until

LEASES = 5.0  # the shop's leases last a second


@pytest.mark.requirement("R1.9")
def test_a_job_whose_worker_process_is_killed_runs_again_within_two_seconds_and_ends_done(site: Site) -> None:
    worker = site.worker().ready()
    job_id = shop.work_once.enqueue(site.side_log, 60).id
    site.running(job_id)

    killed_at = datetime.now(UTC)
    os.kill(worker.child(), signal.SIGKILL)
    job = site.ended(job_id)

    assert job.status is State.DONE
    assert job.result == "attempt 2"
    assert site.kinds(job_id) == ["created", "processing", "requeued:stale", "processing", "done"]
    again = [event for event in site.timeline(job_id) if event.kind == "processing"][1]
    assert (again.at - killed_at).total_seconds() <= 2.0
    assert site.starts(job_id) == [1, 2]
    (requeued,) = (event for event in site.timeline(job_id) if event.kind == "requeued:stale")
    assert requeued.data["reason"] == "worker_lost"
    assert requeued.data["details"]["signal"] == signal.SIGKILL


@pytest.mark.requirement("R1.9")
def test_a_job_whose_whole_worker_is_killed_is_recovered_when_its_lease_has_run_out(site: Site) -> None:
    lost = site.worker().ready()
    job_id = shop.work_once.enqueue(site.side_log, 60).id
    site.running(job_id)
    site.worker(REAPER_INTERVAL_SEC="60").ready()

    lost.signal(signal.SIGKILL)
    job = site.ended(job_id)

    assert job.status is State.DONE
    assert site.kinds(job_id) == ["created", "processing", "requeued:stale", "processing", "done"]
    first, requeued, again = (site.timeline(job_id)[place] for place in (1, 2, 3))
    assert requeued.data["reason"] == "lease_expired"
    expired_at = datetime.fromisoformat(requeued.data["details"]["lease_expires_at"])
    assert expired_at > first.at
    assert (again.at - expired_at).total_seconds() <= 2.0


def test_the_late_settle_of_a_frozen_worker_is_refused_and_counted(site: Site) -> None:
    frozen = site.worker().ready()
    release = site.folder / "release"
    job_id = shop.hold_until.enqueue(site.side_log, str(release)).id
    site.running(job_id)

    frozen.signal(signal.SIGSTOP)
    site.worker().ready()
    job = site.ended(job_id)
    assert job.result == "attempt 2"
    before = site.timeline(job_id)
    release.touch()
    frozen.signal(signal.SIGCONT)

    refused = until(
        lambda: [line for line in frozen.lines("STALE_TOKEN_REJECTED") if line["what"] == "settle"],
        what="the refusal of the late settle",
    )
    assert refused[0]["job_id"] == job_id
    assert site.job(job_id) == job
    assert site.timeline(job_id) == before
    assert frozen.stop() == 0
    counted = [line["counters"] for line in frozen.lines("WORKER_COUNTERS")]
    assert {"worker.stale_token_rejects_total{what=settle}": 1.0}.items() <= counted[0].items()


def test_an_async_handler_that_sleeps_for_five_leases_runs_exactly_once(site: Site) -> None:
    site.worker().ready()
    site.worker().ready()  # would take the job over if its lease ran out
    job_id = shop.block_the_loop.enqueue(site.side_log, LEASES).id

    job = site.ended(job_id)

    assert job.result == "slept"
    assert site.kinds(job_id) == ["created", "processing", "done"]
    assert site.starts(job_id) == [1]


def test_a_handler_that_holds_the_gil_for_five_leases_runs_exactly_once(site: Site) -> None:
    workers = [site.worker().ready() for _ in range(2)]  # the one that is free would take the job over
    job_id = shop.hold_the_gil.enqueue(site.side_log, exponent_that_takes(LEASES)).id

    job = site.ended(job_id, within_s=120)

    assert job.status is State.DONE
    assert site.kinds(job_id) == ["created", "processing", "done"]
    assert site.starts(job_id) == [1]
    (success,) = until(
        lambda: [line for worker in workers for line in worker.lines("JOB_SUCCESS")], what="the log of the success"
    )
    assert success["duration_s"] >= LEASES


def exponent_that_takes(seconds: float) -> int:
    """How large a power of three takes this long here: multiplying n digits costs n ** 1.585 (Karatsuba)."""
    exponent, took_s = 100_000, 0.0
    while took_s < 0.2:
        exponent *= 2
        began = time.thread_time()
        _ = 3**exponent
        took_s = time.thread_time() - began
    return int(exponent * (1.5 * seconds / took_s) ** (1 / 1.585))
