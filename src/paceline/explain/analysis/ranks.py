"""The straggler: the rank that other ranks wait for, and the phase in which it is slower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from paceline.core.statistics import half_width
from paceline.explain.analysis.breakdown import cpu_wait_share
from paceline.explain.analysis.contention import others_take_cores
from paceline.explain.analysis.loader_model import is_starved
from paceline.explain.analysis.loss import Exchanges, exchanges_of
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.record.layout import PHASES

_POINT_TO_POINT = ("batch_isend_irecv", "send", "recv")
_REPEATED = 1.5  # least exchanges per update of one module that count as repeated
_BY_A_CORE = 0.5  # from this share of a rank's delay on, other programs are the reason, not the rank
_BLOCKS = 8  # number of blocks of steps whose means are assumed independent
_WORTH = 0.1  # least delay as a share of a step: two cores of one machine differed by 9%


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The rank that makes the others wait. Times are in seconds per step; shares are shares of step time."""

    rank: int
    step_s: float
    own_s: float  # time without waiting for other ranks
    excess_s: float  # difference to the median of the others
    least_excess_s: float  # difference to the slowest of the others, at the lower end of the 95% interval
    most_excess_s: float  # difference to the median of the others, at the upper end
    steps: int
    waiting: float
    others_waiting: float
    phase: str  # phase with the largest difference to the others
    phase_share: float
    where: str  # the function in this phase as text to append, or an empty string


def straggler(analysis: RunAnalysis) -> Straggler | None:
    """Return the straggling rank, or None if there is a single rank or the ranks are equally fast."""
    if len(analysis.ranks) < 2:
        return None
    late = max(analysis.ranks, key=_pace_s)
    others = [r for r in analysis.ranks if r is not late]
    step_s = late.total_s / max(1, len(late.rows))
    own_s = _pace_s(late)
    excess = own_s - float(np.median([_pace_s(r) for r in others]))
    waiting = late.breakdown.shares["communication"]
    others_waiting = float(np.median([r.breakdown.shares["communication"] for r in others]))
    if excess < _WORTH * step_s or others_waiting - waiting < 0.4 * excess / step_s:
        return None
    if (
        others_take_cores(analysis)
        and _without_a_core_s(late) - min(map(_without_a_core_s, others)) >= _BY_A_CORE * excess
    ):
        return None
    more = {p: _mean(late, p) - float(np.median([_mean(r, p) for r in others])) for p in PHASES if p != "communication"}
    phase = max(more, key=lambda p: more[p])
    half = float(np.hypot(_half_s(late), max(map(_half_s, others))))
    return Straggler(
        rank=late.record.rank,
        step_s=step_s,
        own_s=own_s,
        excess_s=excess,
        least_excess_s=max(0.0, own_s - max(_pace_s(r) for r in others) - half),
        most_excess_s=min(excess + half, own_s),
        steps=len(late.rows),
        waiting=waiting,
        others_waiting=others_waiting,
        phase=phase,
        phase_share=min(1.0, more[phase] / excess),
        where=_where(late, phase),
    )


def _pace_s(rank: RankAnalysis) -> float:
    """Return the seconds that a step would take if this rank never waited for another rank."""
    return rank.total_s / max(1, len(rank.rows)) if is_starved(rank) else rank.own_s


def _half_s(rank: RankAnalysis) -> float:
    """Return half the 95% interval of the rank's mean busy seconds per step, from the means of blocks of steps."""
    busy = rank.walls - rank.phases["communication"]
    means = np.array([block.mean() for block in np.array_split(busy, _BLOCKS) if len(block)])
    return half_width(means) if len(means) >= 3 else 0.0


def _without_a_core_s(rank: RankAnalysis) -> float:
    """Return the seconds per step in which the training thread of a rank was ready but had no CPU core."""
    return cpu_wait_share(rank.record) * rank.total_s / max(1, len(rank.rows))


def _mean(rank: RankAnalysis, phase: str) -> float:
    return float(rank.phases[phase].mean())


def _where(rank: RankAnalysis, phase: str) -> str:
    functions = rank.breakdown.host_functions if phase == "other" else ()
    if phase == "data_wait" and rank.loader is not None:
        functions = rank.loader.hot
    return f" in {functions[0].function}" if functions else ""


Parallelism = Literal["pipeline", "fsdp", "ddp", "other"]


def parallelism(rank: RankAnalysis) -> Parallelism:
    """Return the kind of communication of a rank: pipeline stages, FSDP's parameters, DDP's gradients, or other."""
    told = rank.record.summary.get("exchanges") or {}
    calls = told.get("calls") or {}
    if sum(calls.get(name, 0) for name in _POINT_TO_POINT) >= rank.record.count:
        return "pipeline"
    if told.get("sharded"):
        return "fsdp"
    return "ddp" if not told or (rank.rows["synced"] > 0).any() else "other"


def repeated_exchanges(analysis: RunAnalysis) -> Exchanges | None:
    """Return the module that exchanges its gradients more than once per update of its optimizer, or None.

    Exchanges are counted per module and between optimizer steps. So two networks with one optimizer each, which
    exchange their gradients once each, do not count as repeated.
    """
    found = [one for rank in analysis.ranks if (one := exchanges_of(rank.record)) is not None]
    most = max(found, key=lambda one: one.per_update, default=None)
    return most if most is not None and most.per_update >= _REPEATED else None
