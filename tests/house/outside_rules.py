"""What no file of the repository may say: where somebody's machine keeps it, which registry it was installed from."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.house.tree import ROOT

# Put together here, so that this file passes its own rule.
REGISTRIES = [
    ".".join(parts) for parts in (("pypi", "org"), ("files", "pythonhosted", "org"), ("registry", "npmjs", "org"))
]
PRIVATE = re.compile(r"(?<![\w.\-~/])/(?:home|Users)/[a-z][\w.-]*/|(?<![\w.\-~/])/root/[\w.]")
PAPERS = re.compile(r"\.\./shared\b|(?<![\w.-])/[\w/]*/shared/|\bstudy/[a-z]")


def machines_places() -> list[str]:
    """The places of the machine that runs this test, where they are long enough to be no accident."""
    places = [ROOT, Path.home(), Path(sys.base_prefix)]
    return [f"{place}/" for place in places if len(place.parts) > 2 and not place.is_relative_to("/usr")]


def points_outside(text: str) -> list[str]:
    """Find what would be true on one machine only."""
    found = [f"a registry: {host}" for host in REGISTRIES if host in text]
    found += [f"a place of this machine: {place}" for place in machines_places() if place in text]
    found += [f"somebody's home: {match[0]}" for match in PRIVATE.finditer(text)]
    return found + [f"papers that are not here: {match[0]}" for match in PAPERS.finditer(text)]
