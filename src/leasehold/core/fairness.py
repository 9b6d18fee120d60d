"""How many jobs to take from each lane. Pure: lanes and free slots in, shares out.

Recovered jobs are asked first: at the end of a backlog their recovery time would be the backlog's. While fresh ones
wait they get at most half of the free slots, rounded up (with one free slot the two take turns to be asked first), so
that a storm of returning jobs does not starve fresh work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from leasehold.core.job import LaneKind, kind_of_lane


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """A line of waiting jobs."""

    rank: int
    queue: str


@dataclass(frozen=True, slots=True)
class Share:
    """At most `quota` jobs from this lane."""

    lane: Lane
    quota: int


def shares(lanes: Iterable[Lane], slots: int, turn: int) -> list[Share]:
    """The shares in the order in which they are to be asked. `turn` grows by one with every call."""
    ordered = sorted(lanes)
    returning = [lane for lane in ordered if kind_of_lane(lane.rank) is not LaneKind.FRESH]
    fresh = [lane for lane in ordered if kind_of_lane(lane.rank) is LaneKind.FRESH]
    if not fresh:
        return [Share(lane, slots) for lane in returning]
    rest = [Share(lane, slots) for lane in fresh]
    if slots == 1:
        once = [Share(lane, 1) for lane in returning]
        return once + rest if turn % 2 else rest + once
    left = (slots + 1) // 2
    each = max(left // max(len(returning), 1), 1)
    asked: list[Share] = []
    for lane in returning:
        if left > 0:
            asked.append(Share(lane, min(each, left)))
            left -= each
    return asked + rest
