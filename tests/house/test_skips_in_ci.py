"""In CI a skip is a failure; elsewhere, and for what only root can show, it is not."""

from __future__ import annotations

import os

import pytest

TESTS = """
import pytest

def test_runs(): pass

@pytest.mark.skip(reason="no browser here")
def test_skipped(): pass

@pytest.mark.xfail(reason="known")
def test_expected(): assert False

@pytest.fixture
def server(): pytest.skip("no server here")

def test_without_its_server(server): pass
"""


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.mark.parametrize("workers", [(), ("-p", "xdist.plugin", "-n", "1")], ids=["alone", "distributed"])
def test_in_ci_a_skipped_test_fails_and_says_why(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile(TESTS)
    result = pytester.runpytest("-p", "tests.plugins.skips", "-p", "no:cacheprovider", *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert (result.parseoutcomes()["passed"], result.parseoutcomes()["xfailed"]) == (1, 1)
    assert sum(result.parseoutcomes().get(kind, 0) for kind in ("failed", "errors")) == 2
    result.stdout.fnmatch_lines_random(["*no browser here*", "*no server here*"])


def test_in_ci_a_skipped_module_fails(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile("import pytest\npytest.skip('not today', allow_module_level=True)\n")
    result = pytester.runpytest("-p", "tests.plugins.skips", "-p", "no:cacheprovider")
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*not today*"])


@pytest.mark.parametrize("ci", ["", "false", "0"])
def test_elsewhere_a_skip_is_a_skip(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest("-p", "tests.plugins.skips", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, skipped=2, xfailed=1)


@pytest.mark.parametrize("uid", [0, 1000])
def test_what_only_root_can_show_is_not_held_against_an_ordinary_user(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    pytester.makepyfile("import pytest\n\ndef test_it(): pytest.skip('needs root: a mount')\n")
    result = pytester.runpytest("-p", "tests.plugins.skips", "-p", "no:cacheprovider")
    result.assert_outcomes(**({"failed": 1} if uid == 0 else {"skipped": 1}))
