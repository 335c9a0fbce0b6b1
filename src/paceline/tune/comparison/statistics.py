"""The speed-up of a candidate, with an interval that is valid after every block (a confidence sequence).

Each pair of blocks (the same steps under the baseline and under the candidate) gives b and c, their seconds. The
speed-up r is the ratio of their totals, so that a stall counts with the time it took. For a speed-up r, the x = b - r c
of n pairs have mean zero. With their mean m and standard deviation s, t = sqrt(n) m / s, and with nu = n - 1

    e(r) = (1 + n g)^(-1/2) [(1 + t^2/nu) / (1 + t^2/(nu (1 + n g)))]^((nu + 1)/2)

is the evidence against r: the t-test's Bayes factor with a normal prior of variance g on the effect in units of s. It
is a test martingale, so P(it ever exceeds 1/alpha) <= alpha (Ville), and the r with e(r) < 1/alpha form an interval
that holds at every n at once: one may stop whenever one likes. See Grünwald, de Heide and Koolen, "Safe testing"
(2024), Lai, "On confidence sequences" (1976), and for the interval of a ratio Fieller, "Some problems in interval
estimation" (1954).

Two processes of the very same program differ by some percent for as long as they live (where their memory lies, which
core they got). That does not average out over blocks, only over processes: a *round* is one process of each, and the
scatter between processes, measured on the baseline alone, widens the interval by z sqrt(2) scatter / sqrt(rounds),
where rounds of few pairs count as less than one.

A large speed-up needs no more than two pairs if the noise of a pair is roughly known beforehand. With a scaled
inverse-chi-squared prior on the variance of log(b / c), scale s0 and nu0 degrees of freedom, the same e holds with
nu = nu0 + n - 1 and s^2 = (nu0 s0^2 + sum of squares) / (nu0 + n - rounds). The prior comes from blocks of the
baseline and is made wide (`noise_prior`), since a candidate may be noisier. Both intervals are used, at 0.8 alpha and
0.2 alpha, and what lies in both is reported.

No interval can know of a stall that it has not seen. A stall in one of ten blocks is missed by 16 pairs in 19% of the
cases and by 30 in 4%. A small speed-up therefore needs many pairs, whatever its interval (`fewest_pairs`), and what is
kept is compared once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.statistics import Interval

ALPHA = 0.05
Values = tuple[float, float]  # of the baseline and of the candidate, for the same steps
_Z = 2.45  # of Student's t with 6 degrees of freedom: 95%
_USUAL_SCATTER = 0.02  # seen on quiet machines
_USUAL_WEIGHT = 4
_FEWEST_BLOCKS = 3  # of each process, from which the noise of a pair is estimated
_FEWEST_TO_JUDGE = 8  # pairs, below which none is called far off
_FAR = 5.0  # standard deviations, as the median distance from the median has them
_LEAST_FAR = 0.1  # as a log
_SEEN_S, _FEWEST_LONG, _FEWEST_SHORT = 3.6, 16, 30  # of the candidate, before a small speed-up counts
_SMALL = 0.5  # what blocks scatter, beside what processes do
_G = 9.0  # effects worth having are a few standard deviations of a block
_ALPHA_OF_PRIOR = 0.2  # the share of alpha that the interval with a prior gets
_PRIOR_WEIGHT = 6.0  # its degrees of freedom
_USUAL_NOISE = 0.25  # of a pair, if no blocks of the baseline were compared
_LEAST_NOISE = 0.15
_NOISIER = 3.0  # times the baseline's noise, that a candidate may have
LARGE = 1.5  # a factor that is certainly larger needs few pairs
_SAYS_NOTHING = 50.0  # ends of an interval that are so far apart, with no gain between them
_PROVEN = 1.005  # the least low end of a gain: it must not be printed as 1.00x
_REFUTED = 2.0  # times the scale of the prior: if pairs are so noisy, the prior is not used


@dataclass(frozen=True, kw_only=True)
class NoisePrior:
    """Prior on the noise of a pair of blocks, from blocks of the baseline."""

    scale: float = _USUAL_NOISE  # standard deviation of log(baseline / candidate)
    weight: float = _PRIOR_WEIGHT  # degrees of freedom


def noise_prior(processes: Sequence[Sequence[float]]) -> NoisePrior:
    """Return the prior on the noise of a pair, from blocks of some processes of the baseline.

    Args:
        processes: For each, seconds of blocks of the same steps, run in turn.
    """
    left = _residuals(processes)
    if left is None or left.shape[1] < _FEWEST_BLOCKS:
        return NoisePrior()
    noise = math.sqrt(2 * float(np.sum(left**2)) / ((left.shape[0] - 1) * (left.shape[1] - 1)))
    return NoisePrior(scale=max(_LEAST_NOISE, _NOISIER * noise))


def speed_up(
    rounds: Sequence[Sequence[Values]], scatter: float = 0.0, alpha: float = ALPHA, prior: NoisePrior | None = None
) -> Interval:
    """Return the speed-up as a factor, with the interval that holds however often one has looked.

    Args:
        rounds: For each round the seconds of the baseline and of the candidate, for each pair of blocks.
        scatter: Standard deviation of the log of a process's speed.
        alpha: The chance that the interval ever misses the truth.
        prior: What is known of the noise of a pair; None: nothing.

    Returns:
        The ratio of the totals; its count is the number of pairs.
    """
    rounds = [each for each in rounds if len(each)]
    n = sum(len(each) for each in rounds)
    if n == 0:
        return Interval(value=math.nan, low=0.0, high=math.inf, count=0)
    value = float(sum(b for each in rounds for b, _ in each) / sum(c for each in rounds for _, c in each))
    low, high = _of_totals(rounds, half_width(n, alpha if prior is None else (1 - _ALPHA_OF_PRIOR) * alpha))
    if prior is not None:
        reach = _reach_by_prior(rounds, alpha, prior)
        below, above = value * math.exp(-reach), value * math.exp(reach)
        low, high = max(low, below), min(high, above)
    between = math.exp(_process_half_width(scatter, _whole_rounds(rounds)))
    low, high = low / between, high * between
    if low < 1 and high > _SAYS_NOTHING * low:
        low, high = 0.0, math.inf
    return Interval(value=value, low=low, high=high, count=n)


def _of_totals(rounds: Sequence[Sequence[Values]], reach: float) -> tuple[float, float]:
    """Return the interval of ratios r for which the mean of b - r c is within a number of standard errors of zero.

    Args:
        rounds: As `speed_up` takes them; deviations are from the mean of each round.
        reach: How many standard deviations of one pair.
    """
    free = sum(len(each) for each in rounds) - len(rounds)
    if free <= 0 or not math.isfinite(reach):
        return 0.0, math.inf
    values = [np.asarray(each, dtype=float) for each in rounds]
    mean_b, mean_c = np.concatenate(values).mean(axis=0).tolist()
    left = np.concatenate([(each - each.mean(axis=0)) for each in values]) / mean_b
    (bb, bc), (_, cc) = (left.T @ left * reach**2 / free).tolist()
    c = mean_c / mean_b
    # (1 - r c)^2 <= bb - 2 r bc + r^2 cc, a quadratic in r
    square, half, constant = c * c - cc, c - bc, 1 - bb
    root = math.sqrt(max(0.0, half * half - square * constant))
    low = constant / (half + root) if constant > 0 and half + root > 0 else 0.0
    return low, (half + root) / square if square > 0 else math.inf


def _reach_by_prior(rounds: Sequence[Sequence[Values]], alpha: float, prior: NoisePrior) -> float:
    """Return half the width of the interval, as a log, that a prior on the noise gives; infinite if it is refuted."""
    logs = [np.log(np.divide(*np.asarray(each, dtype=float).T)) for each in rounds]
    n, squares = sum(map(len, logs)), float(sum(np.sum((each - each.mean()) ** 2) for each in logs))
    free = n - len(logs)
    if free > 0 and math.sqrt(squares / free) > _REFUTED * prior.scale:
        return math.inf
    pooled = math.sqrt((prior.weight * prior.scale**2 + squares) / (prior.weight + free))
    return half_width(n, _ALPHA_OF_PRIOR * alpha, known=prior.weight) * pooled


def _whole_rounds(rounds: Sequence[Sequence[Values]]) -> float:
    """Return the effective number of rounds, if rounds have different numbers of pairs."""
    sizes = [len(each) for each in rounds]
    return float(sum(sizes) ** 2 / sum(size * size for size in sizes))


def _process_half_width(scatter: float, rounds: float) -> float:
    """Return the part of an interval's half width, as a log, that is between processes."""
    return _Z * scatter * math.sqrt(2 / rounds)


