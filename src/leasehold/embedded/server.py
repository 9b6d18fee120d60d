"""Start, join, look at and stop the private PostgreSQL of a home.

The one who tells the story; each step is told elsewhere: `find`, `stage`, `place`, `cluster`, `share`, `minder`. Truth
is asked of the kernel: the server holds a lock on its data folder, its minder one on the socket's folder, its users one
on `users`. Nothing here believes a pid.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from leasehold.embedded import minder
from leasehold.embedded.cluster import (
    DATABASE,
    USER,
    accepts,
    begin_log,
    can_be_joined,
    check_data,
    launch,
    log_since,
    make,
    open_log,
    wait_ready,
)
from leasehold.embedded.errors import MinderFailedError, StopTimeoutError, typed
from leasehold.embedded.find import find
from leasehold.embedded.place import base_of, make_home, make_socket_folder, settle
from leasehold.embedded.process import Account, detach
from leasehold.embedded.record import Record, is_ours, read_record, write_record
from leasehold.embedded.share import gate, take_share
from leasehold.embedded.stage import within_reach

if TYPE_CHECKING:
    from leasehold.embedded.place import Place


@dataclass(frozen=True)
class ServerInfo:
    """A running server, seen by somebody who does not use it."""

    home: Path
    version: str
    pid: int
    minder: int
    socket: Path

    def dsn(self, database: str = DATABASE) -> str:
        """Return the URL of a database of this server."""
        return dsn_of(self.socket, database)


class Server:
    """A ready server and this process's share in it. The server stops when nobody holds a share any more."""

    def __init__(self, home: Path, record: Record, share_fd: int) -> None:
        self.home = home
        self.version = record.version
        self.socket = Path(record.socket)
        #: The share itself: inheritable, so a child started with close_fds=False or pass_fds=(share_fd,) is a user too.
        self.share_fd = share_fd

    def dsn(self, database: str = DATABASE) -> str:
        """Return the URL of a database of this server (role `leasehold`, its superuser)."""
        return dsn_of(self.socket, database)

    def close(self) -> None:
        """Give this process's share back; children that inherited it keep theirs."""
        if self.share_fd >= 0:
            fd, self.share_fd = self.share_fd, -1
            os.close(fd)  # closed, never unlocked: the lock is one with the children's

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(home: Path, *, bin_dir: Path | None = None, timeout_s: float = 60.0) -> Server:
    """Start the server of this home, or join it, and return when it takes connections."""
    until = time.monotonic() + timeout_s
    with typed(home):
        home = make_home(home)
        share = take_share(home, until)  # first: from here on no minder stops what we find or start
        try:
            with gate(home, until) as held:
                record = come_up(home, bin_dir, until, held)
        except BaseException:
            os.close(share)  # a minder that was started already sees this and clears up
            forget_users(home)
            raise
    return Server(home, record, share)


def running(home: Path) -> ServerInfo | None:
    """Look whether the server of this home takes connections; starts nothing and waits for nothing."""
    with typed(home):
        home = home.resolve()
        record = read_record(home)
        data = base_of(home) / minder.DATA
        pid = minder.postmaster_pid(str(data)) if record else None
        if record is None or pid is None or not accepts(data, Path(record.socket)):
            return None
    return ServerInfo(home, record.version, pid, record.minder, Path(record.socket))


def stop(home: Path, *, timeout_s: float = 60.0) -> None:
    """Stop the server of this home now, whoever uses it, and clear up. The data stay."""
    with typed(home):
        home = home.resolve()
        if not home.is_dir():
            return
        with gate(home, time.monotonic() + timeout_s):
            base = base_of(home)
            record = read_record(home)
            if record:
                dismiss_minder(record, timeout_s)
            if not minder.stop_server(str(base / minder.DATA), timeout_s / 2):
                raise StopTimeoutError(home=str(home))
            minder.clear(str(home), str(base), record.socket if record else "")
            forget_users(home)


def come_up(home: Path, bin_dir: Path | None, until: float, held: int) -> Record:
    """Under the gate: join the server that runs, or start one. Either way it has a minder afterwards."""
    place = settle(home)
    record = read_record(home)
    if record and not is_ours(record, place.account.uid):
        record = None
    begins = begin_log(place)
    if not minder.is_free(str(place.data)):
        if record and can_be_joined(place.data, Path(record.socket)):
            record = record if is_minded(record) else appoint_minder(place, Path(record.socket), record.version)
            wait_ready(place, Path(record.socket), until, begins)
            return with_living_minder(record, place, begins)
        # It is on its way out, or its socket is gone (somebody cleaned the temporary folder): let it end, start anew.
        minder.stop_server(str(place.data), max(0.0, until - time.monotonic()) / 2)
    binaries = find(bin_dir)
    there = check_data(place, binaries)
    if record and is_minded(record):
        record = Record(record.socket, binaries.version, record.minder)
        write_record(home, record)
    else:
        if record:
            minder.clear(str(home), str(place.base), record.socket)
        record = appoint_minder(place, make_socket_folder(place.account), binaries.version)
    programs = within_reach(binaries, place.account, place.base, until)
    if not there:
        make(place, programs, binaries, until, gate=held)
    launch(place, programs, Path(record.socket), until)
    wait_ready(place, Path(record.socket), until, begins)
    return with_living_minder(record, place, begins)


def appoint_minder(place: Place, socket: Path, version: str) -> Record:
    """Start a minder and write down where the server is (or is going to be).

    Before the server: whatever happens to us from now on, somebody stops what we have begun. We take the lock on the
    socket's folder for it, so that there is no moment at which it lives and does not look so.
    """
    lock = os.open(socket, os.O_RDONLY | os.O_DIRECTORY)
    log = open_log(place)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        script = [sys.executable, "-I", "-S", minder.__file__, str(place.home), str(place.base), str(socket)]
        ourselves = Account("", os.geteuid(), os.getegid(), switch=False)
        record = Record(str(socket), version, detach(script, ourselves, log=log, keep=lock))
    finally:
        os.close(log)
        os.close(lock)
    write_record(place.home, record)
    return record


def is_minded(record: Record) -> bool:
    """Tell whether the minder lives: it holds the lock on the socket's folder."""
    return not minder.is_free(record.socket)


def with_living_minder(record: Record, place: Place, begins: int) -> Record:
    """Refuse to hand out a server that nobody would ever stop."""
    if not is_minded(record):
        words = log_since(place.log, begins)
        minder.stop_server(str(place.data))
        minder.clear(str(place.home), str(place.base), record.socket)
        raise MinderFailedError(f"The log said:\n{words}\n")
    return record


def dismiss_minder(record: Record, timeout_s: float) -> None:
    """End the minder, so that it does not wait for users of a server that is gone."""
    until = time.monotonic() + timeout_s
    if is_minded(record) and minder.was_started_for(record.minder, record.socket):
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.minder, signal.SIGTERM)
    while is_minded(record) and time.monotonic() < until:
        time.sleep(minder.LOOK_S)


def forget_users(home: Path) -> None:
    """Remove the users' file, unless somebody still holds a share (who will find the server gone)."""
    with contextlib.suppress(FileNotFoundError, BlockingIOError):
        fd = os.open(home / minder.USERS, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (home / minder.USERS).unlink()
        finally:
            os.close(fd)


def dsn_of(socket: Path, database: str) -> str:
    """Write the URL as asyncpg and libpq both read it."""
    host = quote(str(socket), safe="/")
    return f"postgresql://{USER}@/{quote(database, safe='')}?host={host}&port=5432"
