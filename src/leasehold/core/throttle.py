"""Should this progress be told? A client wants it timely, not noisy; a timeline wants it bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

EVERY_S: Final = 0.5
FINAL: Final = 100
CALM_AFTER: Final = 500
CALMER_EVERY: Final = 50
CALMEST: Final = 40


@dataclass(frozen=True, slots=True)
class LastTold:
    """The progress that was told last, when, and how much was told before it."""

    pct: int
    at_s: float
    before: int = 0


def worth_telling(pct: int, now_s: float, last: LastTold | None) -> bool:
    """It rose by a point, or half a second has passed, or it is the final 100.

    After some hundreds only time counts, and ever more of it: a year's job has a timeline of some 1,500 rows.
    """
    if last is None:
        return True
    if pct == FINAL:
        return last.pct != FINAL
    calm = (last.before - CALM_AFTER) // CALMER_EVERY + 1
    if calm <= 0:
        return pct >= last.pct + 1 or now_s >= last.at_s + EVERY_S
    return now_s >= last.at_s + EVERY_S * 2.0 ** min(calm, CALMEST)
