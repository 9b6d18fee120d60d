"""What a handler can do wrong, and what becomes of its job."""

from __future__ import annotations

import pytest

from leasehold.core.job import State
from tests.acceptance import shop
from tests.acceptance.conftest import Site


@pytest.mark.requirement("R3.2")
def test_a_transient_failure_is_tried_up_to_its_attempts_and_then_exhausted(site: Site) -> None:
    site.worker()
    job_id = shop.fail.enqueue(site.side_log, "the line is dead").id

    job = site.ended(job_id)

    assert (job.status, job.fail_code, job.fail_reason) == (State.FAILED, "RETRIES_EXHAUSTED", "the line is dead")
    assert site.starts(job_id) == [1, 2, 3]
    assert site.kinds(job_id) == ["created", *["processing", "retry"] * 2, "processing", "failed"]


def test_a_fatal_failure_is_final_and_spends_no_further_attempt(site: Site) -> None:
    site.worker()
    job_id = shop.fail.enqueue(site.side_log, "fatal").id

    job = site.ended(job_id)

    assert (job.status, job.fail_code, job.fail_reason) == (
        State.FAILED,
        "INPUT_TOO_LARGE",
        "INPUT_TOO_LARGE: it has 3 GB",
    )
    assert site.starts(job_id) == [1]


@pytest.mark.requirement("R1.12")
@pytest.mark.requirement("R3.2")
def test_a_job_that_runs_too_long_is_timed_out_although_its_worker_is_healthy(site: Site) -> None:
    site.worker()
    job_id = shop.too_long.enqueue(site.side_log).id

    job = site.ended(job_id)

    assert (job.status, job.fail_code, job.fail_reason) == (State.FAILED, "RETRIES_EXHAUSTED", "execution_timeout")
    assert site.starts(job_id) == [1, 2, 3]


def test_a_handler_that_exits_is_a_failure_and_its_worker_lives(site: Site) -> None:
    worker = site.worker()
    job_id = shop.fail.enqueue(site.side_log, "exit").id

    job = site.ended(job_id)

    assert job.fail_code == "RETRIES_EXHAUSTED"
    assert job.error is not None
    assert job.error["type"] == "SystemExit"
    assert len(worker.lines("WORKER_PROCESS_START")) == 1


@pytest.mark.requirement("R4.2")
def test_progress_is_told_when_it_rose_by_a_point_and_the_last_is_kept(site: Site) -> None:
    site.worker()
    job_id = shop.tell_progress.enqueue([0, 0.4, 1.2, 1.9, 50, 49, 100, 100]).id

    job = site.ended(job_id)

    told = [event.data["pct"] for event in site.timeline(job_id) if event.kind == "progress"]
    assert told == [0, 1, 50, 100]
    assert job.progress == 100
    assert site.kinds(job_id)[-1] == "done"


@pytest.mark.requirement("R2.2", part="worker")
def test_no_more_jobs_run_at_once_than_max_concurrency_allows(site: Site) -> None:
    folder = site.folder / "together"
    folder.mkdir()
    job_ids = [shop.count_together.enqueue(str(folder), 0.3).id for _ in range(9)]
    site.worker(MAX_CONCURRENCY="3")

    together = [site.ended(job_id).result for job_id in job_ids]

    assert max(together) == 3
