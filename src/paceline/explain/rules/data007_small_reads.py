"""DATA007: does making samples mean many small reads?"""

from __future__ import annotations

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, RankFacts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.reads import Reads, reads_of
from paceline.explain.rules import Rule
from paceline.explain.supply import WORTH, is_transport, waiting_rank

_SMALL_BYTES = 256 * 1024
_SYSTEM_SHARE = 0.4

PAGE = """
## What it means

Each sample is a file, or several, of its own, or a small piece at a random place of a large one. Opening and
seeking cost more than the bytes: on a disk or network file system every sample pays a round trip, and even in
the page cache the kernel's work outweighs the reading.

## How it is decided

Training waits for data for at least 5 % of step time; each sample takes at least two read calls of less than
256 KiB on average; and at least 40 % of the time of making batches is the kernel's (system time) or blocked
with reads going to storage.

## What helps

`loader.shards`: pack samples into shards once, `paceline data convert SRC DEST`, and read them with
`paceline.data.Loader`: large reads in order, and crops that decode only what they need.
"""


def check(facts: Facts) -> Finding | None:
    """Decide DATA007."""
    waiting = waiting_rank(facts)
    if waiting is None:
        return None
    rank, supply = waiting
    reads = reads_of(facts.run, rank)
    if reads is None or supply.steady_share < WORTH or not _is_small(reads) or is_transport(rank, supply):
        return None
    gain = gain_of_removing(supply.steady_share, 0.3, 0.9)
    return Finding(
        code="DATA007",
        name="small-reads",
        severity="critical" if supply.steady_share >= 0.2 else "warning",
        confidence="medium",
        time_share=supply.steady_share,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=_evidence(rank, reads, supply.steady_share),
        remedies=[
            Remedy(
                id="loader.shards",
                safety="exact",
                change="paceline data convert SRC DEST, and read the shards with paceline.data.Loader",
                gain=gain,
            )
        ],
        summary=f"every sample takes {reads.calls_per_sample:.0f} small reads; training waits "
        f"{units.percent(supply.steady_share)} of its time for data",
    )


def _is_small(reads: Reads) -> bool:
    return (
        reads.calls_per_sample >= 2
        and reads.bytes_per_call < _SMALL_BYTES
        and reads.system_share + reads.storage_share >= _SYSTEM_SHARE
    )


def _evidence(rank: RankFacts, reads: Reads, share: float) -> list[Evidence]:
    text = f"a sample takes {reads.calls_per_sample:.1f} read calls of {units.size(reads.bytes_per_call)} on average"
    system = f"{units.percent(reads.system_share)} of the time of making batches is the kernel's own work"
    return [
        words.share_of_step(share, "waiting for data"),
        Evidence(text=text, value=reads.calls_per_sample, unit="calls per sample"),
        Evidence(text=system, value=reads.system_share, unit="share of time making batches"),
        *(words.hot(rank.loader) if rank.loader else []),
    ]


RULE = Rule(code="DATA007", name="small-reads", page=PAGE, check=check)
