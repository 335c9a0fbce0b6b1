"""Compare the first training steps of the unchanged program with those under a recipe.

The checks depend on the safety class of the change:

`exact`: the inputs of the models, the losses, the parameters, the gradients and the buffers are bitwise identical.
`resampled`: the same as `exact`, with the random draws of samples fixed on both sides. Also, each worker draws its own
random numbers.
`numeric`: the inputs, the number of applied steps, the optimizers, their learning rates and the integer buffers are
identical. The gradients of the first step differ only by rounding, dropout is still on, and the losses differ at most
by the standard deviation of the baseline's losses between seeds.

If two runs of the baseline with the same seed differ, equality cannot be checked, and the check says so.
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

FLOOR = 1e-3  # smaller relative differences of the loss are rounding, whatever the standard deviation between seeds
ROUNDING = 0.01  # relative to the norm of a gradient: other float32 kernels, other summation order, many layers
_TF32, _HALF = 0.05, 0.25  # the same limit with 11 and with 8 significant bits
_MOST_SKIPPED = 0.25  # share of the compared steps that loss scaling may skip while it searches for its scale


@dataclass(frozen=True, kw_only=True)
class Check:
    """One equivalence check and its result."""

    name: str  # such as "samples"
    passed: bool
    text: str
    vetoes: bool = False  # whether a failure rejects the change, whatever its safety class


@dataclass(frozen=True, kw_only=True)
class RankOutputs:
    """The results of one rank in the compared steps."""

    rank: int
    fed: Sequence[int]
    losses: Sequence[float]
    steps: int
    parameters: int
    gradients: int
    buffers: Sequence[int]
    rates: Sequence[float]
    counts: Sequence[int] = ()  # values of the integer buffers, such as the number of batches that BatchNorm has seen
    skipped: int = 0  # number of steps that loss scaling skipped because gradients were not finite
    options: Sequence[str] = ()  # optimizer options as text, without the learning rate
    first_gradients: Sequence[Sequence[float]] = ()  # elements of the gradients, for each of the first steps
    draws: bool = False  # whether a forward pass in training drew random numbers, as dropout does


@dataclass(frozen=True, kw_only=True)
class WorkerStates:
    """Checksums of one worker's random generators before its first batch: Python's, torch's and numpy's."""

    worker: int  # index of the worker in its loader
    states: Sequence[int]


def read_worker_states(folder: Path) -> list[WorkerStates]:
    """Return the states of random generators that the workers of a trial recorded while random draws were fixed."""
    return [WorkerStates(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("*.json")]


def read_outputs(folder: Path) -> list[RankOutputs]:
    """Return the outputs of a trial, sorted by rank."""
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
    """Compare the outputs of a candidate with those of the baseline and return the checks.

    Args:
        safety: The safety class of the candidate.
        baseline: The outputs of the baseline for each seed. The candidate uses the first seed.
        again: The outputs of a second run of the baseline with the first seed.
        candidate: The outputs of the candidate with the first seed.
        rounding: Largest allowed difference of the gradients of the first step, relative to their norm.
    """
    first = baseline[0]
    if len(candidate) != len(first) or not candidate:
        text = f"{len(candidate)} ranks reported their results, {len(first)} in the baseline"
        return [Check(name="ranks", passed=False, text=text, vetoes=True)]
    found = [_steps(first, candidate), _inputs(first, again, candidate)]
    if safety in ("exact", "resampled"):  # resampled runs have their random draws fixed, so they must be identical too
        return [*found, *_exact(first, again, candidate)]
    algorithm = [_rates(first, candidate), *_options(first, candidate), *_draws(first, candidate)]
    computed = [*_counts(first, again, candidate), *_first_gradients(first, again, candidate, rounding)]
    return [*found, *algorithm, *computed, _losses(baseline, candidate)]


def gradient_tolerance(recipe: Recipe) -> float:
    """Return the largest allowed difference of the first step's gradients under a recipe, relative to their norm."""
    if recipe.get("precision", {}).get("autocast") or recipe.get("ddp", {}).get("comm_hook"):
        return _HALF
    return _TF32 if recipe.get("precision", {}).get("tf32") else ROUNDING


def check_worker_draws(states: Sequence[WorkerStates]) -> list[Check]:
    """Check that no two workers start from equal random states. The list is empty if no worker recorded its states.

    With equal states, different samples get the same random numbers, so their distribution changes.
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
    """Return floats as a list of hexadecimal texts, so that NaN equals NaN; return an integer unchanged."""
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
    """Check that the model still draws random numbers in training (as dropout does) if the baseline's model does."""
    if not any(one.draws for one in first):
        return []
    same = [one.draws for one in first] == [one.draws for one in candidate]
    text = "dropout and other random layers draw numbers" if same else "dropout or another random layer is off"
    return [Check(name="dropout", passed=same, text=text)]


def _first_gradients(
    first: Sequence[RankOutputs], again: Sequence[RankOutputs], candidate: Sequence[RankOutputs], rounding: float
) -> list[Check]:
    """Compare the gradients of the first step; weights and inputs of this step equal those of the baseline."""
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
    """Return the norm of the difference of the first gradients, relative to the norm in `wanted`, or None.

    The result is None if there are no gradients or if their shapes differ. A step in which only the gradients in `got`
    are not finite is skipped: the loss scale was still too large.
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
    """Compare the integer buffers, such as BatchNorm's number of batches, which differs after additional updates."""
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
    """Compare the losses: the allowed difference is the standard deviation of the baseline's losses between seeds."""
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
