"""Run PostgreSQL's programs: as which account, in which session, with which descriptors.

Knows nothing of databases. Everything started here has a session of its own (a Ctrl-C in the user's terminal is not
meant for the server), a bare environment (the user's may hold secrets and PG* settings), no inherited output (it would
keep the user's pipes open) and no descriptor but those named.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.embedded.errors import StartTimeoutError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Account:
    """The account a program runs as; `switch` when it is not the one we are."""

    name: str
    uid: int
    gid: int
    switch: bool

    @staticmethod
    def of(uid: int) -> Account:
        """Look an account up by number; KeyError when it has no name (PostgreSQL would refuse it too)."""
        entry = pwd.getpwuid(uid)
        return Account(entry.pw_name, uid, entry.pw_gid, switch=uid != os.geteuid())


def run(program: Sequence[str], account: Account, until: float, *, feed: str = "", keep: int | None = None) -> str:
    """Run a program to its end and return what it said; CalledProcessError (with its words) when it failed."""
    child = subprocess.Popen(  # noqa: S603 - the program is PostgreSQL's, no shell
        program,
        cwd="/",
        env=bare_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        pass_fds=() if keep is None else (keep,),
        user=account.uid if account.switch else None,
        group=account.gid if account.switch else None,
        extra_groups=() if account.switch else None,
    )
    with child:
        try:
            words, _ = child.communicate(feed, timeout=max(0.0, until - time.monotonic()))
        except BaseException as error:
            with suppress(ProcessLookupError, PermissionError):  # it has just ended
                os.killpg(child.pid, signal.SIGKILL)  # its helpers too: they write to the same folder
            if isinstance(error, subprocess.TimeoutExpired):
                raise StartTimeoutError(waited_for=Path(program[0]).name) from None
            raise
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, program, words.strip())
    return words.strip()


def detach(program: Sequence[str], account: Account, *, log: int, keep: int) -> int:
    """Start a program that outlives us and that nobody has to wait for; returns its pid.

    The shell is the cheapest double fork there is: safe in a process with threads (unlike os.fork), it leaves us no
    zombie, and it needs no Python that the server's account could not reach.
    """
    told = subprocess.run(  # noqa: S603 - a fixed script, the program comes as arguments
        ["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *program],
        cwd="/",
        env=bare_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        check=True,
        start_new_session=True,
        pass_fds=(keep,),
        user=account.uid if account.switch else None,
        group=account.gid if account.switch else None,
        extra_groups=() if account.switch else None,
    )
    return int(told.stdout)


def may_enter(account: Account, folder: Path) -> bool:
    """Ask the kernel whether the account can pass this folder and all above it (mode bits would not tell of ACLs)."""
    if not account.switch:
        return os.access(folder, os.X_OK)
    asked = subprocess.run(  # noqa: S603 - a fixed script, the folder comes as an argument
        ["/bin/sh", "-c", 'test -x "$1"', "sh", str(folder)],
        cwd="/",
        env=bare_environment(),
        stdin=subprocess.DEVNULL,
        check=False,
        user=account.uid,
        group=account.gid,
        extra_groups=(),
    )
    return asked.returncode == 0


def bare_environment() -> dict[str, str]:
    """Return an environment for English messages, and of the user's only where programs and libraries are found."""
    kept = ("PATH", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C"}
