"""How the loss of a batch is combined from the losses of its parts."""

from __future__ import annotations

import pytest

from paceline.train.unmodified import call, shares

DEALT = {"rows": [4, 4], "targets": [9, 3], "targets but the first": [5, 1]}


@pytest.mark.parametrize(("count", "ranks"), [(8, 2), (7, 2), (7, 3), (3, 3), (11, 4)])
def test_each_row_is_dealt_out_once_and_evenly(count, ranks):
    bounds = [call.bounds(count, ranks, rank) for rank in range(ranks)]
    assert [row for low, high in bounds for row in range(low, high)] == list(range(count))
    dealt = call.sizes(count, ranks)
    assert sum(dealt) == count and max(dealt) - min(dealt) <= 1


@pytest.mark.parametrize(
    ("whole", "rule"), [(1.5, "rows"), (1.25, "targets"), (7 / 6, "targets but the first"), (3.0, "sum")]
)
def test_the_rule_is_the_one_that_gives_the_number(whole, rule):
    found = shares.errors(DEALT, whole, [1.0, 2.0], near=1e-4)
    assert list(found) == [rule]
    assert shares.settled(DEALT, found, looks=1)


def test_of_rules_that_differ_by_rounding_the_likeliest_is_taken():
    found = {"rows": 7e-8, "targets": 1e-8, "sum of input 1": 2e-9}
    assert shares.best(found) == "rows"
    assert shares.best({**found, "rows": 2e-6}) == "targets"


def test_parts_that_are_nearly_alike_settle_nothing_until_enough_was_seen():
    found = shares.errors(DEALT, 1.0000002, [1.0, 1.0000004], near=1e-4)
    assert set(found) == {"rows", "targets", "targets but the first"}
    assert not shares.settled(DEALT, found, looks=1)
    assert shares.settled(DEALT, found, looks=16)


def test_a_rank_without_targets_has_no_part_in_the_number():
    dealt = {"rows": [2, 2], "targets": [3, 0]}
    assert list(shares.errors(dealt, 1.0, [1.0, float("nan")], near=1e-4)) == ["targets"]


def test_a_sum_over_at_least_one_target_is_weighed_on_a_rank_without_any():
    dealt = {"rows": [2, 2], "targets": [4, 0]}
    assert list(shares.errors(dealt, 1.75, [1.5, 1.0], near=1e-4)) == ["targets, at least 1"]
    assert (
        list(shares.errors({"rows": [2, 2], "targets": [0, 0]}, 5.0, [2.0, 3.0], near=1e-4))[0] == "targets, at least 1"
    )


def test_what_weighs_alike_is_one_rule():
    assert shares.alike({"rows": [4, 4], "targets": [6, 6]})[:2] == (0, 0)
    assert shares.alike(DEALT)[:4] == (0, 1, 2, 3)


def test_calls_with_a_rank_without_targets_are_of_another_kind():
    assert shares.alike({"rows": [2, 2], "targets": [3, 1]}) != shares.alike({"rows": [2, 2], "targets": [4, 0]})
