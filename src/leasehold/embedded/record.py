"""The record in the home that tells everybody else where the running server is: socket folder, version, minder.

It is a hint, never the truth: whether server and minder live is asked of the kernel (their locks). Written under the
gate, removed by the minder.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from leasehold.embedded.minder import RECORD


@dataclass(frozen=True)
class Record:
    """What a joiner needs to know."""

    socket: str
    version: str
    minder: int


def read_record(home: Path) -> Record | None:
    """Read the record; an unreadable one (torn by a full disk or a crash) is as good as none."""
    try:
        said = json.loads((home / RECORD).read_text(encoding="utf-8"))
        return Record(socket=str(said["socket"]), version=str(said["version"]), minder=int(said["minder"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def write_record(home: Path, record: Record) -> None:
    """Replace the record in one step."""
    new = home / f"{RECORD}.new"
    new.write_text(json.dumps(asdict(record)), encoding="utf-8")
    new.chmod(0o600)
    new.replace(home / RECORD)


def is_ours(record: Record, account_uid: int) -> bool:
    """Tell whether the socket's folder is there and the server's own; after a reboot /tmp may hold anybody's."""
    try:
        return Path(record.socket).stat(follow_symlinks=False).st_uid == account_uid
    except OSError:
        return False
