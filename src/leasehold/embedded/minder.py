"""The minder: a small process that waits until the last user has gone, stops the server, tidies up and ends.

Runs as a script of its own (`python -I -S minder.py HOME BASE SOCKET`), so that it neither imports Leasehold nor keeps
anything of the user's alive: standard library only, and no import that is not needed. It is also where stopping is
written down, once: `stop()` of the package calls the same functions. Starting is the package's (`server.py`).

It holds two locks. On SOCKET, the socket's folder, taken for it by whoever started it: that is how others see that it
lives (and it keeps systemd-tmpfiles from clearing the folder away). On HOME/users it waits for the exclusive lock: the
users share that lock, and the kernel takes it back from a killed user too, which no pid file and no heartbeat can do.
"""

# pathlib would double what this process imports:
# ruff: noqa: PTH106, PTH108, PTH110, PTH112, PTH114, PTH116, PTH118, PTH123

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from contextlib import suppress

USERS = "users"
RECORD = "server.json"
LOG = "postgres.log"
DATA = "data"
FRESH = "data.new"  # a database that is still being made
BINARIES = "binaries"  # staged for an account that cannot reach the installed ones
SOCKET_FILES = (".s.PGSQL.5432", ".s.PGSQL.5432.lock")
PATIENCE_S = 30.0
LOOK_S = 0.02


def main(home: str, base: str, socket: str) -> int:
    """Wait for the users to go, then leave nothing behind but the data and the log."""
    os.chdir(home)  # so that a home that is moved meanwhile is still ours
    home, base = ".", "." if base == home else base
    with suppress(FileNotFoundError):  # a removed home has no users; its server must not outlive it
        lock_users(home)
        # Nobody can be starting now, except an initdb whose starter was killed: it has to end before its folder goes.
        fcntl.flock(os.open(home, os.O_RDONLY), fcntl.LOCK_EX)
    if not stop_server(os.path.join(base, DATA)):
        sys.stderr.write("leasehold: the server does not stop; its minder gives up and the next start tries again\n")
        return 1
    clear(home, base, socket)
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(home, USERS))
    return 0


def lock_users(home: str) -> None:
    """Hold the exclusive lock on the users' file: the one that the path names now, since each stop removes it."""
    path = os.path.join(home, USERS)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if is_still(path, fd):
            return  # the lock is held until the process ends
        os.close(fd)


def is_still(path: str, fd: int) -> bool:
    """Tell whether the path names the open file: a lock on a removed file protects nothing."""
    try:
        there, here = os.stat(path), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def stop_server(data: str, patience_s: float = PATIENCE_S) -> bool:
    """Stop the server of this data folder: fast (clients are cut off, data checkpointed), else without a checkpoint."""
    for word in (signal.SIGINT, signal.SIGQUIT):
        told, until = 0, time.monotonic() + patience_s
        while time.monotonic() < until:
            if is_free(data):
                return True
            pid = postmaster_pid(data)
            if pid and pid != told:
                with suppress(ProcessLookupError):
                    os.kill(pid, word)
                told = pid
            time.sleep(LOOK_S)
    return is_free(data)


def is_free(folder: str) -> bool:
    """Tell whether nobody holds the lock on the folder.

    A server and all its processes hold the lock on their data folder (they inherit it), so this is the kernel's answer
    to "does it run": true across reused pids, across containers that share the folder, and for backends that outlive
    their postmaster. Ask only under the gate or with the users' exclusive lock: asking takes the lock for a moment.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)  # explicitly: a fork of another thread may hold a copy of fd
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def pid_file(data: str) -> list[str]:
    """Read postmaster.pid: the pid first, the status last; empty when there is none."""
    try:
        with open(os.path.join(data, "postmaster.pid"), encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def postmaster_pid(data: str) -> int | None:
    """Return the pid of the running postmaster of this folder; None rather than the pid of a stranger."""
    lines = pid_file(data)
    if not lines or not lines[0].isdigit():
        return None
    pid = int(lines[0])
    return pid if serves(pid, data) else None


def serves(pid: int, data: str) -> bool:
    """Tell whether the process works in this data folder, as every process of a server does."""
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/cwd"), os.stat(data))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # Forbidden to root without the right to trace (a usual container); absent on macOS.
        return was_started_for(pid, data)


def was_started_for(pid: int, folder: str) -> bool:
    """Tell whether the process has this folder among its arguments: pids are used again, and root may be asking."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsencode(folder) in file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return not os.path.exists("/proc/self")  # without /proc (macOS) the lock's word must do


def clear(home: str, base: str, socket: str) -> None:
    """Remove what lives only as long as the server: staged binaries, a half-made database, socket folder, record."""
    remove_tree(os.path.join(base, BINARIES))
    remove_tree(os.path.join(base, FRESH))
    with suppress(OSError):
        # By name and never as a tree: the path comes from a file, and root may be the one who reads it.
        for name in SOCKET_FILES:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(socket, name))
        os.rmdir(socket)
    path = os.path.join(home, RECORD)
    with suppress(FileNotFoundError, ValueError):
        with open(path, encoding="utf-8") as file:
            named = json.load(file).get("socket")
        if named == socket:
            os.unlink(path)


def remove_tree(top: str) -> None:
    """Remove a folder (shutil's twin would import every compressor there is)."""
    if os.path.islink(top) or not os.path.isdir(top):
        return
    for _, folders, files, fd in os.fwalk(top, topdown=False):
        for name in files:
            os.unlink(name, dir_fd=fd)
        for name in folders:
            try:
                os.rmdir(name, dir_fd=fd)
            except NotADirectoryError:  # a link to a folder
                os.unlink(name, dir_fd=fd)
    os.rmdir(top)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
