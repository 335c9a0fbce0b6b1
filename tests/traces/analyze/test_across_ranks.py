"""Of very many ranks those are shown that differ from the others."""

from __future__ import annotations

from tests.traces.making import captured, gpu

from paceline.traces.analyze.across_ranks import most_unusual, shares_of
from paceline.traces.analyze.ranks import TraceOptions, summarise


def rank(folder, number: int, idle: float):
    """A rank that is idle for a share of 100 us."""
    busy = 100 * (1 - idle)
    capture = captured(folder, gpu(0, busy / 2, 1), gpu(100 - busy / 2, 100, 2), name=f"rank{number}.json")
    return summarise(capture, TraceOptions())


def test_those_furthest_from_the_median_in_their_order(tmp_path):
    idle = [0.1] * 20
    idle[3], idle[17] = 0.9, 0.6
    ranks = [rank(tmp_path, number, share) for number, share in enumerate(idle)]
    assert [one.rank for one in most_unusual(ranks, 2)] == [3, 17]
    assert most_unusual(ranks, 20) == ranks
    assert shares_of(ranks[3])["idle"] == 0.9


def test_shares_add_up(tmp_path):
    assert sum(shares_of(rank(tmp_path, 0, 0.25)).values()) == 1.0
    empty = summarise(captured(tmp_path, gpu(0, 0, 1)), TraceOptions())
    assert set(shares_of(empty).values()) == {0.0}
