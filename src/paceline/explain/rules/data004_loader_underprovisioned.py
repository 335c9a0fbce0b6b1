"""DATA004: there are too few workers, and cores are free."""

from __future__ import annotations

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis.captures import idle_for_batches
from paceline.explain.analysis.loader_model import (
    WORTH,
    LoaderModel,
    bound_by_cpu,
    is_blocked,
    is_jitter,
    is_transport,
    waiting_rank,
)
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.traces.analyze.ranks import Traces

PAGE = """
## What it means

The loader workers are busy all the time and are still too slow, but some CPU cores are free. More workers would load
batches faster.

## How it is detected

Paceline reports `loader-underprovisioned` if training waits for data during at least 5% of step time, and if workers
load the data. Workers are loader workers that mostly compute, or the program's own background threads or processes. The
finding also requires that at least a fifth of the CPU cores that the program may use are free, and that the workers do
not wait for a core.

In profiler captures, Paceline reports `loader-underprovisioned` if the GPU is idle during at least 5% of the time while
the training process waits for workers. A capture does not show what the workers do or whether CPU cores are free, so
the confidence is low. `paceline run` measures both.

## What helps

- `loader.workers`: use more workers. Paceline predicts the step time as the largest of three times: the compute time,
  the time to load a batch divided by the number of workers, and the CPU time divided by the number of cores. Paceline
  proposes the smallest number of workers whose predicted step time is within 3% of the best.
- `loader.threads`: if the loader uses threads instead of worker processes, use more threads.
- `loader.background`: if the program reads data in its own threads, use more reading threads. Paceline does not know
  how many threads the program uses, so it proposes a multiple of the current number.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding DATA004, or None if it does not apply."""
    waiting = waiting_rank(analysis)
    if waiting is None:
        return None
    rank, loader_model = waiting
    if not _applies(analysis, rank, loader_model):
        return None
    best = loader_model.best_workers()
    gain = loader_model.gain_with(best)
    return Finding(
        code="DATA004",
        name="loader-underprovisioned",
        severity="critical" if loader_model.steady_share >= 0.2 else "warning",
        confidence="high" if analysis.host.samples >= 3 and rank.loader is not None else "medium",
        time_share=loader_model.steady_share,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=_evidence(rank, loader_model),
        remedies=[_remedy(rank, loader_model, best)],
        summary=f"{words.makers(rank.loader)} are too slow although CPU cores are free, and training waits "
        f"{units.percent(loader_model.steady_share)} of its time for data",
    )


def _applies(analysis: RunAnalysis, rank: RankAnalysis, loader_model: LoaderModel) -> bool:
    return (
        loader_model.workers > 0
        and loader_model.steady_share >= WORTH
        and not is_blocked(rank)
        and not is_jitter(rank)
        and not is_transport(rank, loader_model)
        and not bound_by_cpu(analysis, rank, loader_model)
        and loader_model.best_workers() > loader_model.workers
    )


def _remedy(rank: RankAnalysis, loader_model: LoaderModel, best: int) -> Remedy:
    gain = loader_model.gain_with(best)
    if rank.loader is None:
        change = (
            f"load batches in {best} times as many threads as now (or processes, if the loading code holds Python's "
            f"global interpreter lock)"
        )
        return Remedy(id="loader.background", safety="exact", change=change, gain=gain)
    remedy, change = words.more_makers(rank.loader, best)
    return Remedy(id=remedy, safety=words.safety_of_workers(rank.loader, best), change=change, gain=gain)


def _evidence(rank: RankAnalysis, loader_model: LoaderModel) -> list[Evidence]:
    found = [words.share_of_step(loader_model.steady_share, "waiting for data")]
    if rank.loader is not None:
        found += [words.kinds_of_time(rank.loader), *words.hot(rank.loader)]
    return [*found, words.cpu_demand(loader_model.cpu_demand, loader_model.cores, rank.loader)]


def check_traces(traces: Traces) -> Finding | None:
    """Return finding DATA004 for captures: the GPU is idle while the training process waits for workers."""
    return idle_for_batches(traces, serial=False, code="DATA004", name="loader-underprovisioned")


RULE = Rule(code="DATA004", name="loader-underprovisioned", page=PAGE, check=check, check_traces=check_traces)
