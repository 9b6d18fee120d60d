"""Progress is told in time, and not for ever."""

from __future__ import annotations

import pytest

from leasehold.core.throttle import CALM_AFTER, LastTold, worth_telling

YEAR_S = 365 * 86_400


@pytest.mark.requirement("R4.2")
@pytest.mark.parametrize(
    "pct, now_s, told",
    [
        (10, 0.0, False),
        (10, 0.499, False),
        (10, 0.5, True),
        (11, 0.0, True),
        (9, 0.1, False),
        (9, 0.6, True),
        (100, 0.0, True),
    ],
)
def test_progress_is_told_when_it_rose_by_a_point_or_half_a_second_passed_or_at_the_end(
    pct: int, now_s: float, *, told: bool
) -> None:
    assert worth_telling(pct, now_s, LastTold(10, 0.0)) is told


def test_the_first_is_told_and_the_final_one_once() -> None:
    assert worth_telling(0, 0.0, None)
    assert worth_telling(100, 0.0, None)
    assert not worth_telling(100, YEAR_S, LastTold(100, 0.0))


@pytest.mark.requirement("R4.2")
def test_however_long_a_job_and_however_often_it_reports_its_timeline_is_bounded() -> None:
    last, now_s = LastTold(0, 0.0), 0.0
    while now_s < YEAR_S:
        wait_s = 0.5
        while not worth_telling(last.before % 99, now_s + wait_s, last):
            wait_s *= 2
        now_s += wait_s
        last = LastTold(last.before % 99, now_s, last.before + 1)

    assert CALM_AFTER < last.before < 2000
    assert worth_telling(100, now_s, last)
