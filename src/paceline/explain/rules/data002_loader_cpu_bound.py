"""DATA002: the workers use all CPU cores."""

from __future__ import annotations

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis.gains import at_most, twice_as_fast
from paceline.explain.analysis.loader import steps_of_epoch
from paceline.explain.analysis.loader_model import (
    WORTH,
    LoaderModel,
    bound_by_cpu,
    is_blocked,
    is_jitter,
    is_transport,
    waiting_rank,
    worker_threads,
)
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule

_MUCH = 0.2  # share of step time in which training waits for data
PAGE = """
## What it means

The loader workers compute all the time (decoding, augmenting, tokenizing) and use all CPU cores that the program may
use. More workers would share the same cores, which often makes loading slower.

## How it is detected

Paceline reports `loader-cpu-bound` if training waits for data during at least 5% of step time, and if the loader has
workers, or the program reads data in its own background threads or processes. The workers must spend most of their time
on loading samples, not on collating or sending batches, and they must be blocked for less than half of the time.

The finding also requires that all CPU cores are in use. All CPU cores count as in use if the program uses at least 80%
of the cores that CPU affinity and the cgroup quota allow, or if workers that are ready to run wait for a core during at
least a quarter of the time.

## What helps

- `loader.decode`: use a faster decoder, or decode images directly to a smaller size.
- `loader.cache`: keep decoded samples in memory. The expected gain is modelled if training waits for data during
  at least 20% of step time, a second epoch was seen, and loading a sample draws no random numbers. Without workers that
  use all CPU cores, computing becomes faster too, so the gain may be larger than the waiting. The first epoch fills the
  memory and gains nothing, so a run of E epochs becomes at most E times as fast.
- `loader.batch_transform`: apply transforms to whole batches, or apply them on the GPU.

More CPU cores per GPU also help. More loader workers do *not* help.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding DATA002, or None if it does not apply."""
    waiting = waiting_rank(analysis)
    if waiting is None:
        return None
    rank, loader_model = waiting
    if not _applies(analysis, rank, loader_model):
        return None
    share = loader_model.steady_share
    gain = at_most(share)
    return Finding(
        code="DATA002",
        name="loader-cpu-bound",
        severity="critical" if share >= _MUCH else "warning",
        confidence="high" if analysis.host.samples >= 3 else "medium",
        time_share=share,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=_evidence(rank, loader_model),
        remedies=_remedies(rank, loader_model),
        summary=f"{words.makers(rank.loader)} use all CPU cores, and training still waits {units.percent(share)} of "
        f"its time for data",
    )


def _applies(analysis: RunAnalysis, rank: RankAnalysis, loader_model: LoaderModel) -> bool:
    return (
        loader_model.workers > 0
        and loader_model.steady_share >= WORTH
        and not is_blocked(rank)
        and not is_jitter(rank)
        and not is_transport(rank, loader_model)
        and bound_by_cpu(analysis, rank, loader_model)
        # otherwise HOST001 reports the threads of the workers
        and worker_threads(analysis, rank) < 2 * loader_model.cores
    )


def _remedies(rank: RankAnalysis, loader_model: LoaderModel) -> list[Remedy]:
    share = loader_model.steady_share
    function = rank.loader.hot[0].function if rank.loader and rank.loader.hot else "the slowest transform"
    return [
        Remedy(
            id="loader.decode",
            safety="numeric",
            change=f"make {function} twice as fast: use a faster decoder, or decode images directly to a smaller size",
            gain=twice_as_fast(share, rank.loader.hot if rank.loader else ()),
        ),
        Remedy(
            id="loader.cache",
            safety="exact",
            change="keep decoded samples in memory, if they fit",
            gain=_gain_of_cache(rank, loader_model) if _repeats_samples(rank, share) else at_most(share),
        ),
        Remedy(
            id="loader.batch_transform",
            safety="numeric",
            change="apply transforms to whole batches instead of single samples, or apply them on the GPU",
            gain=at_most(share),
        ),
    ]


def _gain_of_cache(rank: RankAnalysis, loader_model: LoaderModel) -> Gain:
    """Return the gain of cached samples over all epochs of the run, of which the first one fills the memory."""
    filled = min(1.0, (steps_of_epoch(rank.record) or 0) / max(1, len(rank.record.steps)))
    later = loader_model.gain_of_cached_samples()
    low, high = (1 / (filled + (1 - filled) / gain) for gain in (later.low, later.high))
    return Gain(low=low, high=high, basis=later.basis)


def _repeats_samples(rank: RankAnalysis, share: float) -> bool:
    """Return whether training waits for samples that seem to be the same in each epoch."""
    return (
        share >= _MUCH
        and rank.loader is not None
        and rank.loader.draws_random is False
        and not words.is_stream(rank.loader)
        and steps_of_epoch(rank.record) is not None
    )


def _evidence(rank: RankAnalysis, loader_model: LoaderModel) -> list[Evidence]:
    found = [words.share_of_step(loader_model.steady_share, "waiting for data")]
    if rank.loader is not None:
        found.append(words.kinds_of_time(rank.loader))
    found.append(words.cpu_demand(loader_model.cpu_demand, loader_model.cores, rank.loader))
    return found + (words.hot(rank.loader) if rank.loader else [])


RULE = Rule(code="DATA002", name="loader-cpu-bound", page=PAGE, check=check)
