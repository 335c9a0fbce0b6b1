"""Does the interval hold when one looks after every pair, and does it narrow as it should?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.tune.comparison.statistics import (
    NoisePrior,
    count_outliers,
    fewest_pairs,
    needs_new_processes,
    noise_prior,
    scatter_of,
    speed_up,
    verdict_so_far,
)


def blocks(*gains):
    """Pairs whose log(baseline / candidate) are these."""
    return [(math.exp(gain / 2), math.exp(-gain / 2)) for gain in gains]


def noisy(rng, speed_up, count, noise=0.1):
    """Pairs of blocks: seconds of a baseline and of what is so many times as fast, each with noise of its own."""
    both = np.exp(rng.normal(0, noise, (count, 2))) * [1.0, 1 / speed_up]
    return [tuple(pair) for pair in both]


@pytest.mark.parametrize("truth", [1.0, 1.35])
def test_the_interval_holds_at_every_look_at_once(truth):
    """300 searches that look after every one of 40 pairs: at most 5% may ever miss; here far fewer do."""
    rng = np.random.default_rng(1)
    missed = 0
    for _ in range(300):
        pairs = noisy(rng, truth, 40, 0.07)
        looks = (speed_up([pairs[:n]]) for n in range(2, 41))
        missed += any(not one.low <= truth <= one.high for one in looks)
    assert missed <= 15


def test_a_naive_interval_would_not():
    """The same looks with 1.96 standard errors: the check above can fail."""
    rng = np.random.default_rng(1)
    missed = 0
    for _ in range(300):
        pairs = rng.normal(0, 0.1, 40)
        missed += any(abs(np.mean(p := pairs[:n])) > 1.96 * np.std(p, ddof=1) / math.sqrt(n) for n in range(4, 41))
    assert missed > 45


def evidence(pairs, ratio, g=9.0):
    """The log of the evidence against a true ratio of totals, as the module's documentation has it."""
    left = [b - ratio * c for b, c in pairs]
    n, spread = len(left), float(np.std(left, ddof=1))
    t2, nu = n * (float(np.mean(left)) / spread) ** 2, n - 1
    factor = math.log1p(t2 / nu) - math.log1p(t2 / (nu * (1 + n * g)))
    return -0.5 * math.log1p(n * g) + 0.5 * n * factor


seconds_of_blocks = st.floats(0.1, 4)


@given(
    st.lists(st.tuples(seconds_of_blocks, seconds_of_blocks), min_size=6, max_size=40),
    st.floats(0.05, 20),
)
def test_the_interval_is_where_the_evidence_is_small(pairs, ratio):
    left = [b - ratio * c for b, c in pairs]
    if float(np.std(left, ddof=1)) < 1e-6 or abs(evidence(pairs, ratio) - math.log(20)) < 1e-6:
        return
    found = speed_up([pairs])
    if found.low == 0 and found.high == math.inf:  # too wide to say anything
        return
    assert (found.low <= ratio <= found.high) == (evidence(pairs, ratio) <= math.log(20))


def test_nothing_is_said_of_little():
    assert speed_up([]).count == speed_up([[]]).count == 0
    assert math.isinf(speed_up([blocks(0.1)]).high)


def test_an_interval_of_numpy_is_made_of_plain_numbers():
    """It is written as JSON."""
    found = speed_up([np.exp(np.random.default_rng(0).normal(0.5, 0.1, (12, 2)))], 0.02, prior=NoisePrior())
    assert {type(found.value), type(found.low), type(found.high)} == {float}


def test_the_gain_is_the_ratio_of_the_totals():
    """1.5 times as fast in nine blocks, and eight times as slow in the tenth: slower in all."""
    pairs = [(1.5, 1.0)] * 9 + [(1.5, 12.0)]
    found = speed_up([pairs])
    assert found.value == pytest.approx(15 / 21)
    assert verdict_so_far(found, 1.02) is None
    assert count_outliers(pairs) == 1


def test_a_stall_that_lasts_counts_as_long_as_it_lasts_and_not_as_one_of_many():
    steady = [(1.0 + 0.01 * (i % 3), 0.8) for i in range(40)]
    assert verdict_so_far(speed_up([steady]), 1.02) == "win"
    assert verdict_so_far(speed_up([[*steady, (1.0, 20.0)]]), 1.02) is None


