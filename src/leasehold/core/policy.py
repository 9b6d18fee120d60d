"""When to try again, as data: how long to wait, and which failures are worth another attempt."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Final

from leasehold.core.durations import Duration, seconds
from leasehold.core.errors import ConfigurationError


@dataclass(frozen=True, init=False)
class Backoff:
    """How long to wait before try n: a table of steps, whose last step repeats, or grows by `factor` up to `cap`.

    `Backoff("30s", "2m", "10m")` is a table; `Backoff("5s", factor=2, cap="2m", attempts=5)` is exponential. `attempts`
    is how many times the job may run at all; without it the settings decide.
    """

    steps_s: tuple[float, ...]
    factor: float
    cap_s: float
    jitter: float
    attempts: int | None

    def __init__(
        self,
        first: Duration,
        *steps: Duration,
        factor: float = 1.0,
        cap: Duration = "1d",
        jitter: float = 0.1,
        attempts: int | None = None,
    ) -> None:
        if factor < 1 or not 0 <= jitter <= 1 or (attempts is not None and attempts < 1):
            message = "A backoff needs factor >= 1, 0 <= jitter <= 1 and attempts >= 1."
            raise ConfigurationError(message, factor=factor, jitter=jitter, attempts=attempts)
        for name, value in (
            ("steps_s", tuple(seconds(step) for step in (first, *steps))),
            ("factor", factor),
            ("cap_s", seconds(cap)),
            ("jitter", jitter),
            ("attempts", attempts),
        ):
            object.__setattr__(self, name, value)

    def delay_s(self, nth: int, rand: float, *, at_least_s: float = 0.0) -> float:
        """The wait after the `nth` failure (from 1). Jitter only adds, so `at_least_s` holds."""
        assert nth >= 1, nth
        beyond = nth - len(self.steps_s)
        base = self.steps_s[nth - 1] if beyond <= 0 else self._grown(beyond)
        return max(min(base, self.cap_s), at_least_s) * (1 + self.jitter * rand)

    def _grown(self, beyond: int) -> float:
        # Step by step with an early end: factor ** 10_000 would overflow long after the cap was reached.
        grown = self.steps_s[-1]
        for _ in itertools.repeat(None, beyond if self.factor > 1 else 0):
            grown *= self.factor
            if grown >= self.cap_s:
                break
        return grown


AFTER_FAILURE: Final = Backoff("30s", "2m", "10m")
AFTER_LOSS: Final = Backoff("1s", "30s", "2m", "10m")


@dataclass(frozen=True, slots=True)
class Policy:
    """What `decide` needs to know of a task: how long to wait after a failure, and after a lost worker."""

    failure: Backoff = field(default=AFTER_FAILURE)
    loss: Backoff = field(default=AFTER_LOSS)
