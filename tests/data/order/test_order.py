"""The order of an epoch: every sample once, whatever the number of ranks and wherever one stops and goes on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.order.counter_rng import key_of, keys_of, numbers, permutation, permutations
from paceline.data.order.order import EpochOrder, Shuffle, shuffle_of
from paceline.data.order.slices import Slice, after, planned, positions, steps_left

BLOCKS = st.lists(st.integers(0, 9), min_size=1, max_size=12)  # samples of each; some are empty
SHUFFLES = st.one_of(
    st.none(), st.builds(Shuffle, seed=st.integers(-5, 2**70), window=st.integers(1, 5), lanes=st.integers(1, 7))
)


def order_of(sizes: list[int], shuffle: Shuffle | None, epoch: int = 0) -> EpochOrder:
    first = np.append(0, np.cumsum(sizes))[:-1].astype(np.int64)
    return EpochOrder(first, sum(sizes), shuffle, epoch)


def every(order: EpochOrder) -> list[int]:
    return order.ids(np.arange(order.samples)).tolist()


@settings(deadline=None)  # a loaded machine is no fault
@given(BLOCKS, SHUFFLES, st.integers(0, 3))
def test_every_sample_comes_once(sizes, shuffle, epoch):
    assert sorted(every(order_of(sizes, shuffle, epoch))) == list(range(sum(sizes)))


@settings(deadline=None)  # a loaded machine is no fault
@given(BLOCKS, SHUFFLES, st.data())
def test_any_position_can_be_asked_for(sizes, shuffle, data):
    whole = every(order_of(sizes, shuffle))
    asked = data.draw(st.lists(st.integers(0, max(0, len(whole) - 1)), max_size=8)) if whole else []
    assert order_of(sizes, shuffle).ids(np.array(asked, np.int64)).tolist() == [whole[place] for place in asked]


@settings(deadline=None)  # a loaded machine is no fault
@given(BLOCKS, SHUFFLES)
def test_blocks_are_those_that_samples_lie_in(sizes, shuffle):
    order = order_of(sizes, shuffle)
    first = np.append(0, np.cumsum(sizes))[:-1]
    ends = np.cumsum(sizes)
    needed = [int(np.flatnonzero((first <= one) & (one < ends))[0]) for one in every(order)]
    assert order.blocks(np.arange(order.samples)) == list(dict.fromkeys(needed))


def test_without_a_shuffle_they_come_as_they_lie():
    assert every(order_of([3, 4, 2], None)) == list(range(9))


def test_seeds_and_epochs_differ_and_repeat():
    sizes = [10] * 20
    one = Shuffle(seed=1, window=4)
    assert every(order_of(sizes, one)) == every(order_of(sizes, one))
    assert every(order_of(sizes, one)) != every(order_of(sizes, one, epoch=1))
    assert every(order_of(sizes, one)) != every(order_of(sizes, Shuffle(seed=2, window=4)))


def test_a_window_is_read_before_the_next_one():
    """Of 20 blocks of 10, windows of 4: the first 40 samples come from 4 blocks, mixed."""
    first = every(order_of([10] * 20, Shuffle(seed=0, window=4)))[:40]
    assert len({one // 10 for one in first}) == 4
    assert len({one // 10 for one in first[:10]}) > 1


@pytest.mark.parametrize("shuffle", [Shuffle(seed=3, window=2, lanes=4), shuffle_of(3), shuffle_of(3, window=1)])
def test_each_rank_reads_blocks_of_its_own_where_their_number_divides_that_of_lanes(shuffle):
    order = order_of([10] * 40, shuffle)
    for world in (world for world in (1, 2, 4, 8) if shuffle.lanes % world == 0):
        own = [{one // 10 for one in order.ids(np.arange(rank, 400, world)).tolist()} for rank in range(world)]
        assert sum(map(len, own)) == 40


@pytest.mark.parametrize("window, lanes, mixed", [(32, 8, 32), (32, 1, 32), (16, 4, 16), (1, 8, 8)])
def test_a_window_is_of_all_lanes_together(window, lanes, mixed):
    """Of 80 blocks of 10: the first samples of all lanes come from a window of blocks, at least one of each lane."""
    first = every(order_of([10] * 80, shuffle_of(0, window, lanes)))[: 10 * mixed]
    assert len({one // 10 for one in first}) == mixed


def test_the_order_of_today_is_that_of_tomorrow():
    """What a run that goes on relies on: these numbers may never change."""
    assert every(order_of([3, 3, 3, 3], Shuffle(seed=7, window=2))) == [9, 3, 4, 5, 11, 10, 0, 2, 1, 8, 7, 6]
    assert key_of(1, 2) != key_of(2, 1) != key_of(1, 2, 0)
    assert numbers(0, 2).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]  # as published for SplitMix64 of seed 0


@settings(deadline=None)  # a loaded machine is no fault
@given(st.integers(0, 2**64 - 1), st.integers(0, 50))
def test_a_permutation_has_every_number_once(key, count):
    assert sorted(permutation(key, count).tolist()) == list(range(count))


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_permutations_of_many_keys_are_those_of_each(counts, key, first):
    keys = keys_of((key, 1), np.arange(first, first + len(counts)))
    assert keys.tolist() == [key_of(key, 1, first + one) for one in range(len(counts))]
    begins = np.cumsum([0, *counts]).tolist()
    each = [begin + permutation(int(own), count) for own, count, begin in zip(keys, counts, begins)]
    assert permutations(keys, np.array(counts, np.int64)).tolist() == [one for own in each for one in own.tolist()]


@pytest.mark.parametrize("blocks, window", [([1] * 5000, 32), ([400] * 20, 32), ([1, 2000, 3], 1), ([7], 8)])
def test_windows_that_are_mixed_together_are_mixed_as_each_alone(monkeypatch, blocks, window):
    together = every(order_of(blocks, shuffle_of(3, window)))
    monkeypatch.setattr("paceline.data.order.order._PART_SAMPLES", 1)
    assert every(order_of(blocks, shuffle_of(3, window))) == together


# -- ranks, and going on ---------------------------------------------------------------------------------

WORLDS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 60), WORLDS, st.sampled_from(["drop", "pad", "even"]))
def test_nothing_is_lost_and_nothing_comes_twice(samples, worlds, ends):
    """Some ranks take some steps, stop, and others go on with what was consumed, again and again to the end."""
    consumed, seen = 0, []
    for world, batch, steps in [*worlds, (*worlds[-1][:2], samples)]:
        for _ in range(steps):
            shares = [Slice(rank=rank, world=world, batch=batch, ends=ends) for rank in range(world)]
            taken = [positions(samples, consumed, share).tolist() for share in shares]
            assert len({bool(own) for own in taken}) == 1  # all ranks make a step, or none does
            if not taken[0]:
                break
            seen += [one for own in taken for one in own]
            consumed = after(samples, consumed, shares[0])
    left = samples - consumed if consumed < samples else 0
    whole = worlds[-1][0] * worlds[-1][1]
    limit = {"drop": whole - 1, "pad": 0, "even": worlds[-1][0] - 1}[ends]
    assert left <= limit
    assert sorted(set(seen)) == list(range(samples - left))
    largest = max(world * batch for world, batch, _ in worlds)
    assert len(seen) - len(set(seen)) <= (largest - 1 if ends == "pad" else 0)


@settings(deadline=None)  # a loaded machine is no fault
@given(st.integers(0, 100), st.integers(1, 5), st.integers(1, 6), st.sampled_from(["drop", "pad", "even"]))
def test_as_many_steps_are_left_as_are_made(samples, world, batch, ends):
    share = Slice(rank=0, world=world, batch=batch, ends=ends)
    promised, made, consumed = steps_left(samples, 0, share), 0, 0
    while len(positions(samples, consumed, share)):
        made, consumed = made + 1, after(samples, consumed, share)
    assert made == promised


SLICES = st.builds(
    lambda world, rank, batch, ends: Slice(rank=rank % world, world=world, batch=batch, ends=ends),
    st.integers(1, 4), st.integers(0, 3), st.integers(1, 5), st.sampled_from(["drop", "pad", "even"]),
)  # fmt: skip


@settings(deadline=None)  # a loaded machine is no fault
@given(st.integers(0, 60), st.integers(0, 60), SLICES, st.integers(1, 7))
def test_steps_planned_together_are_those_taken_one_by_one(samples, consumed, share, most):
    consumed = min(consumed, samples)
    one_by_one, at = [], consumed
    for _ in range(steps_left(samples, at, share)):
        places = positions(samples, at, share)
        at = after(samples, at, share)
        one_by_one.append((at, places.tolist()))
    plans = planned(samples, consumed, share, most)
    together = [(at, places.tolist()) for ends_at, some in plans for at, places in zip(ends_at, some)]
    assert together == one_by_one
