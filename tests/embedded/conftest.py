"""Homes for private servers: each test has its own, most with a database that was made once.

The folders lie directly in the temporary folder and not in pytest's, which is closed to the account that root's servers
run as. Sockets go to a folder of the test, so that a test sees what is left behind.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.embedded import start, stop
from leasehold.embedded.place import elsewhere
from tests.embedded.tools import is_stopped, until


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that everybody may enter; servers below it are stopped at the end."""
    top = Path(tempfile.mkdtemp(prefix="lh-"))
    top.chmod(0o755)
    sockets = top / "run"
    sockets.mkdir()
    sockets.chmod(0o1777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(sockets))
    yield top
    for home in [path.parent for path in top.rglob("postgres.log")]:
        stop(home)
        shutil.rmtree(elsewhere(home), ignore_errors=True)
    shutil.rmtree(top)


@pytest.fixture
def sockets(folder: Path) -> Path:
    """Where the sockets' folders of this test are made."""
    return folder / "run"


@pytest.fixture
def fresh_home(folder: Path) -> Path:
    """A home that nobody has started yet."""
    return folder / ".leasehold"


@pytest.fixture(scope="session")
def pool() -> Iterator[Path]:
    """A home whose data are lent to one test after the other."""
    top = Path(tempfile.mkdtemp(prefix="lh-"))
    top.chmod(0o755)
    yield top / ".leasehold"
    shutil.rmtree(top)


@pytest.fixture
def pattern(pool: Path) -> Path:
    """The pool, stopped, with its data in it; made again when a test has spoilt them."""
    if not (pool / "data").exists():
        start(pool).close()
        until(lambda: is_stopped(pool), "the pattern stops")
    return pool


@pytest.fixture
def home(fresh_home: Path, pattern: Path) -> Iterator[Path]:
    """A home with a database, stopped. The data are lent: making them costs half a second, copying them a fifth."""
    fresh_home.mkdir()
    fresh_home.chmod(0o711)
    (pattern / "data").rename(fresh_home / "data")
    (fresh_home / "postgres.log").touch()
    yield fresh_home
    stop(fresh_home)
    if not (fresh_home / "data" / "postmaster.pid").exists():  # else it crashed
        (fresh_home / "data").rename(pattern / "data")


@pytest.fixture
def own_home(fresh_home: Path, pattern: Path) -> Path:
    """A home with a database of its own, to be spoilt."""
    subprocess.run(["cp", "-a", str(pattern), str(fresh_home)], check=True)
    return fresh_home
