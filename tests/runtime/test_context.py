"""What a handler is given."""

from __future__ import annotations

import asyncio
import threading

from leasehold.runtime.context import Job, Signal
from tests.runtime.scenes import a_lease


def test_progress_is_told_when_it_rose_by_a_point_or_half_a_second_passed_or_at_the_end() -> None:
    told: list[int] = []
    times = [0.0]
    job = Job(a_lease(), {}, report=lambda pct, _: told.append(pct), monotonic=lambda: times[-1])

    for pct in (0, 0.9, 1, 1.5, 1):
        job.progress(pct)
    assert told == [0, 1]
    times.append(0.5)
    job.progress(1)
    job.progress(1)
    assert told == [0, 1, 1]
    for pct in (100, 100, 250, -3):
        job.progress(pct)
    assert told == [0, 1, 1, 100]


def test_a_note_is_made_storable() -> None:
    notes: list[str | None] = []
    job = Job(a_lease(), {}, report=lambda _, note: notes.append(note), monotonic=lambda: 0.0)

    job.progress(5, "a\x00b" + "x" * 1000)

    assert notes[0] is not None
    assert notes[0].startswith("a\N{REPLACEMENT CHARACTER}bx")
    assert len(notes[0]) < 600


async def test_a_signal_reaches_who_awaits_it_and_who_waits_in_a_thread() -> None:
    signal = Signal()
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(signal.wait(10)))
    thread.start()

    async def wait() -> bool:
        await signal
        return bool(signal)

    waiting = [asyncio.create_task(wait()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not signal
    assert not signal.wait(0)
    signal.set()

    assert await asyncio.gather(*waiting) == [True, True]
    thread.join(10)
    assert seen == [True]
    await signal
    assert signal.wait(0)
