"""compute.threads: as many compute threads as there are cores for them."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.model import Gain
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
On a CPU, more threads than cores take turns, and small operators lose more in sharing out work than they gain by it.
Fewer threads than cores leave cores idle where operators are large. Proposed where cores are oversubscribed, where
steps consist of small operators, and where the processor computes all the time with fewer threads than it has cores.

## Safety class

Numeric: sums are split otherwise, and rounded otherwise.

## What it sets

`compute.num_threads`: the cores that a rank may count on, or one for small operators.

## How it is confirmed

Set when torch was imported; what the program sets later is not heard.

## In the source

`torch.set_num_threads(n)` after the import of torch.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    if not situation.facts.on_cpu or situation.setting("compute", "num_threads"):
        return []
    now = int(situation.facts.first.record.meta.get("threads") or 0)
    wanted, predicted, why = _wanted(situation, now)
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


def _wanted(situation: Situation, now: int) -> tuple[int, Gain | None, str]:
    """Return how many threads to try, what to expect of them, and why; as many as now where nothing speaks for more."""
    cores = situation.cores
    if crowded := situation.finding("HOST001"):
        return cores, _relieved(crowded.gain, now / cores), crowded.summary
    if small := situation.finding("COMP002"):
        return 1, None, small.summary
    if situation.finding("COMP001") and 0 < now < cores:
        return cores, Gain(low=1.0, high=cores / now), f"{now} of {cores} cores compute"
    return now, None, ""


def _relieved(gain: Gain | None, crowding: float) -> Gain | None:
    """Return what fewer threads may bring: up to twice as much as there are threads for a core.

    Work that is shared out is done when its last thread is; where that one waits for a core, the others spin, and how
    long they do is not seen in how long threads had no core.
    """
    return None if gain is None else Gain(low=gain.low, high=max(gain.high, 2 * crowding))


REMEDY = Remedy(id="compute.threads", page=PAGE, candidates=_candidates)
