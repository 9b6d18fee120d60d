"""What the papers print is run: the README's program and commands, the guide's; and the plan of the house is the house.

A page's `python` block is its `app.py`; the `$` lines of its `console` blocks are run in order, in one folder. A
worker, which does not end by itself, goes on to the end of the page; what comes after it waits until the jobs have
ended.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from leasehold import embedded
from leasehold.core.settings import Settings
from leasehold.embedded.place import base_of
from tests.house.tree import PACKAGE, ROOT

README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "guide.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
SETTINGS = tuple(told.name for told in Settings().told())
PROGRAMS = {
    "leasehold": [sys.executable, "-c", "from leasehold.cli.main import main; main()"],
    "python": [sys.executable],
}
OVER_S = 60.0


def blocks(page: Path, kind: str) -> list[str]:
    """The fenced blocks of a page."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Everything that the page asks its reader to type."""
    return re.findall(r"^\$ (.+)$", "\n".join(blocks(page, "console")), re.MULTILINE)


@dataclass
class Reader:
    """Somebody who does what a page says, in an empty folder."""

    folder: Path
    environment: dict[str, str]
    workers: list[subprocess.Popen[str]] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.terminate()
        assert [worker.wait(OVER_S) for worker in self.workers] == [0] * len(self.workers) or kind is not None

    def save(self, program: str) -> None:
        (self.folder / "app.py").write_text(program, encoding="utf-8")

    def type(self, command: str) -> str:
        """Do what the line says: what is seen."""
        program, *words = command.split()
        typed = [*PROGRAMS[program], *words]
        if words[0] == "worker":
            log = (self.folder / "worker.log").open("a", encoding="utf-8")
            with log:
                self.workers.append(
                    subprocess.Popen(typed, cwd=self.folder, env=self.environment, stdout=log, stderr=log, text=True)
                )
            return ""
        if self.workers:
            self.until_all_ended()
        return self.run(typed)

    def until_all_ended(self) -> None:
        deadline = time.monotonic() + OVER_S
        while re.search(r" (queued|processing) ", seen := self.run([*PROGRAMS["leasehold"], "jobs", "ls"])):
            assert time.monotonic() < deadline, f"{seen}\n{(self.folder / 'worker.log').read_text(encoding='utf-8')}"
            time.sleep(0.1)

    def run(self, typed: list[str]) -> str:
        done = subprocess.run(
            typed, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=OVER_S, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), typed
        return done.stdout


@pytest.fixture
def reader() -> Iterator[Reader]:
    folder = Path(tempfile.mkdtemp(prefix="lh-"))
    folder.chmod(0o755)  # as root, the private server runs as somebody else, who must come through here
    bare = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    with Reader(folder, {**bare, "COLUMNS": "160"}) as reader:
        yield reader
    home = folder / ".leasehold"
    embedded.stop(home)
    assert base_of(home) == home
    shutil.rmtree(folder)


# --- the README -------------------------------------------------------------------------------------------------------


def test_the_readmes_program_runs_exactly_as_printed(reader: Reader) -> None:
    (program,) = blocks(README, "python")
    reader.save(program)
    enqueued, worker, listed, shown = (reader.type(command) for command in commands(README))
    assert enqueued == "<job 1: greet>\n"
    assert worker == ""
    assert re.search(r"^ *1 +greet +default +done +1/3 ", listed, re.MULTILINE)
    assert re.search(r"^result +Hello, Ada! *$", shown, re.MULTILINE)
    assert re.findall(r"^ *[\d.]+\w*s +([a-z:]+)", shown, re.MULTILINE) == ["created", "processing", "progress", "done"]


def test_the_readmes_program_is_about_twelve_lines() -> None:
    (program,) = blocks(README, "python")
    assert len([line for line in program.splitlines() if line]) <= 12


def test_the_first_screen_has_promise_boundary_program_and_the_two_commands() -> None:
    first_screen = README.read_text(encoding="utf-8").splitlines()[:40]
    asked = ["survive their worker", "no message broker", "@app.task", "make demo", "make test"]
    assert [words for words in asked if not any(words in line for line in first_screen)] == []


# --- the guide --------------------------------------------------------------------------------------------------------


def test_the_guides_program_and_commands_run_exactly_as_printed(reader: Reader, empty_dsn: str) -> None:
    (program,) = blocks(GUIDE, "python")
    reader.save(program)
    typed = commands(GUIDE)
    own = typed.index(next(command for command in typed if command.startswith("export LEASEHOLD_DSN=")))

    seen = [reader.type(command) for command in typed[:own]]
    assert re.search(r"^ *1 +count_words +reports +done +2/3 ", seen[2], re.MULTILINE)
    assert re.search(r"^ *2 +count_words +reports +failed +1/3 .*NO_SUCH_FILE", seen[2], re.MULTILINE)
    assert story(seen[3]) == ["created", "processing", "retry", "processing", "done"]
    assert story(seen[4]) == ["created", "processing", "failed"]

    reader.environment["LEASEHOLD_DSN"] = empty_dsn  # in the place of the one that is printed
    seen = [reader.run([*PROGRAMS[line.split()[0]], *line.split()[1:]]) for line in typed[own + 1 :]]
    assert seen[0] == "applied 0001 first_light\n"
    assert seen[1] == "[<job 1: count_words>]\n"
    assert re.search(r"^ *1 +count_words +reports +queued +0/3 ", seen[2], re.MULTILINE)
    assert "HEARTBEAT_INTERVAL_SEC" in seen[3]


def story(shown: str) -> list[str]:
    """The kinds of a timeline, without progress."""
    kinds = re.findall(r"^ *[\d.]+\w*s +([a-z:]+)", shown, re.MULTILINE)
    return [kind for kind in kinds if kind != "progress"]


def test_what_is_installed_is_what_the_package_offers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for page in (README, GUIDE):
        wanted = re.findall(r"pip install '(\w+)\[(\w+)\]'", page.read_text(encoding="utf-8"))
        assert wanted == [(project["name"], extra) for extra in project["optional-dependencies"]]


# --- the plan of the house --------------------------------------------------------------------------------------------


def test_the_architecture_page_names_every_room() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    described = set(re.findall(r"^\| `(\w+)` \|", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE))
    assert rooms - described == set()


def test_the_architecture_pages_layers_are_those_that_lint_checks() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (checked,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    (drawn,) = blocks(ARCHITECTURE, "layers")
    assert drawn.splitlines() == [layer.replace("leasehold.", "") for layer in checked]


def test_every_file_that_a_paper_names_is_there() -> None:
    pages = [README, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        for name in re.findall(
            r"`([\w/]+\.(?:py|sql)|tests/[\w/.]+|[a-z]+(?:/[a-z]+)*/)`", page.read_text(encoding="utf-8")
        )
        if name != "app.py" and not named(name)
    ]
    assert missing == []


def named(name: str) -> bool:
    """A name is a path from the root or from the package, or the end of one in the package."""
    return (ROOT / name).exists() or (PACKAGE / name).exists() or any(PACKAGE.rglob(name))


def test_every_table_of_the_schema_is_on_the_architecture_page() -> None:
    schema = "".join(path.read_text(encoding="utf-8") for path in (PACKAGE / "store/postgres/migrations").glob("*.sql"))
    tables = set(re.findall(r"create table leasehold\.(\w+) \(", schema))
    described = set(re.findall(r"^\| `(\w+)` \|", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE))
    assert tables - described == set()
