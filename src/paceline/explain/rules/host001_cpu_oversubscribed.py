"""HOST001: there are more compute threads than cores."""

from __future__ import annotations

from paceline.core import units
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.loader_model import WORTH, worker_threads
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

The program has more compute threads than CPU cores. The threads have to share the cores, and each parallel operation
ends only when its slowest thread ends.

## How it is detected

Paceline reports `cpu-oversubscribed` if there are at least 1.5 times as many compute threads as CPU cores that the
program may use. Compute threads are the torch threads of all ranks on the host, or the threads of pools in the loader's
workers (at least three threads beside those that each worker has). The finding also requires that the training thread
is ready to run and waits for a core during at least a tenth of step time. The expected gain is assumed: at most all of
this waiting.

## What helps

- `compute.threads`: for each rank, set the number of threads to the number of cores divided by the number of ranks on
  the host (`torch.set_num_threads`, `OMP_NUM_THREADS`).
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding HOST001, or None if it does not apply."""
    cores = analysis.host.allowed_cores
    if cores is None:
        return None
    threads, share = _in_ranks(analysis)
    if threads < 1.5 * cores or share < 0.1:
        threads, share = _in_workers(analysis)
    if threads < 1.5 * cores or share < 0.1:
        return None
    here = sum(r.record.host == analysis.first.record.host for r in analysis.ranks)
    right = max(1, int(cores // here))
    gain = at_most(share)
    return Finding(
        code="HOST001",
        name="cpu-oversubscribed",
        severity="critical" if share >= 0.3 else "warning",
        confidence="high" if threads >= 2 * cores else "medium",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=[
            Evidence(text=f"{threads} compute threads share {cores:g} CPU cores", value=float(threads), unit="threads"),
            Evidence(
                text=f"threads that were ready to run waited for a CPU core during {units.percent(share)} of the time",
                value=share,
                unit="share of step time",
            ),
        ],
        remedies=[
            Remedy(
                id="compute.threads",
                safety="numeric",
                change=f"torch.set_num_threads({right}) or OMP_NUM_THREADS={right}",
                gain=gain,
            )
        ],
        summary=f"{threads} compute threads share {cores:g} CPU cores",
    )


def _in_ranks(analysis: RunAnalysis) -> tuple[int, float]:
    """Return the number of compute threads on the first rank's host, and the share of time spent waiting for a core."""
    here = [r for r in analysis.ranks if r.record.host == analysis.first.record.host]
    return sum(int(r.record.meta.get("threads", 1)) for r in here), analysis.cpu_wait_share


def _in_workers(analysis: RunAnalysis) -> tuple[int, float]:
    """Return the number of compute threads of the loader workers, and the largest share of step time they can lose."""
    loader = analysis.first.loader
    if loader is None or analysis.shares["data_wait"] < WORTH:
        return 0, 0.0
    starved = loader.runnable / max(loader.on_cpu + loader.runnable, 1e-9)
    return worker_threads(analysis, analysis.first), starved * analysis.shares["data_wait"]


RULE = Rule(code="HOST001", name="cpu-oversubscribed", page=PAGE, check=check)
