"""compute.threads: the number of CPU threads matches the cores."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.model import Gain
from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

PAGE = """
If there are more threads than CPU cores, the threads have to share the cores. With many threads, small operators spend
more time on distributing the work to threads than on computing. With fewer threads than cores, large operators leave
cores idle. `tune` proposes another number of threads in three cases: the program has more threads than cores, a step
consists of small operators, or the program has fewer threads than cores and computes all the time.

## Safety class

The safety class is numeric, because sums are added in another order if the number of threads changes.

## What it sets

This remedy sets `compute.num_threads` to the number of cores that a rank can use. If a step consists of small
operators, it sets `compute.num_threads` to 1.

## How it is confirmed

Paceline records `compute.num_threads` as applied when it has set this number of threads, just after the program
imported torch. If the program calls `torch.set_num_threads` later, Paceline ignores the call.

## In the source

Call `torch.set_num_threads(n)` after `import torch`, or set `OMP_NUM_THREADS=n` in the environment.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    if not context.facts.on_cpu or context.setting("compute", "num_threads"):
        return []
    now = int(context.facts.first.record.meta.get("threads") or 0)
    wanted, predicted, why = _wanted(context, now)
    if wanted == now:
        return []
    return [
        Candidate(
            remedy="compute.threads",
            recipe={"compute": {"num_threads": wanted}},
            safety="numeric",
            predicted=predicted,
            why=why,
        )
    ]


def _wanted(context: DiagnosisContext, now: int) -> tuple[int, Gain | None, str]:
    """Return the number of threads to try, its predicted gain and the reason; `now` if no other number is promising."""
    cores = context.cores
    if crowded := context.finding("HOST001"):
        return cores, _relieved(crowded.gain, now / cores), crowded.summary
    if small := context.finding("COMP002"):
        return 1, None, small.summary
    if context.finding("COMP001") and 0 < now < cores:
        return cores, Gain(low=1.0, high=cores / now), f"{now} of {cores} CPU cores compute"
    return now, None, ""


def _relieved(gain: Gain | None, crowding: float) -> Gain | None:
    """Return the predicted gain of fewer threads, with an upper end of at least twice the number of threads per core.

    A parallel operation ends with its last thread. While that thread waits for a core, the other threads spin. This
    time is not part of the measured waiting time.
    """
    return None if gain is None else Gain(low=gain.low, high=max(gain.high, 2 * crowding))


REMEDY = TunableRemedy(id="compute.threads", page=PAGE, candidates=_candidates)
