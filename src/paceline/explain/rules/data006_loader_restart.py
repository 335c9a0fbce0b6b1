"""DATA006: are workers started anew every epoch, and does it show?"""

from __future__ import annotations

import numpy as np

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, RankFacts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.explain.supply import WORTH, waiting_rank
from paceline.record import layout

PAGE = """
## What it means

At the end of every epoch the worker processes are stopped, and at the start of the next they are started again:
processes are forked or spawned, the data set is set up again in each, and the first batches are awaited. With
short epochs that is most of the time.

## How it is decided

The loader has workers and does not keep them (`persistent_workers=False`, or a new `DataLoader` every epoch);
the first fetches of epochs take at least 5 % of step time more than fetches in the midst of an epoch, over at
least two restarts.

## What helps

`loader.persistent_workers`: keep the workers between epochs, and build the `DataLoader` once, outside the loop.
From the second epoch on the base process draws other random numbers, so a shuffle can come out in another
order.
"""


def check(facts: Facts) -> Finding | None:
    """Decide DATA006."""
    waiting = waiting_rank(facts)
    if waiting is None:
        return None
    rank, supply = waiting
    share = supply.restart_s / supply.step_s
    restarts = int(((rank.rows["flags"] & layout.FLAG_EPOCH) != 0).sum())
    kept = rank.loader is not None and bool(rank.loader.settings.get("persistent_workers"))
    if not supply.workers or kept or share < WORTH or restarts < 2:
        return None
    gain = gain_of_removing(share, 0.6, 0.98)
    change = "DataLoader(persistent_workers=True), built once before the epochs"
    return Finding(
        code="DATA006",
        name="loader-restart",
        severity="critical" if share >= 0.2 else "warning",
        confidence="high",
        time_share=share,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=_evidence(rank, share, restarts),
        remedies=[Remedy(id="loader.persistent_workers", safety="semantic", change=change, gain=gain)],
        summary=f"workers are started anew every epoch, which takes {units.percent(share)} of step time",
    )


def _evidence(rank: RankFacts, share: float, restarts: int) -> list[Evidence]:
    starts = (rank.rows["flags"] & layout.FLAG_EPOCH) != 0
    first = float(np.median(rank.phases["data_wait"][starts]))
    other = float(np.median(rank.phases["data_wait"][~starts])) if (~starts).any() else 0.0
    text = (
        f"the first fetch of an epoch takes {units.seconds(first)}, a later one {units.seconds(other)} "
        f"(medians; {restarts} restarts in {len(rank.rows)} steps)"
    )
    return [
        words.share_of_step(share, "starting workers again"),
        Evidence(text=text, value=first, unit="s"),
    ]


RULE = Rule(code="DATA006", name="loader-restart", page=PAGE, check=check)
