"""What a crash leaves behind, and that the next start copes with it and loses nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from leasehold.embedded import start
from tests.embedded.tools import (
    AM_ROOT,
    USE_UNTIL_TOLD,
    ask,
    begin,
    is_stopped,
    lives,
    names,
    postmaster,
    python,
    record,
    until,
    user_of,
)

REMEMBER = "create table memory as select 42 as answer"
RECALL = "select answer from memory"


@pytest.fixture
def home(own_home: Path) -> Path:
    """Crashes spoil what they meet."""
    return own_home


def test_after_a_killed_postmaster_the_next_start_recovers(home: Path) -> None:
    with start(home) as first:
        ask(first.dsn(), REMEMBER)
        minder = record(home).minder
        os.kill(postmaster(home), signal.SIGKILL)
        with start(home) as second:
            assert ask(second.dsn(), RECALL) == 42
            assert first.dsn() == second.dsn()
            assert record(home).minder == minder
    assert "automatic recovery in progress" in (home / "postgres.log").read_text()
    until(lambda: is_stopped(home), "the server stops")


def test_after_a_crash_of_everything_the_next_start_recovers_and_tidies_up(home: Path, sockets: Path) -> None:
    with user_of(home) as owner:
        assert owner.stdout
        dsn = record(home)
        with start(home) as server:
            ask(server.dsn(), REMEMBER)
            os.kill(dsn.minder, signal.SIGKILL)
        os.kill(postmaster(home), signal.SIGKILL)
        owner.kill()
    until(lambda: not lives(dsn.minder), "the minder dies")
    assert {"postmaster.pid"} <= names(home / "data")
    assert {"users", "server.json"} <= names(home)
    assert names(sockets) == {Path(dsn.socket).name}
    with start(home) as server:
        assert ask(server.dsn(), RECALL) == 42
        assert names(sockets) == {server.socket.name}
    until(lambda: is_stopped(home), "the server stops")
    assert names(home) == {"data", "postgres.log"}
    assert names(sockets) == set()


def test_a_stale_pid_that_is_another_program_by_now_does_not_prevent_a_start(home: Path) -> None:
    with start(home) as server:
        ask(server.dsn(), REMEMBER)
        os.kill(postmaster(home), signal.SIGKILL)
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
                assert ask(server.dsn(), RECALL) == 42
            until(lambda: is_stopped(home), "the server stops")
            assert stranger.poll() is None, "a stranger was signalled"
        finally:
            stranger.kill()


def test_a_server_whose_socket_was_cleared_away_is_started_anew(home: Path, sockets: Path) -> None:
    with start(home) as server:
        ask(server.dsn(), REMEMBER)
        shutil.rmtree(server.socket)
        with start(home) as again:
            assert again.socket != server.socket
            assert ask(again.dsn(), RECALL) == 42
    until(lambda: is_stopped(home), "the server stops")
    until(lambda: names(sockets) == set(), "both minders end")


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


def test_processes_that_outlive_their_postmaster_are_waited_for(home: Path) -> None:
    with start(home) as server:
        ask(server.dsn(), REMEMBER)
        pid = postmaster(home)
        writer = next(child for child in psutil.Process(pid).children() if "checkpointer" in " ".join(child.cmdline()))
        writer.suspend()
        os.kill(pid, signal.SIGKILL)
        child = begin(python(USE_UNTIL_TOLD, home))
        assert child.stdout
        until(lambda: not lives(pid), "the postmaster dies")
        writer.resume()
        assert child.stdout.readline().startswith("postgresql://")
        assert ask(record_dsn(home), RECALL) == 42
        child.communicate()


def record_dsn(home: Path) -> str:
    return f"postgresql://leasehold@/leasehold?host={record(home).socket}"
