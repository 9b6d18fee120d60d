"""Backoff: a table whose last step repeats, or growth up to a cap, and jitter that only adds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.errors import ConfigurationError, WrongDurationError
from leasehold.core.policy import AFTER_FAILURE, AFTER_LOSS, Backoff

chances = st.floats(0, 1, exclude_max=True)
tries = st.integers(1, 10_000)
backoffs = st.builds(
    lambda first, steps, factor, cap, jitter: Backoff(first, *steps, factor=factor, cap=cap, jitter=jitter),
    st.floats(0, 1000),
    st.lists(st.floats(0, 1000), max_size=3),
    st.floats(1, 10),
    st.floats(0, 5000),
    st.floats(0, 1),
)


def test_a_failure_waits_thirty_seconds_then_two_minutes_then_ten() -> None:
    assert [AFTER_FAILURE.delay_s(nth, 0) for nth in (1, 2, 3, 4, 100)] == [30, 120, 600, 600, 600]


def test_a_lost_worker_waits_one_second_first_and_then_the_same_table() -> None:
    assert [AFTER_LOSS.delay_s(nth, 0) for nth in (1, 2, 3, 4, 5, 100)] == [1, 30, 120, 600, 600, 600]


def test_growth_ends_at_its_cap() -> None:
    backoff = Backoff("5s", factor=2, cap="1m")
    assert [backoff.delay_s(nth, 0) for nth in (1, 2, 3, 4, 5, 6, 10**9)] == [5, 10, 20, 40, 60, 60, 60]


def test_growth_goes_on_from_the_last_step_of_a_table() -> None:
    backoff = Backoff("1s", "10s", factor=3, cap="1h")
    assert [backoff.delay_s(nth, 0) for nth in (1, 2, 3, 4)] == [1, 10, 30, 90]


@given(backoffs, tries, chances)
def test_a_wait_lies_between_its_step_and_its_step_with_all_jitter(backoff: Backoff, nth: int, rand: float) -> None:
    least = backoff.delay_s(nth, 0)
    wait = backoff.delay_s(nth, rand)
    assert least <= wait <= least * (1 + backoff.jitter)
    assert least <= backoff.cap_s


@given(backoffs, tries, chances, st.floats(0, 100_000))
def test_jitter_never_goes_below_a_given_retry_after(
    backoff: Backoff, nth: int, rand: float, retry_after_s: float
) -> None:
    assert backoff.delay_s(nth, rand, at_least_s=retry_after_s) >= retry_after_s


@given(backoffs, tries, chances, st.floats(0, 100_000))
def test_a_given_retry_after_never_shortens_a_wait(
    backoff: Backoff, nth: int, rand: float, retry_after_s: float
) -> None:
    assert backoff.delay_s(nth, rand, at_least_s=retry_after_s) >= backoff.delay_s(nth, rand)


@given(st.floats(0.1, 100), st.floats(1, 10), tries)
def test_exponential_waits_never_shrink(first: float, factor: float, nth: int) -> None:
    backoff = Backoff(first, factor=factor, cap="1d")
    assert backoff.delay_s(nth, 0) <= backoff.delay_s(nth + 1, 0)


@pytest.mark.parametrize("wrong", [{"factor": 0.9}, {"jitter": -0.1}, {"jitter": 1.1}, {"attempts": 0}])
def test_a_backoff_that_cannot_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Backoff("1s", **wrong)  # type: ignore[arg-type]


def test_a_step_that_is_no_duration_is_refused() -> None:
    with pytest.raises(WrongDurationError):
        Backoff("1s", "soon")


def test_two_backoffs_that_say_the_same_are_equal() -> None:
    assert Backoff("30s", cap="1h") == Backoff(30, cap=3600)
    assert hash(Backoff("30s")) == hash(Backoff(30))
