"""A private PostgreSQL from nothing: what it is, where it lies, what it leaves behind."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import psutil
import pytest

from leasehold.embedded import running, start, stop
from tests.embedded.tools import ask, is_stopped, lives, names, postmaster, record, until

SETTINGS = ("listen_addresses", "fsync", "full_page_writes", "data_checksums", "server_encoding")


def test_a_home_is_ready_from_nothing_and_takes_no_tcp(fresh_home: Path) -> None:
    marks = [time.perf_counter()]
    with start(fresh_home) as server:
        marks.append(time.perf_counter())
        assert ask(server.dsn(), "select current_database()") == "leasehold"
        marks.append(time.perf_counter())
        with start(fresh_home):
            marks.append(time.perf_counter())
        found = [ask(server.dsn(), f"show {name}") for name in SETTINGS]
        assert found == ["", "on", "on", "on", "UTF8"]
        assert ask(server.dsn(), "show server_version").startswith(server.version)
        assert psutil.Process(postmaster(fresh_home)).net_connections(kind="inet") == []
        locale = "select array[datcollate, datctype] from pg_database where datname = current_database()"
        assert ask(server.dsn(), locale) == ["C.UTF-8", "C.UTF-8"]
    until(lambda: is_stopped(fresh_home), "the server stops")
    marks.append(time.perf_counter())
    with start(fresh_home):
        marks.append(time.perf_counter())
    first, join, warm = marks[1] - marks[0], marks[3] - marks[2], marks[5] - marks[4]
    print(f"\nfrom nothing {first:.2f} s, join {join * 1000:.0f} ms, warm start {warm:.2f} s")  # noqa: T201 - a figure


def test_after_the_last_user_nothing_is_left_but_the_data_and_the_log(home: Path, sockets: Path) -> None:
    with start(home) as server:
        pids = [postmaster(home), record(home).minder]
        assert names(sockets) == {server.socket.name}
        assert all(map(lives, pids))
    until(lambda: is_stopped(home), "the server stops")
    assert names(home) == {"data", "postgres.log"}
    assert names(sockets) == set()
    until(lambda: not any(map(lives, pids)), "server and minder end")


def test_two_starts_in_one_process_both_work_and_the_server_outlives_the_first_close(home: Path) -> None:
    first, second = start(home), start(home)
    assert first.dsn() == second.dsn()
    first.close()
    first.close()
    assert ask(second.dsn(), "select 1") == 1
    second.close()
    until(lambda: is_stopped(home), "the server stops")


def test_a_start_right_after_the_last_close_gets_a_server(home: Path) -> None:
    for _ in range(6):
        with start(home) as server:
            assert ask(server.dsn(), "select 1") == 1


def test_the_address_names_any_database_and_ignores_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PGSSLMODE": "require", "PGPORT": "1", "PGHOST": "nowhere", "PGOPTIONS": "-c no=no"}.items():
        monkeypatch.setenv(name, value)
    with start(home) as server:
        name = f'it\'s "ü"/50 %&? {time.monotonic_ns()}'
        ask(server.dsn(), 'create database "{}"'.format(name.replace('"', '""')))
        assert ask(server.dsn(name), "select current_database()") == name


@pytest.mark.parametrize(
    "name",
    ["with  spaces", "größe 日本", 'it\'s "quoted" $HOME `x`', "-c fsync=off", "/".join(["long" * 40] * 3)],
    ids=["spaces", "unicode", "quotes", "option", "long"],
)
def test_a_home_may_have_any_name(home: Path, folder: Path, name: str) -> None:
    odd = folder / name / ".leasehold"
    odd.parent.mkdir(parents=True)
    home.rename(odd)
    with start(odd) as server:
        assert ask(server.dsn(), "select 1") == 1
    until(lambda: is_stopped(odd), "the server stops")
    assert names(odd) == {"data", "postgres.log"}
    odd.rename(home)


@pytest.mark.parametrize("name", ["größe 'n\" $x", "long" * 50], ids=["odd", "long"])
def test_a_database_can_be_made_in_a_home_of_any_name(folder: Path, name: str) -> None:
    with start(folder / name) as server:
        assert ask(server.dsn(), "select 1") == 1


def test_a_home_may_be_given_relative_to_where_we_are(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home.parent)
    with start(Path(home.name)) as server:
        monkeypatch.chdir("/")
        assert server.home == home
        assert start(home).dsn() == server.dsn()


def test_the_socket_lies_in_a_private_folder_with_a_short_path(home: Path) -> None:
    with start(home) as server:
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
        assert server.socket.stat().st_uid == (home / "data").stat().st_uid
        assert len(str(server.socket / ".s.PGSQL.5432")) < 90


def test_a_runtime_folder_that_is_too_deep_is_not_used(
    home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = folder / ("deep" * 30)
    deep.mkdir(mode=0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with start(home) as server:
        assert deep not in server.socket.parents
        assert names(deep) == set()
    until(lambda: not server.socket.exists(), "the socket's folder is removed")


def test_running_tells_of_a_server_and_starts_none(home: Path) -> None:
    assert running(home) is None
    assert names(home) == {"data", "postgres.log"}
    with start(home) as server:
        seen = running(home)
        assert seen is not None
        assert (seen.home, seen.version, seen.pid) == (home, server.version, postmaster(home))
        assert seen.dsn() == server.dsn()
    until(lambda: running(home) is None, "it is seen to stop")


def test_stop_stops_at_once_whoever_uses_it(home: Path, sockets: Path) -> None:
    with start(home) as server:
        pids = [postmaster(home), record(home).minder]
        stop(home)
        assert running(home) is None
        assert names(sockets) == set()
        until(lambda: not any(map(lives, pids)), "server and minder end")
        with start(home) as again:
            assert ask(again.dsn(), "select 1") == 1
            assert again.socket != server.socket
    until(lambda: is_stopped(home), "the second server stops too")
    stop(home)
    assert names(home) == {"data", "postgres.log"}
    stop(home / "never was")
    assert not (home / "never was").exists()
