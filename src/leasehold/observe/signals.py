"""The fan-out: every fact goes to everybody who listens, and nobody who listens can harm who tells."""

from __future__ import annotations

from collections.abc import Callable

from leasehold.core.facts import Fact

Listener = Callable[[Fact], None]


class Signals:
    """Who listens."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners
        self.failures = 0

    def counted(self) -> dict[str, float]:
        """How many facts a listener failed to tell, if any."""
        return {"observe.listener_failures_total": float(self.failures)} if self.failures else {}

    def emit(self, fact: Fact) -> None:
        """Tell everybody. A listener that fails is counted; the job that is being told of has already happened."""
        for listener in self._listeners:
            try:
                listener(fact)
            except Exception:  # noqa: BLE001 - a full disk under a log must not stop a worker
                self.failures += 1
