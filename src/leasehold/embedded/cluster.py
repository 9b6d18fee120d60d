"""Make a database cluster, start its server, tell when it is ready.

Everything here happens under the gate (`share.py`), so nobody else starts or stops the same server meanwhile. Which
server, for whom, and who minds it is `server.py`'s.
"""

from __future__ import annotations

import fcntl
import os
import socket as sockets
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.embedded.errors import (
    InitdbFailedError,
    NotADataFolderError,
    ServerFailedError,
    StartTimeoutError,
    WrongMajorError,
    by_last_words,
)
from leasehold.embedded.find import Binaries, candidates, version_of
from leasehold.embedded.minder import LOOK_S, SOCKET_FILES, is_free, pid_file, remove_tree
from leasehold.embedded.process import detach, run
from leasehold.embedded.share import lock

if TYPE_CHECKING:
    from leasehold.embedded.place import Place

USER = "leasehold"
DATABASE = "leasehold"
BUILTIN_LOCALE_SINCE = 17
LOG_BYTES_MAX = 8 * 1024 * 1024
LAST_LINES = 12


def check_data(place: Place, binaries: Binaries) -> bool:
    """Tell whether there is a cluster; refuse what these programs could not read, before anything is touched."""
    if not place.data.exists():
        return False
    made_by = place.data / "PG_VERSION"
    if not made_by.is_file():
        if not any(place.data.iterdir()):
            return False
        raise NotADataFolderError(path=str(place.data))
    major = made_by.read_text(encoding="ascii").strip()
    if major != str(binaries.major):
        fits = [str(folder) for folder in candidates() if (version_of(folder) or "").split(".")[0] == major]
        raise WrongMajorError(data=str(place.data), made_by=major, found=binaries.version, bin_dirs_that_fit=fits)
    return True


def make(place: Place, programs: Path, binaries: Binaries, until: float, *, gate: int) -> None:
    """Make a cluster with our database in it: beside its place, then by one rename, so that half a one is never seen.

    initdb inherits the gate: if we are killed meanwhile, the next starter waits for the orphan before it clears up.
    """
    remove_tree(str(place.fresh))
    place.fresh.mkdir(mode=0o700)
    os.chown(place.fresh, place.account.uid, place.account.gid)
    # C.UTF-8 sorts alike on every machine and after every upgrade. The builtin provider has it on macOS as well.
    locale = ["--locale=C.UTF-8" if sys.platform == "linux" else "--locale=C"]
    if binaries.major >= BUILTIN_LOCALE_SINCE:
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    # trust is safe here: the only door is a socket in a 0700 folder. Who can pass it is root or the account that owns
    # the data files, and could read and change every byte without asking the server.
    auth = ["--auth-local=trust", "--auth-host=reject"]
    initdb = [str(programs / "initdb"), "-D", str(place.fresh)]
    cluster = ["-U", USER, "-E", "UTF8", "--data-checksums", "--no-sync", *locale, *auth]
    single = [str(programs / "postgres"), "--single", "-D", str(place.fresh), "-c", "exit_on_error=true", "postgres"]
    try:
        run([*initdb, *cluster], place.account, until, keep=gate)
        run(single, place.account, until, feed=f"create database {DATABASE}\n", keep=gate)
        run([*initdb, "--sync-only"], place.account, until, keep=gate)  # once, for both
    except subprocess.CalledProcessError as error:
        remove_tree(str(place.fresh))
        raise by_last_words(last_lines(error.output), InitdbFailedError) from None
    except BaseException:
        remove_tree(str(place.fresh))
        raise
    place.fresh.rename(place.data)
    sync(place.base)


