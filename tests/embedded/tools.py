"""What the tests of the embedded database share: children that use a server, questions to it, waiting to a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from leasehold import embedded
from leasehold.embedded.minder import RECORD, postmaster_pid
from leasehold.embedded.record import Record, read_record

SOURCE = Path(embedded.__file__).parents[2]
AM_ROOT = os.geteuid() == 0
NOBODY = 65534
needs_root = pytest.mark.skipif(not AM_ROOT, reason="needs root: it becomes another account")

USE_UNTIL_TOLD = """
import sys
from pathlib import Path
from leasehold.embedded import start
server = start(Path(sys.argv[1]))
print(server.dsn(), flush=True)
sys.stdin.read()
server.close()
"""


def until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Wait for a condition; the deadline is generous, since only its absence is a fault."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def ask(dsn: str, sql: str) -> Any:
    async def once() -> object:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(once())


def become(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def python(code: str, *arguments: object, uid: int | None = None) -> list[str]:
    """Write the command that runs code in a fresh interpreter, as another account where asked."""
    if uid is None:
        return [sys.executable, "-c", code, *map(str, arguments)]
    return [*become(uid), python_for_all(), "-c", code, *map(str, arguments)]


@functools.cache
def python_for_all() -> str:
    """Find an interpreter that other accounts can run: root's own often lies in root's closed home."""
    for name in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}", "/usr/bin/python3"):
        enough = (
            f"'{name}' -c 'import sys; assert sys.version_info >= (3, 11)'"  # a shell: setpriv itself gets in anywhere
        )
        if subprocess.run([*become(NOBODY), "sh", "-c", enough], check=False, capture_output=True).returncode == 0:
            return name
    pytest.skip("needs root: and a Python that other accounts can run")


def surroundings() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{SOURCE}:{Path(asyncpg.__file__).parents[1]}"}


def run(command: Sequence[str], seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=surroundings())


@contextlib.contextmanager
def user_of(home: Path, *, uid: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Keep a process, in a session of its own, that uses the server of the home."""
    child = begin(python(USE_UNTIL_TOLD, home, uid=uid))
    try:
        assert child.stdout
        line = child.stdout.readline().strip()
        assert line.startswith("postgresql://"), "the child could not start the server"
        yield child
    finally:
        end(child)


def begin(command: Sequence[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=surroundings(), start_new_session=True)


def end(child: subprocess.Popen[str]) -> None:
    with child:
        if child.stdin:
            child.stdin.close()
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()
            raise


def is_stopped(home: Path) -> bool:
    """The minder removes the users' file last of all."""
    return not (home / "users").exists() and not (home / RECORD).exists()


def lives(pid: int) -> bool:
    """A zombie does not: a minder's parent is the machine's init, and some containers have none that reaps."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def postmaster(home: Path, base: Path | None = None) -> int:
    pid = postmaster_pid(str((base or home) / "data"))
    assert pid is not None
    return pid


def record(home: Path) -> Record:
    found = read_record(home)
    assert found is not None
    return found


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def opened_by(pid: int) -> set[Path]:
    """Name what a process has open, a moment ago: it opens and closes meanwhile."""
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(path.readlink())
    return found
