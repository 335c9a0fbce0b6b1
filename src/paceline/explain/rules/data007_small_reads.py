"""DATA007: loading a sample takes many small reads."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.loader_model import WORTH, is_transport, waiting_rank
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.record.run import Run

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


@dataclass(frozen=True, kw_only=True)
class Reads:
    """Read calls per sample, and the time for reading as shares of the loading time."""

    calls_per_sample: float
    bytes_per_call: float
    system_share: float  # share of loading time in CPU time of the operating system
    storage_share: float  # share of loading time blocked while bytes came from storage


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding DATA007, or None if it does not apply."""
    waiting = waiting_rank(analysis)
    if waiting is None:
        return None
    rank, loader_model = waiting
    reads = _reads_of(analysis.run, rank)
    if reads is None or loader_model.steady_share < WORTH or not _is_small(reads) or is_transport(rank, loader_model):
        return None
    gain = at_most(loader_model.steady_share)
    return Finding(
        code="DATA007",
        name="small-reads",
        severity="critical" if loader_model.steady_share >= 0.2 else "warning",
        confidence="medium",
        time_share=loader_model.steady_share,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=_evidence(rank, reads, loader_model.steady_share),
        remedies=[
            Remedy(
                id="loader.shards",
                safety="exact",
                change="run paceline data convert SRC DEST and read the shards with paceline.data.Loader",
                gain=gain,
            )
        ],
        summary=f"loading a sample takes {reads.calls_per_sample:.0f} small reads, and training waits "
        f"{units.percent(loader_model.steady_share)} of its time for data",
    )


def _reads_of(run: Run, rank: RankAnalysis) -> Reads | None:
    """Return the reads of a rank's workers, or None without workers or without counters of the kernel."""
    loader = rank.loader
    if loader is None or not loader.workers:
        return None
    pids = {row.pid for row in loader.per_worker}
    last = [w.last for w in run.workers if w.pid in pids and w.last.get("read_calls") is not None]
    calls = sum(float(t["read_calls"]) for t in last)
    samples = sum(int(t.get("samples", 0)) for t in last)
    if not samples or not calls:
        return None
    produce = sum(float(t["produce_s"]) for t in last)
    stored = sum(float(t.get("read_bytes") or 0.0) for t in last)
    asked = sum(float(t.get("asked_bytes") or 0.0) for t in last)
    return Reads(
        calls_per_sample=calls / samples,
        bytes_per_call=asked / calls,
        system_share=min(1.0, sum(float(t.get("system_s") or 0.0) for t in last) / produce) if produce else 0.0,
        storage_share=loader.blocked if asked and stored > 0.3 * asked else 0.0,
    )


def _is_small(reads: Reads) -> bool:
    return (
        reads.calls_per_sample >= 2
        and reads.bytes_per_call < _SMALL_BYTES
        and reads.system_share + reads.storage_share >= _SYSTEM_SHARE
    )


def _evidence(rank: RankAnalysis, reads: Reads, share: float) -> list[Evidence]:
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
