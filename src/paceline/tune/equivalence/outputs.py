"""Compare the first training steps of the unchanged program with those under a recipe.

`exact`: what models are fed, the losses, the parameters, the gradients and the buffers are the same to the last bit.
`resampled`: the same, with the random draws of samples fixed on both sides; and each worker draws its own numbers.
`numeric`: models are fed the same, as many steps are applied, by the same optimizers at the same learning rates, what
buffers count is the same, the gradients of the first step differ by rounding only, dropout is still on, and the losses
differ no more than the baseline's own do from seed to seed. Where the baseline does not repeat
itself, even with its seeds set, nothing can be proven and that is said.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from paceline.core.recipe import Recipe
from paceline.core.remedies import Safety

FLOOR = 1e-3  # of the loss: differences below are rounding, whatever the seeds
ROUNDING = 0.01  # of the norm of a gradient: other kernels in float32, summed in another order through many layers
_TF32, _HALF = 0.05, 0.25  # the same with 11 and with 8 significant bits
_MOST_SKIPPED = 0.25  # of the steps compared, in which loss scaling has yet to find its scale


@dataclass(frozen=True, kw_only=True)
class Check:
    """One invariant and its result."""

    name: str  # such as "samples"
    passed: bool
    text: str
    vetoes: bool = False  # whether no change that fails it is kept, of whatever class


@dataclass(frozen=True, kw_only=True)
class RankOutputs:
    """What one rank computed in the compared steps."""

    rank: int
    fed: Sequence[int]
    losses: Sequence[float]
    steps: int
    parameters: int
    gradients: int
    buffers: Sequence[int]
    rates: Sequence[float]
    counts: Sequence[int] = ()  # of the buffers those of whole numbers, such as batches that BatchNorm has seen
    skipped: int = 0  # of the steps: loss scaling found gradients that were not finite
    options: Sequence[str] = ()  # of the optimizers, but for the learning rate, in words
    first_gradients: Sequence[Sequence[float]] = ()  # elements of the gradients of the first steps
    draws: bool = False  # whether a forward pass in training drew random numbers, as dropout does


@dataclass(frozen=True, kw_only=True)
class WorkerStates:
    """Checksums of one worker's random generators before its first batch: Python's, torch's and numpy's."""

    worker: int  # its number in its loader
    states: Sequence[int]


def read_worker_states(folder: Path) -> list[WorkerStates]:
    """Return what the workers of a trial recorded with their draws fixed."""
    return [WorkerStates(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("*.json")]


def read_outputs(folder: Path) -> list[RankOutputs]:
    """Return what the ranks of a trial computed, by rank."""
    found = []
    for path in folder.glob("*.json"):
        values = json.loads(path.read_text(encoding="utf-8"))
        values["losses"] = [float.fromhex(loss) for loss in values["losses"]]
        steps = values.get("first_gradients", ())
        values["first_gradients"] = [[float.fromhex(one) for one in step] for step in steps]
        found.append(RankOutputs(**values))
    return sorted(found, key=lambda seen: seen.rank)


def compare_outputs(
    safety: Safety,
    baseline: Sequence[Sequence[RankOutputs]],
    again: Sequence[RankOutputs],
    candidate: Sequence[RankOutputs],
    rounding: float = ROUNDING,
) -> list[Check]:
    """Compare a candidate with the baseline.

    Args:
        safety: The class of the recipe.
        baseline: What the baseline computed under some seeds, the first of which is the candidate's too.
        again: What the baseline computed when it ran once more with the first seed.
        candidate: What the candidate computed with the first seed.
        rounding: By how much the gradients of the first step may differ, relative to their norm.
    """
    first = baseline[0]
    if len(candidate) != len(first) or not candidate:
        text = f"{len(candidate)} ranks reported their results, {len(first)} in the baseline"
        return [Check(name="ranks", passed=False, text=text, vetoes=True)]
    found = [_steps(first, candidate), _inputs(first, again, candidate)]
    if safety in ("exact", "resampled"):  # a resampled change is compared with the random draws fixed
        return [*found, *_exact(first, again, candidate)]
    algorithm = [_rates(first, candidate), *_options(first, candidate), *_draws(first, candidate)]
    computed = [*_counts(first, again, candidate), *_first_gradients(first, again, candidate, rounding)]
    return [*found, *algorithm, *computed, _losses(baseline, candidate)]


def gradient_tolerance(recipe: Recipe) -> float:
    """Return by how much the gradients of a first step may differ under a recipe, relative to their norm."""
    if recipe.get("precision", {}).get("autocast") or recipe.get("ddp", {}).get("comm_hook"):
        return _HALF
    return _TF32 if recipe.get("precision", {}).get("tf32") else ROUNDING


def check_worker_draws(states: Sequence[WorkerStates]) -> list[Check]:
    """Check that no two workers start from equal random states; no check where no worker recorded any.

    Equal states would give different samples the same random numbers, which is another distribution.
    """
    if not states:
        return []
    same = any(a.worker != b.worker and _any_equal(a, b) for a, b in combinations(states, 2))
    ids = len({one.worker for one in states})
    text = (
        "two loader workers start with the same random state"
        if same
        else f"{ids} worker{'s' * (ids != 1)}, each with its own random state"
    )
    return [Check(name="draws", passed=not same, text=text)]


def _any_equal(one: WorkerStates, other: WorkerStates) -> bool:
    return any(a == b for a, b in zip(one.states, other.states, strict=False))


def _steps(first: Sequence[RankOutputs], candidate: Sequence[RankOutputs]) -> Check:
    counts = [one.steps for one in first], [one.steps for one in candidate]
    skipped = max(one.skipped for one in candidate)
    text = f"{counts[1][0] - skipped} optimizer steps applied, {counts[0][0]} in the baseline"
    if skipped:
        text += f"; {skipped} skipped because gradients were not finite in fp16"
    too_many = skipped > _MOST_SKIPPED * counts[1][0]
    return Check(name="steps", passed=counts[0] == counts[1] and not too_many, text=text, vetoes=too_many)


def _inputs(first: Sequence[RankOutputs], again: Sequence[RankOutputs], candidate: Sequence[RankOutputs]) -> Check:
    wanted, got = [list(one.fed) for one in first], [list(one.fed) for one in candidate]
    if wanted == got:
        return Check(
            name="samples", passed=True, text=f"the same inputs in {len(wanted[0])} forward passes, bitwise identical"
        )
    if [list(one.fed) for one in again] != wanted:
        return Check(
            name="samples",
            passed=False,
            text="inputs: not checked, because the inputs of the baseline differ from run to run",
        )
    place = next((i for i, (a, b) in enumerate(zip(wanted[0], got[0], strict=False)) if a != b), len(got[0]))
    return Check(name="samples", passed=False, text=f"the inputs differ from forward pass {place + 1} on")


def _exact(first: Sequence[RankOutputs], again: Sequence[RankOutputs], candidate: Sequence[RankOutputs]) -> list[Check]:
    found = []
    for name in ("losses", "gradients", "parameters", "buffers"):
        wanted, got, repeated = ([_as_bits(getattr(one, name)) for one in seen] for seen in (first, candidate, again))
        repeats = wanted == repeated
        if wanted == got:
            text = f"the same {name}, bitwise identical" if any(wanted) else f"no {name} to compare"
            found.append(Check(name=name, passed=True, text=text))
        elif repeats:
            found.append(Check(name=name, passed=False, text=f"the {name} differ from those of the baseline"))
        else:
            found.append(
                Check(
                    name=name, passed=True, text=f"not compared, because the baseline's {name} differ from run to run"
                )
            )
    return found


def _as_bits(values: int | Sequence[float]) -> int | list[str]:
    """Return floats as hexadecimal text, so that NaN equals NaN."""
    return values if isinstance(values, int) else [float(value).hex() for value in values]


def _rates(first: Sequence[RankOutputs], candidate: Sequence[RankOutputs]) -> Check:
    same = [one.rates for one in first] == [one.rates for one in candidate]
    return Check(name="schedule", passed=same, text="the same learning rates" if same else "different learning rates")


def _options(first: Sequence[RankOutputs], candidate: Sequence[RankOutputs]) -> list[Check]:
    if not any(one.options for one in first):
        return []
    same = [list(one.options) for one in first] == [list(one.options) for one in candidate]
    other = "a different optimizer, or different optimizer options such as the weight decay"
    text = "the same optimizers" if same else other
    return [Check(name="optimizer", passed=same, text=f"{text}")]


def _draws(first: Sequence[RankOutputs], candidate: Sequence[RankOutputs]) -> list[Check]:
    """Check that a model which draws random numbers in training, as dropout does, still draws some."""
    if not any(one.draws for one in first):
        return []
    same = [one.draws for one in first] == [one.draws for one in candidate]
    text = "dropout and other random layers draw numbers" if same else "dropout or another random layer is off"
    return [Check(name="dropout", passed=same, text=text)]


def _first_gradients(
    first: Sequence[RankOutputs], again: Sequence[RankOutputs], candidate: Sequence[RankOutputs], rounding: float
) -> list[Check]:
    """Compare the gradients of the first step, which has the same weights and inputs as in the baseline."""
    if not any(step for one in first for step in one.first_gradients):
        return []
    found = [_relative_distance(a, b) for a, b in zip(first, candidate, strict=True)]
    if any(apart is None for apart in found):
        text = "the gradients of the first step are of other parameters, or none of the first steps has finite ones"
        return [Check(name="gradients", passed=False, text=text)]
    apart = max(value for value in found if value is not None)
    repeats = max(_relative_distance(a, b) or 0.0 for a, b in zip(first, again, strict=True))
    allowed = max(rounding, 2 * repeats)
    text = (
        f"the gradients of the first step differ by {_shown(apart)} of their norm; at most {_shown(allowed)} is allowed"
    )
    return [Check(name="gradients", passed=apart <= allowed, text=text)]


def _relative_distance(wanted: RankOutputs, got: RankOutputs) -> float | None:
    """Return the norm of the difference of two gradients, relative to the first one; None without gradients.

    A step is left out where a gradient is not finite: a loss scale was too large for it.
    """
    for a, b in zip(wanted.first_gradients, got.first_gradients, strict=False):
        one, other = np.array(a), np.array(b)
        if one.shape != other.shape:
            return None
        if not np.isfinite(other).all() and np.isfinite(one).all():
            continue
        norm = float(np.linalg.norm(one))
        return float(np.linalg.norm(one - other)) / norm if norm > 0 else float(np.linalg.norm(other) > 0)
    return None


def _counts(
    first: Sequence[RankOutputs], again: Sequence[RankOutputs], candidate: Sequence[RankOutputs]
) -> list[Check]:
    """Compare what buffers count: a BatchNorm that is updated twice a step has counted twice as many batches."""
    wanted, got, repeated = ([list(one.counts) for one in seen] for seen in (first, candidate, again))
    if not any(wanted) and not any(got):
        return []
    if wanted == got:
        return [Check(name="buffers", passed=True, text="the same integer buffers, bitwise identical")]
    if wanted != repeated:
        return [
            Check(
                name="buffers", passed=True, text="not compared, because the baseline's buffers differ from run to run"
            )
        ]
    return [
        Check(
            name="buffers",
            passed=False,
            text="the integer buffers differ from those of the baseline, so the model counts steps or batches more "
            "or fewer times",
        )
    ]


def _losses(baseline: Sequence[Sequence[RankOutputs]], candidate: Sequence[RankOutputs]) -> Check:
    """Compare the difference of the losses with the standard deviation of the baseline's losses between seeds."""
    curves = [np.array(seeded[0].losses) for seeded in baseline]
    own = np.array(candidate[0].losses)
    length = min(len(own), *(len(c) for c in curves))
    if length == 0:
        return Check(name="losses", passed=False, text="not checked, because no loss was seen")
    half = length // 2
    if not np.isfinite(own[:length]).all() and np.isfinite(curves[0][:length]).all():
        text = "a loss is NaN or infinite, but all losses of the baseline are finite"
        return Check(name="losses", passed=False, text=text, vetoes=True)
    level = float(np.mean(np.abs(curves[0][half:length])))
    scatter = float(np.mean(np.std([c[half:length] for c in curves], axis=0, ddof=1))) if len(curves) > 1 else 0.0
    apart = float(np.mean(np.abs(own[half:length] - curves[0][half:length])))
    allowed = max(scatter, FLOOR * level)
    text = (
        f"losses differ by {_shown(apart)} on average over {length - half} steps; at most {_shown(allowed)} is allowed"
    )
    why = f"the standard deviation between seeds is {_shown(scatter)}" if len(curves) > 1 else "for rounding"
    return Check(name="losses", passed=apart <= allowed, text=f"{text} ({why})")


def _shown(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else str(value)
