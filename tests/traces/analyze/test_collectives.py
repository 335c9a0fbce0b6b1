"""Who waits for whom in collectives, on clocks that may differ."""

from __future__ import annotations

import pytest

from paceline.traces.analyze.collectives import find_stragglers, match_collectives
from paceline.traces.capture import CollectiveCall
from paceline.traces.read.kineto import collective_kind

MS = 1_000_000


def calls(*starts_and_ends: tuple[float, float], kind: str = "all_reduce", **more) -> list[CollectiveCall]:
    return [
        CollectiveCall(kind=kind, group="0", start_ns=round(s * MS), end_ns=round(e * MS), **more)
        for s, e in starts_and_ends
    ]


def test_the_last_to_come_is_waited_for():
    found = match_collectives({0: calls((0, 5)), 1: calls((4, 5)), 2: calls((1, 5))})
    (one,) = found.collectives
    assert (one.last, one.ranks, one.skew_ns, one.transfer_ns) == (1, 3, 4 * MS, 1 * MS)
    assert one.waited_ns == (4 + 3) * MS
    assert found.waited_ns == {0: 4 * MS, 1: 0, 2: 3 * MS}
    assert not found.problems
    assert not found.offsets_ns


def test_a_clock_that_is_off_is_moved_so_that_ends_fall_together():
    """Rank 1 comes 1 ms after rank 0 each time; its host's clock is 20 ms ahead."""
    ahead = 20.0
    first = calls((0, 3), (10, 13), (20, 23))
    second = calls(*((s + 1 + ahead, e + ahead) for s, e in ((0, 3), (10, 13), (20, 23))))
    found = match_collectives({0: first, 1: second, 2: first})
    assert found.offsets_ns == {1: round(-ahead * MS)}
    assert [(one.last, one.skew_ns) for one in found.collectives] == [(1, 1 * MS)] * 3


def test_kinds_and_groups_are_matched_apart_and_what_is_short_is_told():
    first = [*calls((0, 1), (2, 3)), *calls((5, 6), kind="all_gather")]
    second = [*calls((0, 1)), *calls((5.5, 6), kind="all_gather")]
    found = match_collectives({0: first, 1: second})
    assert [(one.kind, one.number) for one in found.collectives] == [("all_reduce", 0), ("all_gather", 0)]
    assert found.problems == [
        "all_reduce of group 0: the ranks recorded different numbers of these collectives (between 1 and 2); "
        "collectives that end at the same time are matched"
    ]


def test_groups_of_one_name_are_matched_apart_by_who_they_are_of():
    """Two pairs of ranks, the second of which runs half a second later: that is no clock."""
    early, late = calls((0, 3), (10, 13), members="[0, 1]", size=2), calls((500, 503), (510, 513), members="[2, 3]")
    found = match_collectives({0: early, 1: early, 2: late, 3: late})
    assert [one.ranks for one in found.collectives] == [2] * 4
    assert not found.offsets_ns
    unknown = calls((0, 3), size=2)
    untold = match_collectives({0: unknown, 1: unknown, 2: unknown})
    assert not untold.collectives
    assert "3 ranks recorded it, but its group has 2" in untold.problems[0]


def test_what_one_rank_sends_to_another_makes_nobody_a_straggler():
    sent = calls((0, 1), (2, 3), kind="send_recv", between_two=True)
    found = match_collectives({0: sent, 1: sent[1:]})
    assert not found.collectives
    assert not found.problems


def test_numbers_say_which_is_which_where_one_rank_was_captured_later():
    times = [(10.0 * k, 10.0 * k + 3) for k in range(6)]
    first = [calls(pair, number=40 + k)[0] for k, pair in enumerate(times)]
    second = [calls((start + 1, end), number=40 + k)[0] for k, (start, end) in enumerate(times)][2:]
    found = match_collectives({0: first, 1: second})
    assert [(one.last, one.skew_ns) for one in found.collectives] == [(1, 1 * MS)] * 4
    assert not found.offsets_ns


def test_without_numbers_those_that_end_together_are_matched():
    """Irregular times, the second rank's clock is 3 s ahead, and it was captured two collectives later."""
    times = [(0, 3), (7, 9), (20, 26), (31, 33), (50, 55), (58, 60)]
    second = calls(*((start + 3001, end + 3000) for start, end in times))[2:]
    found = match_collectives({0: calls(*times), 1: second})
    assert [(one.last, one.skew_ns) for one in found.collectives] == [(1, 1 * MS)] * 4
    assert found.offsets_ns == {1: -3000 * MS}


def test_what_never_runs_at_the_same_time_is_not_the_same():
    found = match_collectives(
        {0: calls((0, 1), (10, 11), (30, 31), (90, 91)), 1: calls((0, 1), (40, 41), (50, 51), (60, 61))}
    )
    assert not found.collectives
    assert "does not run at the same time" in found.problems[0]


def test_clocks_of_hosts_are_found_by_the_groups_that_lie_across():
    """Ranks 2 and 3 are on a host 5 s ahead; most collectives lie within a host, and say nothing of the other."""

    def group(ahead: float, *times: tuple[float, float], name: str) -> list[CollectiveCall]:
        return calls(*((start + ahead, end + ahead) for start, end in times), members=name)

    within = [(float(k), k + 0.5) for k in range(20)]
    ranks = {}
    for rank in range(4):
        ahead = 5000.0 if rank >= 2 else 0.0
        own = group(ahead, *within, name=f"host {rank // 2}")
        ranks[rank] = [*own, *group(ahead, (30, 31), (40, 41), name=f"across {rank % 2}")]
    found = match_collectives(ranks)
    assert found.offsets_ns == {2: -5000 * MS, 3: -5000 * MS}
    assert all(one.skew_ns == 0 for one in found.collectives)


def test_what_one_rank_runs_alone_is_not_compared():
    assert not match_collectives({0: calls((0, 1))}).collectives
    assert not match_collectives({}).collectives


@pytest.mark.parametrize(
    "kind, wanted", [("all_reduce", 2 * 3 / 4 * 1e9), ("all_gather", 3 / 4 * 1e9), ("broadcast", 1e9)]
)
def test_bandwidth_is_what_a_link_has_to_carry(kind, wanted):
    """1 MB in 1 ms over a group of four, of which two ranks were captured."""
    own = calls((0, 2), kind=kind, bytes=1_000_000, size=4)
    late = calls((1, 2), kind=kind, bytes=1_000_000, size=4)
    (one,) = match_collectives({0: own, 1: late}).collectives
    assert one.bus_bytes_per_s == pytest.approx(wanted)


@pytest.mark.parametrize(
    "name, kind",
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "send_recv"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>", "all_reduce"),
        ("all_to_allv", "all_to_all"),
        ("_reduce_oop", "reduce"),
        ("mystery", "other"),
    ],
)
def test_kinds_by_their_names(name, kind):
    assert collective_kind(name) == kind


def test_who_is_never_last_is_no_straggler_and_chance_is_none():
    ranks = {0: calls((0, 9), (20, 29)), 1: calls((8, 9), (28, 29)), 2: calls((7, 9), (27, 29))}
    found = match_collectives(ranks).collectives
    (one,) = find_stragglers(found, 3)
    assert (one.rank, one.last_in, one.of, one.share) == (1, 2, 2, 1.0)
    turns = match_collectives({0: calls((0, 2), (11, 12)), 1: calls((1, 2), (10, 12))}).collectives
    assert {one.rank for one in find_stragglers(turns, 2)} == {0, 1}
    assert find_stragglers([], 8) == []
