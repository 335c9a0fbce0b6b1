"""DATA008: are a few batches far slower than the rest?"""

from __future__ import annotations

import numpy as np

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, LoaderBreakdown, Remedy
from paceline.explain.queueing import Played
from paceline.explain.rules import Rule
from paceline.explain.supply import WORTH, Supply, is_jitter, waiting_rank

PAGE = """
## What it means

Most batches are ready in time, but now and then one takes many times as long: an outsized sample, a slow file,
a retry. Batches are handed out in order, so one slow sample holds up everything behind it.

## How it is decided

Training waits for data for at least 5 % of step time; at least 70 % of all waiting falls on a sixth of the
steps or fewer, the median wait is below a quarter of a step, and at least 40 % of the time of making batches
falls on batches that take four times the median or more. The start of an epoch does not count.

## What helps

`loader.prefetch`: a deeper queue (`prefetch_factor`, perhaps of more workers) rides over single slow batches.
`loader.sort_by_cost`: spread or bound the outsized samples. `loader.in_order`: `DataLoader(in_order=False)` lets
later batches pass (changes the order of samples).
"""


def check(facts: Facts) -> Finding | None:
    """Decide DATA008."""
    waiting = waiting_rank(facts)
    if waiting is None:
        return None
    rank, supply = waiting
    if supply.steady_share < WORTH or not is_jitter(rank):
        return None
    share = supply.steady_share
    wait = rank.phases["data_wait"]
    slowest = float(np.quantile(wait, 0.99))
    text = (
        f"the median wait for a batch is {units.seconds(float(np.median(wait)))}, one in a hundred takes "
        f"{units.seconds(slowest)} ({len(wait)} steps)"
    )
    return Finding(
        code="DATA008",
        name="loader-jitter",
        severity="warning",
        confidence="high" if len(wait) >= 60 else "medium",
        time_share=share,
        gain=gain_of_removing(share, 0.3, 0.95),
        ranks=[rank.record.rank],
        evidence=[
            words.share_of_step(share, "waiting for data"),
            Evidence(text=text, value=slowest, unit="s"),
            *(words.hot(rank.loader) if rank.loader else []),
        ],
        remedies=[
            *_deeper(supply, rank.loader),
            Remedy(
                id="loader.in_order",
                safety="semantic",
                change="DataLoader(in_order=False)",
                gain=gain_of_removing(share, 0.3, 0.95),
            ),
        ],
        summary=f"a few batches are far slower than the rest and cost {units.percent(share)} of step time",
    )


def _deeper(supply: Supply, loader: LoaderBreakdown | None) -> list[Remedy]:
    """Propose the queues that would ride over the slow batches, what to try first, first."""
    if loader is None or not loader.workers:
        return []
    played = Played(supply=supply, loader=loader)
    return [
        Remedy(
            id="loader.prefetch",
            safety="exact" if queue.workers == loader.workers else words.safety_of_workers(loader, queue.workers),
            change=f"DataLoader(num_workers={queue.workers}, prefetch_factor={queue.factor})",
            gain=played.gain(queue),
        )
        for queue in played.better()
    ]


RULE = Rule(code="DATA008", name="loader-jitter", page=PAGE, check=check)
