"""A worker that is told to stop loses nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from leasehold.core.job import State
from tests.acceptance import shop
from tests.acceptance.conftest import Site, until


@pytest.mark.requirement("R5.1", part="drain")
def test_a_worker_told_to_stop_lets_its_jobs_end_and_takes_no_new_one(site: Site) -> None:
    worker = site.worker().ready()
    running = shop.work.enqueue(site.side_log, 1.0).id
    site.running(running)

    worker.process.send_signal(signal.SIGTERM)
    waiting = shop.work.enqueue(site.side_log, 0).id

    assert worker.process.wait(30) == 0
    assert site.job(running).status is State.DONE
    assert site.kinds(running) == ["created", "processing", "done"]
    assert site.job(waiting).status is State.QUEUED
    assert site.starts(waiting) == []


@pytest.mark.requirement("R5.1", part="drain")
def test_a_job_that_outlives_the_shutdown_is_handed_back_uncharged_and_runs_at_once(site: Site) -> None:
    worker = site.worker(WORKER_SHUTDOWN_TIMEOUT_MS="1000").ready()
    job_id = shop.work_once.enqueue(site.side_log, 60).id
    site.running(job_id)

    assert worker.stop() == 0
    handed_back = site.job(job_id)
    assert (handed_back.status, handed_back.attempt_count) == (State.QUEUED, 0)
    assert site.kinds(job_id) == ["created", "processing", "aborted:shutdown", "requeued:stale"]
    assert site.timeline(job_id)[-1].data["reason"] == "shutdown"

    site.worker()
    until(lambda: site.kinds(job_id)[4:] == ["processing"], what="the next run")
    assert site.starts(job_id) == [1, 1]


def test_a_job_that_blocks_its_worker_past_the_shutdown_is_handed_back_uncharged_too(site: Site) -> None:
    worker = site.worker(WORKER_SHUTDOWN_TIMEOUT_MS="500").ready()
    job_id = shop.block_the_loop.enqueue(site.side_log, 60).id
    until(lambda: site.job(job_id).status is State.PROCESSING, what="the start of the job")

    assert worker.stop() == 0

    handed_back = site.job(job_id)
    assert (handed_back.status, handed_back.attempt_count) == (State.QUEUED, 0)
    assert site.kinds(job_id) == ["created", "processing", "aborted:shutdown", "requeued:stale"]


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6])
def test_a_worker_told_to_stop_while_it_starts_ends_well_and_leaves_nothing(site: Site, after_s: float) -> None:
    worker = site.worker()
    until(lambda: catches_sigterm(worker.pid), what="the first thing that a worker does")

    time.sleep(after_s)  # the moment is the case: before, during and after the imports, the hello, the first claim
    assert worker.stop(within_s=20) == 0

    for line in worker.lines("WORKER_PROCESS_START"):
        assert not alive(line["pid"])
    assert "Traceback" not in worker.log.read_text(encoding="utf-8")


def catches_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught & 1 << signal.SIGTERM - 1)


def test_nothing_is_left_running_when_a_worker_has_stopped(site: Site) -> None:
    worker = site.worker("--processes", "2").ready()
    pids = until(
        lambda: len(found := [line["pid"] for line in worker.lines("WORKER_PROCESS_START")]) == 2 and found,
        what="two worker processes",
    )

    assert worker.stop() == 0

    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_worker_whose_supervisor_is_killed_stops_by_itself(site: Site) -> None:
    worker = site.worker().ready()
    job_id = shop.work.enqueue(site.side_log, 0.5).id
    site.running(job_id)
    child = worker.child()

    os.kill(worker.pid, signal.SIGKILL)

    until(lambda: not alive(child), what="the end of the worker process")
    assert site.job(job_id).status is State.DONE
    assert site.kinds(job_id) == ["created", "processing", "done"]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_process_whose_supervisor_is_killed_while_it_starts_ends_without_a_word(site: Site) -> None:
    worker = site.worker()
    (started,) = until(lambda: worker.lines("WORKER_PROCESS_START"), what="the start of the worker process")

    os.kill(worker.pid, signal.SIGKILL)

    until(lambda: not alive(started["pid"]), what="the end of the worker process")
    assert "Traceback" not in worker.log.read_text(encoding="utf-8")


def test_a_worker_told_to_stop_while_it_waits_to_start_a_process_again_does_not_sit_out_the_pause(site: Site) -> None:
    worker = site.worker()
    shop.kill_at_once.enqueue()
    # The first dead process is replaced at once, the second after a pause, which begins before its job is settled.
    until(lambda: len(worker.lines("JOB_RECOVERED")) == 2, what="the second death")

    assert worker.stop(within_s=20) == 0

    assert len(worker.lines("WORKER_PROCESS_START")) == 2
