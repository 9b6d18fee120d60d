"""`make <verb>` is `python3 dev.py <verb>`, needs nothing prepared, and never touches a database of the user's."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.house.tree import ROOT

DEMANDED = {"demo", "test", "test-all", "quick", "lint", "bench", "requirements", "clean", "help"}


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program as a module, at home in an empty folder with requirements of its own."""
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    dev = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    for name in ("run.txt", "dev.txt"):
        (tmp_path / name).touch()
    (tmp_path / "pyproject.toml").touch()
    for name, place in {"ROOT": "", "REQUIREMENTS": "", "VENV": ".venv", "BIN": ".venv/bin"}.items():
        monkeypatch.setattr(dev, name, tmp_path / place)
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    return dev


def test_make_knows_every_verb_and_help_tells_each() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    told = subprocess.run([sys.executable, ROOT / "dev.py", "help"], capture_output=True, text=True, check=True).stdout
    verbs = set(re.findall(r"^  ([\w-]+)  +[A-Z]", told, re.MULTILINE))
    assert phony is not None
    assert verbs == set(phony[1].split()) >= DEMANDED


def test_an_unknown_verb_shows_the_known_ones(dev: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main(["tset"]) == 2
    assert "  test " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["LEASEHOLD_DSN", "DATABASE_URL"])
def test_demo_and_tests_never_see_a_database_of_the_users(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "postgresql://production")
    assert dev.run(sys.executable, "-c", f"import os, sys; sys.exit({name!r} in os.environ)") == 0


def test_what_is_installed_is_not_installed_again(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = installed_by(dev, monkeypatch)
    dev.install("dev")
    dev.install("dev")
    dev.install("run")  # the tools contain it
    assert len(ran) == 2, "the requirements, then the package itself"


@pytest.mark.parametrize("changed", ["dev.txt", "pyproject.toml"])
def test_changed_requirements_are_installed(dev: ModuleType, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    ran = installed_by(dev, monkeypatch)
    dev.install("dev")
    (dev.ROOT / changed).write_text("# another", encoding="utf-8")
    dev.install("dev")
    assert len(ran) == 4


def test_a_failed_installation_is_tried_again(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = installed_by(dev, monkeypatch, status=1)
    for _ in range(2):
        with pytest.raises(SystemExit, match="failed"):
            dev.install("dev")
    assert len(ran) == 2


def test_two_that_start_together_install_one_after_the_other(dev: ModuleType) -> None:
    held = (
        "import fcntl, sys; f = open(sys.argv[1], 'w')\n"
        "try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError: sys.exit(0)\n"
        "sys.exit(1)"
    )
    with dev.only_one():
        assert subprocess.run([sys.executable, "-c", held, dev.ROOT / ".dev.lock"], check=False).returncode == 0
    assert subprocess.run([sys.executable, "-c", held, dev.ROOT / ".dev.lock"], check=False).returncode == 1


def test_a_python_that_makes_no_environment_is_told_what_to_install(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit, match="install python3-venv"):
        dev.make_venv()


def test_a_whole_environment_is_told_from_an_interrupted_one(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dev.usable()
    monkeypatch.setattr(dev, "PYTHON", dev.ROOT / "python")
    assert not dev.usable()
    (dev.ROOT / "python").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (dev.ROOT / "python").chmod(0o755)
    assert not dev.usable()


def installed_by(dev: ModuleType, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> list[tuple[object, ...]]:
    """Install without a network: note what would have been run."""
    ran: list[tuple[object, ...]] = []
    dev.VENV.mkdir()

    def noted(*command: object) -> int:
        ran.append(command)
        return status

    monkeypatch.setattr(dev, "run", noted)
    return ran
