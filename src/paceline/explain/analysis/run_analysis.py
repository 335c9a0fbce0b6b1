"""The analysis of a run: what every rule reads. It is computed once and does not change."""

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

TELLABLE_S = 0.0002  # of a step: what takes less is not told from what watching costs
MIN_STEPS = 12  # steady steps below which no finding about speed is made
MIN_STEADY_S = 0.15  # seconds of steady steps below which none is made either
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
    """One rank as rules see it: its record, its breakdown, and its steady steps by phase (seconds a step)."""

    record: Rank
    breakdown: RankBreakdown
    rows: Rows
    phases: Columns
    loader: LoaderBreakdown | None
    window: ProfilerWindow | None  # the profiler window, when one was taken
    mfu: Mfu
    gpu: GpuUse | None = None  # never on a CPU
    memory: DeviceMemory | None = None  # of the GPU

    @property
    def walls(self) -> np.ndarray:
        """Wall seconds of each steady step."""
        return column(self.rows, "wall_s")

    @property
    def total_s(self) -> float:
        """Seconds of all steady steps."""
        return float(self.walls.sum())

    @property
    def of_one_model(self) -> RankAnalysis:
        """The same with only the longest part of the steps that trained models of one size."""
        part = of_one_model(self.record, self.rows)
        return replace(self, rows=self.rows[part], phases={name: one[part] for name, one in self.phases.items()})

    @property
    def own_s(self) -> float:
        """Mean seconds a step this rank was busy itself, not waiting for others."""
        return float((self.walls - self.phases["communication"]).mean()) if len(self.rows) else 0.0


@dataclass(frozen=True, kw_only=True)
class RunAnalysis:
    """A run as rules see it."""

    run: Run
    ranks: Sequence[RankAnalysis]
    shares: Mapping[str, float]  # the ranks' median share of each phase, normalised
    host: HostUse
    loss: LossCurve | None
    wall_s: float | None  # of the whole command, as far as it has come

    @property
    def first(self) -> RankAnalysis:
        """The first rank. It represents the run where one rank is enough."""
        return self.ranks[0]

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU is the device."""
        return self.first.record.device == "cpu"

    @property
    def gpus(self) -> list[tuple[RankAnalysis, GpuUse]]:
        """The ranks whose GPU was read, with its use."""
        return [(r, r.gpu) for r in self.ranks if r.gpu is not None]

    @property
    def enough(self) -> bool:
        """Whether there are steady steps enough to speak about speed."""
        return all(len(r.rows) >= MIN_STEPS and r.total_s >= MIN_STEADY_S for r in self.ranks)

    @property
    def contended(self) -> bool:
        """Whether others on the host were so busy that single step times say little about the program."""
        return self.contention > 0.15 or self.host.others_share > 0.15

    @property
    def cpu_wait_share(self) -> float:
        """Share of the steps' time in which the training thread waited for a CPU, the ranks' median."""
        return float(np.median([cpu_wait_share(r.record) for r in self.ranks])) if self.ranks else 0.0

    @property
    def contention(self) -> float:
        """Share of the training thread's wish for a CPU that was not granted, the ranks' median."""
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
    """Return the ranks' median share of each phase, normalised so that they sum to 1."""
    medians = {name: float(np.median([r.shares[name] for r in ranks])) for name in PHASES} if ranks else {}
    total = sum(medians.values())
    return {name: value / total if total > 0 else 0.0 for name, value in medians.items()}


def gain_of_removing(share: float, least: float, most: float) -> Gain:
    """Return the assumed speed-up of saving between `least` and `most` (fractions) of what takes `share` of a step."""
    share = min(max(share, 0.0), 0.99)
    return Gain(low=1 / (1 - share * least), high=1 / (1 - share * most), basis="assumed")


def matrix_share(rank: RankAnalysis) -> float | None:
    """Return the share of step time in matrix operators; None when the device's time in them was not taken."""
    window = rank.window
    if window is None or window.operator_s <= 0 or any(o.device_self_s is None for o in window.operators):
        return None
    compute = sum(rank.breakdown.shares[name] for name in ("forward", "backward", "optimizer"))
    spent = sum(o.time_s for o in window.operators if o.name.startswith(_MATRIX_OPERATORS))
    return spent / window.operator_s * compute
