"""Time and chance as objects: the only place of the runtime that owns a clock or a die. Tests hold their own."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """A clock that only measures; what time it is, only the database says."""

    def monotonic(self) -> float:
        """Seconds, growing."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Chance(Protocol):
    """Where tokens and jitter come from."""

    def token(self) -> uuid.UUID:
        """A fresh random token."""
        ...

    def rand(self) -> float:
        """0 <= rand < 1."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds, growing."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class SystemChance:
    """The machine's randomness."""

    def token(self) -> uuid.UUID:
        """A fresh random token."""
        return uuid.uuid4()

    def rand(self) -> float:
        """0 <= rand < 1."""
        return random.random()  # noqa: S311 - jitter, not a secret
