"""Shares: recovered first, never more than half while fresh ones wait, and nobody starves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import assume, example, given
from hypothesis import strategies as st

from leasehold.core.fairness import Lane, Share, shares
from leasehold.core.job import PRIORITY_MAX, PRIORITY_MIN, LaneKind, kind_of_lane, rank

kinds = st.sampled_from(list(LaneKind))
priorities = st.integers(PRIORITY_MIN, PRIORITY_MAX)
lanes = st.builds(
    lambda priority, kind, queue: Lane(rank(priority, kind), queue), priorities, kinds, st.sampled_from("ab")
)
depths = st.dictionaries(lanes, st.integers(1, 50), min_size=1, max_size=8)
slots = st.integers(1, 40)
turns = st.integers(0, 1000)


def is_fresh(lane: Lane) -> bool:
    return kind_of_lane(lane.rank) is LaneKind.FRESH


def served(asked: Iterable[Share], waiting: dict[Lane, int], free: int) -> Counter[Lane]:
    """What a store takes: each lane up to its quota, in order, until the slots are full."""
    taken: Counter[Lane] = Counter()
    for share in asked:
        taken[share.lane] = min(share.quota, waiting[share.lane], free - taken.total())
    return +taken


@given(priorities, kinds)
def test_a_rank_tells_its_lane(priority: int, kind: LaneKind) -> None:
    assert kind_of_lane(rank(priority, kind)) is kind


@given(priorities, kinds, kinds)
def test_a_higher_priority_is_earlier_whatever_the_lane(priority: int, kind: LaneKind, other: LaneKind) -> None:
    assume(priority < PRIORITY_MAX)
    assert rank(priority + 1, kind) < rank(priority, other)


@given(depths, slots, turns)
def test_never_more_is_taken_than_there_are_slots(waiting: dict[Lane, int], free: int, turn: int) -> None:
    asked = shares(waiting, free, turn)
    assert served(asked, waiting, free).total() <= free
    assert all(1 <= share.quota <= free for share in asked)


@given(depths, slots, turns)
def test_no_lane_is_asked_twice(waiting: dict[Lane, int], free: int, turn: int) -> None:
    asked = [share.lane for share in shares(waiting, free, turn)]
    assert len(asked) == len(set(asked))
    assert set(asked) <= set(waiting)


@given(depths, slots, turns)
def test_recovered_lanes_are_asked_first_and_the_earlier_rank_before_the_later(
    waiting: dict[Lane, int], free: int, turn: int
) -> None:
    assume(free > 1 or turn % 2)  # with one free slot the two take turns to be first
    asked = [share.lane for share in shares(waiting, free, turn)]
    assert asked == sorted(asked, key=lambda lane: (is_fresh(lane), lane))


@given(depths, st.integers(2, 40), turns)
@example({Lane(0, "a"): 9, Lane(-1, "a"): 9}, 3, 0)
def test_recovered_jobs_get_at_most_half_rounded_up_while_fresh_ones_wait(
    waiting: dict[Lane, int], free: int, turn: int
) -> None:
    assume(any(is_fresh(lane) for lane in waiting))
    asked = shares(waiting, free, turn)
    assert sum(share.quota for share in asked if not is_fresh(share.lane)) <= (free + 1) // 2


@given(depths, slots, turns)
def test_fresh_jobs_fill_what_recovered_ones_leave(waiting: dict[Lane, int], free: int, turn: int) -> None:
    assume(any(is_fresh(lane) for lane in waiting))
    taken = served(shares(waiting, free, turn), waiting, free)
    fresh_left = sum(count - taken[lane] for lane, count in waiting.items() if is_fresh(lane))
    assert taken.total() == free or fresh_left == 0


@given(st.dictionaries(lanes.filter(lambda lane: not is_fresh(lane)), st.integers(1, 50), min_size=1), slots, turns)
def test_recovered_jobs_alone_get_all_slots(waiting: dict[Lane, int], free: int, turn: int) -> None:
    taken = served(shares(waiting, free, turn), waiting, free)
    assert taken.total() == min(free, sum(waiting.values()))


@given(depths, turns)
def test_with_one_slot_recovered_and_fresh_take_turns(waiting: dict[Lane, int], turn: int) -> None:
    assume(len({is_fresh(lane) for lane in waiting}) == 2)
    first, second = (served(shares(waiting, 1, t), waiting, 1) for t in (turn, turn + 1))
    assert {is_fresh(lane) for taken in (first, second) for lane in taken} == {True, False}


@given(depths, turns)
def test_one_slot_is_offered_to_every_lane(waiting: dict[Lane, int], turn: int) -> None:
    assert {share.lane for share in shares(waiting, 1, turn)} == set(waiting)


@given(depths, slots)
def test_everybody_who_waits_is_served_in_the_end(waiting: dict[Lane, int], free: int) -> None:
    left, turn = dict(waiting), 0
    while left:
        turn += 1
        assert turn <= 2 * sum(waiting.values()), "each two claims serve somebody"
        taken = served(shares(left, free, turn), left, free)
        left = {lane: count - taken[lane] for lane, count in left.items() if count > taken[lane]}


@given(st.integers(2, 40), st.integers(1, 200))
def test_a_storm_of_recovered_jobs_does_not_starve_fresh_work(free: int, claims: int) -> None:
    storm, fresh = Lane(rank(PRIORITY_MAX, LaneKind.RECOVERED), "a"), Lane(rank(PRIORITY_MIN, LaneKind.FRESH), "a")
    taken = sum(
        served(shares([storm, fresh], free, turn), {storm: 10**9, fresh: 10**9}, free)[fresh] for turn in range(claims)
    )
    assert taken == claims * (free // 2)


@given(st.integers(1, 40), st.integers(2, 200))
def test_a_backlog_of_fresh_jobs_does_not_starve_recovery(free: int, claims: int) -> None:
    storm, lost = Lane(rank(PRIORITY_MAX, LaneKind.FRESH), "a"), Lane(rank(PRIORITY_MIN, LaneKind.RECOVERED), "a")
    taken = sum(
        served(shares([storm, lost], free, turn), {storm: 10**9, lost: 10**9}, free)[lost] for turn in range(claims)
    )
    assert taken >= claims // 2
