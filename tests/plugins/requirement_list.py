"""The demands on Leasehold as values: read from docs/requirements, judged by tests' outcomes, told as lines and a page.

Knows nothing of pytest; tests/plugins/requirements.py brings the marks and the outcomes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

TITLE_CHARS_MAX = 100


@dataclass(frozen=True)
class Demand:
    """One numbered line of REQUIREMENTS.md; with parts, it is proven when each of them is."""

    id: str
    title: str
    parts: tuple[str, ...] = ()

    @property
    def units(self) -> tuple[str, ...]:
        """What can be proven on its own: `R1.5`, or `R3.5/cli`, `R3.5/api`, …"""
        return tuple(f"{self.id}/{part}" for part in self.parts) or (self.id,)


@dataclass(frozen=True)
class Evidence:
    """The tests of one unit, by what became of them."""

    passed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        if self.failed:
            return "failing"
        return "proven" if self.passed and not self.skipped else "open"

    @property
    def told(self) -> str:
        told = [*self.passed, *(f"{name} (failed)" for name in self.failed)]
        return ", ".join([*told, *(f"{name} (skipped)" for name in self.skipped)])


@dataclass(frozen=True)
class Verdict:
    """What is known of one demand after a run."""

    demand: Demand
    evidence: Mapping[str, Evidence] = field(default_factory=dict)

    @property
    def state(self) -> str:
        states = {self.of(unit).state for unit in self.demand.units}
        if "failing" in states:
            return "failing"
        if states == {"proven"}:
            return "proven"
        return "partly" if "proven" in states else "open"

    def of(self, unit: str) -> Evidence:
        return self.evidence.get(unit, Evidence())

    @property
    def proven(self) -> tuple[str, ...]:
        return tuple(unit for unit in self.demand.units if self.of(unit).state == "proven")

    @property
    def told(self) -> str:
        """The tests' names, part by part; nothing where there is none."""
        if not self.demand.parts or not any(self.of(unit).told for unit in self.demand.units):
            return self.of(self.demand.id).told
        return "; ".join(
            f"{part}: {self.of(unit).told or 'open'}"
            for part, unit in zip(self.demand.parts, self.demand.units, strict=True)
        )


def parse(text: str) -> tuple[Demand, ...]:
    """Read the list: `- R1.5 (A2) What must hold …` or `- S-A …`, with `Parts: cli · api.` behind it."""
    starts = list(re.finditer(r"^- (R\d+\.\d+|S-[A-Z])\b[ \t]*", text, re.MULTILINE))
    demands = []
    for start in starts:
        body = re.split(r"\n(?=- |#|\s*\n)", text[start.end() :], maxsplit=1)[0]
        parts = re.search(r"Parts: ([^.]+)\.", body)
        names = tuple(part.strip() for part in parts[1].split("·")) if parts else ()
        demands.append(Demand(start[1], title(body[: parts.start()] if parts else body), names))
    return tuple(demands)


def title(body: str) -> str:
    """One line out of a demand's text: its first sentence, without the sources in front."""
    line = re.sub(r"^\([A-Z][^)]*\)\s*", "", " ".join(body.split())).replace("**", "")
    first = re.split(r"(?<=[\w`)])[.;](?= )", line, maxsplit=1)[0].rstrip(".:;")
    if len(first) <= TITLE_CHARS_MAX:
        return first
    return first[:TITLE_CHARS_MAX].rsplit(" ", 1)[0].rstrip(",:") + " …"


def unit_of(demands: Iterable[Demand], demand_id: str, part: str | None) -> str:
    """The unit a mark names; a ValueError says what is wrong with one that names none."""
    demand = {demand.id: demand for demand in demands}.get(demand_id)
    if demand is None:
        raise ValueError(f"there is no demand {demand_id!r} in docs/requirements/REQUIREMENTS.md")
    if demand.parts and part not in demand.parts:
        raise ValueError(f"{demand_id} has the parts {', '.join(demand.parts)}; name one of them, not {part!r}")
    if not demand.parts and part is not None:
        raise ValueError(f"{demand_id} has no parts, so not {part!r} either")
    return f"{demand_id}/{part}" if part else demand_id


def parse_proven(text: str, demands: Iterable[Demand]) -> tuple[str, ...]:
    """Read proven.txt: one unit per line, sorted as the demands are, each a real one."""
    known = [unit for demand in demands for unit in demand.units]
    units = text.split()
    if unknown := [unit for unit in units if unit not in known]:
        raise ValueError(f"proven.txt names what is no demand, or lacks its part: {', '.join(unknown)}")
    if units != [unit for unit in known if unit in units]:
        raise ValueError("proven.txt is not in the order of the list, or says something twice")
    return tuple(units)


def lines(verdicts: Iterable[Verdict]) -> list[str]:
    return [f"{it.demand.id:5} {it.state:8} {it.told or it.demand.title}" for it in verdicts]


def page(verdicts: Iterable[Verdict]) -> str:
    """docs/requirements/status.md: no date and no duration, so that it changes only when the truth does."""
    verdicts = tuple(verdicts)
    counts = ", ".join(
        f"{sum(it.state == state for it in verdicts)} {state}" for state in ("proven", "partly", "failing", "open")
    )
    rows = [
        f"| {it.demand.id} | {it.demand.title.replace('|', chr(92) + '|')} | {it.state} | {it.told} |"
        for it in verdicts
    ]
    head = [
        "# What is proven",
        "",
        "Written by `make requirements` from the tests' marks and outcomes; do not edit.",
        "The demands in full: [REQUIREMENTS.md](REQUIREMENTS.md). What must stay proven: [proven.txt](proven.txt).",
        "",
        f"{counts}, of {len(verdicts)}.",
        "",
        "| id | demand | state | tests |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])
