"""The commands as a user meets them: as processes, by their exit codes and their lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import leasehold
from leasehold import App
from leasehold.core.settings import Settings
from leasehold.store.postgres.migrate import newest
from tests.databases import Sql

PROGRAM = [sys.executable, "-c", "from leasehold.cli.main import main; main()"]
ANSWER_S = 60.0
SETTINGS = tuple(told.name for told in Settings().told())
NOWHERE = "postgresql://somebody:secret@127.0.0.1:1/nothing"

Said = subprocess.CompletedProcess[str]
Run = Callable[..., Said]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `leasehold ...` in an empty folder, with no settings but those given."""

    def run(*words: str, **settings: str) -> Said:
        bare = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
        return subprocess.run(
            [*PROGRAM, *words],
            cwd=tmp_path,
            env={**bare, "COLUMNS": "200", **settings},
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )

    return run


@pytest.fixture
def shop(dsn: str) -> str:
    """A database in which jobs wait."""
    app = App(dsn, settings=Settings())

    @app.task(queue="media")
    def clip(source: str, start: int) -> None: ...

    clip.enqueue("talk.mp4", 10)
    clip.enqueue("concert.mp4", 20)
    app.close()
    return dsn


def one_line(said: Said) -> str:
    """What a command complains of: a single line, and no trace."""
    (line,) = said.stderr.splitlines()
    assert line.startswith("leasehold: ")
    return line


# --- help and versions ------------------------------------------------------------------------------------------------


def test_help_names_every_command(run: Run) -> None:
    said = run("--help")
    assert said.returncode == 0
    assert set(re.findall(r"^│ ([a-z]+) ", said.stdout, re.MULTILINE)) == {
        "worker",
        "migrate",
        "jobs",
        "config",
        "demo",
    }


@pytest.mark.parametrize(
    "words, told",
    [
        ("worker", ["APP", "--processes", "--concurrency", "--queues"]),
        ("migrate", ["--check", "--sql"]),
        ("jobs", ["ls", "show"]),
        ("jobs ls", ["--status", "--queue", "--limit", "-n"]),
        ("jobs show", ["JOB-ID"]),
        ("config", ["--changed"]),
        ("demo", ["--stay"]),
    ],
)
def test_help_of_a_command_tells_its_words(run: Run, words: str, told: list[str]) -> None:
    said = run(*words.split(), "--help")
    assert said.returncode == 0
    assert [word for word in told if word not in said.stdout] == []


def test_an_unknown_command_is_refused_with_the_known_ones(run: Run) -> None:
    said = run("wroker")
    assert said.returncode == 2
    assert "worker" in said.stderr + said.stdout


def test_version_tells_package_schema_and_server_on_three_lines(run: Run, dsn: str) -> None:
    package, schema, server = run("--version", LEASEHOLD_DSN=dsn).stdout.splitlines()
    assert package.split() == ["leasehold", leasehold.__version__]
    assert schema.split() == ["schema", str(newest())]
    assert re.fullmatch(r"server +PostgreSQL \d+\S*( .*)?", server)


def test_version_starts_no_server_and_says_that_none_runs(run: Run, tmp_path: Path) -> None:
    assert run("--version").stdout.splitlines()[2].split(maxsplit=1) == ["server", "none running here"]
    assert list(tmp_path.iterdir()) == []


def test_version_of_an_unreachable_server_says_so_and_keeps_its_secret(run: Run) -> None:
    said = run("--version", LEASEHOLD_DSN=NOWHERE)
    assert said.returncode == 0
    assert "not reachable" in said.stdout
    assert "secret" not in said.stdout


# --- config -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R9.3")
def test_config_shows_every_setting_with_value_default_and_source(run: Run) -> None:
    said = run("config", MAX_CONCURRENCY="7")
    assert said.returncode == 0
    assert [name for name in SETTINGS if name not in said.stdout] == []
    assert re.search(r"^MAX_CONCURRENCY +7 +10 +environment ", said.stdout, re.MULTILINE)
    assert re.search(r"^HEARTBEAT_INTERVAL_SEC +10 +10 +default ", said.stdout, re.MULTILINE)


