"""DATA007: making a sample takes many small reads."""

from __future__ import annotations

from paceline.core import units
from paceline.explain import words
from paceline.explain.facts import Facts, RankFacts
from paceline.explain.gains import at_most
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.reads import Reads, reads_of
from paceline.explain.rules import Rule
from paceline.explain.supply import WORTH, is_transport, waiting_rank

_SMALL_BYTES = 256 * 1024
_SYSTEM_SHARE = 0.4

PAGE = """
## What it means

Each sample is stored in one or more files, or in a small part of a large file, and opening files and seeking take
longer than reading the bytes. On a disk or a network file system, loading each sample waits for at least one storage
access. Even if the files are in the page cache, the system calls take longer than copying the bytes.

## How it is detected

Paceline reports `small-reads` if training waits for data during at least 5% of step time, and if each sample takes at
least two read calls of less than 256 KiB on average. The finding also requires that at least 40% of the time that the
loader needs for batches is CPU time in the operating system, or time in which a read from storage is blocked.

## What helps

- `loader.shards`: pack the samples into shards once (`paceline data convert SRC DEST`), and read the shards with
  `paceline.data.Loader`, which reads large blocks in order.
"""


def check(facts: Facts) -> Finding | None:
    """Return finding DATA007, or None if it does not apply."""
    waiting = waiting_rank(facts)
    if waiting is None:
        return None
    rank, supply = waiting
    reads = reads_of(facts.run, rank)
    if reads is None or supply.steady_share < WORTH or not _is_small(reads) or is_transport(rank, supply):
        return None
    gain = at_most(supply.steady_share)
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
                change="run paceline data convert SRC DEST and read the shards with paceline.data.Loader",
                gain=gain,
            )
        ],
        summary=f"loading a sample takes {reads.calls_per_sample:.0f} small reads, and training waits "
        f"{units.percent(supply.steady_share)} of its time for data",
    )


def _is_small(reads: Reads) -> bool:
    return (
        reads.calls_per_sample >= 2
        and reads.bytes_per_call < _SMALL_BYTES
        and reads.system_share + reads.storage_share >= _SYSTEM_SHARE
    )


def _evidence(rank: RankFacts, reads: Reads, share: float) -> list[Evidence]:
    text = (
        f"loading a sample takes {reads.calls_per_sample:.1f} read calls of {units.size(reads.bytes_per_call)} "
        f"on average"
    )
    system = (
        f"{units.percent(reads.system_share)} of the time that the loader needs for batches is spent in the "
        f"operating system"
    )
    return [
        words.share_of_step(share, "waiting for data"),
        Evidence(text=text, value=reads.calls_per_sample, unit="calls per sample"),
        Evidence(text=system, value=reads.system_share, unit="share of time making batches"),
        *(words.hot(rank.loader) if rank.loader else []),
    ]


RULE = Rule(code="DATA007", name="small-reads", page=PAGE, check=check)
