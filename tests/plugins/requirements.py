"""Ties tests to demands: `@pytest.mark.requirement("R1.5")`, or `("R3.5", part="cli")`, says what a test proves.

Every run refuses a mark that names no demand, and a run of the whole suite refuses to lose the test of a demand that
docs/requirements/proven.txt calls proven. `make requirements` (`--requirements`) tells what is proven of everything.
What the demands are and how they are judged is requirement_list.py's.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.plugins.requirement_list import Demand, Evidence, Verdict, lines, page, parse, parse_proven, unit_of

PROPERTY = "requirement"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("requirements")
    group.addoption("--requirements", action="store_true", help="tell what is proven, write status.md")
    group.addoption("--requirements-accept", action="store_true", help="and make what is proven binding (proven.txt)")


def pytest_configure(config: pytest.Config) -> None:
    home = config.rootpath / "docs" / "requirements"
    demands = parse((home / "REQUIREMENTS.md").read_text(encoding="utf-8"))
    try:
        proven = parse_proven((home / "proven.txt").read_text(encoding="utf-8"), demands)
    except ValueError as wrong:
        raise pytest.UsageError(str(wrong)) from wrong
    config.pluginmanager.register(Marks(config, demands, proven), "requirement-marks")
    if config.getoption("requirements") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Telling(config, home, demands, proven), "requirement-telling")


@dataclass(eq=False)  # pytest keeps plugins in sets
class Marks:
    """At collection: every mark names a demand, and no proven demand has lost its tests."""

    config: pytest.Config
    demands: tuple[Demand, ...]
    proven: tuple[str, ...]
    complaint: str = ""

    @pytest.hookimpl(tryfirst=True)  # before -k and -m take tests away: what is deselected still exists
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        claimed = set()
        for item in items:
            for unit in self.units(item):
                # Properties travel with the reports, also from xdist's workers.
                item.user_properties.append((PROPERTY, unit))
                claimed.add(unit)
        lost = [unit for unit in self.proven if unit not in claimed]
        if lost and self.whole_suite():
            self.refuse(
                f"proven.txt says that {', '.join(lost)} is proven, but no test carries that mark any more. "
                "Bring the test back, or take the line out and say why in the commit."
            )

    def units(self, item: pytest.Item) -> list[str]:
        try:
            return [mark_unit(self.demands, *mark.args, **mark.kwargs) for mark in item.iter_markers(PROPERTY)]
        except (TypeError, ValueError) as wrong:
            self.refuse(f"{item.nodeid}: a requirement mark is wrong: {wrong}")
            return []

    def refuse(self, complaint: str) -> None:
        """Stop the run. A worker of xdist cannot say why it stops: there every test fails with the reason."""
        if not hasattr(self.config, "workerinput"):
            raise pytest.UsageError(complaint)
        self.complaint = self.complaint or complaint

    def pytest_runtest_setup(self) -> None:
        if self.complaint:
            pytest.fail(self.complaint, pytrace=False)

    def whole_suite(self) -> bool:
        roots = {str(self.config.rootpath / path) for path in self.config.getini("testpaths")}
        asked = {str((self.config.invocation_params.dir / arg).resolve()) for arg in self.config.args}
        return roots <= asked and not self.config.getoption("lf", default=False)


def mark_unit(demands: tuple[Demand, ...], id: str, part: str | None = None) -> str:  # noqa: A002 - the mark's own word
    return unit_of(demands, id, part)


@dataclass(eq=False)  # pytest keeps plugins in sets
class Telling:
    """After the run: one line per demand, the status page, and what could be made binding."""

    config: pytest.Config
    home: Path
    demands: tuple[Demand, ...]
    proven: tuple[str, ...]
    outcomes: dict[str, dict[str, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            test = report.nodeid.split("[", 1)[0].split("::", 1)[1]
            for name, unit in report.user_properties:
                if name == PROPERTY:
                    # An expected failure comes as "skipped" and proves as little.
                    self.outcomes[str(unit)][test].add(report.outcome)

    def evidence(self, unit: str) -> Evidence:
        by_outcome: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
        for test, outcomes in sorted(self.outcomes[unit].items()):
            worst = next(outcome for outcome in ("failed", "skipped", "passed") if outcome in outcomes)
            by_outcome[worst].append(test)
        return Evidence(**{outcome: tuple(tests) for outcome, tests in by_outcome.items()})

    def verdicts(self) -> list[Verdict]:
        return [Verdict(demand, {unit: self.evidence(unit) for unit in demand.units}) for demand in self.demands]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        now = [unit for verdict in self.verdicts() for unit in verdict.proven]
        (self.home / "status.md").write_text(page(self.verdicts()), encoding="utf-8")
        if self.config.getoption("requirements_accept"):
            (self.home / "proven.txt").write_text("".join(f"{unit}\n" for unit in now), encoding="utf-8")
        elif [unit for unit in self.proven if unit not in now]:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("requirements")
        for line in lines(self.verdicts()):
            terminalreporter.line(line)
        now = [unit for verdict in self.verdicts() for unit in verdict.proven]
        lost = [unit for unit in self.proven if unit not in now]
        new = [unit for unit in now if unit not in self.proven]
        accepted = self.config.getoption("requirements_accept")
        if lost:
            terminalreporter.line(f"\nproven.txt says proven, this run does not: {', '.join(lost)}")
        if new:
            said = "Now binding" if accepted else "Newly proven; make it binding with `make requirements ARGS=--accept`"
            terminalreporter.line(f"\n{said}: {', '.join(new)}")
