"""DATA003: the workers wait for storage or the network."""

from __future__ import annotations

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.loader_model import WORTH, LoaderModel, is_blocked, is_jitter, is_transport, waiting_rank
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

SATURATED = 0.6  # share of time in which some task waits for storage; above it, more readers do not help

PAGE = """
## What it means

While loading a sample, the loader workers spend most of the time neither computing nor waiting for a CPU core. The
workers are blocked by a disk, a network file system, an object store, or another call that sleeps.

## How it is detected

Paceline reports `loader-io-bound` if training waits for data during at least 5% of step time, if the loader has
workers, and if the workers are blocked for at least half of the time that they need for loading batches. Blocked time
is measured with Linux's `schedstat` and the CPU time of each worker.

## What helps

- `loader.workers`: blocked workers use no CPU core, so more workers can read more files at the same time. Paceline
  proposes the smallest number of workers whose predicted step time is within 3% of the best. Paceline does not propose
  more workers if the storage itself is saturated (Linux reports I/O pressure above 60%).
- `loader.threads`: if the loader uses threads instead of worker processes, use more threads.
- `loader.prefetch`: prefetch more batches per worker.
- `loader.shards`: store the samples in shards, which need a few large reads instead of many small reads.
- `loader.local_copy`: copy the data to a local disk.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding DATA003, or None if it does not apply."""
    waiting = waiting_rank(analysis)
    if waiting is None:
        return None
    rank, loader_model = waiting
    if not loader_model.workers or loader_model.steady_share < WORTH or not is_blocked(rank):
        return None
    if is_jitter(rank) or is_transport(rank, loader_model):
        return None
    saturated = (analysis.host.io_pressure or 0.0) >= SATURATED
    remedies = _remedies(rank, loader_model, saturated)
    return Finding(
        code="DATA003",
        name="loader-io-bound",
        severity="critical" if loader_model.steady_share >= 0.2 else "warning",
        confidence="high",
        time_share=loader_model.steady_share,
        gain=remedies[0].gain,
        ranks=[rank.record.rank],
        evidence=_evidence(analysis, rank, loader_model),
        remedies=remedies,
        summary=f"{words.makers(rank.loader)} wait for storage, the network or a call that sleeps, and training waits "
        f"{units.percent(loader_model.steady_share)} of its time for data",
    )


def _remedies(rank: RankAnalysis, loader_model: LoaderModel, saturated: bool) -> list[Remedy]:
    best = loader_model.best_workers()
    shards = Remedy(
        id="loader.shards",
        safety="exact",
        change="run paceline data convert SRC DEST, which replaces many small reads with a few large reads",
        gain=at_most(loader_model.steady_share),
    )
    if saturated or best <= loader_model.workers:
        return [shards]
    remedy, change = words.more_makers(rank.loader, best)
    change, safety = f"{change}; blocked workers use no CPU core", words.safety_of_workers(rank.loader, best)
    return [Remedy(id=remedy, safety=safety, change=change, gain=loader_model.gain_with(best)), shards]


def _evidence(analysis: RunAnalysis, rank: RankAnalysis, loader_model: LoaderModel) -> list[Evidence]:
    found = [words.share_of_step(loader_model.steady_share, "waiting for data")]
    if rank.loader is not None:
        found += [words.kinds_of_time(rank.loader), *words.hot(rank.loader)]
    if analysis.host.io_pressure is not None:
        text = (
            f"at least one process on this host waited for storage during "
            f"{units.percent(analysis.host.io_pressure)} of the time"
        )
        found.append(Evidence(text=text, value=analysis.host.io_pressure, unit="share of time"))
    return found


RULE = Rule(code="DATA003", name="loader-io-bound", page=PAGE, check=check)
