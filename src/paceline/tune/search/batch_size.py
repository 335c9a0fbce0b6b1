"""Batch sizes: which sizes fit in memory, which has the most samples per second, and which reaches a loss first.

Let |g_B|^2 be the squared norm of the gradient of B samples, G the true gradient and S the covariance of one sample's
gradient. Then

    E |g_B|^2 = |G|^2 + tr(S) / B,      B_noise = tr(S) / |G|^2,      steps to a loss ~ 1 + B_noise / B

(McCandlish, Kaplan, Amodei and others, "An empirical model of large-batch training", 2018). The gradient of one step
and the mean gradient of k steps have two different batch sizes, so both terms can be computed from them. Far below
B_noise, twice the samples need half the steps. Far above B_noise, they need as many steps as before. So a step of B
samples makes as much progress as

    (1 + B_noise / B_0) / (1 + B_noise / B)

steps of B_0 samples. The time to a loss is proportional to the step time divided by this progress. The estimate changes
during training (it mostly grows), does not consider generalisation, and assumes a learning rate that fits each batch
size. Therefore the safety class is semantic.

Learning rate for B / B_0 = c: times c for SGD (Goyal and others, 2017), times sqrt(c) for Adam and similar optimizers
(Malladi and others, "On the SDEs and scaling rules for adaptive gradient algorithms", 2022).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from paceline.core import units
from paceline.core.recipe import Recipe, merge_recipes
from paceline.core.statistics import Floats, Interval
from paceline.hardware.host import available_bytes
from paceline.hardware.operating_system import LocalFiles
from paceline.inprocess.settings.seeds import SEED
from paceline.inprocess.settings.trial.gradient_noise import FOLDER, NOISE, WINDOW
from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.equivalence.runs import run_and_end
from paceline.tune.search.runner import TrialRunner
from paceline.tune.trials.applied_settings import require_applied, unapplied_settings
from paceline.tune.trials.blocks import StepBlock, TrialFailed

_RESAMPLED = 400
_FEWEST_WINDOWS = 6
_LINEAR = ("SGD", "ASGD", "Rprop")
_DOUBLINGS = 6
_MEASURED_S = 2.0  # seconds of measured steps for each batch size
_NOISE_S = 15.0
_NOISE_WINDOWS = (12, 100)  # least and most windows of steps in which gradients are measured
_FASTER = 1.02
_SAFE_SHARE = 0.5  # share of the free host memory that a batch size may take, because other programs need memory too


@dataclass(frozen=True, kw_only=True)
class BatchSize:
    """One batch size and its measurements."""

    samples: int  # samples per step of one rank
    progress: float  # progress of one step towards the same loss, in steps of the current batch size
    learning_rate: float  # factor on the learning rate of the program
    step_s: float | None = None  # None: steps of this batch size did not run
    peak_bytes: float | None = None
    why_not: str | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second of one rank, or None if this batch size did not run."""
        return None if self.step_s is None else self.samples / self.step_s

    @property
    def loss_s(self) -> float | None:
        """Seconds until training has made as much progress as one step of the current batch size makes.

        None if this batch size did not run.
        """
        return None if self.step_s is None else self.step_s / self.progress


@dataclass(frozen=True, kw_only=True)
class BatchStudy:
    """The batch sizes that were tried; the first is the current one."""

    noise: Interval | None  # B_noise, in samples; None if it was not measured
    why: str  # how B_noise was measured, or why it was not
    rule: str  # rule for the learning rate
    sizes: Sequence[BatchSize]

    @property
    def largest(self) -> BatchSize | None:
        """The largest batch size that ran, or None."""
        return max(self._ran, key=lambda s: s.samples, default=None)

    @property
    def fastest(self) -> BatchSize | None:
        """The batch size with the most samples per second, or None if no batch size ran."""
        return max(self._ran, key=lambda s: s.samples_per_s or 0.0, default=None)

    @property
    def soonest(self) -> BatchSize | None:
        """The batch size that is expected to reach the same loss first, or None if no batch size ran."""
        return min(self._ran, key=lambda s: s.loss_s or math.inf, default=None)

    @property
    def _ran(self) -> list[BatchSize]:
        return [size for size in self.sizes if size.step_s is not None]