def test_rounds_count_by_their_pairs():
    """A round of two pairs says little: it must not weigh as much as one of a hundred."""
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(300):
        rounds = [noisy(rng, 1.0, 100), noisy(rng, 1.0, 2)]
        found = speed_up(rounds)
        missed += not found.low <= 1.0 <= found.high
    assert missed <= 15


def test_few_pairs_of_a_second_process_say_little_of_processes():
    alike, unlike = ([blocks(*[0.05] * 20), blocks(*[0.05] * n)] for n in (20, 1))
    assert speed_up(alike, scatter=0.05).low > speed_up(unlike, scatter=0.05).low


def test_what_processes_differ_by_does_not_average_out_over_blocks():
    """A thousand blocks of one process each prove nothing of 5%, where processes differ by 5%; of 50%, all."""
    rng = np.random.default_rng(2)
    small, large = blocks(*rng.normal(0.05, 0.01, 1000)), blocks(*rng.normal(0.5, 0.01, 1000))
    assert verdict_so_far(speed_up([small], scatter=0.05), 1.02) is None
    assert verdict_so_far(speed_up([large], scatter=0.05), 1.02) == "win"
    one, four = (speed_up([small] * rounds, scatter=0.05) for rounds in (1, 4))
    assert math.log(four.high / four.low) == pytest.approx(math.log(one.high / one.low) / 2, rel=0.05)