def test_config_can_show_only_what_was_changed(run: Run) -> None:
    shown = run("config", "--changed", MAX_CONCURRENCY="7").stdout.splitlines()[1:]
    assert [line.split()[0] for line in shown] == ["MAX_CONCURRENCY"]


def test_config_masks_secrets(run: Run) -> None:
    said = run("config", LEASEHOLD_DSN=NOWHERE)
    assert "secret" not in said.stdout
    assert re.search(r"^LEASEHOLD_DSN +\*+ ", said.stdout, re.MULTILINE)


@pytest.mark.parametrize("words", ["config", "jobs ls", "migrate --check", "worker app.py", "--version"])
def test_a_wrong_setting_is_refused_in_one_line_with_its_name(run: Run, words: str) -> None:
    said = run(*words.split(), MAX_ATTEMPTS="many")
    assert said.returncode == 2
    assert "MAX_ATTEMPTS='many'" in one_line(said)


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_jobs_are_listed_newest_first_with_what_waits(run: Run, shop: str) -> None:
    said = run("jobs", "ls", LEASEHOLD_DSN=shop)
    assert said.returncode == 0
    rows = [line.split() for line in said.stdout.splitlines()]
    assert [row[:5] for row in rows[1:3]] == [
        ["2", "clip", "media", "queued", "0/3"],
        ["1", "clip", "media", "queued", "0/3"],
    ]
    assert "media: 2 ready, 0 later, 0 processing, 0 dead" in said.stdout


@pytest.mark.parametrize("choice, count", [("-n 1", 1), ("--status queued", 2), ("--status done", 0), ("--queue x", 0)])
def test_the_list_can_be_narrowed(run: Run, shop: str, choice: str, count: int) -> None:
    said = run("jobs", "ls", *choice.split(), DATABASE_URL=shop)
    assert len(re.findall(r"^ *\d+ +clip ", said.stdout, re.MULTILINE)) == count
    assert ("No jobs." in said.stdout) == (count == 0)


def test_a_job_is_shown_with_its_arguments_and_its_timeline(run: Run, shop: str) -> None:
    said = run("jobs", "show", "1", LEASEHOLD_DSN=shop)
    assert said.returncode == 0
    assert re.search(r"^status +queued *$", said.stdout, re.MULTILINE)
    assert '"source": "talk.mp4"' in said.stdout
    assert re.search(r"^ *0ms +created", said.stdout, re.MULTILINE)


def test_an_unknown_job_is_one_line(run: Run, dsn: str) -> None:
    said = run("jobs", "show", "12345", LEASEHOLD_DSN=dsn)
    assert said.returncode == 1
    assert "no such job" in one_line(said)
    assert "12345" in one_line(said)


# --- migrate ----------------------------------------------------------------------------------------------------------


def test_check_says_what_an_empty_database_lacks_and_changes_nothing(run: Run, empty_dsn: str) -> None:
    for _ in range(2):
        said = run("migrate", "--check", LEASEHOLD_DSN=empty_dsn)
        assert said.returncode == 1
        assert "0001 first_light" in said.stdout
        assert "`leasehold migrate`" in said.stdout


def test_migrate_twice_changes_a_database_once(run: Run, empty_dsn: str) -> None:
    first, second, check = (run("migrate", *words, LEASEHOLD_DSN=empty_dsn) for words in ([], [], ["--check"]))
    assert [said.returncode for said in (first, second, check)] == [0, 0, 0]
    assert "applied 0001 first_light" in first.stdout
    assert "nothing was changed" in second.stdout
    assert "nothing to do" in check.stdout


def test_the_sql_of_what_is_missing_can_be_applied_by_hand(run: Run, empty_dsn: str) -> None:
    said = run("migrate", "--sql", LEASEHOLD_DSN=empty_dsn)
    assert said.returncode == 0
    by_hand = Sql(empty_dsn)
    try:
        by_hand.run(said.stdout)
        assert by_hand.value("select count(*) from leasehold.jobs") == 0
    finally:
        by_hand.close()


