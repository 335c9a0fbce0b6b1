"""Candidates (one change each), and the diagnosis context: the watched run for which remedies propose candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from paceline.core.recipe import Recipe
from paceline.core.remedies import Safety
from paceline.explain import words
from paceline.explain.analysis import mfu
from paceline.explain.analysis.loader import steps_of_epoch
from paceline.explain.analysis.loader_model import LoaderModel, loader_model_of, waiting_rank
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis, analyze_run, operators_were_timed
from paceline.explain.diagnose import diagnose
from paceline.explain.model import Diagnosis, Finding, Gain, LoaderBreakdown
from paceline.record.run import Run
from paceline.tune.comparison.model import Aim

_BLOCKED = 0.2  # least share of batch preparation that workers spend blocked, for a wait outside the CPU


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One change to try, in addition to the changes that are already kept."""

    remedy: str  # such as loader.workers
    recipe: Recipe
    safety: Safety
    predicted: Gain | None  # the findings' prediction after correction; None without a prediction
    why: str  # the reason for the proposal
    predicted_by_findings: Gain | None = None  # the prediction before earlier trials on this machine corrected it
    startup_s: float = 0.0  # approximate seconds of start-up in addition to those of the baseline
    warmup_steps: int | None = None  # steps until the change has its full effect, or None if unknown
    aims: Sequence[Aim] = ("time",)  # the quantities that the change can reduce
    progress: float = 1.0  # progress of one step towards the same loss, in steps of the current best


@dataclass(frozen=True, kw_only=True)
class DiagnosisContext:
    """A watched run and its recipe; from this context, remedies propose candidates."""

    run: Run
    recipe: Recipe
    cpu_flags: frozenset[str] = frozenset()  # instruction sets of the processor; empty if unknown

    @cached_property
    def facts(self) -> RunAnalysis:
        """The analysis of the run."""
        return analyze_run(self.run)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis of the run."""
        return diagnose(self.run)

    @property
    def findings(self) -> Sequence[Finding]:
        """The findings of the diagnosis; the finding of the verdict comes first."""
        return self.diagnosis.findings

    def finding(self, *codes: str) -> Finding | None:
        """Return the first finding with one of these codes, or None."""
        return next((f for f in self.findings if f.code in codes), None)

    def gain_of(self, remedy: str) -> Gain | None:
        """Return the largest gain that the findings predict for a remedy, or None without a prediction."""
        gains = [r.gain for f in self.findings for r in f.remedies if r.id == remedy and r.gain is not None]
        return max(gains, key=lambda g: g.high, default=None)

    @cached_property
    def waiting(self) -> tuple[RankAnalysis, LoaderModel] | None:
        """The rank that waits most for data, and the model of its loader; None if no rank waits for data."""
        return waiting_rank(self.facts)

    @property
    def waits_outside(self) -> bool:
        """Whether training waits for data, and the loader's workers mostly wait (for storage, a network or a sleep).

        Also True if training waits for data and no loader was recorded.
        """
        return self.waiting is not None and (self.loader is None or self.loader.blocked >= _BLOCKED)

    @property
    def loader(self) -> LoaderBreakdown | None:
        """The training loader of the rank that waits most for data, or of the first rank if no rank waits.

        None if this rank has no training loader.
        """
        rank = self.waiting[0] if self.waiting is not None else self.facts.first
        return rank.loader

    @cached_property
    def supply(self) -> LoaderModel:
        """The loader model of the rank that waits most for data, or of the first rank if no rank waits."""
        return self.waiting[1] if self.waiting is not None else loader_model_of(self.facts, self.facts.first)

    @property
    def cores(self) -> int:
        """Number of CPU cores that one rank can use, at least one."""
        return max(1, int(self.supply.cores))

    @property
    def streams(self) -> bool:
        """Whether the training loader reads a stream (an `IterableDataset`)."""
        return words.is_stream(self.loader)

    @property
    def epoch_steps(self) -> int | None:
        """Optimizer steps in one epoch of the training loader, or None if no second epoch was seen."""
        return steps_of_epoch(self.facts.first.record)

    @property
    def distributed(self) -> bool:
        """Whether several ranks exchange gradients."""
        return len(self.facts.ranks) > 1

    @property
    def on_cuda(self) -> bool:
        """Whether the program trains on a CUDA device."""
        return self.facts.first.record.device == "cuda"

    def setting(self, table: str, key: str) -> object:
        """Return the value of a setting in the recipe, or None if the recipe does not have it."""
        return self.recipe.get(table, {}).get(key)


def capability(context: DiagnosisContext) -> float:
    """Return the compute capability of the CUDA device that the program trains on, or 0.0 without a CUDA device."""
    return mfu.capability(context.facts.first.record.meta) if context.on_cuda else 0.0


def operator_share(context: DiagnosisContext, *names: str) -> float | None:
    """Return the share of step time in operators whose names contain one of the given names.

    The times are the operators' self times on the training device, in the profiled steps. The result is None if no such
    operator was profiled or if its device time is unknown.
    """
    first = context.facts.first
    own = [o for o in first.window.operators if any(name in o.name for name in names)] if first.window else []
    if first.window is None or not own or (context.on_cuda and not operators_were_timed(first)):
        return None
    computing = sum(first.breakdown.shares[phase] for phase in ("forward", "backward", "optimizer"))
    return computing * sum(o.time_s for o in own) / max(first.window.operator_s, 1e-9)


def reduces_gradients(context: DiagnosisContext) -> bool:
    """Return whether DistributedDataParallel exchanges gradients between several ranks."""
    return context.distributed and bool(context.facts.first.rows["synced"].any())


def communication(context: DiagnosisContext) -> float:
    """Return the share of step time spent on communication, on the rank with the smallest share."""
    return min(rank.breakdown.shares["communication"] for rank in context.facts.ranks)


def debug_is_on(context: DiagnosisContext, name: str) -> bool:
    """Return whether a debug setting was on during training.

    Debug settings of CUDA count only if the program trains on a CUDA device.
    """
    of_cuda = name in ("launch_blocking", "deterministic_algorithms")
    seen = (rank.record.meta.get("debug", ()) for rank in context.facts.ranks)
    return (context.on_cuda or not of_cuda) and any(name in names for names in seen)
