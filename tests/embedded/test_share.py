"""Who uses the server, and that it stops after the last of them, however they end."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from leasehold.embedded import running, start
from leasehold.embedded.server import dsn_of
from leasehold.embedded.share import take_share
from tests.embedded.tools import (
    USE_UNTIL_TOLD,
    ask,
    begin,
    end,
    is_stopped,
    lives,
    names,
    opened_by,
    postmaster,
    python,
    record,
    run,
    surroundings,
    until,
    user_of,
)

START_AND_LEAVE_A_CHILD = """
import subprocess, sys
from pathlib import Path
from leasehold.embedded import start
server = start(Path(sys.argv[1]))
how = {"pass": {"pass_fds": (server.share_fd,)}, "open": {"close_fds": False}, "closed": {}}[sys.argv[2]]
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, **how)
print(child.pid, flush=True)
sys.stdin.read()
"""


STAYS = "select pg_sleep(0.3) is not null"  # a server that is being stopped would cut the question off


def test_eight_processes_at_once_share_one_server(fresh_home: Path) -> None:
    children = [begin(python(USE_UNTIL_TOLD, fresh_home)) for _ in range(8)]
    try:
        dsns = [child.stdout.readline().strip() for child in children if child.stdout]
        assert len(dsns) == 8
        assert len({ask(dsn, "select pg_postmaster_start_time()") for dsn in dsns}) == 1
        log = (fresh_home / "postgres.log").read_text()
        assert log.count("starting PostgreSQL") == 1
    finally:
        for child in children:
            end(child)
    until(lambda: is_stopped(fresh_home), "the server stops after the eighth")
    assert names(fresh_home) == {"data", "postgres.log"}


def test_the_server_stops_when_its_only_user_is_killed(home: Path, sockets: Path) -> None:
    with user_of(home) as owner:
        pids = [postmaster(home), record(home).minder]
        owner.kill()
    until(lambda: is_stopped(home), "the server stops", seconds=10)
    until(lambda: not any(map(lives, pids)), "server and minder end")
    assert names(sockets) == set()
    assert names(home) == {"data", "postgres.log"}
    assert "database system is shut down" in (home / "postgres.log").read_text()
    with start(home) as server:
        assert ask(server.dsn(), "select 1") == 1


@pytest.mark.parametrize("how", ["pass", "open"])
def test_a_child_that_inherits_the_share_keeps_the_server(home: Path, how: str) -> None:
    owner = begin(python(START_AND_LEAVE_A_CHILD, home, how))
    assert owner.stdout
    child = int(owner.stdout.readline())
    dsn = dsn_of(Path(record(home).socket), "leasehold")
    os.kill(child, signal.SIGSTOP)  # or it would see its parent's pipe close
    assert home / "users" in opened_by(child)
    owner.kill()
    end(owner)
    assert ask(dsn, STAYS)
    os.kill(child, signal.SIGKILL)
    until(lambda: is_stopped(home), "the server stops after the child")


def test_a_child_that_does_not_inherit_the_share_keeps_nothing(home: Path) -> None:
    owner = begin(python(START_AND_LEAVE_A_CHILD, home, "closed"))
    assert owner.stdout
    child = int(owner.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    owner.kill()
    end(owner)
    until(lambda: is_stopped(home), "the server stops although the child lives")
    os.kill(child, signal.SIGKILL)


def test_a_fork_is_a_user_too_even_when_its_parent_gives_its_share_back(home: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from leasehold.embedded import start
server = start(Path(sys.argv[1]))
child = os.fork()
if child:
    server.close()
    print(child, flush=True)
sys.stdin.read()
"""
    parent = begin(python(code, home))
    assert parent.stdout
    child = int(parent.stdout.readline())
    assert ask(dsn_of(Path(record(home).socket), "leasehold"), STAYS)
    os.kill(child, signal.SIGKILL)
    until(lambda: is_stopped(home), "the server stops after the fork")
    end(parent)


def test_the_next_user_replaces_a_killed_minder(home: Path) -> None:
    with start(home) as first:
        before = record(home).minder
        os.kill(before, signal.SIGKILL)
        until(lambda: not lives(before), "the minder dies")
        with start(home) as second:
            after = record(home).minder
            assert after != before
            assert lives(after)
            assert first.dsn() == second.dsn()
            assert ask(first.dsn(), "select 1") == 1
    until(lambda: is_stopped(home), "the new minder stops the server")
    assert names(home) == {"data", "postgres.log"}


