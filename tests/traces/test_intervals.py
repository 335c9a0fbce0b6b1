"""Unions of intervals against a count of every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.traces.intervals import EMPTY, Union, difference, intersection, length_before, union_of, union_of_unions

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(-5, 20)), max_size=12)


def made(pairs: list[tuple[int, int]]) -> Union:
    starts = np.array([start for start, _ in pairs], np.int64)
    return union_of(starts, starts + np.array([length for _, length in pairs], np.int64))


def counted(pairs: list[tuple[int, int]]) -> set[int]:
    """Every nanosecond that is in one of them."""
    return {ns for start, length in pairs for ns in range(start, start + length)}


def instants(union: Union) -> set[int]:
    return {ns for start, end in zip(union.starts_ns, union.ends_ns, strict=True) for ns in range(start, end)}


@given(INTERVALS)
def test_a_union_covers_what_its_intervals_cover(pairs):
    union = made(pairs)
    assert instants(union) == counted(pairs)
    assert union.length_ns == len(counted(pairs))
    assert (union.starts_ns[1:] > union.ends_ns[:-1]).all()
    assert (union.ends_ns > union.starts_ns).all()


@given(INTERVALS, INTERVALS)
def test_what_two_have_in_common_and_apart(first, second):
    a, b = made(first), made(second)
    assert instants(intersection(a, b)) == counted(first) & counted(second)
    assert instants(difference(a, b)) == counted(first) - counted(second)
    assert instants(union_of_unions(a, b)) == counted(first) | counted(second)
    assert union_of_unions(a, b).length_ns == a.length_ns + b.length_ns - intersection(a, b).length_ns


@given(INTERVALS)
def test_gaps_are_what_lies_between(pairs):
    union = made(pairs)
    covered = counted(pairs)
    between = set(range(min(covered), max(covered) + 1)) - covered if covered else set()
    assert instants(union.gaps) == between


def test_of_nothing_there_is_nothing():
    assert union_of_unions() == union_of_unions(EMPTY) or union_of_unions().length_ns == 0
    assert union_of(np.array([5], np.int64), np.array([5], np.int64)).length_ns == 0


def test_nanoseconds_since_1970_are_exact():
    start = 1_694_128_201_435_418_123
    union = union_of(np.array([start, start + 7], np.int64), np.array([start + 9, start + 11], np.int64))
    assert (int(union.starts_ns[0]), int(union.ends_ns[0])) == (start, start + 11)


@given(INTERVALS, st.lists(st.integers(-10, 100), max_size=6))
def test_how_much_lies_before_a_time(pairs, times):
    expected = [sum(ns < time for ns in counted(pairs)) for time in times]
    assert length_before(made(pairs), np.array(times, np.int64)).tolist() == expected
