"""As whom the server runs and where its data lie: root, ordinary users, closed folders."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pwd
import shutil
import socket
import stat
from pathlib import Path

import psutil
import pytest

from leasehold.embedded import MovedHomeError, NotYoursError, UnreachableDataError, find, place, start, stop
from leasehold.embedded.record import write_record
from leasehold.embedded.stage import link_or_copy, link_tree
from tests.embedded.tools import (
    NOBODY,
    ask,
    is_stopped,
    names,
    needs_root,
    postmaster,
    python,
    record,
    run,
    until,
    user_of,
)

TRY = """
import sys
from pathlib import Path
from leasehold.embedded import EmbeddedError, start
try:
    start(Path(sys.argv[1]), timeout_s=20)
except EmbeddedError as error:
    print(type(error).__name__, error)
"""
ANOTHER = 1  # `daemon`: an account that is neither root nor the one root would choose


def modes(path: Path) -> list[tuple[int, int, int]]:
    """Mode and owners of a folder and of all above it."""
    return [(s.st_mode, s.st_uid, s.st_gid) for s in map(os.stat, (path, *path.parents))]


@pytest.fixture
def closed(folder: Path) -> Path:
    """A folder that only its owner may enter, as many homes are."""
    path = folder / "closed"
    path.mkdir(mode=0o700)
    return path


@needs_root
def test_as_root_the_server_runs_as_an_account_that_existed_before(fresh_home: Path) -> None:
    before = modes(fresh_home.parent), hashlib.sha256(Path("/etc/passwd").read_bytes()).digest()
    with start(fresh_home) as server:
        uids = set(psutil.Process(postmaster(fresh_home)).uids())
        assert len(uids) == 1
        assert pwd.getpwuid(uids.pop()).pw_name in ("leasehold", "nobody", "postgres")
        assert psutil.Process(postmaster(fresh_home)).gids().effective != 0
        assert ask(server.dsn(), "select 1") == 1
    assert (modes(fresh_home.parent), hashlib.sha256(Path("/etc/passwd").read_bytes()).digest()) == before


@needs_root
def test_below_a_closed_folder_the_data_lie_elsewhere_and_a_note_says_so(closed: Path) -> None:
    home = closed / ".leasehold"
    before = modes(closed)
    expected = Path("/var/lib/leasehold", hashlib.sha256(bytes(home)).hexdigest()[:16])
    with start(home) as server:
        assert str(expected) in (home / place.NOTE).read_text()
        assert (expected / "data" / "PG_VERSION").is_file()
        assert stat.S_IMODE((expected / "data").stat().st_mode) == 0o700
        ask(server.dsn(), "create table memory as select 42 as answer")
    until(lambda: is_stopped(home), "the server stops")
    assert names(home) == {"postgres.log", place.NOTE}
    assert names(expected) == {"data"}
    assert modes(closed) == before
    closed.chmod(0o755)  # that the folder is open now must not hide the data
    with start(home) as server:
        assert ask(server.dsn(), "select answer from memory") == 42
    until(lambda: is_stopped(home), "the server stops")

    (closed / "moved").mkdir()
    shutil.copy(home / place.NOTE, closed / "moved")
    with pytest.raises(MovedHomeError, match=str(expected)):
        start(closed / "moved")
    assert names(closed / "moved") == {place.NOTE}


@needs_root
def test_data_that_the_servers_account_can_no_longer_reach_are_an_error_and_no_new_database(
    home: Path, folder: Path
) -> None:
    folder.chmod(0o700)
    with pytest.raises(UnreachableDataError, match="chmod"):
        start(home)
    assert names(home) == {"data", "postgres.log"}


@needs_root
def test_programs_that_the_servers_account_cannot_reach_are_staged_and_removed_again(home: Path, closed: Path) -> None:
    installed = find.find(None).folder
    package = installed.parent.parent
    there = closed / package.name / installed.parent.name
    for part in ("bin", "lib", "share"):
        link_tree(installed.parent / part, there / part)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        link_tree(libraries, closed / libraries.name)
    before = modes(there / "bin")
    with start(home, bin_dir=there / "bin") as server:
        program = Path(f"/proc/{postmaster(home)}/exe").readlink()
        assert program.is_relative_to(home / "binaries")
        assert program.samefile(there / "bin" / "postgres"), "a hard link, not a copy"
        assert ask(server.dsn(), "select count(*) from pg_timezone_names") > 100
    until(lambda: is_stopped(home), "the server stops")
    assert names(home) == {"data", "postgres.log"}
    assert modes(there / "bin") == before


def test_a_file_that_others_may_not_read_is_staged_as_a_copy_and_keeps_its_own_mode(tmp_path: Path) -> None:
    source, target = tmp_path / "program", tmp_path / "staged"
    source.write_text("program")
    source.chmod(0o700)
    link_or_copy(source, target)
    assert target.read_text() == "program"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (source, target)] == [0o700, 0o755]
    link = tmp_path / "link"
    link.symlink_to("program")
    link_or_copy(link, tmp_path / "staged-link")
    assert (tmp_path / "staged-link").readlink() == Path("program")


def test_a_file_that_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    source = tmp_path / "library"
    source.write_text("library")
    source.chmod(0o644)
    link_or_copy(source, tmp_path / "staged")
    assert not source.samefile(tmp_path / "staged")
    assert stat.S_IMODE((tmp_path / "staged").stat().st_mode) == 0o644


@needs_root
def test_an_ordinary_user_owns_everything(folder: Path) -> None:
    uid = NOBODY
    theirs = folder / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, uid, uid)
    home = theirs / ".leasehold"
    with user_of(home, uid=uid):
        assert psutil.Process(postmaster(home)).uids().real == uid
        assert {path.stat().st_uid for path in (home, *home.iterdir())} == {uid}
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
    until(lambda: is_stopped(home), "the server stops")
    assert names(home) == {"data", "postgres.log"}


@needs_root
def test_what_an_ordinary_user_made_root_runs_as_that_user_and_hands_back(folder: Path) -> None:
    theirs = folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, ANOTHER, ANOTHER)
    home = theirs / ".leasehold"
    with user_of(home, uid=ANOTHER), start(home) as joined:
        assert ask(joined.dsn(), "select 1") == 1
    until(lambda: is_stopped(home), "the server stops")
    (home / "postgres.log").unlink()
    with start(home) as server:
        assert psutil.Process(postmaster(home)).uids().real == ANOTHER
        assert ask(server.dsn(), "select 1") == 1
    until(lambda: is_stopped(home), "the server stops")
    with user_of(home, uid=ANOTHER):
        assert {path.stat().st_uid for path in home.iterdir()} == {ANOTHER}
    stop(home)


@needs_root
def test_an_ordinary_user_is_told_that_the_data_are_somebody_elses(home: Path) -> None:
    home.chmod(0o777)
    told = run(python(TRY, home, uid=ANOTHER))
    assert told.stdout.startswith(NotYoursError.__name__), told
    assert f"owner={NOBODY}" in told.stdout


@needs_root
def test_a_socket_of_somebody_elses_is_not_joined(home: Path, folder: Path) -> None:
    fake = folder / "fake"
    fake.mkdir()
    with socket.socket(socket.AF_UNIX) as stranger, start(home):
        stranger.bind(str(fake / ".s.PGSQL.5432"))
        stranger.listen()
        write_record(home, dataclasses.replace(record(home), socket=str(fake)))
        with start(home) as server:
            assert server.socket != fake
            assert ask(server.dsn(), "select 1") == 1
    until(lambda: is_stopped(home), "the server stops")


@needs_root
def test_an_account_without_a_name_is_told_so(folder: Path) -> None:
    theirs = folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, 54321, 54321)
    told = run(python(TRY, theirs / ".leasehold", uid=54321))
    assert told.stdout.startswith("NoAccountError"), told
    assert "54321" in told.stdout


@needs_root
def test_a_root_that_can_become_nobody_is_told_so(fresh_home: Path) -> None:
    told = run(["unshare", "--user", "--map-root-user", *python(TRY, fresh_home)])
    if "unshare" in told.stderr:
        pytest.skip("no user namespaces on this machine")
    assert told.stdout.startswith("NoAccountError"), told