def launch(place: Place, programs: Path, socket: Path, until: float) -> None:
    """Start the server, holding the lock on its data folder."""
    held = os.open(place.data, os.O_RDONLY | os.O_DIRECTORY)
    log = open_log(place)
    try:
        lock(held, fcntl.LOCK_EX, until, "processes that outlived the last server")
        forget_the_dead(place.data)
        for name in SOCKET_FILES:
            (socket / name).unlink(missing_ok=True)  # nobody listens: we hold the lock
        settings = {
            "listen_addresses": "",  # no TCP
            "unix_socket_directories": str(socket),
            "port": "5432",  # a part of the socket's name
            "fsync": "on",
            "cluster_name": "leasehold",
            "logging_collector": "off",
            "log_destination": "stderr",
            "log_checkpoints": "off",  # the log is for what someone should read
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        detach([str(programs / "postgres"), "-D", str(place.data), *flags], place.account, log=log, keep=held)
    finally:
        os.close(log)
        os.close(held)  # not unlocked: the server has inherited it


def wait_ready(place: Place, socket: Path, until: float, begins: int) -> None:
    """Return when the server takes connections; say why when it ended, or when the time is up."""
    while not accepts(place.data, socket):
        if is_free(str(place.data)):
            raise by_last_words(log_since(place.log, begins), ServerFailedError)
        if time.monotonic() > until:
            words = log_since(place.log, begins)
            raise StartTimeoutError(f"PostgreSQL said:\n{words}\n" if words else "", waited_for="the server")
        time.sleep(LOOK_S / 2)


def accepts(data: Path, socket: Path) -> bool:
    """Tell whether the server says it is ready and its socket answers (a file left by a crash may say the first)."""
    if status(data) != "ready":
        return False
    with sockets.socket(sockets.AF_UNIX) as door:
        try:
            door.connect(str(socket / SOCKET_FILES[0]))
        except OSError:
            return False
    return True


def can_be_joined(data: Path, socket: Path) -> bool:
    """Tell whether a server that runs is worth waiting for: it takes connections, or is on its way there."""
    return accepts(data, socket) or status(data) not in ("ready", "stopping")


def status(data: Path) -> str:
    """Read what the server says of itself in its pid file: starting, ready, stopping (or nothing yet)."""
    lines = pid_file(str(data))
    return lines[-1].strip() if lines else ""


def forget_the_dead(data: Path) -> None:
    """Remove a crashed server's pid file when its pid is dying, a zombie, or some other program by now.

    PostgreSQL would refuse to start for fear of that process, and in a container, where the same small pids come again
    and often nobody reaps, it would refuse for good. We hold the folder's lock, so no server of ours runs. One that
    somebody started by hand is called postgres and lives: it is left for PostgreSQL to judge.
    """
    lines = pid_file(str(data))
    if not lines:
        return
    try:
        process = Path(f"/proc/{int(lines[0])}")
        name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
        has_memory = bool((process / "cmdline").read_bytes())  # given back before the lock is, long before a zombie
    except (OSError, ValueError):
        return  # no such process (PostgreSQL sees that itself), or no /proc
    if name not in ("postgres", "postmaster") or not has_memory:
        (data / "postmaster.pid").unlink(missing_ok=True)


def begin_log(place: Place) -> int:
    """Return where in the log the words of this start begin; a big log is set aside, so that all stays bounded."""
    if not place.log.exists():
        return 0
    if place.log.stat().st_size > LOG_BYTES_MAX and is_free(str(place.data)):
        place.log.replace(f"{place.log}.1")
        return 0
    return place.log.stat().st_size


def open_log(place: Place) -> int:
    """Open the log to append."""
    fd = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    if place.account.switch:
        os.fchown(fd, place.account.uid, place.account.gid)  # its owner may start it without root next time
    return fd


def log_since(log: Path, begins: int) -> str:
    """Quote the end of what the log has gained."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(begins, log.stat().st_size - 8192))
        return last_lines(file.read().decode(errors="replace"))


def last_lines(text: str) -> str:
    """Keep what fits into an error."""
    return "\n".join(text.strip().splitlines()[-LAST_LINES:])


def sync(folder: Path) -> None:
    """Make a rename in the folder last."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
