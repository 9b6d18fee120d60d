"""Where the data lie, who owns them, and where the socket goes.

An ordinary user owns everything, below the home. PostgreSQL refuses to run as root, so for root an unprivileged account
that exists already runs the server; where that account cannot enter the home (a closed folder above it), the data lie
below /var/lib/leasehold and a note in the home says so. Nothing outside our own folders is ever opened up for it.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from leasehold.embedded.errors import (
    MovedHomeError,
    NoAccountError,
    NoSocketFolderError,
    NotADataFolderError,
    NotYoursError,
    UnreachableDataError,
)
from leasehold.embedded.minder import DATA, FRESH, LOG, SOCKET_FILES
from leasehold.embedded.process import Account, may_enter

SHARED = Path("/var/lib/leasehold")
NOTE = "data-is-elsewhere.txt"
# `leasehold` if the operator made one. `nobody` before `postgres`: that one may own a production cluster, which a
# server running as the same account could open (peer authentication) and stop.
ACCOUNTS = ("leasehold", "nobody", "postgres")
SOCKET_PATH_MAX = 90  # the kernels' limits are 108 (Linux) and 104 (macOS)


@dataclass(frozen=True)
class Place:
    """The home, the base below which the data lie (mostly the same folder), and the server's account."""

    home: Path
    base: Path
    account: Account

    @property
    def data(self) -> Path:
        """PostgreSQL's data folder."""
        return self.base / DATA

    @property
    def fresh(self) -> Path:
        """A data folder that is still being made, beside the real one, so that a rename finishes it."""
        return self.base / FRESH

    @property
    def log(self) -> Path:
        """The server's log, always in the home: that is where people look."""
        return self.home / LOG


def make_home(home: Path) -> Path:
    """Make the home where there is none and return its one true path."""
    if not home.is_dir():
        home.mkdir(parents=True)
        # For root the server's account must pass it (no more than that); for others it is private.
        home.chmod(0o711 if os.geteuid() == 0 else 0o700)
    return home.resolve()


def base_of(home: Path) -> Path:
    """Return the folder below which the data of this home lie, or would."""
    try:
        named = Path((home / NOTE).read_text(encoding="utf-8", errors="surrogateescape").splitlines()[0])
    except FileNotFoundError:
        return home
    if named != elsewhere(home):
        raise MovedHomeError(note=str(home / NOTE), names=str(named), expected=str(elsewhere(home)))
    return named


def settle(home: Path) -> Place:
    """Decide where and as whom the server of this home runs: as it was made, or as fits a new one."""
    base = base_of(home)
    owner = owner_of(base / DATA)
    if os.geteuid() != 0:
        if base != home or owner not in (None, os.geteuid()):
            raise NotYoursError(data=str(base / DATA), owner=owner, we_are=os.geteuid())
        return Place(home, base, named_account(os.geteuid()))
    if owner is None and base == home and not may_enter(unprivileged_account(), home):
        base = move_out(home)
        owner = owner_of(base / DATA)
    # Data that are there are run by their owner: root may join or start what an ordinary user made.
    account = named_account(owner) if owner else unprivileged_account()
    if not may_enter(account, base):
        raise UnreachableDataError(folder=str(base), account=account.name)
    return Place(home, base, account)


def owner_of(data: Path) -> int | None:
    """Return who owns the data folder; None where there is none yet."""
    if not os.path.lexists(data):
        return None
    if not data.is_dir():  # a file, or a link to a disk that is not mounted: a new database must not take its place
        raise NotADataFolderError(path=str(data))
    return data.stat().st_uid


def named_account(uid: int) -> Account:
    """Look an account up; PostgreSQL insists on its having a name."""
    try:
        return Account.of(uid)
    except KeyError:
        raise NoAccountError(uid=uid) from None


def unprivileged_account() -> Account:
    """Return the first account that exists and that root really can become (a container may forbid it)."""
    for name in ACCOUNTS:
        try:
            account = Account.of(pwd.getpwnam(name).pw_uid)
            if account.uid and may_enter(account, Path("/")):
                return account
        except (KeyError, OSError):
            continue
    raise NoAccountError(tried=ACCOUNTS)


def elsewhere(home: Path) -> Path:
    """Name the folder for a home that the server's account cannot enter."""
    return SHARED / hashlib.sha256(os.fsencode(home)).hexdigest()[:16]


def move_out(home: Path) -> Path:
    """Make the folder outside the home, and say so in the home."""
    base = elsewhere(home)
    for folder in (SHARED, base):
        if not folder.is_dir():
            folder.mkdir()
            folder.chmod(0o711)
    note = (
        f"{base}\n\nThe data of this folder's PostgreSQL lie there: it refuses to run as root, so it runs as an\n"
        f"unprivileged account, and that account cannot enter {home}.\n"
        f"To be rid of the data, remove both folders while the server is stopped.\n"
    )
    (home / NOTE).write_text(note, encoding="utf-8", errors="surrogateescape")
    return base


def make_socket_folder(account: Account) -> Path:
    """Make the private folder for the socket.

    It is 0700 and the server account's. For an ordinary user that is the user; for root it is the account that root
    chose, and root passes anyway. Plain characters only: the path travels in a DSN and in a list of PostgreSQL's.
    """
    tried: list[str] = []
    for above in dict.fromkeys((os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")):  # noqa: S108 - a private folder is made in it
        if not re.fullmatch(r"/[\w./+-]*", above, re.ASCII) or not Path(above).is_dir():
            continue
        tried.append(above)
        if not may_enter(account, Path(above)):
            continue
        try:
            folder = Path(tempfile.mkdtemp(prefix="leasehold-", dir=above))
        except OSError:
            continue
        if len(str(folder / SOCKET_FILES[0])) < SOCKET_PATH_MAX:
            os.chown(folder, account.uid, account.gid)
            return folder
        folder.rmdir()
    raise NoSocketFolderError(tried=tried, path_max=SOCKET_PATH_MAX)
