"""`leasehold demo`, played for real, without a terminal: what it shows, what it never reads, and that nothing is left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasehold.embedded.place import SHARED

DEMO = [sys.executable, "-c", "from leasehold.cli.main import main; main()", "demo"]
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
    return subprocess.run(
        DEMO, capture_output=True, text=True, env=surroundings(place, **HOSTILE), timeout=OVER_S, check=False
    )


@contextmanager
def folder(mode: int) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="lh-"))
    made.chmod(mode)
    yield made
    shutil.rmtree(made)


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


def data_elsewhere() -> set[Path]:
    return set(SHARED.iterdir()) if SHARED.is_dir() else set()


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
    assert re.findall(r"leasehold|(worker app\.py|demo --stay)", end)
    assert "worker app.py" in end
    assert "demo --stay" in end


def test_without_a_terminal_there_are_no_control_codes(played: subprocess.CompletedProcess[str]) -> None:
    assert "\x1b" not in played.stdout
    assert "\r" not in played.stdout


def test_a_demo_that_has_ended_leaves_nothing(played: subprocess.CompletedProcess[str], place: Path) -> None:
    assert played.returncode == 0
    assert (left_running(place), list(place.iterdir())) == ([], [])


@pytest.mark.parametrize("moment", ["Starting a private PostgreSQL", "process \\d+ starts", "kill -9"])
def test_interrupted_at_any_moment_it_leaves_nothing(place: Path, moment: str) -> None:
    demo = subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=surroundings(place), bufsize=1
    )
    with demo:
        assert demo.stdout is not None
        assert any(re.search(moment, line) for line in demo.stdout)
        demo.send_signal(signal.SIGINT)
        demo.send_signal(signal.SIGINT)  # somebody impatient
        rest = demo.stdout.read()
        assert demo.wait(OVER_S) == 130, rest
    assert "Traceback" not in rest
    assert (left_running(place), list(place.iterdir())) == ([], [])


def test_an_error_leaves_nothing_and_is_one_line(place: Path) -> None:
    demo = subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=surroundings(place), bufsize=1
    )
    with demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        assert any(re.search(r"process \d+ starts", line) for line in demo.stdout)
        os.kill(supervisor_of(place), signal.SIGKILL)
        rest = demo.stdout.read()
        said = demo.stderr.read()
        assert demo.wait(OVER_S) == 1, rest
    assert said.startswith("leasehold: The demo did not show what it should. The worker ended by itself with -9.")
    assert said.count("\n") == 1
    assert list(place.iterdir()) == []
    until(lambda: left_running(place) == [], "the worker process sees that its supervisor is gone, and ends")


def supervisor_of(place: Path) -> int:
    """The demo's own child: `leasehold worker`."""
    (found,) = [line for line in left_running(place) if "\0worker\0leasehold.cli.demo_jobs" in line]
    return int(found.partition(":")[0])


def test_it_stays_up_until_it_is_told_and_says_how_to_look(place: Path) -> None:
    demo = subprocess.Popen([*DEMO, "--stay"], stdout=subprocess.PIPE, text=True, env=surroundings(place, **HOSTILE))
    with demo:
        assert demo.stdout is not None
        (hint,) = (line for line in demo.stdout if "stay up until Ctrl-C" in line)
        _, _, look = hint.partition("To look: ")
        assert look.startswith(f"cd {place}/")
        where, without, _ = re.fullmatch(r"cd (\S+); env (.*) (\S+) jobs ls\n", look, re.DOTALL).groups()
        assert without == "-u LEASEHOLD_DSN -u DATABASE_URL"
        seen = subprocess.run(
            [*DEMO[:-1], "jobs", "ls"],
            cwd=where,
            env={name: value for name, value in os.environ.items() if name not in HOSTILE},
            capture_output=True,
            text=True,
            check=True,
            timeout=OVER_S,
        ).stdout
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
        assert demo.wait(OVER_S) == 0
    assert len(re.findall(r"\bdone\b", seen)) == 6
    assert (left_running(place), list(place.iterdir())) == ([], [])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only its PostgreSQL runs as another account")
def test_in_roots_closed_folder_it_leaves_no_data_elsewhere() -> None:
    before = data_elsewhere()
    with folder(mode=0o700) as closed:
        demo = subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True, env=surroundings(closed))
        with demo:
            assert demo.stdout is not None
            assert any("Six jobs are enqueued" in line for line in demo.stdout)
            assert data_elsewhere() > before
            demo.send_signal(signal.SIGTERM)
            demo.stdout.read()
            assert demo.wait(OVER_S) == 128 + signal.SIGTERM
    assert data_elsewhere() == before
