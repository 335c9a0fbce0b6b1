"""HOST004: the training thread waits inside of the forward pass, the backward pass or the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.core import units
from paceline.core.remedies import Safety
from paceline.explain import words
from paceline.explain.analysis.breakdown import active_share, hot_functions
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule

_COMPUTE = ("forward", "backward", "optimizer")
_WORTH = 0.2  # share of step time

PAGE = """
## What it means

Inside of the forward pass, the backward pass or the optimizer, the training thread often neither runs nor is ready to
run. It waits for something else. The usual cause is another Python thread of the program, such as one that loads
batches: only one thread can execute Python code at a time (the global interpreter lock, GIL). Other causes are `sleep`,
reads of files, and locks in the code of the model.

## How it is detected

Paceline reports `thread-blocked` for training on a CPU in one process. The share of step time in which the training
thread runs, or is ready to run, must be at least 20 percentage points below the share of the forward pass, the backward
pass and the optimizer. Paceline reads both times of the thread from the operating system. If no loader without workers
is iterated in another thread, the confidence is low, because Paceline does not know what the training thread waits for.

The upper end of the expected gain is the speed-up without this waiting. Workers need as much CPU time as the thread
that loads batches, so their gain is at most the number of cores, divided by the number of cores that the program uses
now. The lower end is no gain.

## What helps

- `loader.workers`: if a thread of the program reads from a `DataLoader` without workers, give this `DataLoader` worker
  processes. Each of them has a GIL of its own.
- `host.less_often`: run the slow code less often, if training does not need it.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding HOST004, or None if it does not apply."""
    rank = analysis.first
    active = active_share(rank.record)
    if not analysis.on_cpu or rank.record.meta.get("distributed") or active is None:
        return None
    waits = sum(analysis.shares[name] for name in _COMPUTE) - active
    if waits < _WORTH:
        return None
    loader = _loader_in_a_thread(rank)
    gain = at_most(waits) if loader is None else _gain_of_workers(analysis, waits)
    cause = "another thread, a file or a lock" if loader is None else "another Python thread, which loads batches,"
    return Finding(
        code="HOST004",
        name="thread-blocked",
        severity="warning",
        confidence="low" if loader is None else "medium",
        time_share=waits,
        gain=gain,
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=[
            words.share_of_step(waits, "waiting inside of the forward pass, the backward pass or the optimizer"),
            Evidence(
                text=f"the training thread runs, or is ready to run, during {units.percent(active)} of the time",
                value=active,
                unit="share of time",
            ),
            *_where(rank),
        ],
        remedies=[_remedy(loader, gain)],
        summary=f"the training thread waits for {cause} during {units.percent(waits)} of step time while it should "
        "compute",
    )


def _loader_in_a_thread(rank: RankAnalysis) -> Mapping[str, Any] | None:
    """Return a loader without workers that is iterated in a thread other than the training thread, or None."""
    loaders = rank.record.summary.get("loaders", ())
    return next((one for one in loaders if one.get("thread_fetches") and not one.get("num_workers")), None)


def _gain_of_workers(analysis: RunAnalysis, waits: float) -> Gain:
    """Return the gain if workers load the batches. The CPU work stays the same, so the cores limit the gain."""
    gain, allowed, own = at_most(waits), analysis.host.allowed_cores, analysis.host.own_cores
    return gain if not allowed or not own else replace(gain, high=max(1.0, min(gain.high, allowed / own)))


def _remedy(loader: Mapping[str, Any] | None, gain: Gain) -> Remedy:
    if loader is None:
        change = "if training does not need its results, run the code that waits only every tenth step"
        return Remedy(id="host.less_often", safety="semantic", change=change, gain=gain)
    meter = loader.get("meter") or {}
    drawn: Safety = "semantic" if meter.get("own_generator") else "resampled"
    change = "use DataLoader(num_workers=2) or more in the thread that iterates the loader"
    return Remedy(id="loader.workers", safety=drawn if meter.get("draws_random") else "exact", change=change, gain=gain)


def _where(rank: RankAnalysis) -> list[Evidence]:
    """Return the function of the program in which the training thread was seen most often in these phases."""
    found = hot_functions(rank.record, dict.fromkeys(_COMPUTE), most=1)
    return [
        Evidence(
            text=f"{one.function} has {units.percent(one.share)} of the stack samples in these phases ({one.count})",
            value=one.share,
            unit=words.SHARE_OF_SAMPLES,
        )
        for one in found
    ]


RULE = Rule(code="HOST004", name="thread-blocked", page=PAGE, check=check)
