"""RUN004: step times vary, and the loader is not the cause."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.core import units
from paceline.core.statistics import Floats, drift
from paceline.explain.analysis.breakdown import cpu_wait_share
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule
from paceline.record.run import column

_SLOW = 1.6  # a slow step takes at least this many times the median
_LEAST_S = 0.002  # and at least this many seconds more; the scheduler causes smaller delays
_WORTH = 0.10
_LEAST_SLOW = 4  # least number of slow steps
_REGULAR = 0.8  # least share of equal distances between slow steps that counts as regular
_EXPLAINED = 0.5  # share of the extra time that waiting for a CPU core may explain

PAGE = """
## What it means

Most steps are fast, but some steps are far slower, although their data was ready. Possible causes are varying input
shapes (recompilation, autotuning), Python's garbage collector, or work that the program does only in every n-th step.

## How it is detected

The finding `step-jitter` uses only a part of the step time: the forward pass, the backward pass, the optimizer, and
copies from the host to the GPU. A step is slow if its forward pass, backward pass, optimizer and copies together take
more than 1.6 times the median and at least 2 ms more than the median. Paceline reports `step-jitter` if the extra time
of slow steps is at least 10% of all step time. If step times grow steadily, Paceline reports RUN005 instead.

Other programs on the machine also make single steps slow. Paceline therefore reports `step-jitter` only if at least
four steps are slow, if slow steps occur in at least three quarters of the run, and if the time in which the training
thread waited for a CPU core explains less than half of the extra time. Slow steps that train on as many more samples as
they take longer do not count, unless they are equally far apart and have more backward passes than other steps.

If slow steps are equally far apart, the program does more work in every n-th step, such as a rollout, an evaluation, or
a penalty. The finding then names n, and input shapes are not the cause.

The upper bound of the expected gain is the speed-up if all steps took as long as the median step.

## What helps

- `shapes.bucket`: pad or group inputs into a few shapes.
- `host.gc`: run Python's garbage collector only at chosen times, between steps.
- `host.less_often`: if the program does more work in every n-th step, do this work less often.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding RUN004, or None if it does not apply."""
    rank = analysis.first.of_one_model
    kept = [n for n in rank.phases if n in ("forward", "backward", "optimizer", "transfer")]
    busy = np.sum([rank.phases[name] for name in kept], axis=0)
    usual = float(np.median(busy))
    slow = _slow_steps(rank, busy)
    excess = float((busy[slow] - usual).sum()) / max(analysis.first.total_s, 1e-9)
    ratio, trend = drift(busy)
    if excess < _WORTH or (ratio > 1.3 and trend > 0.7):
        return None
    if not _recurs(slow) or cpu_wait_share(rank.record) >= _EXPLAINED * excess:
        return None
    every = period_of(np.flatnonzero(slow))
    gain = Gain(low=1.0, high=1 / (1 - min(excess, 0.99)), basis="assumed")
    if every is None:
        what = f"{int(slow.sum())} of {len(busy)} steps compute"
        summary = f"some steps compute for much longer than the others, which costs {units.percent(excess)} of the time"
    else:
        what = f"every {every}th step, {int(slow.sum())} of {len(busy)} steps, computes"
        summary = f"every {every}th step computes for much longer, which costs {units.percent(excess)} of the time"
    text = (
        f"{what} for much longer than the median step "
        f"({units.seconds(usual)}; the slowest takes {units.seconds(float(busy.max()))})"
    )
    return Finding(
        code="RUN004",
        name="step-jitter",
        severity="warning",
        confidence="low" if analysis.contended else "medium",
        time_share=excess,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=[Evidence(text=text, value=float(slow.sum()), unit="steps"), *_where(rank, kept, slow, busy)],
        remedies=_remedies(gain, every),
        summary=summary,
    )


def _slow_steps(rank: RankAnalysis, busy: Floats) -> NDArray[np.bool_]:
    """Return for each step whether the step is slow, also relative to its number of samples."""
    usual = float(np.median(busy))
    slow: NDArray[np.bool_] = busy > max(_SLOW * usual, usual + _LEAST_S)
    samples, passes = column(rank.rows, "samples"), column(rank.rows, "micro_steps")
    longer = slow & (passes > np.median(passes))
    if period_of(np.flatnonzero(longer)) is not None:
        return longer  # the program does more work in every n-th step, such as a penalty
    if np.all(samples > 0):
        by_sample = busy / samples
        slow &= by_sample > _SLOW * float(np.median(by_sample))
    return slow


def _recurs(slow: NDArray[np.bool_]) -> bool:
    """Return whether slow steps occur throughout the run, unlike a single disturbance of the machine."""
    parts = [bool(part.any()) for part in np.array_split(slow, 4)]
    return int(slow.sum()) >= _LEAST_SLOW and sum(parts) >= 3


def period_of(numbers: NDArray[np.intp]) -> int | None:
    """Return the distance between slow steps in steps, or None if the steps are not regular or are too few."""
    distances = np.diff(numbers)
    if len(distances) < _LEAST_SLOW - 1:
        return None
    usual = int(np.median(distances))
    return usual if usual >= 2 and float(np.mean(distances == usual)) >= _REGULAR else None


def _remedies(gain: Gain, every: int | None) -> list[Remedy]:
    if every is not None:
        change = f"if training allows it, do the work of every {every}th step less often"
        return [Remedy(id="host.less_often", safety="semantic", change=change, gain=gain)]
    collect = "turn Python's automatic garbage collection off after the setup, and collect garbage between steps"
    return [
        Remedy(id="shapes.bucket", safety="semantic", change="pad or group inputs into a few shapes", gain=gain),
        Remedy(id="host.gc", safety="exact", change=collect, gain=gain),
    ]


def _where(rank: RankAnalysis, kept: list[str], slow: np.ndarray, busy: np.ndarray) -> list[Evidence]:
    """Return evidence on the phase in which slow steps lose most of their time."""
    lost = {name: float((rank.phases[name][slow] - np.median(rank.phases[name])).sum()) for name in kept}
    phase = max(lost, key=lambda name: lost[name])
    share = lost[phase] / max(float((busy[slow] - np.median(busy)).sum()), 1e-9)
    return [
        Evidence(
            text=f"the slow steps spend {units.percent(share)} of their additional time in the {phase} phase",
            value=share,
            unit="share of lost time",
        )
    ]


RULE = Rule(code="RUN004", name="step-jitter", page=PAGE, check=check)
