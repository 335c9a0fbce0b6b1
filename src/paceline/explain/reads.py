"""How do the makers of samples read? Calls and bytes per sample, and how much of their time is the kernel's."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.explain.facts import RankFacts
from paceline.record.run import Run


@dataclass(frozen=True, kw_only=True)
class Reads:
    """Reading, per sample and as shares of the time of making batches."""

    calls_per_sample: float
    bytes_per_call: float
    system_share: float  # the kernel's CPU time
    storage_share: float  # blocked while bytes came from storage


def reads_of(run: Run, rank: RankFacts) -> Reads | None:
    """Add up the read counters of a rank's workers; None with no workers, or where the kernel does not count."""
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