def fewest_pairs(block_s: float) -> int:
    """Return the number of pairs of blocks that a small speed-up needs before it counts."""
    return max(_FEWEST_LONG, min(_FEWEST_SHORT, math.ceil(_SEEN_S / block_s)))


def needs_new_processes(interval: Interval, scatter: float, rounds: int) -> bool:
    """Return whether a new round would narrow the interval much more than further pairs of the same processes."""
    if not 0 < interval.low <= interval.high < math.inf:
        return False
    between = _process_half_width(scatter, rounds)
    return math.log(interval.high / interval.low) / 2 - between <= _SMALL * between


def scatter_of(processes: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of the log of a process's speed, from some processes of the same program.

    What single blocks scatter, apart from what all processes had in common in them, is taken off: it averages out. Few
    processes say little, so what is usual counts as much as four more of them.

    Args:
        processes: For each, seconds of blocks of the same steps, played in turn; as many of each.
    """
    left = _residuals(processes)
    if left is None:
        return _USUAL_SCATTER
    count, blocks = left.shape
    speeds = np.array([np.log(each[:blocks]).mean() for each in processes])
    noise2 = float(np.sum(left**2)) / max(1, (count - 1) * (blocks - 1))
    own = max(0.0, float(np.sum((speeds - speeds.mean()) ** 2)) - (count - 1) * noise2 / blocks)
    return math.sqrt((_USUAL_WEIGHT * _USUAL_SCATTER**2 + own) / (_USUAL_WEIGHT + count - 1))


def _residuals(processes: Sequence[Sequence[float]]) -> np.ndarray | None:
    """Return the log seconds of blocks without the means of processes and of blocks; None without two processes.

    Returns:
        An array of shape (processes, blocks).
    """
    count, blocks = len(processes), min((len(each) for each in processes), default=0)
    if count < 2 or not blocks:
        return None
    logs = np.log(np.array([each[:blocks] for each in processes]))
    left: np.ndarray = logs - logs.mean(axis=1)[:, None] - logs.mean(axis=0)[None, :] + logs.mean()
    return left


def count_outliers(values: Sequence[Values]) -> int:
    """Return in how many pairs the gain is far from the median; they count like all others.

    Args:
        values: Of the baseline and of the candidate, for each pair.
    """
    if len(values) < _FEWEST_TO_JUDGE:
        return 0
    gains = np.log(np.divide(*np.asarray(values, dtype=float).T))
    off = np.abs(gains - np.median(gains))
    return int((off > max(_FAR * 1.4826 * float(np.median(off)), _LEAST_FAR)).sum())


def half_width(n: int, alpha: float = ALPHA, g: float = _G, known: float = 0.0) -> float:
    """Return half the interval's width in standard deviations of one pair; infinite while nothing can be said.

    Args:
        n: How many pairs there are.
        alpha: The chance that the interval ever misses the truth.
        g: Variance of the prior on the effect, in units of the noise's.
        known: Degrees of freedom with which the noise was known beforehand.
    """
    if n < 2:
        return math.inf
    nu, grown = known + n - 1, 1 + n * g
    odds = (math.sqrt(grown) / alpha) ** (2 / (nu + 1))
    if odds >= grown:
        return math.inf
    return math.sqrt(nu * (odds - 1) / (1 - odds / grown) / n)


def multiply_intervals(factors: Sequence[Interval | None]) -> Interval | None:
    """Return the product of independent factors; the squares of their errors add up on the log scale.

    Returns:
        Its count is the least of theirs; None where there are none, or one is not known or has no bounds.
    """
    known = [one for one in factors if one is not None and 0 < one.low <= one.high < math.inf]
    if not factors or len(known) < len(factors):
        return None
    value = math.prod(one.value for one in known)
    below = math.hypot(*(math.log(one.value / one.low) for one in known))
    above = math.hypot(*(math.log(one.high / one.value) for one in known))
    low, high = value * math.exp(-below), value * math.exp(above)
    return Interval(value=value, low=low, high=high, count=min(one.count for one in known))


def verdict_so_far(interval: Interval, worth: float, fewest: int = 0) -> str | None:
    """Return the verdict of a comparison so far.

    Args:
        interval: The speed-up so far.
        worth: Factor below which a gain is not worth having, such as 1.02.
        fewest: Pairs that a gain needs unless it is certainly large.

    Returns:
        ``win`` (certainly faster), ``no-win`` (certainly not faster by as much as is worth having), or None.
    """
    if interval.low >= _PROVEN and interval.value >= worth and (interval.count >= fewest or interval.low >= LARGE):
        return "win"
    if interval.high < worth:
        return "no-win"
    return None
