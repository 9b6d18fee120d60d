"""What a crash leaves behind, and that the next start copes with it and loses nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import asyncpg
import psutil
import pytest

from leasehold.embedded import start
from leasehold.embedded.cluster import forget_the_dead, status
from tests.embedded.tools import (
    AM_ROOT,
    USE_UNTIL_TOLD,
    ask,
    begin,
    is_stopped,
    lives,
    names,
    opened_by,
    postmaster,
    python,
    record,
    until,
    user_of,
)


class Memory:
    """A row that has to survive; a name of its own for each test, since the data are lent from one to the next."""

    def __init__(self) -> None:
        self.name = f"memory_{time.monotonic_ns()}"
        self.remember = f"create table {self.name} as select 42 as answer"
        self.recall = f"select answer from {self.name}"


def kill(pid: int) -> None:
    """Kill, and wait until it is dead: the signal alone is only a promise."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: not lives(pid), "it dies")


@pytest.fixture
def memory() -> Memory:
    return Memory()


def test_after_a_killed_postmaster_the_next_start_recovers(home: Path, memory: Memory) -> None:
    with start(home) as first:
        ask(first.dsn(), memory.remember)
        minder = record(home).minder
        kill(postmaster(home))
        with start(home) as second:
            assert ask(second.dsn(), memory.recall) == 42
            assert first.dsn() == second.dsn()
            assert record(home).minder == minder
    assert "automatic recovery in progress" in (home / "postgres.log").read_text()
    until(lambda: is_stopped(home), "the server stops")


def test_after_a_crash_of_everything_the_next_start_recovers_and_tidies_up(
    home: Path, memory: Memory, sockets: Path
) -> None:
    with user_of(home) as owner:
        assert owner.stdout
        known = record(home)
        with start(home) as server:
            ask(server.dsn(), memory.remember)
            kill(known.minder)
        kill(postmaster(home))
        owner.kill()
    assert {"postmaster.pid"} <= names(home / "data")
    assert {"users", "server.json"} <= names(home)
    assert names(sockets) == {Path(known.socket).name}
    with start(home) as server:
        assert ask(server.dsn(), memory.recall) == 42
        assert names(sockets) == {server.socket.name}
    until(lambda: is_stopped(home), "the server stops")
    assert names(home) == {"data", "postgres.log"}
    assert names(sockets) == set()


def test_a_stale_pid_that_is_another_program_by_now_does_not_prevent_a_start(home: Path, memory: Memory) -> None:
    with start(home) as server:
        ask(server.dsn(), memory.remember)
        kill(postmaster(home))
    until(lambda: is_stopped(home), "the minder sees that it is gone")
    owner = (home / "data").stat().st_uid
    become = ["setpriv", f"--reuid={owner}", "--clear-groups"] if AM_ROOT else []
    with subprocess.Popen([*become, "sleep", "600"]) as stranger:
        until(lambda: psutil.Process(stranger.pid).name() == "sleep", "the stranger is itself")
        pid_file = home / "data" / "postmaster.pid"
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        try:
            with start(home) as server:
                assert ask(server.dsn(), memory.recall) == 42
            until(lambda: is_stopped(home), "the server stops")
            assert stranger.poll() is None, "a stranger was signalled"
        finally:
            stranger.kill()


def test_a_pid_file_is_kept_for_a_postgres_that_lives_and_forgotten_for_a_zombie(folder: Path) -> None:
    program, pid_file = folder / "postgres", folder / "postmaster.pid"
    shutil.copy(shutil.which("sleep") or "", program)
    with subprocess.Popen([program, "600"]) as process:
        until(lambda: psutil.Process(process.pid).name() == "postgres", "it is itself")
        pid_file.write_text(f"{process.pid}\n")
        forget_the_dead(folder)
        assert pid_file.exists()
        process.kill()
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "nobody has reaped it yet")
        forget_the_dead(folder)
        assert not pid_file.exists()


@pytest.mark.parametrize("what", ["the folder", "the file in it"])
def test_a_server_whose_socket_was_cleared_away_is_started_anew(
    home: Path, memory: Memory, sockets: Path, what: str
) -> None:
    with start(home) as server:
        ask(server.dsn(), memory.remember)
        if what == "the folder":
            shutil.rmtree(server.socket)
        else:
            (server.socket / ".s.PGSQL.5432").unlink()
        with start(home) as again:
            assert ask(again.dsn(), memory.recall) == 42
    until(lambda: is_stopped(home), "the server stops")
    until(lambda: names(sockets) == set(), "no minder leaves anything")


