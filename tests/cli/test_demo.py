"""`leasehold demo`, played for real without a terminal: what it shows, what it never reads, that nothing is left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from leasehold.embedded.place import elsewhere

PROGRAM = [sys.executable, "-c", "from leasehold.cli.main import main; main()"]
HOSTILE = {
    "LEASEHOLD_DSN": "postgresql://nobody@192.0.2.1:1/production",
    "DATABASE_URL": "no dsn at all",
    "MAX_ATTEMPTS": "none",
    "STAGE_LEASE_SEC_CUT": "long",
    "FORCE_COLOR": "1",
}
OVER_S = 90.0


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A temporary folder of the demos' own, so that what they leave is seen."""
    with folder(mode=0o755) as made:
        yield made


@pytest.fixture(scope="module")
def played(place: Path) -> subprocess.CompletedProcess[str]:
    """The whole play, in surroundings that would stop everybody who reads them."""
    with playing(place, **HOSTILE) as demo:
        said, complained = demo.communicate()
    return subprocess.CompletedProcess(demo.args, demo.returncode, said, complained)


@contextmanager
def folder(mode: int) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="lh-"))
    made.chmod(mode)
    try:
        yield made
    finally:
        shutil.rmtree(made)


@contextmanager
def playing(place: Path, *words: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A demo that is being watched; killed where it hangs, which ends every wait for its words."""
    pipe = subprocess.PIPE
    demo = subprocess.Popen(
        [*PROGRAM, "demo", *words], stdout=pipe, stderr=pipe, text=True, env=surroundings(place, **more)
    )
    watchdog = threading.Timer(OVER_S, demo.kill)
    watchdog.start()
    with demo:
        try:
            yield demo
        finally:
            watchdog.cancel()
            if demo.poll() is None:
                demo.terminate()


def line_with(pattern: str, lines: IO[str] | None) -> str:
    assert lines is not None
    found = next((line for line in lines if re.search(pattern, line)), None)
    assert found is not None, f"it ended and never said {pattern!r}"
    return found


def surroundings(temporary: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary), "XDG_RUNTIME_DIR": "", **more}


def left_running(place: Path) -> list[str]:
    """Every process that has to do with the place, by its command line, its environment or where it stands."""
    found: list[str] = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        try:
            said = [(process / name).read_bytes() for name in ("cmdline", "environ")]
            said.append(os.fsencode((process / "cwd").readlink()))
        except OSError:  # it has just ended, or is somebody else's
            continue
        if any(os.fsencode(place) in what for what in said):
            found.append(f"{process.name}: {said[0].decode(errors='replace')}")
    return found


def until(condition: Callable[[], object], what: str, seconds: float = OVER_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def test_the_demo_ends_well_whatever_the_environment_says(played: subprocess.CompletedProcess[str]) -> None:
    assert (played.returncode, played.stderr) == (0, ""), played.stdout


def test_the_worker_process_is_killed_and_its_jobs_come_back(played: subprocess.CompletedProcess[str]) -> None:
    said = played.stdout
    victim = re.search(r"^kill -9 (\d+)", said, re.MULTILINE)
    assert victim is not None
    back = re.search(r"^job (\d+) requeued:stale, it lost its worker", said, re.MULTILINE)
    assert back is not None
    again = re.search(rf"^job {back[1]} processing, attempt 2, in process (\d+)$", said, re.MULTILINE)
    assert again is not None
    assert f"process {victim[1]} died, signal 9" in said
    assert again[1] != victim[1]
    assert said.index(victim[0]) < said.index(back[0]) < said.index(again[0]) < said.index(f"job {back[1]} done")


def test_the_demo_closes_with_a_survivors_timeline_and_what_to_try_next(
    played: subprocess.CompletedProcess[str],
) -> None:
    _, _, end = played.stdout.partition("The life of job ")
    told = re.findall(r"^ *[\d.]+m?s  ([a-z:]+)", end, re.MULTILINE)
    assert told == ["created", "processing", "requeued:stale", "processing", "done"]
    assert re.search(r"^6 jobs, [1-5] runs killed, none lost, \d+\.\d seconds\.$", end, re.MULTILINE)
    assert "worker app.py" in end
    assert "demo --stay" in end


def test_without_a_terminal_there_are_no_control_codes(played: subprocess.CompletedProcess[str]) -> None:
    assert "\x1b" not in played.stdout
    assert "\r" not in played.stdout


def test_a_demo_that_has_ended_leaves_nothing(played: subprocess.CompletedProcess[str], place: Path) -> None:
    assert played.returncode == 0
    assert (left_running(place), list(place.iterdir())) == ([], [])


@pytest.mark.parametrize("moment", ["Starting a private PostgreSQL", r"process \d+ starts", "kill -9"])
def test_interrupted_at_any_moment_it_leaves_nothing(place: Path, moment: str) -> None:
    with playing(place) as demo:
        line_with(moment, demo.stdout)
        demo.send_signal(signal.SIGINT)
        demo.send_signal(signal.SIGINT)  # somebody impatient
        rest = demo.communicate()
        assert demo.returncode == 130, rest
    assert rest[1] == ""
    assert (left_running(place), list(place.iterdir())) == ([], [])


def test_an_error_leaves_nothing_and_is_one_line(place: Path) -> None:
    with playing(place) as demo:
        line_with(r"process \d+ starts", demo.stdout)
        os.kill(supervisor_of(place), signal.SIGKILL)
        said = demo.communicate()[1]
        assert demo.returncode == 1
    assert said.startswith("leasehold: The demo did not show what it should. The worker ended by itself with -9.")
    assert said.count("\n") == 1
    assert list(place.iterdir()) == []
    until(lambda: left_running(place) == [], "the worker process sees that its supervisor is gone, and ends")


@pytest.mark.long
def test_it_stays_up_until_it_is_told_and_says_how_to_look(place: Path) -> None:
    with playing(place, "--stay", **HOSTILE) as demo:
        look = re.search(r"To look: cd (\S+); env (.*) \S+ jobs ls$", line_with("stay up until Ctrl-C", demo.stdout))
        assert look is not None
        assert look[2] == "-u LEASEHOLD_DSN -u DATABASE_URL"
        harmless = {name: value for name, value in os.environ.items() if name not in HOSTILE}
        seen = subprocess.run(
            [*PROGRAM, "jobs", "ls"], cwd=look[1], env=harmless, capture_output=True, text=True, check=True
        ).stdout
        demo.send_signal(signal.SIGINT)
        demo.communicate()
        assert demo.returncode == 0
    assert len(re.findall(r"\bdone\b", seen)) == 6
    assert (left_running(place), list(place.iterdir())) == ([], [])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only its PostgreSQL runs as another account")
def test_in_roots_closed_folder_it_leaves_no_data_elsewhere() -> None:
    with folder(mode=0o700) as closed, playing(closed) as demo:
        line_with("Six jobs are enqueued", demo.stdout)
        (home,) = closed.glob("leasehold-demo-*/.leasehold")
        data = elsewhere(home)
        assert data.is_dir()
        demo.send_signal(signal.SIGTERM)
        demo.communicate()
        assert demo.returncode == 128 + signal.SIGTERM
    assert not data.exists()


def supervisor_of(place: Path) -> int:
    """The demo's own child: `leasehold worker`."""
    (found,) = [line for line in left_running(place) if "\0worker\0leasehold.cli.demo_jobs" in line]
    return int(found.partition(":")[0])
