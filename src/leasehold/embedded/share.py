"""Who uses the server, and who may start it: the two locks on the home.

The *share* is a shared lock on `users`: every user and every child that inherits the descriptor holds it, and the
minder stops the server when nobody does. The *gate* is an exclusive lock on the home folder itself: one process at a
time looks, starts, joins or stops. Always the share first, then the gate; the minder takes them in the same order.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leasehold.embedded.errors import StartTimeoutError
from leasehold.embedded.minder import LOOK_S, USERS, is_still

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def take_share(home: Path, until: float) -> int:
    """Become a user: the descriptor is the share, and children that inherit it are users too."""
    path = home / USERS
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            lock(fd, fcntl.LOCK_SH, until, "the last server to stop")
            if is_still(str(path), fd):  # else a stop removed it while we waited
                os.set_inheritable(fd, True)  # noqa: FBT003 - the signature is the standard library's
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


@contextmanager
def gate(home: Path, until: float) -> Iterator[int]:
    """Be the only one who starts, joins or stops the server of this home."""
    fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        lock(fd, fcntl.LOCK_EX, until, "another process that is starting it")
        try:
            yield fd
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # explicitly: a fork of another thread may hold a copy of fd
    finally:
        os.close(fd)


def lock(fd: int, how: int, until: float, awaited: str) -> None:
    """Take a lock before the deadline: flock itself knows none, and an alarm would be the whole process's."""
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise StartTimeoutError(waited_for=awaited) from None
            time.sleep(LOOK_S)
        else:
            return
