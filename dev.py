#!/usr/bin/env python3
"""What a contributor does with this repository, one verb each: `python3 dev.py help`, or `make help`.

Needs nothing but Python >= 3.11: each verb makes `.venv` and installs the hash-checked requirements into it when they
changed, then runs. What the tools check is said in pyproject.toml; system programs are scripts/install-system's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - whoever comes with an older one gets a sentence, not a traceback
    sys.exit("Leasehold needs Python 3.11 or newer; this is " + sys.version.split()[0])

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if sys.platform == "win32" else "bin")
PYTHON = BIN / ("python.exe" if sys.platform == "win32" else "python")
REQUIREMENTS = ROOT / "requirements"

# A private PostgreSQL of the version we promise as the oldest; Debian's place, or the one that the environment names.
OLDEST_POSTGRES = Path(os.environ.get("LEASEHOLD_OLDEST_PG_BIN", "/usr/lib/postgresql/15/bin"))
TEST_PG_BIN = "LEASEHOLD_TEST_PG_BIN"

QUICK_TESTS = ["tests/core", "tests/house", "tests/runtime", "tests/store"]

# What `clean` has the package do; as root the data may lie outside of their home.
STOP_AND_REMOVE = """
import pathlib, shutil, sys
from leasehold.embedded import place, stop
home = pathlib.Path(sys.argv[1])
stop(home)
for folder in {place.base_of(home), home}:
    shutil.rmtree(folder)
"""


def main(words: list[str]) -> int:
    """Run one verb; a failed tool has said why, its status is ours."""
    verb, *args = words or ["help"]
    if verb not in VERBS:
        print(f"No verb {verb!r}.\n", file=sys.stderr)
        show_help([])
        return 2
    try:
        return VERBS[verb](args)
    except KeyboardInterrupt:
        return 130


# ---- the verbs; their first line is their help ---------------------------------------------------------------------


def demo(args: list[str]) -> int:
    """Watch jobs survive a killed worker, on a private PostgreSQL; --stay keeps it up."""
    install("run")
    return run(BIN / "leasehold", "demo", *args)


def test(args: list[str]) -> int:
    """Run the tests that are not marked long; ARGS="-k lease" and paths are pytest's."""
    install("dev")
    return pytest("-m", "not long", *args)


def test_all(args: list[str]) -> int:
    """Run every test, then the store's once more on the oldest PostgreSQL we support."""
    install("dev")
    status = pytest(*args)
    if not OLDEST_POSTGRES.is_dir():
        print(f"No PostgreSQL 15 in {OLDEST_POSTGRES}: scripts/install-system, or name it in LEASEHOLD_OLDEST_PG_BIN.")
        return status or int(in_ci())
    print(f"\nThe store's tests on {OLDEST_POSTGRES}", flush=True)
    return pytest("tests/store", *args, **{TEST_PG_BIN: str(OLDEST_POSTGRES)}) or status


def quick(args: list[str]) -> int:
    """Run in under a minute what goes wrong most often: ruff, and the tests of core, house, runtime, store."""
    install("dev")
    return run(BIN / "ruff", "check", "--quiet") or pytest("-m", "not long", *(args or QUICK_TESTS))


def lint(args: list[str]) -> int:
    """Check rules, format, types (twice) and the arrows between the rooms; all of them, even after a failure."""
    if args:
        sys.exit("lint takes no further words")
    install("dev")
    checks: list[list[str | Path]] = [
        [BIN / "ruff", "check"],
        [BIN / "ruff", "format", "--check"],
        [BIN / "mypy"],
        [BIN / "pyright"],
        [BIN / "lint-imports", "--no-logo"],
    ]
    failed = [said(check) for check in checks if announced(check)]
    print(f"lint: failed: {', '.join(failed)}" if failed else "lint: clean")
    return int(bool(failed))


def fmt(args: list[str]) -> int:
    """Mend what ruff can mend, and format."""
    install("dev")
    return run(BIN / "ruff", "check", "--fix", *args) or run(BIN / "ruff", "format", *args)


def bench(args: list[str]) -> int:
    """Drain a queue of no-op jobs and compare it with the same statements sent bare."""
    install("run")
    return run(PYTHON, ROOT / "benchmarks" / "drain.py", *args)


def requirements(args: list[str]) -> int:
    """Print what is proven of every demand, write docs/requirements/status.md; --accept makes it binding."""
    install("dev")
    options = ["--requirements-accept" if word == "--accept" else word for word in args]
    return pytest("-m", "requirement", "--requirements", "-q", "--no-header", *options)


def lock(args: list[str]) -> int:
    """Compile the requirements anew, with hashes and without addresses; --upgrade takes newer versions."""
    install("dev")
    options = "--quiet --universal --python-version 3.11 --all-extras --generate-hashes --no-header --no-emit-index-url"
    command = [str(BIN / "uv"), "pip", "compile", *options.split(), *args, "pyproject.toml", "requirements/run.in"]
    return run(*command, "-o", "requirements/run.txt") or run(
        *command, "requirements/dev.in", "-c", "requirements/run.txt", "-o", "requirements/dev.txt"
    )


