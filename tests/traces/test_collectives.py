"""Who waits for whom in collectives, on clocks that may differ."""

from __future__ import annotations

import pytest

from paceline.traces.collectives import Call, kind_of, matched
from paceline.traces.stragglers import stragglers

MS = 1_000_000


def calls(*starts_and_ends: tuple[float, float], kind: str = "all_reduce", **more) -> list[Call]:
    return [
        Call(kind=kind, group="0", start_ns=round(s * MS), end_ns=round(e * MS), **more) for s, e in starts_and_ends
    ]


def test_the_last_to_come_is_waited_for():
    found = matched({0: calls((0, 5)), 1: calls((4, 5)), 2: calls((1, 5))})
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
    found = matched({0: first, 1: second, 2: first})
    assert found.offsets_ns == {1: round(-ahead * MS)}
    assert [(one.last, one.skew_ns) for one in found.collectives] == [(1, 1 * MS)] * 3


def test_kinds_and_groups_are_matched_apart_and_what_is_short_is_told():
    first = [*calls((0, 1), (2, 3)), *calls((5, 6), kind="all_gather")]
    second = [*calls((0, 1)), *calls((5.5, 6), kind="all_gather")]
    found = matched({0: first, 1: second})
    assert [(one.kind, one.number) for one in found.collectives] == [("all_reduce", 0), ("all_gather", 0)]
    assert found.problems == ["all_reduce of group 0: ranks have between 1 and 2 of them: the first ones are matched"]


def test_what_one_rank_runs_alone_is_not_compared():
    assert not matched({0: calls((0, 1))}).collectives
    assert not matched({}).collectives


@pytest.mark.parametrize(
    "kind, wanted", [("all_reduce", 2 * 3 / 4 * 1e9), ("all_gather", 3 / 4 * 1e9), ("broadcast", 1e9)]
)
def test_bandwidth_is_what_a_link_has_to_carry(kind, wanted):
    """1 MB in 1 ms over a group of four, of which two ranks were captured."""
    own = calls((0, 2), kind=kind, bytes=1_000_000, size=4)
    late = calls((1, 2), kind=kind, bytes=1_000_000, size=4)
    (one,) = matched({0: own, 1: late}).collectives
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
    assert kind_of(name) == kind


def test_who_is_never_last_is_no_straggler_and_chance_is_none():
    ranks = {0: calls((0, 9), (20, 29)), 1: calls((8, 9), (28, 29)), 2: calls((7, 9), (27, 29))}
    found = matched(ranks).collectives
    (one,) = stragglers(found, 3)
    assert (one.rank, one.last_in, one.of, one.share) == (1, 2, 2, 1.0)
    turns = matched({0: calls((0, 2), (11, 12)), 1: calls((1, 2), (10, 12))}).collectives
    assert {one.rank for one in stragglers(turns, 2)} == {0, 1}
    assert stragglers([], 8) == []
