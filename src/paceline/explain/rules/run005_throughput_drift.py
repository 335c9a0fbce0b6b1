"""RUN005: steps get slower during the run."""

from __future__ import annotations

import numpy as np

from paceline.core import units
from paceline.core.statistics import Floats, drift, median_interval
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule
from paceline.record.layout import PHASES
from paceline.record.run import column

PAGE = """
## What it means

Steps take longer and longer during the run. Possible causes are a growing list that each step processes, an autograd
graph that the program keeps in memory, or a growing file that the program rewrites each time.

## How it is detected

Paceline reports `throughput-drift` if the median step time of the last quarter of the run is at least 1.25 times that
of the first quarter. To test whether step times rise steadily, Paceline divides the run into eight parts. The median
step time must rise from nearly every part of the run to the next part (Kendall's tau of at least 0.7).

Paceline does not report `throughput-drift` in four cases:

- Other processes are busy on the host, and the program's own CPU time per step has hardly grown since the start of the
  run.
- Later steps process more samples than earlier steps, and the time per sample has not grown.
- The program began to train a model of another size. Paceline uses only the longest part of the run with one size.
- The machine itself became slower (heat, clock rate, other programs). In this case, the forward pass, the backward pass
  and the optimizer all became slower by a common factor, and the step time divided by this factor grew by less than a
  factor of 1.25.

## What helps

- `run.bound_state`: limit the size of the list, cache or file that grows. The finding names the phase of a step that
  became slower, and the function in it.
"""


_LEAST = 1.25  # least ratio of the last to the first quarter's step time
_COMPUTE = ("forward", "backward", "optimizer")
_TIMED_S = 2e-5


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding RUN005, or None if it does not apply."""
    rank = analysis.first.of_one_model
    ratio, trend = drift(rank.walls)
    if not _drifts(rank.walls) or len(rank.rows) < 32:
        return None
    if _neighbours(analysis, rank, ratio) or _more_samples(rank) or _slower_machine(rank, ratio):
        return None
    quarter = len(rank.walls) // 4
    begin = float(np.median(rank.walls[:quarter]))
    gain = _at_first_pace(rank.walls, quarter, rank.total_s / max(analysis.first.total_s, 1e-9))
    text = (
        f"the median step time grew from {units.seconds(begin)} in the first quarter of the run to "
        f"{units.seconds(begin * ratio)} in the last quarter of the run ({len(rank.rows)} steps)"
    )
    return Finding(
        code="RUN005",
        name="throughput-drift",
        severity="critical" if ratio >= 2 else "warning",
        confidence="high" if trend >= 0.85 else "medium",
        time_share=1 - 1 / (gain.low * gain.high) ** 0.5,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=[Evidence(text=text, value=ratio, unit="factor"), _grown(rank, quarter)],
        remedies=[
            Remedy(
                id="run.bound_state",
                safety="exact",
                change="limit the size of lists, caches or files that grow with each step",
                gain=None,
            )
        ],
        summary=f"at the end of the run, a step takes {units.factor(ratio)} as long as at the beginning",
    )


def _at_first_pace(walls: Floats, quarter: int, part: float) -> Gain:
    """Return the gain if all steps were as fast as those in the first quarter of the run (95% CI of its median).

    Args:
        walls: Seconds of each step.
        quarter: Number of steps in the first quarter.
        part: Share of the run's time that all steps in `walls` take.
    """
    begin, mean = median_interval(walls[:quarter]), float(walls.mean())
    if begin is None or begin.low <= 0:
        return Gain(low=1.0, high=1.0)
    saved = [part * max(0.0, 1 - pace / mean) for pace in (begin.high, begin.low)]
    return Gain(low=1 / (1 - min(saved)), high=1 / (1 - max(saved)))


def _drifts(values: np.ndarray) -> bool:
    ratio, trend = drift(values)
    return ratio >= _LEAST and trend >= 0.7


def _more_samples(rank: RankAnalysis) -> bool:
    """Return whether steps take longer only because they process more samples."""
    samples = column(rank.rows, "samples")
    return bool(np.all(samples > 0)) and not _drifts(rank.walls / samples)


def _slower_machine(rank: RankAnalysis, ratio: float) -> bool:
    """Return whether the machine became slower: all compute phases grew by about as much as the step.

    The optimizer does the same work in every step. If there is no optimizer phase, the result is False.
    """
    quarter = len(rank.walls) // 4
    growth = [_growth(rank.phases[phase], quarter) for phase in _COMPUTE]
    return all(growth) and ratio / max(1.0, min(growth)) < _LEAST


def _growth(values: Floats, quarter: int) -> float:
    """Return the last quarter's median over the first quarter's, or 0 if the first is too short to measure."""
    first = float(np.median(values[:quarter]))
    return float(np.median(values[-quarter:])) / first if first >= _TIMED_S else 0.0


def _neighbours(analysis: RunAnalysis, rank: RankAnalysis, ratio: float) -> bool:
    """Return whether other processes are the cause: the CPU is busy, and the run's CPU time per step hardly grew."""
    host, ticks = analysis.host, rank.record.ticks
    if not analysis.contended or len(ticks) < 4 or host.allowed_cores is None:
        return False
    steps, cpu = ticks["step"].astype(np.float64), ticks["cpu_s"]
    half = len(ticks) // 2
    early = (cpu[half] - cpu[0]) / max(1.0, steps[half] - steps[0])
    late = (cpu[-1] - cpu[half]) / max(1.0, steps[-1] - steps[half])
    return bool(late < early * (1 + 0.4 * (ratio - 1)))


def _grown(rank: RankAnalysis, quarter: int) -> Evidence:
    growth = {p: float(rank.phases[p][-quarter:].mean() - rank.phases[p][:quarter].mean()) for p in PHASES}
    phase = max(growth, key=lambda p: growth[p])
    functions = {"other": rank.breakdown.host_functions, "data_wait": rank.loader.hot if rank.loader else ()}.get(
        phase, ()
    )
    where = f", in {functions[0].function}" if functions else ""
    return Evidence(
        text=f"the {phase} phase grew most{where}: by {units.seconds(growth[phase])} per step",
        value=growth[phase],
        unit="s",
    )


RULE = Rule(code="RUN005", name="throughput-drift", page=PAGE, check=check)
