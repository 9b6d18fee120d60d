"""Which lanes to ask, and from where on.

A lane is (queue, rank). Claiming starts at a low-water hint that lags a little behind the lane's head: what lies before
it was claimed long ago and is dead to everybody, but an index scan from zero would walk it as long as some old
transaction pins it. A sweep from zero, once a second, finds what committed late, and discovers lanes. Correctness never
depends on a hint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from leasehold.core.fairness import Lane, Share, shares

HINT_LAG_S: Final = 0.2
HINT_LAG_SEQ: Final = 2000
SWEEP_S: Final = 1.0


@dataclass(slots=True)
class _Mark:
    """What one lane has shown: heads with the moment they were seen."""

    heads: deque[tuple[float, int]] = field(default_factory=deque)
    swept_at: float = float("-inf")

    def hint(self, now: float) -> int:
        lagging = 0
        while len(self.heads) > 1 and self.heads[1][0] <= now - HINT_LAG_S:
            self.heads.popleft()
        if self.heads and self.heads[0][0] <= now - HINT_LAG_S:
            lagging = self.heads[0][1]
        head = self.heads[-1][1] if self.heads else 0
        return max(lagging, head - HINT_LAG_SEQ, 0)


class Lanes:
    """The lanes that a store knows at the moment."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._marks: dict[Lane, _Mark] = {}
        self._discovered_at = float("-inf")
        self._turn = 0

    def stale(self) -> bool:
        """Whether it is time to discover lanes again."""
        return self._clock() - self._discovered_at >= SWEEP_S

    def discovered(self, lanes: Iterable[Lane]) -> None:
        """Keep exactly these lanes."""
        self._discovered_at = self._clock()
        self._marks = {lane: self._marks.get(lane) or _Mark() for lane in lanes}

    def filled(self, lanes: Iterable[Lane]) -> None:
        """Ask these too, from zero: somebody has just put a job there."""
        for lane in lanes:
            self._marks[lane] = _Mark()

    def forget(self) -> None:
        """Discover at the next claim, whatever the time."""
        self._discovered_at = float("-inf")

    def shares(self, slots: int, queues: Collection[str] | None = None) -> list[tuple[Share, int]]:
        """How many to take from each lane of these queues, and from where on."""
        now = self._clock()
        self._turn += 1
        asked = [lane for lane in self._marks if queues is None or lane.queue in queues]
        return [(share, self._hint(share.lane, now)) for share in shares(asked, slots, self._turn)]

    def claimed(self, heads: Iterable[tuple[Lane, int]]) -> None:
        """Remember how far each lane was claimed."""
        now = self._clock()
        for lane, seq in heads:
            mark = self._marks.setdefault(lane, _Mark())
            if not mark.heads or seq > mark.heads[-1][1]:
                mark.heads.append((now, seq))

    def _hint(self, lane: Lane, now: float) -> int:
        mark = self._marks[lane]
        if now - mark.swept_at >= SWEEP_S:
            mark.swept_at = now
            return 0
        return mark.hint(now)
