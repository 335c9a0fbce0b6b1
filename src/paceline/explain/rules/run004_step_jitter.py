"""RUN004: do step times scatter, and not for the loader's sake?"""

from __future__ import annotations

import numpy as np

from paceline import units
from paceline.explain.facts import Facts, RankFacts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.explain.statistics import drift

_SLOW = 1.6  # times the median
_LEAST_S = 0.002  # more than the median: below, it is what any scheduler does
_WORTH = 0.10

PAGE = """
## What it means

Most steps are quick and some are far slower, though data was there. Causes: inputs of changing shape
(recompilation, autotuning), a garbage collector, something done every n-th step, a neighbour on the machine.

## How it is decided

After waiting for data, saving, evaluating, the program's own host code and communication are taken out, steps
slower than 1.6 medians, and by at least 2 ms, cost at least 10 % of all step time, and it is no steady growth
(RUN005).

## What helps

`step.bucket_shapes`: pad or bucket inputs to few shapes. `step.gc`: freeze or schedule Python's collector.
"""


def check(facts: Facts) -> Finding | None:
    """Decide RUN004."""
    rank = facts.first
    kept = [n for n in rank.phases if n in ("forward", "backward", "optimizer", "transfer")]
    busy = np.sum([rank.phases[name] for name in kept], axis=0)
    usual = float(np.median(busy))
    slow = busy > max(_SLOW * usual, usual + _LEAST_S)
    excess = float((busy[slow] - usual).sum()) / max(rank.total_s, 1e-9)
    ratio, trend = drift(busy)
    if excess < _WORTH or (ratio > 1.3 and trend > 0.7):
        return None
    text = (
        f"{int(slow.sum())} of {len(busy)} steps compute far longer than the median "
        f"({units.seconds(usual)}); the slowest takes {units.seconds(float(busy.max()))}"
    )
    gain = gain_of_removing(excess, 0.3, 0.95)
    return Finding(
        code="RUN004",
        name="step-jitter",
        severity="warning",
        confidence="low" if facts.contended else "high",
        time_share=excess,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=[Evidence(text=text, value=float(slow.sum()), unit="steps"), *_where(rank, kept, slow, busy)],
        remedies=[
            Remedy(
                id="step.bucket_shapes", safety="semantic", change="pad or bucket inputs to a few shapes", gain=gain
            ),
            Remedy(
                id="step.gc",
                safety="exact",
                change="freeze Python's garbage collector after setting up, and run it between steps",
                gain=gain,
            ),
        ],
        summary=f"some steps compute far longer than the rest, which costs {units.percent(excess)} of the time",
    )


def _where(rank: RankFacts, kept: list[str], slow: np.ndarray, busy: np.ndarray) -> list[Evidence]:
    """Name the phase in which slow steps lose most."""
    lost = {name: float((rank.phases[name][slow] - np.median(rank.phases[name])).sum()) for name in kept}
    phase = max(lost, key=lambda name: lost[name])
    share = lost[phase] / max(float((busy[slow] - np.median(busy)).sum()), 1e-9)
    return [
        Evidence(
            text=f"{units.percent(share)} of what they lose is in the {phase} phase",
            value=share,
            unit="share of lost time",
        )
    ]


RULE = Rule(code="RUN004", name="step-jitter", page=PAGE, check=check)