def noise_scale(windows: Sequence[tuple[float, float]], batch: float, k: int = WINDOW) -> Interval | None:
    """Return B_noise in samples with its 95% bootstrap interval, or None if there are too few pairs of gradient norms.

    B_noise is infinite if the gradients are noise only.

    Args:
        windows: For each window of k steps, the mean of |g|^2 over the steps, and |mean of the k gradients|^2.
        batch: Samples per step.
        k: Steps per window.
    """
    found = np.asarray(windows, dtype=np.float64).reshape(-1, 2)
    found = found[np.isfinite(found).all(axis=1)]
    if len(found) < _FEWEST_WINDOWS:
        return None
    draws = np.random.default_rng(0).integers(0, len(found), (_RESAMPLED, len(found)))
    resampled = [_noise_scale(found[draw], batch, k) for draw in draws]
    value = _noise_scale(found, batch, k)
    low, high = (float(np.quantile(resampled, q, method="nearest")) for q in (0.025, 0.975))
    return Interval(value=value, low=min(low, value), high=max(high, value), count=len(found))


def _noise_scale(windows: Floats, batch: float, k: int) -> float:
    single, mean = windows.mean(axis=0)
    noise, signal = k * (single - mean), k * mean - single  # (k - 1) tr(S) / B and (k - 1) |G|^2
    if signal <= 0:
        return math.inf
    return max(0.0, float(batch * noise / signal))


def progress(noise: float, before: float, after: float) -> float:
    """Return the progress of one step of `after` samples towards a loss, in steps of `before` samples."""
    if math.isinf(noise):
        return after / before
    return (1 + noise / before) / (1 + noise / after)


def learning_rate_factor(optimizer: str, factor: float) -> float:
    """Return the factor on the learning rate for a batch size multiplied by `factor`."""
    return factor if optimizer in _LINEAR else math.sqrt(factor)


def learning_rate_rule(optimizer: str) -> str:
    """Return a sentence on how the learning rate changes with the batch size."""
    return (
        f"{optimizer}: the learning rate is multiplied by {'c' if optimizer in _LINEAR else 'sqrt(c)'} if the "
        f"batch size is multiplied by c"
    )


