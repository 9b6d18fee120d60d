"""In CI a skipped test is a failed one: nobody reads the reasons there, and a prover that did not run proved nothing.

On a developer's machine skips stay what they are. What only root can show is not held against an ordinary user.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TypeVar

import pytest

NEEDS_ROOT = "needs root"
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI", "").lower() not in {"", "0", "false"}:
        config.pluginmanager.register(SkipsFail(), "skips-fail")


class SkipsFail:
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        return refused(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        return refused(report)


def refused(report: Report) -> Report:
    """Turn a skip into a failure that carries its reason; an expected failure (xfail) is no skip."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        if not (os.geteuid() != 0 and NEEDS_ROOT in reason):
            report.outcome = "failed"
            report.longrepr = f"{reason}\n(CI is set: a skipped test counts as failed)"
    return report
