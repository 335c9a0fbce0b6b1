"""The speed-up of a candidate, with an interval that is valid after every block (a confidence sequence).

Each pair of blocks (the same steps under the baseline and under the candidate) gives b and c, the seconds of the two
blocks. The speed-up r is the ratio of their totals, so that a stall counts with the time it took. If r is the true
speed-up, the values x = b - r c of n pairs have mean zero. With their sample mean m and standard deviation s,
t = sqrt(n) m / s, and nu = n - 1,

    e(r) = (1 + n g)^(-1/2) [(1 + t^2/nu) / (1 + t^2/(nu (1 + n g)))]^((nu + 1)/2)

is the evidence against r: the t-test's Bayes factor with a normal prior of variance g on the effect in units of s. e is
a test martingale, so P(e ever exceeds 1/alpha) <= alpha (Ville). The r with e(r) < 1/alpha form an interval that is
valid at every n at once, so the comparison can stop at any time. See Grünwald, de Heide and Koolen, "Safe testing"
(2024), Lai, "On confidence sequences" (1976), and for the interval of a ratio Fieller, "Some problems in interval
estimation" (1954).

Two processes of the same program differ in speed by some percent for as long as they run, for example because of the
addresses of their memory or the cores they run on. More blocks do not average this difference out, more processes do. A
*round* is one process of each side. The scatter between processes is measured on the baseline alone, and widens the
interval by z sqrt(2) scatter / sqrt(rounds), where rounds of few pairs count as less than one.

A large speed-up needs only two pairs if the noise of a pair is roughly known beforehand. With a scaled
inverse-chi-squared prior on the variance of log(b / c), with scale s0 and nu0 degrees of freedom, the same e is valid
with nu = nu0 + n - 1 and s^2 = (nu0 s0^2 + sum of squares) / (nu0 + n - rounds). The prior is computed from blocks of
the baseline and is made wide (`noise_prior`), since a candidate can be noisier. Both intervals are computed, at
0.8 alpha and 0.2 alpha, and the result is their intersection.

An interval does not include stalls that have not happened yet. 16 pairs miss a stall in one of ten blocks in 19% of the
cases, and 30 pairs miss it in 4%. A small speed-up therefore needs many pairs, whatever its interval (`fewest_pairs`),
and a candidate that is kept is compared once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.statistics import Interval

ALPHA = 0.05
Values = tuple[float, float]  # of the baseline and of the candidate, over the same steps
_Z = 2.45  # two-sided 95% quantile of Student's t with 6 degrees of freedom
_USUAL_SCATTER = 0.02  # standard deviation of the log of the speed between processes, as seen on quiet machines
_USUAL_WEIGHT = 4
_FEWEST_BLOCKS = 3  # least blocks per process for an estimate of the noise of a pair
_FEWEST_TO_JUDGE = 8  # least number of pairs for a search for outliers
_FAR = 5.0  # an outlier is this many standard deviations from the median; the MAD estimates the deviation
_LEAST_FAR = 0.1  # and at least this far from the median, as a log
# A small speed-up needs pairs whose blocks take this many seconds, but at least and at most these numbers of pairs.
_SEEN_S, _FEWEST_LONG, _FEWEST_SHORT = 3.6, 16, 30
# noise of blocks, relative to the scatter between processes, below which new processes help more than pairs
_SMALL = 0.5
_G = 9.0  # prior variance: effects worth having are a few standard deviations of a block
_ALPHA_OF_PRIOR = 0.2  # share of alpha for the interval with the noise prior
_PRIOR_WEIGHT = 6.0  # degrees of freedom of the noise prior
_USUAL_NOISE = 0.25  # noise of a pair if no blocks of the baseline were compared
_LEAST_NOISE = 0.15
_NOISIER = 3.0  # a candidate may be this many times as noisy as the baseline
LARGE = 1.5  # a speed-up that is certainly larger needs few pairs
_SAYS_NOTHING = 50.0  # an interval that includes 1 and is wider than this factor is reported as unbounded
_PROVEN = 1.005  # least lower end of a gain: a gain must not be printed as 1.00x
_REFUTED = 2.0  # the prior is not used if the noise is more than this many times its scale


@dataclass(frozen=True, kw_only=True)
class NoisePrior:
    """Prior on the noise of a pair of blocks, estimated from blocks of the baseline."""

    scale: float = _USUAL_NOISE  # standard deviation of log(baseline / candidate)
    weight: float = _PRIOR_WEIGHT  # degrees of freedom


def noise_prior(processes: Sequence[Sequence[float]]) -> NoisePrior:
    """Return the prior on the noise of a pair, estimated from blocks of several processes of the baseline.

    Args:
        processes: For each process, the seconds of its blocks. All processes ran the same steps, in turn.
    """
    left = _residuals(processes)
    if left is None or left.shape[1] < _FEWEST_BLOCKS:
        return NoisePrior()
    noise = math.sqrt(2 * float(np.sum(left**2)) / ((left.shape[0] - 1) * (left.shape[1] - 1)))
    return NoisePrior(scale=max(_LEAST_NOISE, _NOISIER * noise))


def speed_up(
    rounds: Sequence[Sequence[Values]], scatter: float = 0.0, alpha: float = ALPHA, prior: NoisePrior | None = None
) -> Interval:
    """Return the speed-up as a factor. Its confidence interval stays valid if it is computed after every pair.

    Args:
        rounds: For each round and each pair of blocks, the seconds of the baseline and of the candidate.
        scatter: Standard deviation of the log of the speed between processes.
        alpha: Probability that the interval ever excludes the true speed-up.
        prior: Prior on the noise of a pair, or None for no prior.

    Returns:
        The ratio of the totals with its interval; its count is the number of pairs.
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
    """Return the interval of ratios r for which the mean of b - r c is at most `reach` standard deviations from zero.

    Args:
        rounds: Seconds as in `speed_up`. Deviations are computed from the mean of each round.
        reach: Largest distance of the mean from zero, in standard deviations of one pair.
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
    """Return half the width of the confidence interval of the log speed-up, computed with the noise prior.

    The result is infinity if the measured noise is too large for the prior.
    """
    logs = [np.log(np.divide(*np.asarray(each, dtype=float).T)) for each in rounds]
    n, squares = sum(map(len, logs)), float(sum(np.sum((each - each.mean()) ** 2) for each in logs))
    free = n - len(logs)
    if free > 0 and math.sqrt(squares / free) > _REFUTED * prior.scale:
        return math.inf
    pooled = math.sqrt((prior.weight * prior.scale**2 + squares) / (prior.weight + free))
    return half_width(n, _ALPHA_OF_PRIOR * alpha, known=prior.weight) * pooled


def _whole_rounds(rounds: Sequence[Sequence[Values]]) -> float:
    """Return the effective number of rounds: less than their count if rounds have different numbers of pairs."""
    sizes = [len(each) for each in rounds]
    return float(sum(sizes) ** 2 / sum(size * size for size in sizes))


def _process_half_width(scatter: float, rounds: float) -> float:
    """Return the half width, as a log, that the scatter between processes adds to an interval."""
    return _Z * scatter * math.sqrt(2 / rounds)


def fewest_pairs(block_s: float) -> int:
    """Return the number of pairs that a small speed-up needs, given the seconds of a block of the candidate."""
    return max(_FEWEST_LONG, min(_FEWEST_SHORT, math.ceil(_SEEN_S / block_s)))


def needs_new_processes(interval: Interval, scatter: float, rounds: int) -> bool:
    """Return whether a new round would narrow the interval much more than further pairs of the same processes."""
    if not 0 < interval.low <= interval.high < math.inf:
        return False
    between = _process_half_width(scatter, rounds)
    return math.log(interval.high / interval.low) / 2 - between <= _SMALL * between


def scatter_of(processes: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of the log of the speed between processes of the same program.

    The noise of single blocks is subtracted, because it averages out. Noise that all processes share does not count.
    Few processes give a poor estimate, so the usual scatter counts as much as four more processes.

    Args:
        processes: For each process, the seconds of its blocks. All processes ran the same steps, in turn.
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
    """Return the log seconds of blocks minus the means of processes and of blocks; None with fewer than two processes.

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
    """Return the number of pairs whose gain is far from the median. These pairs still count.

    Args:
        values: For each pair, the values of the baseline and of the candidate.
    """
    if len(values) < _FEWEST_TO_JUDGE:
        return 0
    gains = np.log(np.divide(*np.asarray(values, dtype=float).T))
    off = np.abs(gains - np.median(gains))
    return int((off > max(_FAR * 1.4826 * float(np.median(off)), _LEAST_FAR)).sum())


