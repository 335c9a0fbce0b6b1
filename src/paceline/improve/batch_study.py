"""Which sizes of batch are worth a trial? Twice as many samples again and again, while it runs and may still pay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.core import units
from paceline.core.recipe import Recipe, merged
from paceline.hardware.host import available_bytes
from paceline.hardware.operating_system import LocalFiles
from paceline.improve.batch import BatchStudy, Size, noise_scale, progress, rate_factor, rule_of
from paceline.improve.model import Candidate
from paceline.improve.situation import Situation
from paceline.improve.trials import TrialFailed
from paceline.improve.workshop import Workshop

_DOUBLINGS = 6
_MEASURED_S = 2.0  # of steps of each size
_NOISE_S = 15.0
_FASTER = 1.02
_SAFE_SHARE = 0.5  # of the memory that is free: the machine is not ours alone


def study(workshop: Workshop, situation: Situation, best: Recipe, left_s: Callable[[], float]) -> BatchStudy | None:
    """Try larger batches; None where there is no batch to change.

    Args:
        workshop: Where trials are made.
        situation: The program under what is kept.
        best: What is kept.
        left_s: Seconds that are left of the budget.
    """
    loader = situation.loader
    now = loader.settings.get("batch_size") if loader is not None else None
    if not isinstance(now, int) or situation.streams:
        return None
    optimizer, world = _optimizer(situation), len(situation.facts.ranks)
    windows, optimizers = workshop.windows(best, min(_NOISE_S, max(3.0, left_s() / 4)))
    noise = noise_scale(windows, now * world) if optimizers == 1 else None
    sizes: list[Size] = []
    for samples in (now << doubling for doubling in range(_DOUBLINGS + 1)):
        # with an unknown noise scale nothing is promised: a step of any size makes the progress of one
        made = 1.0 if noise is None else progress(noise.low, now * world, samples * world)
        size = Size(samples=samples, progress=made, learning_rate=rate_factor(optimizer, samples / now))
        why_not = _too_large(sizes) if situation.facts.on_cpu else None
        sizes.append(replace(size, why_not=why_not) if why_not else _measured(workshop, best, sizes, size))
        if left_s() <= 0 or sizes[-1].step_s is None or _exhausted(sizes):
            break
    return BatchStudy(noise=noise, why=_why(len(windows), optimizers), rule=rule_of(optimizer), sizes=sizes)


def recipe_of(size: Size, now: int) -> Recipe:
    """Return the recipe of one size of batch; empty for the present one."""
    if size.samples == now:
        return {}
    return {"loader": {"batch_size": size.samples}, "optimizer": {"lr_factor": round(size.learning_rate, 6)}}


def candidate_of(found: BatchStudy) -> Candidate | None:
    """Return the size that is expected at the same loss first, as something to try; None where that is the present."""
    best, now = found.soonest, found.sizes[0]
    if best is None or best is now:
        return None
    return Candidate(
        remedy="batch.size",
        recipe=recipe_of(best, now.samples),
        safety="semantic",
        predicted=None,
        why=f"with {best.samples} samples per step, training is expected to reach the same loss sooner",
        progress=best.progress,
    )


def _measured(workshop: Workshop, best: Recipe, sizes: Sequence[Size], size: Size) -> Size:
    """Run some steps of a size."""
    now = sizes[0].samples if sizes else size.samples
    about_s = sizes[-1].step_s if sizes else None
    try:
        block = workshop.sized(merged(best, recipe_of(size, now)), about_s or workshop.step_s, _MEASURED_S)
    except TrialFailed as error:
        return replace(size, why_not=str(error))
    return replace(size, step_s=block.step_s, peak_bytes=block.peak_bytes)


def _too_large(sizes: Sequence[Size]) -> str | None:
    """Say why the next size should not be tried on a machine whose memory others need too; None where it may."""
    peaks = [size.peak_bytes for size in sizes[-2:]]
    if len(peaks) < 2 or peaks[0] is None or peaks[1] is None:
        return None
    more = 2 * (peaks[1] - peaks[0])  # linear in samples: the next doubling takes twice what the last one took
    free = available_bytes(LocalFiles())
    if free is None or more <= _SAFE_SHARE * free:
        return None
    return f"would need about {units.size(more)} more memory, which is more than half of the free memory"


def _exhausted(sizes: Sequence[Size]) -> bool:
    """Say whether two doublings in a row brought no more samples a second."""
    rates = [size.samples_per_s or 0.0 for size in sizes]
    return len(rates) >= 3 and max(rates[-2:]) < _FASTER * max(rates[:-2])


def _optimizer(situation: Situation) -> str:
    used = situation.facts.first.record.summary.get("optimizers", ())
    return str(max(used, key=lambda o: o.get("parameters", 0))["class"]) if used else "optimizer"


def _why(windows: int, optimizers: int) -> str:
    if optimizers > 1:
        return f"the program has {optimizers} optimizers, so the gradient noise cannot be measured"
    return (
        f"measured on {windows} groups of steps at the start of training; the gradient noise scale usually grows later"
    )
