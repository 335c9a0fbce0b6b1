"""The time to a target loss with and without a recipe, over several seeds.

Each seed runs once without changes and once under the recipe. The target is the loss that every run of the baseline has
reached after four fifths of its steps. (At the end of a run, noise would decide which run reaches it.) Losses are
smoothed over a twentieth of the steps. The time to the target is the sum of the step times until then. The result is
the geometric mean of the time ratios, with Student's t interval over the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.recipe import BASELINE, Recipe
from paceline.core.statistics import Floats, Interval, half_width
from paceline.inprocess.settings.seeds import SEED
from paceline.record.layout import FLAG_LOSS
from paceline.record.read import read_run
from paceline.record.run import Run, column
from paceline.tune.equivalence.runs import run_and_end
from paceline.tune.search.runner import TrialRunner
from paceline.tune.trials.blocks import TrialFailed

_REACHED = 0.8  # share of a baseline run after which the target is taken
_FEWEST = 5  # least number of losses in a moving average
_SEEDS = (0, 1, 2)
_TO_A_LOSS_S = 60.0  # seconds of the steps of one run


@dataclass(frozen=True, kw_only=True)
class TimedLosses:
    """The losses of one run and the times at which they were recorded."""

    seconds: Floats  # shape [losses]: seconds since the first step
    losses: Floats  # shape [losses]


@dataclass(frozen=True, kw_only=True)
class SeedTimes:
    """Seconds to the target with one seed. `candidate_s` is None if the candidate did not reach the target."""

    seed: int
    baseline_s: float
    candidate_s: float | None


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The time to the target loss with and without a recipe."""

    target: float
    seeds: Sequence[SeedTimes]
    speedup: Interval | None  # speed-up to the same loss; None if a run did not reach the target
    steps: int  # most steps of a run

    @property
    def reached(self) -> int:
        """Number of seeds with which the recipe reached the target."""
        return sum(one.candidate_s is not None for one in self.seeds)

    @property
    def passed(self) -> bool:
        """Whether the recipe reached the target with every seed, and is not certainly slower than the baseline."""
        return self.speedup is not None and self.speedup.high >= 1.0


def compare_loss_curves(
    baseline: Sequence[TimedLosses], candidate: Sequence[TimedLosses], seeds: Sequence[int]
) -> Quality | None:
    """Compare the runs of each seed, or return None if a baseline run has no finite losses.

    Args:
        baseline: One run of the unchanged program for each seed.
        candidate: One run under the recipe for each seed.
        seeds: The seeds.
    """
    smooth = [_smoothed(curve.losses) for curve in baseline]
    if not all(len(one) and np.isfinite(one).all() for one in smooth):
        return None
    target = max(float(one[int(_REACHED * (len(one) - 1))]) for one in smooth)
    rows = []
    for seed, before, after in zip(seeds, baseline, candidate, strict=True):
        own_s = time_to(before, target)
        assert own_s is not None  # every baseline run has reached the target
        rows.append(SeedTimes(seed=seed, baseline_s=own_s, candidate_s=time_to(after, target)))
    return Quality(target=target, seeds=rows, speedup=_ratio(rows), steps=max(len(c.losses) for c in baseline))


def time_to(curve: TimedLosses, target: float) -> float | None:
    """Return the seconds until the smoothed loss first reaches the target, or None if it stays above the target."""
    smooth = _smoothed(curve.losses)
    below = np.flatnonzero(smooth <= target)
    return float(curve.seconds[below[0] + len(curve.losses) - len(smooth)]) if len(below) else None


def _smoothed(losses: Floats) -> Floats:
    width = max(_FEWEST, len(losses) // 20)
    return np.convolve(losses, np.ones(width) / width, mode="valid") if len(losses) >= width else losses[:0]


def _ratio(rows: Sequence[SeedTimes]) -> Interval | None:
    logs = [math.log(row.baseline_s / row.candidate_s) for row in rows if row.candidate_s]
    if len(logs) < len(rows) or len(logs) < 2:
        return None
    reach = half_width(np.array(logs))
    mean = float(np.mean(logs))
    return Interval(value=math.exp(mean), low=math.exp(mean - reach), high=math.exp(mean + reach), count=len(logs))


def verify_quality(runner: TrialRunner, best: Recipe, report: Callable[[str], None]) -> Quality | None:
    """Train to the same loss with the best recipe and with the baseline, over several seeds, and compare the times."""
    curves: tuple[list[TimedLosses], list[TimedLosses]] = ([], [])
    for seed in _SEEDS:
        report(f"training to the same loss with seed {seed}, without and with the kept changes")
        for recipe, found in zip((BASELINE, best), curves, strict=True):
            found.append(_loss_curve(runner, recipe, seed, _TO_A_LOSS_S))
    return compare_loss_curves(*curves, _SEEDS)


def _loss_curve(runner: TrialRunner, recipe: Recipe, seed: int, most_s: float) -> TimedLosses:
    """Run the program with a seed, to its end or for some time, and return its losses with their times.

    Raises:
        TrialFailed: The program cannot run, or no loss was recorded.
    """
    steps = max(20, int(most_s / runner.step_s))
    with runner.start(recipe, {SEED: str(seed)}) as process:
        run_and_end([process], steps, 60.0 + 10 * steps * runner.step_s)
        run = read_run(process.folder)
    return _curve_of(run)


def _curve_of(run: Run) -> TimedLosses:
    """Return the losses of a run with their times.

    Raises:
        TrialFailed: No loss was recorded.
    """
    if not run.ranks:
        raise TrialFailed("no training step was seen")
    rows = run.ranks[0].steps
    seen = (rows["flags"] & FLAG_LOSS) > 0
    if not seen.any():
        raise TrialFailed("no loss was seen")
    return TimedLosses(seconds=np.cumsum(column(rows, "wall_s"))[seen], losses=column(rows, "loss")[seen])
