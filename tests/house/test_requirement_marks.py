"""The ties between tests and demands hold: wrong marks are refused, proven demands cannot lose their tests."""

from __future__ import annotations

from pathlib import Path

import pytest

LIST = "# Requirements\n- R1.1 Jobs are kept. *Parts: cli · api.*\n- R1.2 Leases end.\n- R1.3 Nothing else.\n"
MARKED = """
import pytest

@pytest.mark.requirement("R1.1", part="cli")
def test_kept(): pass

@pytest.mark.requirement("R1.2")
@pytest.mark.parametrize("n", [1, 2])
def test_ended(n): assert n < {bound}
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A little project with a list of three demands; what it says does not depend on where this test runs."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    home = pytester.mkdir("docs") / "requirements"
    home.mkdir()
    (home / "REQUIREMENTS.md").write_text(LIST, encoding="utf-8")
    (home / "proven.txt").write_text("R1.1/cli\nR1.2\n", encoding="utf-8")
    pytester.makefile(".ini", pytest="[pytest]\ntestpaths = tests\nmarkers = requirement: see the plugin\n")
    # A conftest beside the tests makes pytest choose between plugins, which must bear that.
    other = pytester.mkdir("tests") / "other"
    other.mkdir()
    (other / "conftest.py").touch()
    return pytester


def run(project: pytest.Pytester, tests: str, *args: str) -> pytest.RunResult:
    (project.path / "tests" / "test_it.py").write_text(tests, encoding="utf-8")
    return project.runpytest("-p", "tests.plugins.requirements", "-p", "no:cacheprovider", *args)


def written(project: pytest.Pytester, name: str) -> str:
    return Path(project.path / "docs" / "requirements" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "mark", ['"R7.7"', '"R1.1"', '"R1.1", part="web"', '"R1.2", part="cli"', '"R1.2", face="cli"', ""]
)
def test_a_mark_that_names_no_demand_stops_the_run(project: pytest.Pytester, mark: str) -> None:
    result = run(project, f"import pytest\n\n@pytest.mark.requirement({mark})\ndef test_it(): pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it.py::test_it: a requirement mark is wrong:*"])


def test_a_proven_demand_that_lost_its_test_turns_the_run_red(project: pytest.Pytester) -> None:
    result = run(project, 'import pytest\n\n@pytest.mark.requirement("R1.2")\ndef test_it(): pass\n')
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*R1.1/cli is proven, but no test carries that mark*"])


@pytest.mark.parametrize(
    "mark,why", [("R1.2", "R1.1/cli*no test carries that mark"), ("R7.7", "test_it: a requirement mark is wrong")]
)
def test_a_distributed_run_says_why_it_is_refused(project: pytest.Pytester, mark: str, why: str) -> None:
    marked = f'import pytest\n\n@pytest.mark.requirement("{mark}")\ndef test_it(): pass\n'
    result = run(project, marked, "-p", "xdist.plugin", "-n", "1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"*{why}*"])


@pytest.mark.parametrize("args", [("-k", "ended"), ("-m", "not requirement or requirement"), ("tests/test_it.py",)])
def test_a_part_of_the_suite_may_lack_the_tests_of_other_parts(project: pytest.Pytester, args: tuple[str, ...]) -> None:
    assert run(project, MARKED.format(bound=3), *args).ret == pytest.ExitCode.OK
    only_one = 'import pytest\n\n@pytest.mark.requirement("R1.2")\ndef test_it(): pass\n'
    assert (run(project, only_one, *args).ret == pytest.ExitCode.OK) == (args == ("tests/test_it.py",))


def test_a_deselected_test_is_not_a_lost_one(project: pytest.Pytester) -> None:
    run(project, MARKED.format(bound=3), "-k", "ended").assert_outcomes(passed=2, deselected=1)


def test_a_wrong_line_in_the_proven_list_stops_the_run(project: pytest.Pytester) -> None:
    (project.path / "docs" / "requirements" / "proven.txt").write_text("R8.8\n", encoding="utf-8")
    result = run(project, MARKED.format(bound=3))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*R8.8*"])


@pytest.mark.parametrize("workers", [(), ("-p", "xdist.plugin", "-n", "1")], ids=["alone", "distributed"])
def test_every_demand_is_told_with_its_tests(project: pytest.Pytester, workers: tuple[str, ...]) -> None:
    result = run(project, MARKED.format(bound=3), "--requirements", *workers)
    result.stdout.fnmatch_lines(
        ["R1.1  partly   cli: test_kept; api: open", "R1.2  proven   test_ended", "R1.3  open     Nothing else"]
    )
    assert "1 proven, 1 partly, 0 failing, 1 open, of 3." in written(project, "status.md")


def test_one_failing_example_makes_the_demand_fail(project: pytest.Pytester) -> None:
    result = run(project, MARKED.format(bound=2), "--requirements")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["R1.2  failing  test_ended (failed)", "*this run does not: R1.2"])


def test_what_is_newly_proven_binds_only_when_accepted(project: pytest.Pytester) -> None:
    (project.path / "docs" / "requirements" / "proven.txt").write_text("R1.2\n", encoding="utf-8")
    run(project, MARKED.format(bound=3), "--requirements").stdout.fnmatch_lines(["Newly proven; *: R1.1/cli"])
    assert written(project, "proven.txt") == "R1.2\n"
    run(project, MARKED.format(bound=3), "--requirements", "--requirements-accept")
    assert written(project, "proven.txt") == "R1.1/cli\nR1.2\n"


def test_a_proven_demand_that_was_skipped_fails_the_telling(project: pytest.Pytester) -> None:
    skipped = MARKED.format(bound=3).replace("def test_kept(): pass", "def test_kept(): pytest.skip('not here')")
    result = run(project, skipped, "--requirements")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["R1.1  open     cli: test_kept (skipped); api: open"])
