"""Durations: one meaning however they are written."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.durations import seconds, spoken
from leasehold.core.errors import WrongDurationError

UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


@pytest.mark.parametrize(
    "written, meant",
    [
        ("30s", 30),
        ("250ms", 0.25),
        ("20m", 1200),
        ("1h30m", 5400),
        ("1h 30m 5s", 5405),
        (" 2d ", 172_800),
        ("1.5h", 5400),
        ("0s", 0),
        (90, 90),
        (0.25, 0.25),
        (timedelta(minutes=2), 120),
    ],
)
def test_a_duration_means_the_same_however_it_is_written(written: Any, meant: float) -> None:
    assert seconds(written) == pytest.approx(meant)


@pytest.mark.parametrize(
    "wrong",
    ["", "30", "s", "30 parsecs", "-5s", "1h-5m", "5s later", "ten s", "1,5s", "٣s", "∞s", "1e3s", "s30", "5sm"],
)
def test_a_text_that_is_no_duration_is_refused(wrong: str) -> None:
    with pytest.raises(WrongDurationError) as told:
        seconds(wrong)
    assert repr(wrong) in str(told.value)


@pytest.mark.parametrize(
    "wrong",
    [True, False, None, [], -1, -0.001, float("nan"), float("inf"), timedelta(-1), 10**400, "9" * 400 + "s"],
    ids=lambda wrong: repr(wrong)[:10],
)
def test_a_value_that_is_no_duration_is_refused(wrong: Any) -> None:
    with pytest.raises(WrongDurationError):
        seconds(wrong)


@given(st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(sorted(UNITS))), min_size=1, max_size=5))
def test_parts_add_up(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{count}{unit}" for count, unit in parts)
    assert seconds(text) == pytest.approx(sum(count * UNITS[unit] for count, unit in parts))


@given(st.integers(0, 10**9))
def test_what_is_spoken_is_understood(value: int) -> None:
    assert seconds(spoken(value)) == value


@given(st.floats(0, 10**7))
def test_what_is_spoken_is_understood_to_the_millisecond(value: float) -> None:
    assert seconds(spoken(value)) == pytest.approx(value, rel=0, abs=0.0011)


@pytest.mark.parametrize(
    "value, words",
    [
        (0, "0ms"),
        (0.25, "250ms"),
        (1, "1s"),
        (90, "1m30s"),
        (60.00001, "1m"),
        (3599.9999, "1h"),
        (90061.5, "1d1h1m1.5s"),
    ],
)
def test_a_duration_is_spoken_as_people_write_it(value: float, words: str) -> None:
    assert spoken(value) == words


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_refused_by_name(text: str) -> None:
    with contextlib.suppress(WrongDurationError):
        assert seconds(text) >= 0