def read_windows(folder: Path) -> tuple[list[tuple[float, float]], int]:
    """Return the pairs of gradient norms that the first rank of a trial recorded, and its number of optimizers.

    The pairs are the argument `windows` of `noise_scale`.
    """
    for path in sorted((folder / FOLDER).glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        return [(a, b) for a, b in found["windows"]], found["optimizers"]
    return [], 0


def study_batch_sizes(
    runner: TrialRunner, context: DiagnosisContext, best: Recipe, left_s: Callable[[], float]
) -> BatchStudy | None:
    """Measure larger batch sizes, doubling each time.

    Args:
        runner: Runs the trials.
        context: The diagnosis context of the program under the best recipe.
        best: The best recipe so far.
        left_s: Function that returns the rest of the time budget in seconds.

    Returns:
        The measured sizes, or None if the batch size of the loader is unknown or the loader reads a stream.
    """
    loader = context.loader
    now = loader.settings.get("batch_size") if loader is not None else None
    if not isinstance(now, int) or context.streams:
        return None
    optimizer, world = _optimizer(context), len(context.facts.ranks)
    windows, optimizers = gradient_windows(runner, best, min(_NOISE_S, max(3.0, left_s() / 4)))
    noise = noise_scale(windows, now * world) if optimizers == 1 else None
    sizes: list[BatchSize] = []
    for samples in (now << doubling for doubling in range(_DOUBLINGS + 1)):
        # without a known noise scale, no progress is assumed: a step of any size counts as one step
        made = 1.0 if noise is None else progress(noise.low, now * world, samples * world)
        size = BatchSize(samples=samples, progress=made, learning_rate=learning_rate_factor(optimizer, samples / now))
        why_not = _too_large(sizes) if context.facts.on_cpu else None
        sizes.append(replace(size, why_not=why_not) if why_not else _measured(runner, best, sizes, size))
        if left_s() <= 0 or sizes[-1].step_s is None or _exhausted(sizes):
            break
    return BatchStudy(
        noise=noise, why=_noise_text(len(windows), optimizers), rule=learning_rate_rule(optimizer), sizes=sizes
    )


def size_recipe(size: BatchSize, now: int) -> Recipe:
    """Return the recipe of a batch size, or an empty recipe for the current batch size."""
    if size.samples == now:
        return {}
    return {"loader": {"batch_size": size.samples}, "optimizer": {"lr_factor": round(size.learning_rate, 6)}}


def fastest_candidate(found: BatchStudy) -> Candidate | None:
    """Return a candidate with the batch size that is expected to reach the same loss first.

    Returns:
        The candidate, or None if the current batch size is the best or no batch size ran.
    """
    best, now = found.soonest, found.sizes[0]
    if best is None or best is now:
        return None
    return Candidate(
        remedy="batch.size",
        recipe=size_recipe(best, now.samples),
        safety="semantic",
        predicted=None,
        why=f"with {best.samples} samples per step, training is expected to reach the same loss sooner",
        progress=best.progress,
    )


def _measured(runner: TrialRunner, best: Recipe, sizes: Sequence[BatchSize], size: BatchSize) -> BatchSize:
    """Run some steps with a batch size. Return the size with its step time and memory, or with the error."""
    now = sizes[0].samples if sizes else size.samples
    about_s = sizes[-1].step_s if sizes else None
    try:
        block = _measure_steps(
            runner, merge_recipes(best, size_recipe(size, now)), about_s or runner.step_s, _MEASURED_S
        )
    except TrialFailed as error:
        return replace(size, why_not=str(error))
    return replace(size, step_s=block.step_s, peak_bytes=block.peak_bytes)


def _too_large(sizes: Sequence[BatchSize]) -> str | None:
    """Return why the next batch size could need too much host memory, or None if the free memory is enough."""
    peaks = [size.peak_bytes for size in sizes[-2:]]
    if len(peaks) < 2 or peaks[0] is None or peaks[1] is None:
        return None
    # memory is linear in samples, so the next doubling adds twice what the last one added
    more = 2 * (peaks[1] - peaks[0])
    free = available_bytes(LocalFiles())
    if free is None or more <= _SAFE_SHARE * free:
        return None
    return f"would need about {units.size(more)} more memory, which is more than half of the free memory"


def _exhausted(sizes: Sequence[BatchSize]) -> bool:
    """Return whether two doublings in a row gave no more samples per second."""
    rates = [size.samples_per_s or 0.0 for size in sizes]
    return len(rates) >= 3 and max(rates[-2:]) < _FASTER * max(rates[:-2])


def _optimizer(context: DiagnosisContext) -> str:
    used = context.facts.first.record.summary.get("optimizers", ())
    return str(max(used, key=lambda o: o.get("parameters", 0))["class"]) if used else "optimizer"


def _noise_text(windows: int, optimizers: int) -> str:
    if optimizers > 1:
        return f"the program has {optimizers} optimizers, so the gradient noise cannot be measured"
    return (
        f"measured on {windows} groups of steps at the start of training; the gradient noise scale usually grows later"
    )


def gradient_windows(runner: TrialRunner, recipe: Recipe, most_s: float) -> tuple[list[tuple[float, float]], int]:
    """Measure the gradient noise in a run of the program.

    Args:
        runner: Runs the program.
        recipe: The recipe of the run.
        most_s: Approximate upper limit on the seconds of the steps.

    Returns:
        The pairs of gradient norms (argument `windows` of `noise_scale`) that the first rank recorded, and its number
        of optimizers.

    Raises:
        TrialFailed: The program cannot run under the recipe.
    """
    steps = WINDOW * max(_NOISE_WINDOWS[0], min(_NOISE_WINDOWS[1], int(most_s / (WINDOW * runner.step_s))))
    with runner.start(recipe, {NOISE: "1", SEED: "0"}) as process:
        run_and_end([process], steps, 60.0 + 60 * steps * runner.step_s)
    return read_windows(process.folder)


def _measure_steps(runner: TrialRunner, recipe: Recipe, step_s: float, most_s: float) -> StepBlock:
    """Run some steps under a recipe in a single process, after a few warm-up steps, and return the measured block.

    Args:
        runner: Runs the program.
        recipe: The recipe with the batch size to try.
        step_s: Approximate seconds of one step.
        most_s: Approximate upper limit on the seconds of the measured steps.

    Raises:
        TrialFailed: The program cannot run under the recipe, or a setting had no effect.
    """
    with runner.start(recipe) as process:
        process.begin()
        process.run_steps(3, 60.0 + 200 * step_s)
        require_applied(unapplied_settings(recipe, process.folder))
        steps = max(3, int(most_s / step_s))
        return process.run_steps(steps, 60.0 + 30 * steps * step_s)
