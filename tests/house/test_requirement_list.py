"""The list of demands is read as it is written, and judged by the outcomes of its tests."""

from __future__ import annotations

import pytest

from tests.house.tree import ROOT
from tests.plugins.requirement_list import Demand, Evidence, Verdict, page, parse, parse_proven, title, unit_of

LIST = """# Requirements
- R1.1 (A1) Every job is kept: as long as it lives. It is not lost. *Parts: cli · api.*
- R1.2 (A2) **Bold** words
  go on here.
- S-A **clip pipeline**: real ffmpeg.
"""
DEMANDS = parse(LIST)
GOOD, BAD, SKIPPED = Evidence(passed=("test_a",)), Evidence(failed=("test_b",)), Evidence(skipped=("test_c",))


def test_a_demand_has_an_id_a_title_and_its_parts() -> None:
    assert (
        Demand("R1.1", "Every job is kept: as long as it lives", ("cli", "api")),
        Demand("R1.2", "Bold words go on here"),
        Demand("S-A", "clip pipeline: real ffmpeg"),
    ) == DEMANDS


def test_a_long_title_is_cut_at_a_word() -> None:
    assert title("word " * 30).endswith("word …")
    assert len(title("word " * 30)) < 110


def test_the_projects_own_list_is_read_whole() -> None:
    demands = parse((ROOT / "docs" / "requirements" / "REQUIREMENTS.md").read_text(encoding="utf-8"))
    ids = [demand.id for demand in demands]
    assert (ids[0], ids[-6], ids[-1], len(ids)) == ("R1.1", "R9.3", "S-E", 54)
    assert {demand.id: demand.parts for demand in demands if demand.parts} == {
        "R1.1": ("stages", "env"),
        "R2.2": ("worker", "heavy-kinds"),
        "R3.5": ("cli", "api", "dashboard"),
        "R5.1": ("drain", "checkpoint"),
        "R7.5": ("rules", "doctor", "dashboard"),
        "R8.1": ("api", "invoice"),
    }


@pytest.mark.parametrize("wrong", [("R9.9", None), ("R1.1", None), ("R1.1", "web"), ("R1.2", "cli")])
def test_a_mark_that_names_no_demand_is_refused(wrong: tuple[str, str | None]) -> None:
    with pytest.raises(ValueError, match=wrong[0]):
        unit_of(DEMANDS, *wrong)


def test_a_mark_names_its_part() -> None:
    assert (unit_of(DEMANDS, "R1.1", "api"), unit_of(DEMANDS, "S-A", None)) == ("R1.1/api", "S-A")


@pytest.mark.parametrize("wrong", ["R9.9\n", "R1.1\n", "R1.2\nR1.1/cli\n", "R1.2\nR1.2\n"])
def test_a_proven_list_that_is_wrong_or_out_of_order_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"proven\.txt"):
        parse_proven(wrong, DEMANDS)


@pytest.mark.parametrize(
    "evidence,state",
    [
        ({}, "open"),
        ({"R1.1/cli": GOOD}, "partly"),
        ({"R1.1/cli": GOOD, "R1.1/api": GOOD}, "proven"),
        ({"R1.1/cli": GOOD, "R1.1/api": SKIPPED}, "partly"),
        ({"R1.1/cli": GOOD, "R1.1/api": BAD}, "failing"),
        ({"R1.1/cli": SKIPPED}, "open"),
    ],
)
def test_a_demand_with_parts_is_proven_when_every_part_is(evidence: dict[str, Evidence], state: str) -> None:
    assert Verdict(DEMANDS[0], evidence).state == state


def test_a_test_that_did_not_run_beside_one_that_passed_leaves_the_demand_open() -> None:
    both = Evidence(passed=("test_a",), skipped=("test_c",))
    assert Verdict(DEMANDS[1], {"R1.2": both}).state == "open"


def test_the_page_tells_every_demand_and_its_tests() -> None:
    written = page([Verdict(DEMANDS[0], {"R1.1/cli": GOOD}), Verdict(DEMANDS[2], {"S-A": BAD})])
    assert "0 proven, 1 partly, 1 failing, 0 open, of 2." in written
    assert "| R1.1 | Every job is kept: as long as it lives | partly | cli: test_a; api: open |" in written
    assert "| failing | test_b (failed) |" in written
