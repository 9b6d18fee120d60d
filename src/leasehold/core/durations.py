"""Durations as people write them: `"30s"`, `"1h30m"`, a number of seconds, a timedelta. Inside: seconds."""

from __future__ import annotations

import re
import sys
from datetime import timedelta

from leasehold.core.errors import WrongDurationError

Duration = str | float | timedelta

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = sys.float_info.max
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", re.ASCII)


def seconds(duration: Duration) -> float:
    """The duration in seconds; anything that is no duration is refused, a text without a unit too."""
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, str):
        value = _parse(duration)
    elif isinstance(duration, bool) or not isinstance(duration, int | float):
        raise WrongDurationError(given=duration)
    else:
        value = duration
    if not 0 <= value <= _LONGEST:
        raise WrongDurationError("It must be finite and not negative.", given=duration)
    return float(value)


def _parse(text: str) -> float:
    total, position = 0.0, 0
    for part in _PART.finditer(text.strip()):
        if part.start() != position:
            break
        total += float(part[1]) * _SECONDS[part[2]]
        position = part.end()
    if position == 0 or position != len(text.strip()):
        raise WrongDurationError(given=text)
    return total


def spoken(value: float) -> str:
    """Seconds as a person would write them: 90 -> "1m30s". To the millisecond, below a second to the microsecond."""
    if value < 1:
        return f"{round(value * 1000, 3):g}ms"
    rest, words = round(value, 3), ""
    for unit in ("d", "h", "m"):
        count, rest = divmod(rest, _SECONDS[unit])
        words += f"{count:.0f}{unit}" if count else ""
    return words + (f"{rest:g}s" if round(rest, 3) else "")
