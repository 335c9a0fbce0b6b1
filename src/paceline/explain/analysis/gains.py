"""The gain of a change, from a measurement or a model if there is one, otherwise an assumed bound.

A change that saves the share s of the time makes steps 1 / (1 - s) times as fast.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.statistics import Floats, Interval, half_width, proportion_interval
from paceline.explain.model import Basis, Gain, HotFunction

_MOST = 0.99  # largest share of a step that a change can save


def at_most(share: float) -> Gain:
    """Return the gain of a change that saves at most this share. The exact share is unknown: the gain is assumed."""
    return Gain(low=1.0, high=1 / (1 - within_a_step(share)), basis="assumed")


def saving(share: Interval, basis: Basis = "model") -> Gain:
    """Return the gain of a change that saves a share of step time, given as an interval."""
    low, high = within_a_step(share.low), within_a_step(share.high)
    return Gain(low=1 / (1 - low), high=1 / (1 - max(low, high)), basis=basis)


def share_of_events(seconds: Floats, total_s: float, fraction: float) -> Interval:
    """Return the share of time that a fraction of some events takes, with an interval from their durations.

    Args:
        seconds: The duration of each event.
        total_s: The time that the share refers to.
        fraction: Fraction of the events that counts, such as 0.9 to leave out one of ten.
    """
    count = len(seconds)
    mean = float(seconds.mean()) if count else 0.0
    half = half_width(seconds) if count >= 3 else mean
    scale = fraction * count / max(total_s, 1e-9)
    return Interval(value=mean * scale, low=max(0.0, mean - half) * scale, high=(mean + half) * scale, count=count)


def share_of_samples(share: float, count: int, total: int, fraction: float) -> Interval:
    """Return the share of step time that some stack samples represent, with Wilson's 95% interval of proportions.

    Args:
        share: Share of step time that all samples represent.
        count: Number of the samples to count.
        total: Number of all samples.
        fraction: Fraction of the resulting share that counts.
    """
    if total <= 0:
        return Interval(value=0.0, low=0.0, high=share * fraction, count=0)
    low, high = proportion_interval(count, total)
    scale = share * fraction
    return Interval(value=count / total * scale, low=low * scale, high=high * scale, count=total)


def twice_as_fast(share: float, functions: Sequence[HotFunction]) -> Gain:
    """Return the gain of making the function with the most stack samples twice as fast.

    Args:
        share: Share of step time that all samples represent.
        functions: The functions with most samples, sorted by their number of samples.
    """
    if not functions or functions[0].share <= 0:
        return at_most(0.5 * share)
    total = round(functions[0].count / functions[0].share)
    return saving(share_of_samples(share, functions[0].count, total, 0.5))


def within_a_step(share: float) -> float:
    """Return `share`, limited to the share of step time that a change can save: between 0 and 0.99."""
    return min(max(share, 0.0), _MOST)