def test_a_server_without_minder_is_stopped_by_the_minder_of_the_next_user(home: Path) -> None:
    with start(home):
        minder = record(home).minder
        os.kill(minder, signal.SIGKILL)
        until(lambda: not lives(minder), "the minder dies")
    assert running(home)
    start(home).close()
    until(lambda: is_stopped(home), "the server stops")


def test_ctrl_c_in_the_owners_terminal_does_not_stop_the_server_of_others(home: Path) -> None:
    with user_of(home) as owner, start(home) as server:
        server_pid, minder = postmaster(home), record(home).minder
        os.killpg(owner.pid, signal.SIGINT)
        owner.wait(20)
        assert ask(server.dsn(), "select 1") == 1
        assert (postmaster(home), record(home).minder) == (server_pid, minder)
        assert {os.getsid(server_pid), os.getsid(minder)}.isdisjoint({owner.pid, os.getsid(0)})
    until(lambda: is_stopped(home), "the server stops after the last user")


def test_the_owners_pipes_close_when_the_owner_ends(home: Path) -> None:
    with start(home):
        pids = [postmaster(home), record(home).minder]
        outputs = {Path(f"/proc/{pid}/fd/{fd}").readlink() for pid in pids for fd in (1, 2)}
        assert outputs == {home / "postgres.log"}
    until(lambda: is_stopped(home), "the server stops")
    code = "import sys; from pathlib import Path; from leasehold.embedded import start; start(Path(sys.argv[1]))"
    for _ in range(3):
        with subprocess.Popen(
            python(code, home), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=surroundings()
        ) as child:
            until((home / "server.json").exists, "it has begun")
            with start(home):  # the server lives on: were its output the child's, reading the child's would not end
                assert child.communicate(timeout=20)[0] == b""
        until(lambda: is_stopped(home), "the server stops")


def test_the_minder_is_small_and_knows_nothing_of_leasehold(home: Path) -> None:
    with start(home):
        minder = psutil.Process(record(home).minder)
        command, used = minder.cmdline(), minder.memory_info()
        assert command[:3] == [sys.executable, "-I", "-S"]
        own = used.rss - used.shared
        print(f"\nthe minder: {used.rss / 2**20:.0f} MiB resident, {own / 2**20:.0f} of its own")  # noqa: T201 - a figure
        assert used.rss < 24 * 2**20
    script = f"import sys; sys.path.insert(0, {str(Path(command[3]).parent)!r}); import minder; print(*sys.modules)"
    loaded = set(run([sys.executable, "-I", "-S", "-c", script]).stdout.split())
    assert loaded
    assert loaded.isdisjoint({"leasehold", "pathlib", "subprocess", "shutil", "asyncio", "typing"})


def test_a_users_file_that_somebody_removed_stops_nothing_that_is_used(home: Path) -> None:
    first = start(home)
    (home / "users").unlink()
    with start(home) as second:
        first.close()
        assert ask(second.dsn(), STAYS)
    until(lambda: is_stopped(home), "the server stops")


def test_a_share_is_never_in_a_file_that_a_stop_has_removed(home: Path) -> None:
    users = home / "users"
    stopping = os.open(users, os.O_RDWR | os.O_CREAT)
    fcntl.flock(stopping, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(take_share, home, time.monotonic() + 20)
        opened = Path("/proc/self/fd")
        until(lambda: sum(os.path.realpath(fd) == str(users) for fd in opened.iterdir()) == 2, "it waits for the share")
        users.unlink()
        users.touch()  # the next one is quick
        os.close(stopping)
        share = waiting.result(20)
    assert users.stat().st_ino == os.fstat(share).st_ino
    os.close(share)


def test_a_home_that_is_moved_while_its_server_runs_still_has_a_minder(home: Path, folder: Path) -> None:
    with start(home) as server:
        home.rename(folder / "moved")
        with start(folder / "moved") as joined:
            assert joined.dsn() == server.dsn()
    until(lambda: is_stopped(folder / "moved"), "the server stops")
    assert names(folder / "moved") == {"data", "postgres.log"}
    (folder / "moved").rename(home)
