"""The repository stands on its own: no machine's paths, no registry's address, no paper that is not in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.outside_rules import machines_places, points_outside
from tests.house.tree import ROOT, text_files

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)")


def test_no_file_points_outside_the_repository() -> None:
    faults = {
        str(path.relative_to(ROOT)): found
        for path in text_files()
        if (found := points_outside(path.read_text(encoding="utf-8", errors="replace")))
    }
    assert faults == {}


def test_no_page_links_to_a_page_that_is_not_there() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in text_files()
        if page.suffix == ".md"
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert dead == []


@pytest.mark.parametrize(
    "planted",
    [
        "index-url = https://" + "pypi" + ".org/simple",
        "--find-links /home" + "/ada/wheels",
        "cd /root" + "/project",
        "see /Users" + "/ada/notes.md",
        "see .." + "/shared/DESIGN.md",
        "see stu" + "dy/limit.md",
    ],
)
def test_a_pointer_outside_is_seen(planted: str) -> None:
    assert points_outside(planted) != []


def test_a_place_of_this_machine_is_seen() -> None:
    assert all(points_outside(f"run {place}tool") for place in machines_places())


@pytest.mark.parametrize("harmless", ["see docs/architecture.md", "~/.cache/leasehold", "shared/exclusive", "/usr/lib"])
def test_a_pointer_inside_passes(harmless: str) -> None:
    assert points_outside(harmless) == []


def test_requirements_are_pinned_and_hashed_and_name_no_address() -> None:
    for name in ("run.txt", "dev.txt"):
        text = Path(ROOT / "requirements" / name).read_text(encoding="utf-8")
        entries = re.split(r"\n(?=[a-z0-9])", text.strip())
        assert [entry for entry in entries if not re.match(r"[\w.-]+==[^ ]+.*\\\n +--hash=sha256:", entry)] == []
        assert "://" not in text
        assert "\n--" not in f"\n{text}"
