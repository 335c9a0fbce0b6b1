"""Candidates: one change to try each, and the watched run that remedies propose them from."""

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
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis, analyze_run
from paceline.explain.diagnose import diagnose
from paceline.explain.model import Diagnosis, Finding, Gain, LoaderBreakdown
from paceline.record.run import Run
from paceline.tune.comparison.model import Aim

_BLOCKED = 0.2  # share of the time of making batches


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One change to try, on top of what is kept already."""

    remedy: str  # such as loader.workers
    recipe: Recipe
    safety: Safety
    predicted: Gain | None  # from the findings, then corrected; None where nothing speaks for a number
    why: str  # what suggests it
    predicted_by_findings: Gain | None = None  # before earlier trials on this machine corrected it
    startup_s: float = 0.0  # seconds that it takes to begin, about, more than the program as it is
    warmup_steps: int | None = None  # until it is fully in force, where that is known
    aims: Sequence[Aim] = ("time",)  # what it can make less
    progress: float = 1.0  # that a step makes towards the same loss, in steps of what is kept


@dataclass(frozen=True, kw_only=True)
class DiagnosisContext:
    """A watched run and the recipe that it ran under: the context in which remedies propose candidates."""

    run: Run
    recipe: Recipe
    cpu_flags: frozenset[str] = frozenset()  # instruction sets of the processor; none: not known

    @cached_property
    def facts(self) -> RunAnalysis:
        """The run as rules see it."""
        return analyze_run(self.run)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What was found in it."""
        return diagnose(self.run)

    @property
    def findings(self) -> Sequence[Finding]:
        """Its findings, the verdict's first."""
        return self.diagnosis.findings

    def finding(self, *codes: str) -> Finding | None:
        """Return the first finding with one of these codes."""
        return next((f for f in self.findings if f.code in codes), None)

    def gain_of(self, remedy: str) -> Gain | None:
        """Return the gain that the findings expect of a remedy."""
        gains = [r.gain for f in self.findings for r in f.remedies if r.id == remedy and r.gain is not None]
        return max(gains, key=lambda g: g.high, default=None)

    @cached_property
    def waiting(self) -> tuple[RankAnalysis, LoaderModel] | None:
        """The rank that waits most for data, with its supply."""
        return waiting_rank(self.facts)

    @property
    def waits_outside(self) -> bool:
        """Whether training waits for data, and their making for storage, a network, a sleep, or what is not known."""
        return self.waiting is not None and (self.loader is None or self.loader.blocked >= _BLOCKED)

    @property
    def loader(self) -> LoaderBreakdown | None:
        """The training loader, where there is one."""
        rank = self.waiting[0] if self.waiting is not None else self.facts.first
        return rank.loader

    @cached_property
    def supply(self) -> LoaderModel:
        """How the waiting rank, or the first, is supplied with batches."""
        return self.waiting[1] if self.waiting is not None else loader_model_of(self.facts, self.facts.first)

    @property
    def cores(self) -> int:
        """Cores that one rank may count on, at least one."""
        return max(1, int(self.supply.cores))

    @property
    def streams(self) -> bool:
        """Whether the loader reads a stream."""
        return words.is_stream(self.loader)

    @property
    def epoch_steps(self) -> int | None:
        """Optimizer steps of an epoch of the loader that trains; None where no second one was seen."""
        return steps_of_epoch(self.facts.first.record)

    @property
    def distributed(self) -> bool:
        """Whether several ranks exchange gradients."""
        return len(self.facts.ranks) > 1

    @property
    def on_cuda(self) -> bool:
        """Whether a CUDA device computes."""
        return self.facts.first.record.device == "cuda"

    def setting(self, table: str, key: str) -> object:
        """Return what the recipe has set already, or None."""
        return self.recipe.get(table, {}).get(key)


def capability(context: DiagnosisContext) -> float:
    """Return the compute capability of the CUDA device that computes; 0.0 without one."""
    return mfu.capability(context.facts.first.record.meta) if context.on_cuda else 0.0


def operator_share(context: DiagnosisContext, *names: str) -> float | None:
    """Return the share of step time in operators whose names hold one of these.

    By the own time of the device that computes, in the profiled steps; None where none is there, or it was not taken.
    """
    first = context.facts.first
    own = [o for o in first.window.operators if any(name in o.name for name in names)] if first.window else []
    if first.window is None or not own or (context.on_cuda and any(o.device_self_s is None for o in own)):
        return None
    computing = sum(first.breakdown.shares[phase] for phase in ("forward", "backward", "optimizer"))
    return computing * sum(o.time_s for o in own) / max(first.window.operator_s, 1e-9)


def reduces_gradients(context: DiagnosisContext) -> bool:
    """Say whether DistributedDataParallel exchanges gradients between several ranks."""
    return context.distributed and bool(context.facts.first.rows["synced"].any())


def communication(context: DiagnosisContext) -> float:
    """Return the share of step time spent on communication, of the rank with the smallest share."""
    return min(rank.breakdown.shares["communication"] for rank in context.facts.ranks)


def debug_is_on(context: DiagnosisContext, name: str) -> bool:
    """Say whether a debug setting was on while the program trained; those of CUDA count on a CUDA device only."""
    of_cuda = name in ("launch_blocking", "deterministic_algorithms")
    seen = (rank.record.meta.get("debug", ()) for rank in context.facts.ranks)
    return (context.on_cuda or not of_cuda) and any(name in names for names in seen)
