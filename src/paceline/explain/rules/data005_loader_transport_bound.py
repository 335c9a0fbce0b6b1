"""DATA005: collating batches and sending them to the training process takes longer than loading samples."""

from __future__ import annotations

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.loader_model import (
    WORTH,
    LoaderModel,
    is_jitter,
    is_transport,
    receiving_s,
    waiting_rank,
)
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

Samples are loaded quickly, but combining samples into batches and moving the batches to the training process is slow.
The cause is the collate function, pickling, shared memory, or the thread that copies batches to pinned memory.

## How it is detected

Paceline reports `loader-transport-bound` if training waits for data during at least 5% of step time, if the loader has
workers, and if three tasks together take at least 1.2 times as long as loading the samples. The three tasks are
collating (combining samples into a batch), sending batches from the workers, and receiving batches in the training
thread.

## What helps

- `loader.collate`: write samples into one preallocated tensor, without Python code per sample.
- `loader.small_dtype`: send small data types (uint8 instead of float32), and convert them to floating point on the GPU.
- `loader.threads`: threads share memory with the training process, so batches are not copied between processes. Threads
  help if the code that loads a sample releases Python's global interpreter lock (GIL).
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding DATA005, or None if it does not apply."""
    waiting = waiting_rank(analysis)
    if waiting is None:
        return None
    rank, loader_model = waiting
    if loader_model.steady_share < WORTH or is_jitter(rank) or not is_transport(rank, loader_model):
        return None
    share = loader_model.steady_share
    return Finding(
        code="DATA005",
        name="loader-transport-bound",
        severity="critical" if share >= 0.2 else "warning",
        confidence="medium",
        time_share=share,
        gain=at_most(share),
        ranks=[rank.record.rank],
        evidence=_evidence(rank, loader_model),
        remedies=_remedies(rank, share),
        summary=f"collating batches and sending them to the training process takes longer than loading samples, and "
        f"training waits "
        f"{units.percent(share)} of its time for data",
    )


def _remedies(rank: RankAnalysis, share: float) -> list[Remedy]:
    collate = Remedy(
        id="loader.collate",
        safety="exact",
        change=f"rewrite the collate function {rank.loader.settings.get('collate_fn') if rank.loader else ''} "
        f"without Python code per sample",
        gain=at_most(share),
    )
    types = Remedy(
        id="loader.small_dtype",
        safety="numeric",
        change="load small data types (uint8) and convert them to floating point on the GPU",
        gain=at_most(share),
    )
    threads = Remedy(
        id="loader.threads",
        safety="exact",
        change="load batches in threads, so that batches are not copied between processes",
        gain=at_most(share),
    )
    slow_collate = rank.loader is not None and rank.loader.collate >= 0.5
    return [collate, types, threads] if slow_collate else [types, threads, collate]


def _evidence(rank: RankAnalysis, loader_model: LoaderModel) -> list[Evidence]:
    found = [words.share_of_step(loader_model.steady_share, "waiting for data")]
    if rank.loader is not None:
        found += [*words.collating(rank.loader), *words.hot(rank.loader)]
    if loader_model.hand_over_s > 0:  # 0: below the resolution of the workers' CPU times
        text = f"sending batches takes {units.seconds(loader_model.hand_over_s)} of the workers' CPU time per step"
        found.append(Evidence(text=text, value=loader_model.hand_over_s, unit="s"))
    receive = receiving_s(rank)
    text = f"receiving batches takes {units.seconds(receive)} of the training thread's CPU time per step"
    return [*found, Evidence(text=text, value=receive, unit="s")]


RULE = Rule(code="DATA005", name="loader-transport-bound", page=PAGE, check=check)
