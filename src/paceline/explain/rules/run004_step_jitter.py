"""RUN004: step times vary, and the loader is not the cause."""

from __future__ import annotations

import numpy as np

from paceline import units
from paceline.explain.facts import Facts, RankFacts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.explain.statistics import drift

_SLOW = 1.6  # times the median
_LEAST_S = 0.002  # more than the median; the scheduler causes smaller delays
_WORTH = 0.10

PAGE = """
## What it means

Most steps are fast, but some steps are far slower, although their data was ready. Possible causes are varying input
shapes (recompilation, autotuning), Python's garbage collector, work that the program does only in every n-th step, or
another program on the machine.

## How it is detected

The finding `step-jitter` uses only a part of the step time: the forward pass, the backward pass, the optimizer, and
copies from the host to the GPU. A step is slow if its forward pass, backward pass, optimizer and copies together take
more than 1.6 times the median and at least 2 ms more than the median. Paceline reports `step-jitter` if the extra time
of slow steps is at least 10% of all step time. If step times grow steadily, Paceline reports RUN005 instead.

## What helps

- `shapes.bucket`: pad or group inputs into a few shapes.
- `host.gc`: run Python's garbage collector only at chosen times, between steps.
"""


def check(facts: Facts) -> Finding | None:
    """Return finding RUN004, or None if it does not apply."""
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
        f"{int(slow.sum())} of {len(busy)} steps compute for much longer than the median step "
        f"({units.seconds(usual)}; the slowest takes {units.seconds(float(busy.max()))})"
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
            Remedy(id="shapes.bucket", safety="semantic", change="pad or group inputs into a few shapes", gain=gain),
            Remedy(
                id="host.gc",
                safety="exact",
                change="turn Python's automatic garbage collection off after the setup, and collect garbage between "
                "steps",
                gain=gain,
            ),
        ],
        summary=f"some steps compute for much longer than the others, which costs {units.percent(excess)} of the time",
    )


def _where(rank: RankFacts, kept: list[str], slow: np.ndarray, busy: np.ndarray) -> list[Evidence]:
    """Return the phase in which slow steps lose most of their time."""
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
