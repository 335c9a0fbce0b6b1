"""What do several remedies ask of a run? Which device computes, and shares of time by operators and by exchanges."""

from __future__ import annotations

from paceline.explain.analysis import mfu
from paceline.improve.situation import Situation


def capability(situation: Situation) -> float:
    """Return the compute capability of the CUDA device that computes; 0.0 without one."""
    return mfu.capability(situation.facts.first.record.meta) if situation.on_cuda else 0.0


def operator_share(situation: Situation, *names: str) -> float | None:
    """Return the share of step time in operators whose names hold one of these.

    By the own time of the device that computes, in the profiled steps; None where none is there, or it was not taken.
    """
    first = situation.facts.first
    own = [o for o in first.window.operators if any(name in o.name for name in names)] if first.window else []
    if first.window is None or not own or (situation.on_cuda and any(o.device_self_s is None for o in own)):
        return None
    computing = sum(first.breakdown.shares[phase] for phase in ("forward", "backward", "optimizer"))
    return computing * sum(o.time_s for o in own) / max(first.window.operator_s, 1e-9)


def reduces_gradients(situation: Situation) -> bool:
    """Say whether DistributedDataParallel exchanges gradients between several ranks."""
    return situation.distributed and bool(situation.facts.first.rows["synced"].any())


def communication(situation: Situation) -> float:
    """Return the share of step time that ranks spend exchanging, where it is least."""
    return min(rank.breakdown.shares["communication"] for rank in situation.facts.ranks)


def debug_is_on(situation: Situation, name: str) -> bool:
    """Say whether a debug setting was on while the program trained; those of CUDA count on a CUDA device only."""
    of_cuda = name in ("launch_blocking", "deterministic_algorithms")
    seen = (rank.record.meta.get("debug", ()) for rank in situation.facts.ranks)
    return (situation.on_cuda or not of_cuda) and any(name in names for names in seen)