def test_a_database_migrated_by_hand_is_known_as_migrated(run: Run, empty_dsn: str) -> None:
    by_hand = Sql(empty_dsn)
    try:
        by_hand.run(run("migrate", "--sql", LEASEHOLD_DSN=empty_dsn).stdout)
    finally:
        by_hand.close()
    assert run("migrate", "--check", LEASEHOLD_DSN=empty_dsn).returncode == 0


def test_an_up_to_date_database_has_no_sql_to_apply(run: Run, dsn: str) -> None:
    assert run("migrate", "--sql", LEASEHOLD_DSN=dsn).stdout == ""


@pytest.mark.parametrize("words", ["jobs ls", "jobs show 1", "worker app.py"])
def test_a_database_without_our_schema_is_left_alone_and_the_remedy_named(
    run: Run, empty_dsn: str, tmp_path: Path, words: str
) -> None:
    (tmp_path / "app.py").write_text("from leasehold import App\napp = App()\n", encoding="utf-8")
    # It does not wait for the time that running jobs would be given: nothing runs.
    said = run(*words.split(), LEASEHOLD_DSN=empty_dsn, WORKER_SHUTDOWN_TIMEOUT_MS="600000")
    assert said.returncode == 1
    (line,) = complaints(said)
    assert "`leasehold migrate`" in line
    assert run("migrate", "--check", LEASEHOLD_DSN=empty_dsn).returncode == 1


def complaints(said: Said) -> list[str]:
    """What is said to a person, among the log of a worker."""
    return [line for line in said.stderr.splitlines() if not line.startswith("{")]


# --- worker -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target, why",
    [
        ("nowhere.py", "no such file"),
        ("no_such_module", "no module 'no_such_module'"),
        ("package.no_such_module", "no module 'package"),
        ("none.py", "no App"),
        ("two.py", "2 Apps"),
        ("two.py:nobody", "no App called 'nobody'"),
        ("two.py:", "no App called ''"),
        ("two.py:number", "no App called 'number'"),
        (".relative", "no name of a module"),
        ("", "no name of a module"),
    ],
)
def test_a_wrong_target_ends_the_worker_at_once_in_one_line(run: Run, tmp_path: Path, target: str, why: str) -> None:
    (tmp_path / "none.py").write_text("number = 1\n", encoding="utf-8")
    (tmp_path / "two.py").write_text("from leasehold import App\na, b, number = App(), App(), 1\n", encoding="utf-8")
    said = run("worker", target)
    assert said.returncode in (2, 78)
    (line,) = complaints(said)
    assert why in line
    assert "Name a module" in line
    assert len(re.findall("WORKER_PROCESS_START", said.stderr)) == 1


@pytest.mark.parametrize("words", ["--processes 0", "--concurrency 0", "--processes 3 --concurrency 2"])
def test_a_worker_without_room_for_a_job_is_refused(run: Run, words: str) -> None:
    said = run("worker", "app.py", *words.split())
    assert said.returncode == 2
    assert "at least one" in one_line(said)


def test_an_unreachable_database_is_one_line_without_its_password(run: Run) -> None:
    said = run("jobs", "ls", LEASEHOLD_DSN=NOWHERE)
    assert said.returncode == 1
    assert "cannot be reached" in one_line(said)
    assert "secret" not in said.stderr


def test_a_program_that_cannot_be_loaded_is_tried_once(run: Run, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from leasehold import App\napp = App(\n", encoding="utf-8")
    said = run("worker", "app.py")
    assert said.returncode == 1
    assert said.stderr.count("SyntaxError") == 1


def test_a_program_that_is_called_like_a_library_is_the_program(run: Run, empty_dsn: str, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "json.py").write_text("from leasehold import App\napp = App()\n", encoding="utf-8")
    said = run("worker", "shop/json.py", LEASEHOLD_DSN=empty_dsn)
    assert "`leasehold migrate`" in said.stderr  # it got as far as the database, which is empty


def test_an_address_that_is_none_is_refused_in_one_line(run: Run) -> None:
    said = run("jobs", "ls", LEASEHOLD_DSN="localhost/shop")
    assert said.returncode == 2
    (line,) = complaints(said)
    assert "postgresql://" in line
