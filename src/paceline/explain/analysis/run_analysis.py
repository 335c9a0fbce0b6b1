"""The analysis of a run, which is the input of all rules. It is computed once and is immutable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.explain.analysis.breakdown import (
    break_down,
    cpu_wait_share,
    of_one_model,
    phase_columns,
    runnable_ratio,
    steady,
)
from paceline.explain.analysis.gpu import DeviceMemory, GpuUse, device_memory, gpu_use
from paceline.explain.analysis.host import HostUse, host_use
from paceline.explain.analysis.loader import loader_breakdown
from paceline.explain.analysis.loss import loss_curve
from paceline.explain.analysis.mfu import Mfu, mfu_of
from paceline.explain.analysis.profiler_window import ProfilerWindow, read_window
from paceline.explain.model import Gain, LoaderBreakdown, LossCurve, RankBreakdown
from paceline.record.layout import PHASES
from paceline.record.run import Rank, Rows, Run, column

Columns = Mapping[str, np.ndarray]

TELLABLE_S = 0.0002  # seconds of a step: shorter times cannot be separated from the overhead of the recorder
MIN_STEPS = 12  # findings about speed need at least this number of steady steps
MIN_STEADY_S = 0.15  # and at least this number of seconds of steady steps
_LEAST_LAGS = 8
_BEHIND = 0.1  # of the time of a pass: with a shorter delay, the GPU waits for the host
_MATRIX_OPERATORS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::_scaled_mm",
    "aten::cudnn_convolution",
    "aten::convolution_backward",
    "aten::_convolution",
    "aten::_scaled_dot_product_",
    "aten::_flash_attention_",
    "aten::_efficient_attention_",
)


@dataclass(frozen=True, kw_only=True)
class RankAnalysis:
    """The analysis of one rank: its record, its breakdown, and its steady steps by phase (seconds per step)."""

    record: Rank
    breakdown: RankBreakdown
    rows: Rows
    phases: Columns
    loader: LoaderBreakdown | None
    window: ProfilerWindow | None  # the profiled steps; None if no step was profiled
    mfu: Mfu
    gpu: GpuUse | None = None  # None on a CPU
    memory: DeviceMemory | None = None  # GPU memory of torch's allocator; None on a CPU

    @property
    def walls(self) -> np.ndarray:
        """Wall time of each steady step in seconds."""
        return column(self.rows, "wall_s")

    @property
    def total_s(self) -> float:
        """Total seconds of all steady steps."""
        return float(self.walls.sum())

    @property
    def of_one_model(self) -> RankAnalysis:
        """The same analysis, limited to the longest part of the steps that trained models of one size."""
        part = of_one_model(self.record, self.rows)
        return replace(self, rows=self.rows[part], phases={name: one[part] for name, one in self.phases.items()})

    @property
    def own_s(self) -> float:
        """Mean seconds per step in which this rank did not wait for other ranks."""
        return float((self.walls - self.phases["communication"]).mean()) if len(self.rows) else 0.0


@dataclass(frozen=True, kw_only=True)
class RunAnalysis:
    """The analysis of a run: the input of all rules."""

    run: Run
    ranks: Sequence[RankAnalysis]
    shares: Mapping[str, float]  # median over ranks of the share of each phase, normalised to sum to 1
    host: HostUse
    loss: LossCurve | None
    wall_s: float | None  # seconds of the whole command so far

    @property
    def first(self) -> RankAnalysis:
        """The first rank. Rules use it if one rank is enough."""
        return self.ranks[0]

    @property
    def on_cpu(self) -> bool:
        """Whether training runs on the CPU."""
        return self.first.record.device == "cpu"

    @property
    def gpus(self) -> list[tuple[RankAnalysis, GpuUse]]:
        """The ranks with readings of their GPU, each with the use of the GPU."""
        return [(r, r.gpu) for r in self.ranks if r.gpu is not None]

    @property
    def enough(self) -> bool:
        """Whether every rank has enough steady steps for findings about speed."""
        return all(len(r.rows) >= MIN_STEPS and r.total_s >= MIN_STEADY_S for r in self.ranks)

    @property
    def contended(self) -> bool:
        """Whether other programs used so much of the CPU that single step times say little about the program."""
        return self.contention > 0.15 or self.host.others_share > 0.15

    @property
    def cpu_wait_share(self) -> float:
        """Share of step time in which the training thread waited for a CPU; the median over ranks."""
        return float(np.median([cpu_wait_share(r.record) for r in self.ranks])) if self.ranks else 0.0

    @property
    def contention(self) -> float:
        """Share of the time on or waiting for a CPU that the training thread spends waiting; the median over ranks."""
        ratios = [runnable_ratio(r.record) for r in self.ranks]
        ratio = float(np.median(ratios)) if ratios else 0.0
        return ratio / (1 + ratio)


def analyze_run(run: Run) -> RunAnalysis:
    """Return the analysis of a run that has at least one step."""
    ranks = tuple(_analyze_rank(run, rank) for rank in run.ranks)
    target = next((x.target_loss for x in run.launches if x.target_loss is not None), None)
    return RunAnalysis(
        run=run,
        ranks=ranks,
        shares=median_shares([r.breakdown for r in ranks]),
        host=host_use(run),
        loss=loss_curve(run.ranks[0], target),
        wall_s=max((x.wall_s for x in run.launches if x.wall_s is not None), default=None),
    )


def _analyze_rank(run: Run, rank: Rank) -> RankAnalysis:
    rows = steady(rank)
    breakdown = break_down(rank, run.launches)
    window = read_window(rank)
    return RankAnalysis(
        record=rank,
        breakdown=breakdown,
        rows=rows,
        phases=phase_columns(rank, rows),
        loader=loader_breakdown(run, rank),
        window=window,
        mfu=mfu_of(rank, window, breakdown.step_s.value),
        gpu=gpu_use(run, rank),
        memory=device_memory(rank),
    )


def median_shares(ranks: Sequence[RankBreakdown]) -> dict[str, float]:
    """Return the median over ranks of the share of each phase, normalised so that the shares sum to 1."""
    medians = {name: float(np.median([r.shares[name] for r in ranks])) for name in PHASES} if ranks else {}
    total = sum(medians.values())
    return {name: value / total if total > 0 else 0.0 for name, value in medians.items()}


def gain_of_removing(share: float, least: float, most: float) -> Gain:
    """Return the assumed gain of saving a fraction (`least` to `most`) of work that takes `share` of step time."""
    share = min(max(share, 0.0), 0.99)
    return Gain(low=1 / (1 - share * least), high=1 / (1 - share * most), basis="assumed")


def waits_for_host(rank: RankAnalysis) -> bool | None:
    """Return whether the GPU ends each phase soon after the host has launched it, or None if this is unknown."""
    told = rank.record.summary.get("device") or {}
    lags, steps = told.get("lag_s") or {}, max(1, len(rank.rows))
    if int(told.get("lag_count") or 0) < _LEAST_LAGS:
        return None
    phases = {name: rank.breakdown.seconds[name] / steps for name in ("forward", "backward")}
    return all(name in lags and float(lags[name]) < _BEHIND * spent for name, spent in phases.items())


def operators_were_timed(rank: RankAnalysis) -> bool:
    """Return whether the recorded times of operators are compute times.

    On a GPU they are intervals between events, in which a GPU that waits for the host is idle.
    """
    if rank.window is None or rank.window.operator_s <= 0:
        return False
    on_device = all(o.device_self_s is not None for o in rank.window.operators)
    return on_device and waits_for_host(rank) is False


def matrix_share(rank: RankAnalysis) -> float | None:
    """Return the share of step time in matrix operators on a GPU, or None if operators were not timed there."""
    window = rank.window
    if window is None or not operators_were_timed(rank):
        return None
    compute = sum(rank.breakdown.shares[name] for name in ("forward", "backward", "optimizer"))
    spent = sum(o.time_s for o in window.operators if o.name.startswith(_MATRIX_OPERATORS))
    return spent / window.operator_s * compute
