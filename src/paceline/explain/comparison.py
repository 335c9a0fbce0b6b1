"""The parts of a comparison of two runs, in SI units. A change is after minus before; a ratio is after / before.

A change that makes steps g times as fast does not change start-up or other time outside the steps. A run of w seconds
with s seconds of steps then takes w - s + s / g.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.core.statistics import Interval
from paceline.explain.model import Diagnosis, Finding
from paceline.record.run import Launch, Run

Outcome = Literal["regression", "cannot-tell", "slower", "same", "faster"]
"""The outcome of a comparison of step times.

    regression   slower, and the whole interval is beyond the tolerance
    cannot-tell  the interval contains the tolerance
    slower       certainly slower, and not beyond the tolerance
    faster       certainly faster
    same         none of these: not beyond the tolerance, and no certain difference
"""

Basis = Literal["step", "sample"]
"""The unit of the times: a step, or one sample if the two runs have different numbers of samples per step."""

METHOD = (
    "means over the steady steps (after the warm-up) that both runs have; 95% confidence intervals from batch means "
    "of the step-by-step differences, valid for correlated steps; the usual difference between two runs of the same "
    "program is not included; if other programs used the CPU, the interval is wider by the time for which steps waited "
    "for a core"
)


@dataclass(frozen=True, kw_only=True)
class PhaseChange:
    """The change of the time of one phase, in seconds per step (or per sample, see `Basis`)."""

    phase: str
    before_s: float
    after_s: float
    change_s: Interval
    explains: float | None  # share of the total change; None if the total did not certainly change

    @property
    def certain(self) -> bool:
        """Whether the confidence interval of the change excludes zero."""
        return self.change_s.low > 0 or self.change_s.high < 0


@dataclass(frozen=True, kw_only=True)
class LossChange:
    """The losses of both runs up to the last step that both have made."""

    step: int
    before: Interval  # median of the last losses up to that step
    after: Interval
    steps_alike: int  # number of leading steps with bitwise identical losses
    steps_common: int


@dataclass(frozen=True, kw_only=True)
class SettingDifference:
    """A setting that differs between the two runs, as text."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All data that a report shows of a comparison. Reports only format these data."""

    before: Diagnosis
    after: Diagnosis
    tolerance: float  # fraction of the first run's time
    outcome: Outcome
    text: str  # one sentence
    basis: Basis
    time_before_s: Interval | None  # mean per step (or per sample)
    time_after_s: Interval | None
    ratio: Interval | None  # time after / time before; above 1 is slower
    phases: Sequence[PhaseChange]  # largest change first
    loss: LossChange | None
    new: Sequence[Finding]  # findings of the second run only
    gone: Sequence[Finding]
    differences: Sequence[SettingDifference]
    notes: Sequence[str]
    whole_before: WholeRun | None = None  # None if the run did not succeed, or its record has no times
    whole_after: WholeRun | None = None
    launch_after: Launch | None = None  # how the second run was started; None if its record does not contain it
    is_disturbed: bool = False  # whether other programs used the CPU during a run and may have changed its times

    @property
    def whole_ratio(self) -> float | None:
        """Time of the whole run, after / before; None if unknown or if the numbers of steps differ."""
        before, after = self.whole_before, self.whole_after
        if before is None or after is None or before.steps != after.steps:
            return None
        return after.wall_s / before.wall_s

    @property
    def main(self) -> PhaseChange | None:
        """The phase that explains most of the change, or None if the total did not certainly change."""
        found = max(self.phases, key=lambda change: change.explains or 0.0, default=None)
        return found if found is not None and found.explains else None


_ROUNDING = 1.02  # the steps may take up to this factor of the run's time, because two processes have different clocks


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """The times of a run that succeeded.

    Attributes:
        run_id: The name of the run.
        wall_s: Seconds from the start of the command to its end.
        steps_s: Seconds from the start of the first step to the end of the last step, on the slowest rank.
        steps: Number of optimizer steps of a rank.
    """

    run_id: str
    wall_s: float
    steps_s: float
    steps: int

    @property
    def outside_s(self) -> float:
        """Seconds outside the steps: start-up before the first step, and the time after the last step."""
        return max(0.0, self.wall_s - self.steps_s)

    def speedup_with(self, step_speedup: float, warmup_steps: int = 0) -> float:
        """Return the speed-up of the whole run if all steps except the warm-up steps become faster by a factor.

        Args:
            step_speedup: Time of a step before the change, divided by its time after the change.
            warmup_steps: Number of steps at the start of the run whose time does not change.
        """
        slow_s = self.steps_s * min(1.0, warmup_steps / max(1, self.steps))
        return self.wall_s / (self.outside_s + slow_s + (self.steps_s - slow_s) / step_speedup)


def whole_run(run: Run) -> WholeRun | None:
    """Return the times of a run, or None if the run failed or was restarted, or if its record has no times."""
    succeeded = run.finished and all(launch.exit_code == 0 and launch.asked_to_end is None for launch in run.launches)
    walls = [launch.wall_s for launch in run.launches if launch.wall_s is not None]
    if not succeeded or not walls or not run.ranks or run.earlier:
        return None
    rows = [rank.steps for rank in run.ranks]
    steps_s = max((int(each["end_ns"][-1]) - int(each["end_ns"][0])) / 1e9 + float(each["wall_s"][0]) for each in rows)
    if not 0 < steps_s <= _ROUNDING * max(walls):
        return None
    steps = max(int(each["index"][-1]) + 1 for each in rows)
    return WholeRun(run_id=run.run_id, wall_s=max(walls), steps_s=min(steps_s, max(walls)), steps=steps)