def half_width(n: int, alpha: float = ALPHA, g: float = _G, known: float = 0.0) -> float:
    """Return half the width of the confidence interval, in standard deviations of one pair.

    The result is infinity if there are too few pairs for a bounded interval.

    Args:
        n: Number of pairs.
        alpha: Probability that the interval ever excludes the true value.
        g: Variance of the prior on the effect, in units of the variance of the noise.
        known: Degrees of freedom of the prior on the noise; 0 for no prior.
    """
    if n < 2:
        return math.inf
    nu, grown = known + n - 1, 1 + n * g
    odds = (math.sqrt(grown) / alpha) ** (2 / (nu + 1))
    if odds >= grown:
        return math.inf
    return math.sqrt(nu * (odds - 1) / (1 - odds / grown) / n)


def multiply_intervals(factors: Sequence[Interval | None]) -> Interval | None:
    """Return the product of independent factors. The squares of their errors add up on the log scale.

    Returns:
        The product, with the smallest count of the factors; None without factors, or if a factor is None or unbounded.
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
        worth: Gains below this factor, such as 1.02, are not worth having.
        fewest: Number of pairs that a gain needs unless the gain is certainly large.

    Returns:
        ``win`` (certainly faster), ``no-win`` (certainly not faster by the factor `worth`), or None if undecided.
    """
    if interval.low >= _PROVEN and interval.value >= worth and (interval.count >= fewest or interval.low >= LARGE):
        return "win"
    if interval.high < worth:
        return "no-win"
    return None
