"""The result of a search: its trials, the best recipe, and the remedies that no trial tried."""

from __future__ import annotations

import math
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

_WIDE = 1.5  # ratio of the ends of a wide interval
Status = Literal["kept", "no-win", "undecided", "failed", "unsafe", "skipped"]
OUTCOMES: Mapping[Status, str] = {
    "kept": "proven",
    "no-win": "no gain",
    "undecided": "undecided",
    "failed": "failed",
    "unsafe": "unsafe",
    "skipped": "not tried",
}
"""The words with which reports print the status of a trial."""
_JOINED = " + "  # separates the remedies of a trial of several changes


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One candidate with its result, or with the reason why it was not tried."""

    id: str
    remedy: str
    recipe: Recipe  # the whole recipe of the trial, kept changes included
    safety: Safety
    predicted: Gain | None
    speedup: Interval | None  # over the recipe that was kept before; for larger batches, to the same loss
    status: Status
    reason: str
    predicted_by_findings: Gain | None = None  # the prediction before earlier trials on this machine corrected it
    checks: Sequence[Check] = ()
    saving: Interval | None = None  # memory saving as a factor; None if it was not measured
    cpu_ratio: float | None = None
    set_aside: int = 0  # pairs left out because other programs used cores, or a GPU clock changed
    far_off: int = 0  # pairs whose gain is far from the median; these pairs count
    rounds: int = 0
    seconds: float = 0.0  # duration of the trial
    gpu: GpuRange | None = None  # the GPUs during the blocks; None if the program uses no GPU
    step_times: StepTimes | None = None  # of the pairs that count; None if nothing was measured

    @property
    def as_predicted(self) -> bool | None:
        """Whether the measured speed-up is in the predicted interval.

        None if there is no prediction or no speed-up, or if the measurement is inconclusive.
        """
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
    after: Diagnosis | None  # diagnosis under the best recipe; None if nothing was kept or there was no time for it
    trials: Sequence[Trial]
    best: Recipe
    speedup: Interval | None  # of the best recipe over the baseline; None if nothing was kept
    saving: Interval | None  # memory saving of the best recipe
    step_times: StepTimes | None = None  # of the pairs that gave `speedup`; None if nothing was kept or measured
    # whether speedup and saving are products over the kept changes, because there was no final comparison
    in_turn: bool
    checks: Sequence[Check]
    # if nothing was kept: the fastest undecided change that passed the equivalence checks
    unproven: Trial | None = None
    scatter: float  # standard deviation between baseline processes of the log of their speed
    compared: int  # number of processes behind `scatter`; below two, `scatter` is the default
    wall_s: float
    stopped: str  # why the search ended
    out_of_budget: bool = False  # whether the search ended because the budget was spent
    budget_s: float
    allowed: Sequence[Safety]  # safety classes of the changes that could be tried, the safest first
    other_cores: float | None  # mean cores used by other programs during the trials; None if it was not measured
    goal: str
    price_per_hour: float | None  # price of the machine, in USD
    batch: BatchStudy | None  # the batch sizes that were measured; None if none were
    quality: Quality | None  # None if `--verify-quality` was not given
    whole_run: WholeRun | None = None  # the last recorded run of the program that succeeded; None if there is none
    warmup_steps: int = 0  # steps at the start of a run before the best recipe has its full effect
    # how the last recorded run of the program failed; None if it succeeded or there is none
    last_failure: str | None = None

    @property
    def is_per_step(self) -> bool:
        """Whether the speed-up compares step times.

        False with a larger batch: the speed-up then compares the times to the same loss.
        """
        kept = {part for trial in self.trials if trial.status == "kept" for part in trial.remedy.split(_JOINED)}
        return "batch.size" not in kept

    @property
    def whole_speedup(self) -> Interval | None:
        """The expected speed-up of a whole run, in which only the steps become faster; None if unknown."""
        one, step = self.whole_run, self.speedup
        if one is None or step is None or not self.is_per_step or not step.value > 0:
            return None
        value = one.speedup_with(step.value, self.warmup_steps)
        if not (step.low > 0 and math.isfinite(step.high)):  # too few pairs of blocks for an interval
            return Interval(value=value, low=0.0, high=math.inf, count=step.count)
        low, high = (one.speedup_with(bound, self.warmup_steps) for bound in (step.low, step.high))
        return Interval(value=value, low=low, high=high, count=step.count)


@dataclass(frozen=True, kw_only=True)
class UntriedRemedy:
    """A remedy that was not tried."""

    remedy: Remedy
    finding: str  # code of the finding that names the remedy

    @property
    def why(self) -> str:
        """The reason why the remedy was not tried."""
        if remedy_info(self.remedy.id).tunable:
            return "no trial was about it"
        return "it can only be made in the source or on the machine"


def untried_remedies(tuned: TuneResult) -> Sequence[UntriedRemedy]:
    """Return the remedies that findings of the current program name and that no trial tried."""
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