async def test_a_server_that_somebody_told_to_stop_is_started_anew(home: Path) -> None:
    with start(home) as server:
        connection = await asyncpg.connect(server.dsn())
        os.kill(postmaster(home), signal.SIGTERM)  # as a service manager does; it waits for its clients to go
        until(lambda: status(home / "data") == "stopping", "it is stopping")
        with await asyncio.to_thread(start, home) as again:
            await connection.close()
            connection = await asyncpg.connect(again.dsn())
            assert await connection.fetchval("select 1") == 1
            await connection.close()


def test_a_record_that_is_torn_or_a_lie_is_as_good_as_none(home: Path, folder: Path) -> None:
    precious = folder / "precious"
    precious.mkdir()
    (precious / "file").touch()
    for words in ("", "{", "[]", '{"socket": 5}', f'{{"socket": "{precious}", "version": "1", "minder": 1}}'):
        (home / "server.json").write_text(words)
        with start(home) as server:
            assert ask(server.dsn(), "select 1") == 1
        until(lambda: is_stopped(home), "the server stops")
    assert names(precious) == {"file"}


@pytest.mark.parametrize("orphan", [False, True], ids=["initdb killed too", "initdb goes on alone"])
def test_a_home_whose_starter_was_killed_during_initdb_starts_cleanly(fresh_home: Path, *, orphan: bool) -> None:
    child = begin(python(USE_UNTIL_TOLD, fresh_home))
    until((fresh_home / "data.new" / "PG_VERSION").exists, "initdb is at work")
    initdb = [process for process in psutil.Process(child.pid).children(recursive=True) if process.is_running()]
    child.kill()
    if not orphan:
        for process in initdb:
            process.kill()
    with child:
        pass
    assert not (fresh_home / "data").exists()
    with start(fresh_home) as server:
        assert ask(server.dsn(), "select 1") == 1
        assert "data.new" not in names(fresh_home)
    until(lambda: is_stopped(fresh_home), "the server stops")
    assert names(fresh_home) == {"data", "postgres.log"}


def test_what_a_killed_starter_began_is_cleared_away_without_another_start(fresh_home: Path, sockets: Path) -> None:
    child = begin(python(USE_UNTIL_TOLD, fresh_home))
    until((fresh_home / "data.new" / "PG_VERSION").exists, "initdb is at work")
    child.kill()
    with child:
        pass
    until(lambda: names(fresh_home) <= {"postgres.log"}, "the minder clears up")
    assert names(sockets) == set()


def test_a_starter_killed_while_the_server_starts_leaves_none_running(home: Path, sockets: Path) -> None:
    for pause_s in (0.03, 0.06, 0.09, 0.12):  # wherever the kill falls, the end is the same
        child = begin(python(USE_UNTIL_TOLD, home))
        until((home / "server.json").exists, "the minder is appointed")
        time.sleep(pause_s / 3)
        child.kill()
        with child:
            pass
        until(lambda: is_stopped(home), "the minder stops what was begun")
    assert names(sockets) == set()
    with start(home) as server:
        assert ask(server.dsn(), "select 1") == 1


def test_processes_that_outlive_their_postmaster_are_waited_for(home: Path, memory: Memory) -> None:
    with start(home) as server:
        ask(server.dsn(), memory.remember)
        pid = postmaster(home)
        writer = next(child for child in psutil.Process(pid).children() if "checkpointer" in " ".join(child.cmdline()))
        writer.suspend()
        kill(pid)
        child = begin(python(USE_UNTIL_TOLD, home))
        assert child.stdout
        until(lambda: home in opened_by(child.pid), "it has found the remains")
        assert child.poll() is None
        writer.resume()
        assert child.stdout.readline().startswith("postgresql://")
        assert ask(record_dsn(home), memory.recall) == 42
        child.communicate()


def record_dsn(home: Path) -> str:
    return f"postgresql://leasehold@/leasehold?host={record(home).socket}"
