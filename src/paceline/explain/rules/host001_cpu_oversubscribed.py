"""HOST001: are there more compute threads than cores?"""

from __future__ import annotations

from paceline import units
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.explain.supply import WORTH, worker_threads

PAGE = """
## What it means

More threads want to compute than there are cores. They take turns, and threads that wait for each other at the
end of every operation wait for the slowest.

## How it is decided

Compute threads (torch's, over all ranks on the host, or those of the loader's workers) exceed the cores we may
use, and the training thread was ready but without a CPU for at least a tenth of the time it wanted one.

## What helps

`host.threads`: as many threads as cores, divided by the ranks on the host (`torch.set_num_threads`,
`OMP_NUM_THREADS`).
"""


def check(facts: Facts) -> Finding | None:
    """Decide HOST001."""
    cores = facts.host.allowed_cores
    if cores is None:
        return None
    threads, share = _in_ranks(facts)
    if threads < 1.5 * cores or share < 0.1:
        threads, share = _in_workers(facts)
    if threads < 1.5 * cores or share < 0.1:
        return None
    here = sum(r.record.host == facts.first.record.host for r in facts.ranks)
    right = max(1, int(cores // here))
    gain = gain_of_removing(share, 0.2, 1.0)
    return Finding(
        code="HOST001",
        name="cpu-oversubscribed",
        severity="critical" if share >= 0.3 else "warning",
        confidence="high" if threads >= 2 * cores else "medium",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r in facts.ranks],
        evidence=[
            Evidence(text=f"{threads} compute threads share {cores:g} cores", value=float(threads), unit="threads"),
            Evidence(
                text=f"threads that wanted a CPU did not get one {units.percent(share)} of the time",
                value=share,
                unit="share of wanted time",
            ),
        ],
        remedies=[
            Remedy(
                id="host.threads",
                safety="numeric",
                change=f"torch.set_num_threads({right}) or OMP_NUM_THREADS={right}",
                gain=gain,
            )
        ],
        summary=f"{threads} compute threads share {cores:g} cores",
    )


def _in_ranks(facts: Facts) -> tuple[int, float]:
    """Return the compute threads of the ranks on the first one's host, and how much of their wish was not granted."""
    here = [r for r in facts.ranks if r.record.host == facts.first.record.host]
    return sum(int(r.record.meta.get("threads", 1)) for r in here), facts.contention


def _in_workers(facts: Facts) -> tuple[int, float]:
    """Return the compute threads of the training loader's workers, and the share of step time they may lose."""
    loader = facts.first.loader
    if loader is None or facts.shares["data_wait"] < WORTH:
        return 0, 0.0
    starved = loader.runnable / max(loader.on_cpu + loader.runnable, 1e-9)
    return worker_threads(facts, facts.first), starved * facts.shares["data_wait"]


RULE = Rule(code="HOST001", name="cpu-oversubscribed", page=PAGE, check=check)
