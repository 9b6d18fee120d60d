"""Should this progress be told? A client wants it timely, not noisy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

EVERY_S: Final = 0.5
FINAL: Final = 100


@dataclass(frozen=True, slots=True)
class LastTold:
    """The progress that was told last, and when."""

    pct: int
    at_s: float


def worth_telling(pct: int, now_s: float, last: LastTold | None) -> bool:
    """It rose by a point, or half a second has passed, or it is the final 100."""
    if last is None:
        return True
    if pct == FINAL:
        return last.pct != FINAL
    return pct >= last.pct + 1 or now_s >= last.at_s + EVERY_S
