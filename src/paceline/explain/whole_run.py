"""The time of a whole run, and the part of it that is training steps.

A change that makes a step g times as fast leaves start-up, and everything else outside the steps, as long as it is. A
run of w seconds with s seconds of steps then takes w - s + s / g.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.record.run import Run

_ROUNDING = 1.02  # times the time of the run: clocks of two processes


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """How long a run took that succeeded.

    Attributes:
        run_id: The name of the run.
        wall_s: From the start of the command to its end.
        steps_s: From the start of the first step to the end of the last step, on the slowest rank.
        steps: Optimizer steps of a rank.
    """

    run_id: str
    wall_s: float
    steps_s: float
    steps: int

    @property
    def outside_s(self) -> float:
        """Seconds outside the steps: start-up before the first step, and what follows the last step."""
        return max(0.0, self.wall_s - self.steps_s)

    def speedup_with(self, step_speedup: float) -> float:
        """Return the speed-up of the whole run if a step becomes faster by this factor."""
        return self.wall_s / (self.outside_s + self.steps_s / step_speedup)


def whole_run(run: Run) -> WholeRun | None:
    """Return the times of a run; None if it did not succeed, was restarted, or its record does not say."""
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