def test_the_scatter_of_processes_is_held_against_what_is_usual():
    alike = scatter_of([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    apart = scatter_of([[1.0, 1.0], [1.2, 1.2], [0.8, 0.8]])
    assert 0.01 < alike < 0.02 < scatter_of([]) + 1e-9 < apart < 0.2


@pytest.mark.parametrize(
    "differences, verdict",
    [
        ([0.5, 0.52, 0.49, 0.51, 0.5], "win"),
        ([-0.1, -0.11, -0.09, -0.1, -0.1], "no-win"),
        ([0.0, 0.001, -0.001, 0.0, 0.0005], "no-win"),
        ([0.5, -0.4, 0.3, -0.2, 0.1], None),
    ],
)
def test_what_is_decided(differences, verdict):
    assert verdict_so_far(speed_up([blocks(*differences)]), 1.02) == verdict


def test_a_small_gain_needs_many_pairs_and_a_large_one_few():
    small, large = [blocks(*[gain, gain + 0.01] * 3) for gain in (0.2, 1.2)]
    assert verdict_so_far(speed_up([small]), 1.02, fewest=12) is None
    assert verdict_so_far(speed_up([small, small]), 1.02, fewest=12) == "win"
    assert verdict_so_far(speed_up([large]), 1.02, fewest=12) == "win"
    assert fewest_pairs(0.12) == 30
    assert fewest_pairs(0.6) == 16


def stalls(rng, count):
    """Pairs with what is 1.5 times as fast, but takes 12 times as long in one of ten blocks: slower in all."""
    return [(b, c * (12 if rng.random() < 0.1 else 1)) for b, c in noisy(rng, 1.5, count, 0.05)]


@pytest.mark.parametrize("block_s", [0.12, 0.6])
def test_a_stall_now_and_then_is_overlooked_in_less_than_5_percent(block_s):
    """A race that is looked at after every pair, and the comparison that has to confirm it."""
    fewest, kept = fewest_pairs(block_s), 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        race, again = stalls(rng, 60), stalls(rng, fewest)
        won = any(verdict_so_far(speed_up([race[:n]]), 1.02, fewest) == "win" for n in range(2, 61, 2))
        kept += won and speed_up([again]).value >= 1
    assert kept <= 10


def test_what_is_far_off_is_told():
    usual = [0.1 + 0.01 * (i % 5 - 2) for i in range(20)]
    assert count_outliers(blocks(*usual)) == 0
    assert count_outliers(blocks(*usual, 0.9, -0.7, -0.8)) == 3
    assert count_outliers(blocks(0.1, 0.1, 0.1, 0.9, -0.7)) == 0  # too few to say


def test_what_single_blocks_scatter_is_no_scatter_of_processes():
    noisy = [[1.0, 1.4, 0.8, 1.2], [1.3, 0.9, 1.1, 1.1], [0.9, 1.2, 1.3, 0.95]]
    assert scatter_of(noisy) < 0.03
    assert scatter_of([[1.0, 1.3], [1.0, 1.3], [1.0, 1.3]]) == pytest.approx(0.02 * (4 / 6) ** 0.5)


def test_more_pairs_of_the_same_processes_end_where_they_say_nothing_more():
    steady, wild = (blocks(*(0.05 + spread * (-1) ** n for n in range(12))) for spread in (0.01, 0.3))
    assert needs_new_processes(speed_up([steady], 0.02), 0.02, 1)
    assert not needs_new_processes(speed_up([wild], 0.02), 0.02, 1)  # blocks scatter more than processes do
    assert not needs_new_processes(speed_up([steady], 0.0), 0.0, 1)  # processes do not
    assert not needs_new_processes(speed_up([[]]), 0.02, 1)  # nothing was seen yet


PRIOR = NoisePrior(scale=0.15)
NOISES = {
    "quiet": lambda rng, n: rng.normal(0, 0.05, n),
    "as noisy as the prior says": lambda rng, n: rng.normal(0, 0.15, n),
    "twice as noisy": lambda rng, n: rng.normal(0, 0.3, n),
    "heavy tails": lambda rng, n: 0.15 * rng.standard_t(2, n),
    "stalls to an eighth": lambda rng, n: (
        rng.normal(0, 0.05, n) + math.log(8) * (rng.random(n) < 0.1) * rng.choice([-1, 1], n)
    ),
}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("truth", [0.0, math.log(3)])
def test_with_a_prior_on_the_noise_the_interval_holds_from_the_second_pair_on(noise, truth):
    missed = 0
    for seed in range(200):
        pairs = blocks(*truth + NOISES[noise](np.random.default_rng(seed), 14))
        looks = [speed_up([pairs[:n]], 0.02, prior=PRIOR) for n in range(2, 15)]
        missed += any(not one.low <= math.exp(truth) <= one.high for one in looks)
    assert missed <= 10


@pytest.mark.parametrize("gain", [9.7, 6.7, 3.4])
def test_two_pairs_decide_what_is_far_outside_the_noise(gain):
    pairs = blocks(math.log(gain) + 0.1, math.log(gain) - 0.1)
    assert verdict_so_far(speed_up([pairs], 0.02, prior=NoisePrior()), 1.02) == "win"
    assert speed_up([pairs], 0.02).low < 1  # nothing is decided without what is known of the noise


def test_two_pairs_decide_nothing_small_or_scattered():
    assert verdict_so_far(speed_up([blocks(0.1, 0.11)], 0.02, prior=PRIOR), 1.02) is None
    assert (
        verdict_so_far(speed_up([blocks(math.log(8), 0.0)], 0.02, prior=PRIOR), 1.02) is None
    )  # a stall in one of two


def test_a_prior_that_the_pairs_refute_is_not_used():
    wild = blocks(1.5, 0.1, 1.4, 0.2)
    narrow = NoisePrior(scale=0.15)
    assert speed_up([wild], prior=narrow).low <= speed_up([wild]).low


def test_small_gains_need_hardly_more_pairs_than_without_a_prior():
    pairs = blocks(*(0.07 + 0.01 * (-1) ** n for n in range(12)))
    with_prior, without = speed_up([pairs], prior=PRIOR), speed_up([pairs])
    assert math.log(with_prior.high / with_prior.low) <= 1.1 * math.log(without.high / without.low)


def test_the_prior_comes_from_blocks_of_the_baseline_and_is_wide():
    rng = np.random.default_rng(3)
    noisy = [list(np.exp(rng.normal(0, 0.2, 20))) for _ in range(3)]
    assert noise_prior(noisy).scale == pytest.approx(3 * 2**0.5 * 0.2, rel=0.2)
    assert noise_prior([[1.0] * 20] * 3).scale == 0.15  # a candidate may be noisier than a quiet baseline
    assert noise_prior([]) == noise_prior([[1.0], [1.0]]) == NoisePrior()  # too few blocks