def clean(args: list[str]) -> int:
    """Stop the private PostgreSQL and remove what the tools made: .venv, .leasehold, caches, builds."""
    if args:
        sys.exit("clean takes no further words")
    home = ROOT / ".leasehold"
    if home.exists() and not (PYTHON.exists() and run(PYTHON, "-c", STOP_AND_REMOVE, home) == 0):
        sys.exit(f"{home} stays: nobody here can stop its server. Remove the folder when no PostgreSQL runs in it.")
    made = [VENV, ROOT / "build", ROOT / "dist", ROOT / ".hypothesis", ROOT / "__pycache__"]
    made += ROOT.glob(".*_cache")
    for room in ("src", "tests", "benchmarks", "examples"):
        made += ROOT.glob(f"{room}/**/__pycache__")
    for path in made:
        shutil.rmtree(path, ignore_errors=True)
    (ROOT / ".dev.lock").unlink(missing_ok=True)
    return 0


def show_help(args: list[str]) -> int:
    """Show this."""
    del args
    print("make <verb> [ARGS=...]  or  python3 dev.py <verb> [...]\n")
    for verb, act in VERBS.items():
        print(f"  {verb:13} {(act.__doc__ or '').splitlines()[0]}")
    return 0


VERBS: dict[str, Callable[[list[str]], int]] = {
    "demo": demo,
    "test": test,
    "test-all": test_all,
    "quick": quick,
    "lint": lint,
    "fmt": fmt,
    "bench": bench,
    "requirements": requirements,
    "lock": lock,
    "clean": clean,
    "help": show_help,
}


# ---- running -------------------------------------------------------------------------------------------------------


def run(*command: str | Path, **extra: str) -> int:
    """Run one of the project's programs from the root, never on a database of the user's."""
    environment = {name: value for name, value in os.environ.items() if name not in {"LEASEHOLD_DSN", "DATABASE_URL"}}
    environment["PATH"] = os.pathsep.join([str(BIN), environment.get("PATH", os.defpath)])
    environment["PYRIGHT_PYTHON_IGNORE_WARNINGS"] = "1"  # it would ask the network for its newest version
    return subprocess.run([str(word) for word in command], cwd=ROOT, env=environment | extra, check=False).returncode


def announced(command: list[str | Path]) -> int:
    """Run a check after saying which."""
    print(f"$ {said(command)}", flush=True)
    return run(*command)


def said(command: list[str | Path]) -> str:
    """A command as one would type it."""
    return " ".join([Path(command[0]).name, *map(str, command[1:])])


def pytest(*args: str, **extra: str) -> int:
    """Run pytest, and leave none of its folders behind; its settings are in pyproject.toml."""
    with tempfile.TemporaryDirectory(prefix="leasehold-pytest-", ignore_cleanup_errors=True) as folder:
        return run(PYTHON, "-m", "pytest", f"--basetemp={folder}/runs", *args, **extra)


def in_ci() -> bool:
    """Tell whether nobody watches: what is missing then must not pass."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


# ---- the environment -----------------------------------------------------------------------------------------------


def install(what: str) -> None:
    """Make .venv hold requirements/<what>.txt and the package itself; does nothing when it already does.

    `dev` contains `run`, so that whoever has the tools needs no second installation for the demo.
    """
    with only_one():
        if any(stamp(name).is_file() and stamp(name).read_text() == wanted(name) for name in {what, "dev"}):
            return
        if not usable():
            make_venv()
        print(f"Installing requirements/{what}.txt into .venv (once) ...", flush=True)
        pip: list[str | Path] = [PYTHON, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        if run(*pip, "--require-hashes", "-r", REQUIREMENTS / f"{what}.txt") or run(
            *pip, "--no-deps", "--no-build-isolation", "-e", ROOT
        ):
            sys.exit(f"Installing requirements/{what}.txt failed: pip says why above.")
        stamp(what).write_text(wanted(what))


def stamp(what: str) -> Path:
    """Where it stands what .venv holds."""
    return VENV / f"installed-{what}"


def wanted(what: str) -> str:
    """What was installed, and where: a moved or copied .venv is not the one we made."""
    content = (REQUIREMENTS / f"{what}.txt").read_bytes() + (ROOT / "pyproject.toml").read_bytes()
    return f"{hashlib.sha256(content).hexdigest()} {VENV}\n"


def usable() -> bool:
    """Tell whether .venv is whole: an interrupted creation has a python, but no pip."""
    probe = "import pip, sys; sys.exit(sys.version_info < (3, 11))"
    with contextlib.suppress(OSError):
        return subprocess.run([PYTHON, "-c", probe], capture_output=True, check=False).returncode == 0
    return False


def make_venv() -> None:
    """Make .venv with what this machine has: venv, else virtualenv, else say what to install."""
    print(f"Making .venv with Python {sys.version.split()[0]} ...", flush=True)
    ways = [[sys.executable, "-m", "venv", "--clear"], [sys.executable, "-m", "virtualenv", "--clear", "--quiet"]]
    if program := shutil.which("virtualenv"):
        ways.append([program, "--clear", "--quiet", "--python", sys.executable])
    for way in ways:
        if subprocess.run([*way, str(VENV)], cwd=ROOT, capture_output=True, check=False).returncode == 0 and usable():
            return
    shutil.rmtree(VENV, ignore_errors=True)
    sys.exit(
        "This Python can make no virtual environment: install python3-venv (Debian: apt-get install python3-venv) "
        "or virtualenv (python3 -m pip install virtualenv)."
    )


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Let one process at a time look at .venv: two that start together must not install into each other."""
    with (ROOT / ".dev.lock").open("w") as held:
        if sys.platform == "win32":
            import msvcrt  # noqa: PLC0415 - only there

            msvcrt.locking(held.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl  # noqa: PLC0415 - not on Windows

            fcntl.flock(held, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
