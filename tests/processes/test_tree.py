"""Everything a worker started is found and killed, nobody else is, and its death is seen without giving up its pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from errno import ENOSYS
from pathlib import Path
from typing import Any

import pytest

from leasehold.processes import tree
from leasehold.processes.tree import Death, Killed, NotAWorkerError, Process, Tree
from tests.processes.tree_scenes import ESCAPES, lives, until

SCENES = Path(__file__).with_name("tree_scenes.py")
UNHARMED: dict[str, list[int]] = {"survivors": [], "missing": [], "harmed": [], "left": [], "idle_sweep": []}

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a child subreaper")


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process of the test's own, in a session of its own: it looks like a worker's, and is not."""
    with sleeper() as pid:
        yield pid
        assert lives(pid), "a bystander was killed"


@contextmanager
def sleeper(*command: str) -> Iterator[int]:
    process = subprocess.Popen(command or ("sleep", "300"), start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def play(scene: str, *what: str) -> dict[str, Any]:
    command = [sys.executable, str(SCENES), scene, *what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{scene} ended with {done.returncode}: {done.stderr}"
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


# ---- killing -------------------------------------------------------------------------------------------------------


@linux
@pytest.mark.parametrize("escape", ESCAPES)
def test_nothing_that_a_dead_worker_started_outlives_it_and_nobody_else_is_harmed(escape: str, bystander: int) -> None:
    seen = play("death", escape)
    assert {name: seen[name] for name in UNHARMED} == UNHARMED
    assert seen["peeked"] == [[True, signal.SIGKILL]]  # dead before the sweep, and still there for the reaping after it
    assert seen["reaped"]
    assert lives(bystander)


@linux
def test_many_ways_to_escape_at_once_are_swept_in_one_go(bystander: int) -> None:
    seen = play("death", *ESCAPES)
    assert {name: seen[name] for name in UNHARMED} == UNHARMED
    assert lives(bystander)


@linux
def test_who_adopts_nobody_sweeps_no_strays() -> None:
    assert play("unsupervised") == {"adopts": False, "tree_gone": True, "server": True, "killed_the_worker": True}


@linux
def test_a_living_worker_is_killed_with_its_tree(bystander: int) -> None:
    with sleeper("sh", "-c", "sleep 300 & wait") as worker:
        until(lambda: sum(process.session == worker for process in tree._processes()) == 2, "its child")
        killed = tree.kill_tree(worker, "a mark")
        assert worker in killed.pids
        assert len(killed.pids) == 2
        assert killed.left == ()
    assert bystander not in killed.pids


@linux
def test_a_process_whose_first_thread_has_ended_is_no_zombie_and_is_killed() -> None:
    code = """if True:
        import ctypes, threading, time
        threading.Thread(target=time.sleep, args=[300]).start()
        ctypes.CDLL(None).pthread_exit.restype = None
        ctypes.CDLL(None).syscall(ctypes.c_long(EXIT), 0)
    """.replace("EXIT", str({"x86_64": 60, "aarch64": 93}[os.uname().machine]))
    with sleeper(sys.executable, "-S", "-c", code) as worker:
        until(lambda: (process := tree._process(worker)) and process.state == "Z", "its first thread's end")
        assert lives(worker)
        assert tree.kill_tree(worker, "a mark") == Killed((worker,), 1, ())


@linux
def test_a_pid_that_is_somebody_elses_by_now_gets_no_signal(bystander: int) -> None:
    process = tree._process(bystander)
    assert process
    with pytest.raises(ProcessLookupError):
        tree._kill(replace(process, started=process.started - 1))
    assert lives(bystander)


@linux
def test_a_kernel_without_pidfds_kills_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pidfd(_: int) -> int:
        raise OSError(ENOSYS, os.strerror(ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", no_pidfd)
    with sleeper() as worker:
        assert tree.kill_tree(worker, "a mark") == Killed((worker,), 1, ())


@linux
def test_who_does_not_die_is_left_when_the_cap_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "_kill", lambda _: None)
    with sleeper() as worker:
        began = time.monotonic()
        killed = tree.kill_tree(worker, "a mark", cap_s=0.05)
        assert killed.left == (worker,)
        assert killed.rounds > 1
        assert time.monotonic() - began < tree.KILL_CAP_S


@linux
def test_who_may_not_be_killed_is_left_without_waiting_for_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Process) -> None:
        raise PermissionError

    monkeypatch.setattr(tree, "_kill", refuse)
    with sleeper() as worker:
        began = time.monotonic()
        assert tree.kill_tree(worker, "a mark", cap_s=60) == Killed((), 1, (worker,))
        assert time.monotonic() - began < 30


@pytest.mark.parametrize("pid", [-1, 0, 1, os.getpid(), os.getsid(0)], ids=["-1", "0", "1", "self", "own session"])
def test_what_cannot_be_a_worker_is_refused(pid: int) -> None:
    with pytest.raises(NotAWorkerError):
        tree.kill_tree(pid, "a mark")


def test_without_proc_the_workers_group_and_its_recorded_groups_are_killed(bystander: int) -> None:
    with sleeper("sh", "-c", "sleep 300 & wait") as worker:
        assert tree._kill_groups(worker, [0, 1, bystander]) == Killed((), 1, ())
        until(lambda: Death(worker, signal.SIGKILL, None) in tree.peek_dead([worker]), "the worker's death")
        until(
            lambda: not any(process.session == worker and process.lives for process in tree._processes()), "its child"
        )


# ---- who belongs to a worker: the decision alone -------------------------------------------------------------------

US, WORKER, NEIGHBOUR = 100, 200, 300
TREE = Tree(session=WORKER, mark="mine", groups=frozenset({555}), adopter=US, spared=frozenset({US, 50, NEIGHBOUR}))


def process(pid: int, *, parent: int = 1, group: int = 0, session: int = 0) -> Process:
    return Process(pid, started=0, state="S", parent=parent, group=group or pid, session=session or pid, threads=1)


def judged(*processes: Process, marks: dict[int, str] | None = None, tree: Tree = TREE) -> tuple[set[int], set[int]]:
    ours, strays = tree.members({process.pid: process for process in processes}, (marks or {}).get)
    return {process.pid for process in ours}, {process.pid for process in strays}


@pytest.mark.parametrize(
    "member, marks",
    [
        (process(201, session=WORKER), {}),
        (process(201), {201: "mine"}),
        (process(201, parent=US, group=555, session=555), {}),
        (process(WORKER, parent=US), {WORKER: "mine"}),
    ],
    ids=["by session", "by mark", "by recorded group", "itself"],
)
def test_a_process_is_the_workers(member: Process, marks: dict[int, str]) -> None:
    assert judged(member, marks=marks) == ({member.pid}, set())


@pytest.mark.parametrize(
    "stranger, marks",
    [
        (process(US, session=50), {}),
        (process(51, parent=US, session=50), {}),
        (process(51, parent=US, session=50), {51: "mine"}),
        (process(NEIGHBOUR, parent=US), {NEIGHBOUR: "other"}),
        (process(NEIGHBOUR, parent=US), {}),
        (process(301, parent=US, session=NEIGHBOUR), {}),
        (process(301, parent=US), {301: "other"}),
        (process(301, parent=US, group=555), {301: "other"}),
        (process(400), {}),
        (process(400, group=555, session=555), {}),
        (replace(process(2, parent=0), session=0, group=0), {}),
    ],
    ids=[
        "the supervisor",
        "in its session",
        "in its session though marked",
        "a known worker",
        "a known worker before its mark",
        "in a known worker's session",
        "an orphan of another worker",
        "another worker's with the number of a recorded group",
        "anybody",
        "anybody with the number of a recorded group",
        "a thread of the kernel",
    ],
)
def test_a_process_is_not_the_workers(stranger: Process, marks: dict[int, str]) -> None:
    assert judged(stranger, marks=marks) == (set(), set())


def test_a_recorded_group_is_known_by_its_descent() -> None:
    head, child = process(555, parent=US), process(556, parent=555, group=555, session=555)
    assert judged(head, child) == ({555, 556}, set())


def test_an_orphan_without_mark_is_a_stray_of_nobody_elses() -> None:
    assert judged(process(400, parent=US)) == (set(), {400})


def test_without_an_adopter_there_are_no_strays() -> None:
    alone = replace(TREE, adopter=None)
    assert judged(process(400, parent=US), process(1, parent=0), tree=alone) == (set(), set())


@linux
def test_a_stray_is_killed_only_if_it_looks_like_one_twice(monkeypatch: pytest.MonkeyPatch, bystander: int) -> None:
    """Between its fork and its exec a worker being started has no mark of its own yet."""
    marks = iter([None])
    monkeypatch.setattr(tree, "mark_of", lambda pid: next(marks, "a new worker") if pid == bystander else "another")
    with sleeper() as worker:
        killed = tree.kill_tree(worker, "a mark", adopted_by=os.getpid())
    assert bystander not in killed.pids


# ---- seeing deaths -------------------------------------------------------------------------------------------------


def spawn(shell: str) -> int:
    return os.posix_spawn("/bin/sh", ["sh", "-c", shell], os.environ)


def test_a_dead_child_is_seen_again_and_again_and_keeps_its_pid_until_it_is_reaped() -> None:
    failed, killed, living = spawn("exit 3"), spawn("exec sleep 300"), spawn("exec sleep 300")
    known = {failed, killed, living}
    os.kill(killed, signal.SIGKILL)
    until(lambda: len(tree.peek_dead(known)) == 2, "two deaths")
    for _ in range(2):
        assert set(tree.peek_dead(known)) == {Death(failed, None, 3), Death(killed, signal.SIGKILL, None)}
    os.kill(failed, 0)  # the zombie still has its pid
    assert not tree.reap(living)
    assert tree.reap(failed)
    with pytest.raises(ProcessLookupError):
        os.kill(failed, 0)
    assert tree.peek_dead({killed, living}) == [Death(killed, signal.SIGKILL, None)]
    os.kill(living, signal.SIGKILL)
    until(lambda: all([tree.reap(pid) for pid in (killed, living)]), "the others to be reaped")  # noqa: C419 - every one


def test_a_child_that_somebody_else_reaped_is_dead_all_the_same() -> None:
    stolen = spawn("exit 3")
    os.waitpid(stolen, 0)
    assert tree.peek_dead({stolen}) == [Death(stolen, None, None)]
    assert tree.reap(stolen)


@linux
def test_orphans_are_reaped_also_behind_dead_workers_which_stay() -> None:
    assert play("orphans") == {
        "reaped_all_orphans": True,
        "workers_still_seen_dead": True,
        "reaped_again": [],
        "reaped_workers": True,
        "reaped_last": True,
    }


@linux
def test_a_stopped_process_is_seen_and_a_continued_one_is_not(tmp_path: Path) -> None:
    disguised = tmp_path / "x) T 1 (y"  # the system's table shows this name before the state
    disguised.symlink_to("/bin/sleep")
    with sleeper(str(disguised), "300") as pid:
        until(lambda: b"x) T 1 (y" in Path(f"/proc/{pid}/stat").read_bytes(), "its exec")
        assert not tree.stopped(pid)
        os.kill(pid, signal.SIGSTOP)
        until(lambda: tree.stopped(pid), "its stop")
        os.kill(pid, signal.SIGCONT)
        until(lambda: not tree.stopped(pid), "its going on")
    assert not tree.stopped(pid)
