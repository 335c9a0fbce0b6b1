"""Whether two copies of a program may live at the same time, and comparisons where they may not.

Copies need memory on the host (on GPUs: `trials.gpus`), and a program that can run twice: no fixed port, no card for
one process alone. Where that is not so, both sides make the same steps, after the same warm-up steps, each in a process
that has the machine for itself (`RestartedProcess`). A pair of blocks then is a pair of processes, so the scatter
between processes is part of the noise of a pair.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.core.recipe import Recipe
from paceline.hardware.host import available_bytes
from paceline.hardware.operating_system import LocalFiles
from paceline.tune.comparison.model import ComparisonSpec, Deadline
from paceline.tune.comparison.paired_blocks import RoundLimits
from paceline.tune.trials.blocks import BaselineFailed, ProgramFailed, ProgramOver, StepBlock, TrialFailed
from paceline.tune.trials.process import READY_S, TrialProcess

LEAST_ROUND_S, _ROUND_S = 5.0, 25.0
_PATIENCE_S = 60.0  # with what does not begin
_BLOCKS = 14  # of a program that is soon over
_ANY = 1 << 30
MOST_COPIES = 3  # that live at the same time, ever
_OF_FREE = 0.8  # of the free memory, that copies may take
_ATTEMPTS = 2  # to start a second copy: some programs fail by themselves now and then
_BLOCK_S = 3.0  # a process that took seconds to start makes longer blocks
_WARMUP_STEPS = 5  # before each block, at least
_LEAST_PAIRS = 4  # for which there is time in a round, whatever the budget


def side_by_side_limits(
    spec: ComparisonSpec, deadline: Deadline, *, step_s: float, block_s: float, total: int
) -> RoundLimits:
    """Return the limits of a round in which both processes are alive at the same time.

    Args:
        spec: The two recipes.
        deadline: When the comparison has to end.
        step_s: Seconds of a step of the baseline, about.
        block_s: Seconds of a block, about.
        total: Steps of the whole program; 0 if that is not known.
    """
    now, warmup_s = time.monotonic(), 2 * spec.warmup_steps * step_s
    return RoundLimits(
        step_s=step_s,
        block_s=block_s,
        most_steps=max(1, total // _BLOCKS) if total else _ANY,
        warmup_steps=spec.warmup_steps,
        budget_s=max(LEAST_ROUND_S, min(_ROUND_S, deadline.usual - now)) + warmup_s,
        most_s=max(LEAST_ROUND_S, deadline.promising - now) + warmup_s,
        large_s=max(LEAST_ROUND_S, deadline.large - now) + warmup_s,
    )


def copies_that_fit(copy_bytes: int, free: float | None) -> int:
    """Return how many copies of a program may live at the same time, at least one.

    Args:
        copy_bytes: Host memory that one copy needs.
        free: Host memory in bytes that is free while no copy lives; None: not known.
    """
    if free is None or copy_bytes <= 0:
        return MOST_COPIES
    return max(1, min(MOST_COPIES, int(_OF_FREE * free // copy_bytes)))


def free_bytes() -> float | None:
    """Return the host memory that could be used now."""
    return available_bytes(LocalFiles())


def wait_for_first_step(process: TrialProcess, recipe: Recipe, deadline: Deadline, start_s: float) -> None:
    """Wait for the first step. Compilation may take until the deadline, everything else as long as the baseline took.

    Args:
        process: The program under a recipe.
        recipe: The recipe.
        deadline: When the comparison has to end.
        start_s: Seconds until the first step of the baseline.
    """
    if "compile" not in recipe.get("compute", {}):
        process.begin(min(READY_S, _PATIENCE_S + 20 * start_s))
        return
    left_s = deadline.promising + deadline.startup_s - time.monotonic()
    patience_s = max(LEAST_ROUND_S + 2 * start_s, min(READY_S, left_s))
    try:
        process.begin(patience_s)
    except (ProgramFailed, ProgramOver):
        raise
    except TrialFailed as error:
        raise TrialFailed(f"compiling the model took longer than the available {patience_s:.0f} s") from error


def cannot_run_twice(started: Callable[[], TrialProcess]) -> bool:
    """Return whether a second copy of the unchanged program fails to start while the first one runs.

    Args:
        started: Starts a copy.
    """
    with started() as first:
        first.begin()
        return not any(_starts(started) for _ in range(_ATTEMPTS))


def _starts(started: Callable[[], TrialProcess]) -> bool:
    with started() as process:
        try:
            process.begin()
        except ProgramFailed:
            return False
    return True


def attribute_failure(error: ProgramFailed, baseline: TrialProcess, timeout_s: float) -> ProgramFailed:
    """Return the error, as a BaselineFailed if the unchanged program has failed too or fails in its next steps."""
    failed = error if baseline.has_failed else _baseline_failure(baseline, timeout_s)
    return error if failed is None else BaselineFailed(f"the unchanged program fails too: {failed}")


def _baseline_failure(baseline: TrialProcess, timeout_s: float) -> ProgramFailed | None:
    try:
        baseline.run_steps(baseline.last_steps, timeout_s)
    except ProgramFailed as error:
        return error
    except ProgramOver:
        return None
    return None


def restarted_limits(
    spec: ComparisonSpec, deadline: Deadline, *, step_s: float, start_s: float, total: int
) -> RoundLimits:
    """Return the limits of a round in which each block has a process of its own.

    Args:
        spec: The two recipes.
        deadline: When the comparison has to end.
        step_s: Seconds of a step of the baseline, about.
        start_s: Seconds until its first step.
        total: Steps of the whole program; 0 if that is not known.
    """
    warmup = max(_WARMUP_STEPS, spec.warmup_steps)
    least_s = _LEAST_PAIRS * 2 * (start_s + warmup * step_s + _BLOCK_S)
    return RoundLimits(
        step_s=step_s,
        block_s=_BLOCK_S,
        most_steps=max(1, total - warmup - 1) if total else _ANY,
        warmup_steps=0,
        budget_s=max(least_s, deadline.usual - time.monotonic()),
        most_s=max(least_s, deadline.promising - time.monotonic()),
        large_s=max(least_s, deadline.large - time.monotonic()),
        warm=True,
    )


class RestartedProcess:
    """Runs each block in a new process and ends the process after it."""

    def __init__(
        self, made: Callable[[], TrialProcess], begin: Callable[[TrialProcess], Any], warmup_steps: int
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            made: Starts the program.
            begin: Waits for its first step.
            warmup_steps: Steps that each process makes before its block, at least.
        """
        self._made = made
        self._begin = begin
        self._warmup_steps = max(_WARMUP_STEPS, warmup_steps)
        self.folder = Path()  # of the process that was started last

    def run_steps(self, steps: int, timeout_s: float, *, pause: bool = True) -> StepBlock:
        """Start the program, let it warm up and make so many steps, and end it.

        Raises:
            ProgramOver: It came to its end before.
            TrialFailed: It hung, or failed.
        """
        with self._made() as process:
            self.folder = process.folder
            self._begin(process)
            process.run_steps(self._warmup_steps, timeout_s)
            return process.run_steps(steps, timeout_s, pause=pause)
