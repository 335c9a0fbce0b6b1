"""Lines on batch sizes, time to a target loss, cost and speed-up, for the terminal and pages."""

from __future__ import annotations

import math

from paceline.core import units
from paceline.core.recipe import describe_recipe
from paceline.core.remedies import SAFETY_MEANING, least_safe
from paceline.core.statistics import Interval
from paceline.tune.equivalence.outputs import Check
from paceline.tune.search.batch_size import BatchSize, BatchStudy
from paceline.tune.search.quality import Quality
from paceline.tune.search.result import TuneResult

_MILLION = 1e6


def batch_lines(found: BatchStudy) -> list[str]:
    """Return a line on each batch size, and lines on the largest, the fastest, and the first to reach a loss."""
    named = [
        ("largest batch size that ran:", found.largest),
        ("most samples/s:", found.fastest),
        ("least time to reach the same loss:", found.soonest),
    ]
    picks = ", ".join(f"{what} {size.samples}" for what, size in named if size is not None)
    return [_noise(found), *map(_size, found.sizes), f"batch sizes: {picks}; {found.rule}"]


def _noise(found: BatchStudy) -> str:
    if found.noise is None:
        return (
            f"gradient noise scale: not measured, {found.why}; it is unknown whether training with larger batches "
            f"reaches the same loss sooner"
        )
    low, value, high = (_samples(x) for x in (found.noise.low, found.noise.value, found.noise.high))
    return (
        f"gradient noise scale: {value} samples ({low} to {high}, {found.noise.count} groups of steps); batches "
        f"larger than this scale hardly reduce the number of steps to a loss; {found.why}"
    )


def _samples(value: float) -> str:
    return "too large to measure" if math.isinf(value) else units.significant(value)


def _size(size: BatchSize) -> str:
    if size.step_s is None:
        return f"{size.samples} samples: did not run, {size.why_not}"
    return (
        f"{size.samples} samples: {units.seconds(size.step_s)} per step, "
        f"{units.rate(size.samples_per_s, 'samples/s')}, peak memory {units.size(size.peak_bytes)}; one step "
        f"reduces the loss as much as {size.progress:.2f} steps with the current batch size, so the progress of one "
        f"current step takes {units.seconds(size.loss_s)}"
    )


def quality_lines(found: Quality, price_per_hour: float | None) -> list[str]:
    """Return lines on the time to a target loss, without and with the recipe."""
    target = units.significant(found.target)
    lines = [
        f"to a loss of {target} with seed {one.seed}: {_spent(one.baseline_s, price_per_hour)} without the recipe, "
        f"{_spent(one.candidate_s, price_per_hour)} with the recipe"
        for one in found.seeds
    ]
    if found.speedup is None:
        reached = f"{found.reached} of {len(found.seeds)} seeds"
        return [
            *lines,
            f"quality: not verified, because only {reached} reached the loss of the baseline in {found.steps} steps "
            f"with the recipe",
        ]
    return [
        *lines,
        f"quality: the same loss is reached {speedup(found.speedup, 'seed')} sooner{_doubt(found.speedup)}",
    ]


def _doubt(ratio: Interval) -> str:
    return "" if ratio.low > 1 else ", not significant: the interval contains 1.00x"


def _spent(seconds: float | None, price_per_hour: float | None) -> str:
    if seconds is None:
        return "not reached"
    money = f" ({units.money(seconds / 3600 * price_per_hour)})" if price_per_hour is not None else ""
    return units.seconds(seconds) + money


def money_lines(tuned: TuneResult) -> list[str]:
    """Return a line on the cost of a million samples before and after; empty without a price."""
    rate, price = tuned.before.samples_per_s, tuned.price_per_hour
    if price is None or not rate or tuned.speedup is None:
        return []
    before = price / 3600 / rate * _MILLION
    ends = [before / x for x in (tuned.speedup.value, tuned.speedup.high, tuned.speedup.low)]
    after, low, high = (units.money(x) for x in ends)
    return [
        f"a million samples cost {after} ({low} to {high}) instead of {units.money(before)}, "
        f"at {units.money(price)} per hour"
    ]


def safety_line(tuned: TuneResult) -> str:
    """Return a line on how the kept changes affect training, according to the least safe of their safety classes."""
    safety = least_safe(trial.safety for trial in tuned.trials if trial.status == "kept")
    fixed = (
        " If each sample gets the same random numbers, training computes the same numbers."
        if safety == "resampled"
        else ""
    )
    return f"safety: {safety}. {SAFETY_MEANING[safety]}{fixed}"


def unproven_lines(tuned: TuneResult) -> list[str]:
    """Return lines on the fastest unproven change and its checks; empty if there is none or a change was kept."""
    trial = tuned.unproven
    if trial is None:
        return []
    lines = [f"looked best: {describe_recipe(trial.recipe)}, {speedup(trial.speedup)} over the baseline; not proven"]
    return [*lines, f"safety: {trial.safety}. {SAFETY_MEANING[trial.safety]}", *map(_checked, trial.checks)]


def _checked(check: Check) -> str:
    return f"{'proof' if check.passed else 'changed'}: {check.text}"


def speedup(interval: Interval | None, what: str = "pair") -> str:
    """Return a speed-up with its interval and count as text."""
    if interval is None:
        return "not measured"
    bounds = units.factor_bounds(interval.low, interval.high, units.count(interval.count, what))
    return f"{units.factor(interval.value)} ({bounds})"


def not_watched(tuned: TuneResult) -> str | None:
    """Return why no run with the recipe was diagnosed; None if one was diagnosed."""
    if tuned.after is not None:
        return None
    return f"not measured with the recipe: {tuned.stopped}" if tuned.best else "no change was kept"


def gained(tuned: TuneResult) -> str:
    """Return the gain of the best recipe in terms of the goal, as text."""
    time, memory = speedup(tuned.speedup), speedup(tuned.saving)
    how = ", computed as the product of the speed-ups of its changes" if tuned.in_turn else ""
    if tuned.goal == "memory":
        return f"peak memory smaller by a factor of {memory}, speed {time}, both compared with the baseline{how}"
    per_step = " per step" if tuned.is_per_step else ""
    return f"{time}{per_step} over the baseline{how}"


def whole_line(tuned: TuneResult) -> str | None:
    """Return a line on how the speed-up of a step changes the time of a whole run; None without such a speed-up."""
    if not tuned.best or tuned.goal == "memory" or tuned.speedup is None or not tuned.is_per_step:
        return None
    if tuned.whole_run is None or tuned.whole_speedup is None:
        return (
            "whole run: the speed-up is that of a step; the time before the first step and after the last step stays "
            "the same, and is not known because no complete `paceline run` of this program is recorded here"
        )
    one, whole = tuned.whole_run, tuned.whole_speedup
    later = f"only steps after the first {tuned.warmup_steps}" if tuned.warmup_steps else "only steps"
    return (
        f"whole run: about {speedup(whole)}, because in the last complete run ({one.run_id}) "
        f"{units.percent(one.steps_s / one.wall_s)} of {units.seconds(one.wall_s)} were steps, and {later} become "
        f"faster"
    )


def failure_line(tuned: TuneResult) -> str | None:
    """Return a line that warns that the last recorded run of the program failed; None if it did not."""
    if tuned.last_failure is None:
        return None
    return (
        f"crash: the last recorded run of this program {tuned.last_failure}; tune runs only the first steps, so fix "
        f"this first"
    )
