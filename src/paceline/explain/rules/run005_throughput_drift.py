"""RUN005: do steps get slower as the run goes on?"""

from __future__ import annotations

import numpy as np

from paceline import units
from paceline.explain.facts import Facts, RankFacts
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule
from paceline.explain.statistics import Floats, drift
from paceline.record.layout import PHASES
from paceline.record.run import column

PAGE = """
## What it means

The same step takes longer and longer: a list that grows and is walked every step, a graph kept alive, a file
that is rewritten whole, heat.

## How it is decided

The median step of the last quarter is at least 1.25 times that of the first quarter, and the medians of eight
equal parts of the run rise nearly without exception (Kendall's tau at least 0.7). It is not reported while
other processes are busy on the host and the program's own CPU time a step has hardly grown, nor where steps take
more samples as the run goes on (episodes that get longer, a batch that grows) and a sample takes no longer, nor
where the machine itself got slower (heat, clocks, neighbours on the same silicon): forward, backward and the
optimizer's update, which is the same work at every step, all take longer, and what the step grew beyond that is
less than 1.25 times.

## What helps

`run.bound_state`: bound what grows; the phase that grew is named, and the function in it.
"""


_LEAST = 1.25  # times the first quarter's
_COMPUTE = ("forward", "backward", "optimizer")
_TIMED_S = 2e-5


def check(facts: Facts) -> Finding | None:
    """Decide RUN005."""
    rank = facts.first
    ratio, trend = drift(rank.walls)
    if not _drifts(rank.walls) or len(rank.rows) < 32:
        return None
    if _neighbours(facts, rank, ratio) or _more_samples(rank) or _slower_machine(rank, ratio):
        return None
    quarter = len(rank.walls) // 4
    begin = float(np.median(rank.walls[:quarter]))
    gain = float(rank.walls.mean()) / begin
    text = (
        f"the median step grew from {units.seconds(begin)} to {units.seconds(begin * ratio)} "
        f"({len(rank.rows)} steps in quarters)"
    )
    return Finding(
        code="RUN005",
        name="throughput-drift",
        severity="critical" if ratio >= 2 else "warning",
        confidence="high" if trend >= 0.85 else "medium",
        time_share=1 - 1 / gain if gain > 1 else 0.0,
        gain=Gain(low=max(1.0, 1 + 0.5 * (gain - 1)), high=max(1.0, gain * 1.1)),
        ranks=[rank.record.rank],
        evidence=[Evidence(text=text, value=ratio, unit="factor"), _grown(rank, quarter)],
        remedies=[Remedy(id="run.bound_state", safety="exact", change="bound what grows from step to step", gain=None)],
        summary=f"steps became {units.factor(ratio)} slower in the course of the run",
    )


def _drifts(values: np.ndarray) -> bool:
    ratio, trend = drift(values)
    return ratio >= _LEAST and trend >= 0.7


def _more_samples(rank: RankFacts) -> bool:
    """Say whether steps grow because they get more samples to work on: a sample takes no longer than it did."""
    samples = column(rank.rows, "samples")
    return bool(np.all(samples > 0)) and not _drifts(rank.walls / samples)


def _slower_machine(rank: RankFacts, ratio: float) -> bool:
    """Say whether the machine got slower: the least that a compute phase grew by is what everything grew by.

    An update of the same parameters is the same work at every step, so without an optimizer nothing is said.
    """
    quarter = len(rank.walls) // 4
    growth = [_growth(rank.phases[phase], quarter) for phase in _COMPUTE]
    return all(growth) and ratio / max(1.0, min(growth)) < _LEAST


def _growth(values: Floats, quarter: int) -> float:
    """Return the last quarter's median over the first's; 0 where that is too little to be timed."""
    first = float(np.median(values[:quarter]))
    return float(np.median(values[-quarter:])) / first if first >= _TIMED_S else 0.0


def _neighbours(facts: Facts, rank: RankFacts, ratio: float) -> bool:
    """Say whether others on the host explain it: they are busy, and our own CPU time a step has hardly grown."""
    host, ticks = facts.host, rank.record.ticks
    if not facts.contended or len(ticks) < 4 or host.allowed_cores is None:
        return False
    steps, cpu = ticks["step"].astype(np.float64), ticks["cpu_s"]
    half = len(ticks) // 2
    early = (cpu[half] - cpu[0]) / max(1.0, steps[half] - steps[0])
    late = (cpu[-1] - cpu[half]) / max(1.0, steps[-1] - steps[half])
    return bool(late < early * (1 + 0.4 * (ratio - 1)))


def _grown(rank: RankFacts, quarter: int) -> Evidence:
    growth = {p: float(rank.phases[p][-quarter:].mean() - rank.phases[p][:quarter].mean()) for p in PHASES}
    phase = max(growth, key=lambda p: growth[p])
    functions = {"other": rank.breakdown.host_functions, "data_wait": rank.loader.hot if rank.loader else ()}.get(
        phase, ()
    )
    where = f", in {functions[0].function}" if functions else ""
    return Evidence(
        text=f"the {phase} phase grew most{where}: {units.seconds(growth[phase])} a step", value=growth[phase], unit="s"
    )


RULE = Rule(code="RUN005", name="throughput-drift", page=PAGE, check=check)
