"""A worker process dies: its jobs are charged by what they did, and nothing that it started lives on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leasehold.core.job import State
from tests.acceptance import shop
from tests.acceptance.conftest import SHOP, Site, until


def test_a_handler_whose_first_instruction_kills_its_worker_is_charged_for_it(site: Site) -> None:
    site.worker()
    job_id = shop.kill_at_once.enqueue().id

    until(lambda: "requeued:stale" in site.kinds(job_id), what="the recovery")

    job = site.job(job_id)
    assert (job.status, job.attempt_count) == (State.QUEUED, 1)
    assert site.kinds(job_id)[:3] == ["created", "processing", "requeued:stale"]
    assert site.timeline(job_id)[2].data["details"]["signal"] == signal.SIGKILL


def test_nothing_that_a_dead_worker_started_is_alive_when_its_job_may_run_again(site: Site) -> None:
    site.worker()
    pids = site.folder / "pids"
    job_id = shop.leave_a_child_and_die.enqueue(str(pids)).id

    until(lambda: "requeued:stale" in site.kinds(job_id), what="the recovery")

    with pytest.raises(ProcessLookupError):
        os.kill(int(Path(pids).read_text(encoding="utf-8")), 0)
    assert site.timeline(job_id)[2].data["details"]["exit_code"] == 3


def test_a_killed_worker_process_is_replaced_and_its_neighbour_keeps_its_jobs(site: Site) -> None:
    worker = site.worker("--processes", "2", "--concurrency", "2")
    until(lambda: len(worker.lines("WORKER_START")) == 2, what="two worker processes")
    jobs = [shop.work.enqueue(site.side_log, 1.5).id for _ in range(2)]
    for job_id in jobs:
        site.running(job_id)
    holders = {site.job(job_id).locked_by: job_id for job_id in jobs}
    assert len(holders) == 2
    killed = worker.lines("WORKER_PROCESS_START")[0]

    os.kill(killed["pid"], signal.SIGKILL)

    spared = next(job_id for holder, job_id in holders.items() if holder != killed["worker"])
    assert site.ended(spared).result == "attempt 1"
    assert site.ended(holders[killed["worker"]]).result == "attempt 2"
    assert len(worker.lines("WORKER_PROCESS_START")) == 3


BROKEN = """
import sys
import leasehold.app.worker
from leasehold.cli.main import main

def broken(*_):
    raise ZeroDivisionError("a defect of the supervisor")

leasehold.app.worker.decide = broken
sys.argv = ["leasehold", "worker", sys.argv[1]]
main()
"""


def test_a_supervisor_that_cannot_settle_a_death_ends_loudly_and_leaves_nothing_running(site: Site) -> None:
    shop.kill_at_once.enqueue()

    ended = subprocess.run(
        [sys.executable, "-P", "-c", BROKEN, str(SHOP)],
        env={**os.environ, "LEASEHOLD_DSN": site.dsn},
        cwd=site.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode != 0
    assert "ZeroDivisionError: a defect of the supervisor" in ended.stderr
    started = [json.loads(line) for line in ended.stderr.splitlines() if "WORKER_PROCESS_START" in line]
    pids = [line["pid"] for line in started]
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
