"""Does the interval hold when one looks after every pair, and does it narrow as it should?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.improve.statistics import (
    NoisePrior,
    decided,
    half_width,
    log_evidence,
    noise_prior,
    outliers,
    scatter_of,
    speed_up,
    wants_processes,
)


@pytest.mark.parametrize("truth", [0.0, 0.3])
def test_the_interval_holds_at_every_look_at_once(truth):
    """300 searches that look after every one of 40 pairs: at most 5% may ever miss; here far fewer do."""
    rng = np.random.default_rng(1)
    missed = 0
    for _ in range(300):
        pairs = rng.normal(truth, 0.1, 40)
        looks = (speed_up([pairs[:n]]) for n in range(2, 41))
        missed += any(not one.low <= math.exp(truth) <= one.high for one in looks)
    assert missed <= 15


def test_a_naive_interval_would_not():
    """The same looks with 1.96 standard errors: the check above can fail."""
    rng = np.random.default_rng(1)
    missed = 0
    for _ in range(300):
        pairs = rng.normal(0, 0.1, 40)
        missed += any(abs(np.mean(p := pairs[:n])) > 1.96 * np.std(p, ddof=1) / math.sqrt(n) for n in range(4, 41))
    assert missed > 45


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=40), st.floats(-2, 2))
def test_the_interval_is_where_the_evidence_is_small(differences, mu):
    spread = float(np.std(differences, ddof=1))
    if spread < 1e-6:
        return
    inside = abs(mu - float(np.mean(differences))) <= half_width(len(differences)) * spread
    close = abs(abs(mu - float(np.mean(differences))) - half_width(len(differences)) * spread) < 1e-9
    assert close or inside == (log_evidence(differences, mu) <= math.log(20))


def test_nothing_is_said_of_little():
    assert speed_up([]).count == 0
    assert math.isinf(speed_up([[0.1]]).high)
    assert log_evidence([0.3], 0.0) == 0.0


def test_what_processes_differ_by_does_not_average_out_over_blocks():
    """A thousand blocks of one process each prove nothing of 5%, where processes differ by 5%; of 50%, all."""
    rng = np.random.default_rng(2)
    small, large = rng.normal(0.05, 0.01, 1000), rng.normal(0.5, 0.01, 1000)
    assert decided(speed_up([small], scatter=0.05), 1.02) is None
    assert decided(speed_up([large], scatter=0.05), 1.02) == "win"
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
    assert decided(speed_up([differences]), 1.02) == verdict


def test_what_is_far_off_on_both_sides_is_set_aside_and_what_is_so_on_one_stays():
    usual = [0.1 + 0.01 * (i % 5 - 2) for i in range(20)]
    assert outliers(usual) == set()
    assert outliers([*usual, 0.9, -0.7]) == {20, 21}
    assert outliers([*usual, 0.9, -0.7, -0.8]) == {20, 22}  # of two on one side the more distant one
    assert outliers([*usual, -0.7, -0.8]) == set()  # a stall under one of both: its own
    assert outliers([0.1, 0.1, 0.1, 0.9, -0.7]) == set()  # too few to say


def test_what_single_blocks_scatter_is_no_scatter_of_processes():
    noisy = [[1.0, 1.4, 0.8, 1.2], [1.3, 0.9, 1.1, 1.1], [0.9, 1.2, 1.3, 0.95]]
    assert scatter_of(noisy) < 0.03
    assert scatter_of([[1.0, 1.3], [1.0, 1.3], [1.0, 1.3]]) == pytest.approx(0.02 * (4 / 6) ** 0.5)


def test_more_pairs_of_the_same_processes_end_where_they_say_nothing_more():
    steady, wild = ([0.05 + spread * (-1) ** n for n in range(12)] for spread in (0.01, 0.3))
    assert wants_processes(speed_up([steady], 0.02), 0.02, 1)
    assert not wants_processes(speed_up([wild], 0.02), 0.02, 1)  # blocks scatter more than processes do
    assert not wants_processes(speed_up([steady], 0.0), 0.0, 1)  # processes do not
    assert not wants_processes(speed_up([[]]), 0.02, 1)  # nothing was seen yet


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
        pairs = truth + NOISES[noise](np.random.default_rng(seed), 14)
        looks = [speed_up([pairs[:n]], 0.02, prior=PRIOR) for n in range(2, 15)]
        missed += any(not one.low <= math.exp(truth) <= one.high for one in looks)
    assert missed <= 10


@pytest.mark.parametrize("gain", [9.7, 6.7, 3.4])
def test_two_pairs_decide_what_is_far_outside_the_noise(gain):
    pairs = [math.log(gain) + 0.1, math.log(gain) - 0.1]
    assert decided(speed_up([pairs], 0.02, prior=NoisePrior()), 1.02) == "win"
    assert speed_up([pairs], 0.02).low < 1  # nothing is decided without what is known of the noise


def test_two_pairs_decide_nothing_small_or_scattered():
    assert decided(speed_up([[0.1, 0.11]], 0.02, prior=PRIOR), 1.02) is None
    assert decided(speed_up([[math.log(8), 0.0]], 0.02, prior=PRIOR), 1.02) is None  # a stall in one of two


def test_a_prior_that_the_pairs_refute_is_not_used():
    wild = [1.5, 0.1, 1.4, 0.2]
    narrow = NoisePrior(scale=0.15)
    assert speed_up([wild], prior=narrow).low <= speed_up([wild]).low


def test_small_gains_need_hardly_more_pairs_than_without_a_prior():
    pairs = [0.07 + 0.01 * (-1) ** n for n in range(12)]
    with_prior, without = speed_up([pairs], prior=PRIOR), speed_up([pairs])
    assert math.log(with_prior.high / with_prior.low) <= 1.1 * math.log(without.high / without.low)


def test_the_prior_comes_from_blocks_of_the_baseline_and_is_wide():
    rng = np.random.default_rng(3)
    noisy = [list(np.exp(rng.normal(0, 0.2, 20))) for _ in range(3)]
    assert noise_prior(noisy).scale == pytest.approx(3 * 2**0.5 * 0.2, rel=0.2)
    assert noise_prior([[1.0] * 20] * 3).scale == 0.15  # a candidate may be noisier than a quiet baseline
    assert noise_prior([]) == noise_prior([[1.0], [1.0]]) == NoisePrior()  # too few blocks
