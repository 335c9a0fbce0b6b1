"""Is a row of layers cut where the dearest stage is cheapest?"""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from paceline.train.parallel.balance import cut


def dearest(costs, parts):
    return max(sum(costs[i] for i in part) for part in parts)


def best_of_all(costs, stages):
    """By trying every way to cut."""
    ways = combinations(range(1, len(costs)), stages - 1)
    bounds = ([0, *way, len(costs)] for way in ways)
    return min(dearest(costs, [range(a, b) for a, b in zip(way, way[1:])]) for way in bounds)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=8).flatmap(
        lambda c: st.tuples(st.just(c), st.integers(1, len(c)))
    )
)
def test_no_other_cut_is_better(case):
    costs, stages = case
    parts = cut(costs, stages)
    assert [i for part in parts for i in part] == list(range(len(costs)))
    assert len(parts) == stages
    assert all(parts)
    assert dearest(costs, parts) == best_of_all(costs, stages)


def test_an_embedding_costs_nothing_and_a_head_counts():
    assert cut([0, 4, 4, 4, 4, 8], 3) == [range(3), range(3, 5), range(5, 6)]
