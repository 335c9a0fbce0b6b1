"""The result of a search: its trials, the best recipe, and the remedies that no trial was about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.core.recipe import Recipe
from paceline.core.remedies import Safety, remedy_info
from paceline.core.statistics import Interval
from paceline.explain.comparison import WholeRun
from paceline.explain.model import Diagnosis, Gain, Remedy
from paceline.tune.comparison.model import StepTimes
from paceline.tune.equivalence.outputs import Check
from paceline.tune.search.batch_size import BatchStudy
from paceline.tune.search.quality import Quality
from paceline.tune.trials.gpus import GpuRange

_WIDE = 1.5  # times the low end of an interval
Status = Literal["kept", "no-win", "undecided", "failed", "unsafe", "skipped"]
OUTCOMES: Mapping[Status, str] = {
    "kept": "proven",
    "no-win": "no gain",
    "undecided": "undecided",
    "failed": "failed",
    "unsafe": "unsafe",
    "skipped": "not tried",
}
"""The outcome of a candidate in words, as every report prints it."""
_JOINED = " + "  # between the remedies of a trial of several changes


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One candidate with its result; one that was not tried has the reason."""

    id: str
    remedy: str
    recipe: Recipe  # whole, as it ran
    safety: Safety
    predicted: Gain | None
    speedup: Interval | None  # over what was kept before it; with larger batches, to the same loss
    status: Status
    reason: str
    predicted_by_findings: Gain | None = None  # before earlier trials on this machine corrected it
    checks: Sequence[Check] = ()
    saving: Interval | None = None  # factor by which it needs less memory at once; None: not measured
    cpu_ratio: float | None = None
    set_aside: int = 0  # pairs of blocks during which other programs used cores, or the clock of a GPU changed
    far_off: int = 0  # pairs whose gain is far from the median; they count
    rounds: int = 0
    seconds: float = 0.0  # that the trial took
    gpu: GpuRange | None = None  # its GPUs during the blocks; None: it uses none
    step_times: StepTimes | None = None  # of the pairs that count; None: not measured

    @property
    def as_predicted(self) -> bool | None:
        """Whether what was achieved lies in what was predicted; None without either, or if nothing is decided."""
        if self.predicted is None or self.speedup is None or is_inconclusive(self.speedup):
            return None
        return self.predicted.low <= self.speedup.value <= self.predicted.high


def is_inconclusive(speedup: Interval) -> bool:
    """Return whether an interval is so wide that it contains both a loss and a gain."""
    return speedup.low < 1 < speedup.high and speedup.high > _WIDE * speedup.low


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """The result of a search."""

    command: Sequence[str]
    before: Diagnosis
    after: Diagnosis | None  # under the best recipe; None when nothing was kept, or there was no time to watch it
    trials: Sequence[Trial]
    best: Recipe
    speedup: Interval | None  # of the best recipe over the baseline; None when nothing was kept
    saving: Interval | None  # the same of memory
    step_times: StepTimes | None = None  # of the pairs behind `speedup`; None: nothing was kept, or not measured
    in_turn: bool  # whether they are products of what changes gained, each over those before: no time for all at once
    checks: Sequence[Check]
    unproven: Trial | None = None  # nothing was kept, and this change looked best: training is the same, the gain open
    scatter: float  # between processes of the baseline, standard deviation of the log
    compared: int  # processes by which that was measured; below two: it is what is usual
    wall_s: float
    stopped: str  # why the search ended
    out_of_budget: bool = False  # whether it ended because the budget was spent
    budget_s: float
    allowed: Sequence[Safety]  # classes of changes that could be tried, the safest first
    other_cores: float | None  # used by other programs during the trials, on average; None: no trial was compared
    goal: str
    price_per_hour: float | None  # of the machine, in USD
    batch: BatchStudy | None  # sizes of batch that were tried; None: not looked at
    quality: Quality | None  # None: not asked for
    whole_run: WholeRun | None = None  # the last recorded run of the program; None: there is none that succeeded
    warmup_steps: int = 0  # at the beginning of a run, before the best recipe is fully in force
    last_failure: str | None = None  # how the last recorded run of the program failed; None: it did not, or is none

    @property
    def is_per_step(self) -> bool:
        """Whether the speed-up is that of a step; larger batches are compared by the time to the same loss."""
        kept = {part for trial in self.trials if trial.status == "kept" for part in trial.remedy.split(_JOINED)}
        return "batch.size" not in kept

    @property
    def whole_speedup(self) -> Interval | None:
        """The speed-up to expect of a whole run, if only steps become faster; None if it is not known."""
        one, step = self.whole_run, self.speedup
        if one is None or step is None or not self.is_per_step or not step.low > 0:
            return None
        value, low, high = (one.speedup_with(each, self.warmup_steps) for each in (step.value, step.low, step.high))
        return Interval(value=value, low=low, high=high, count=step.count)


@dataclass(frozen=True, kw_only=True)
class UntriedRemedy:
    """A remedy that was not tried."""

    remedy: Remedy
    finding: str  # its code

    @property
    def why(self) -> str:
        """Why it was not tried."""
        if remedy_info(self.remedy.id).tunable:
            return "no trial was about it"
        return "it can only be made in the source or on the machine"


def untried_remedies(tuned: TuneResult) -> Sequence[UntriedRemedy]:
    """Return the remedies that findings of the program, as it is now, name and no trial was about."""
    tried = {part for trial in tuned.trials for part in trial.remedy.split(_JOINED)}
    diagnosis = tuned.after if tuned.after is not None else tuned.before
    found: dict[str, UntriedRemedy] = {}
    for finding in diagnosis.findings:
        if finding.severity == "info":
            continue
        for remedy in finding.remedies:
            if remedy.id not in tried:
                found.setdefault(remedy.id, UntriedRemedy(remedy=remedy, finding=finding.code))
    return list(found.values())
