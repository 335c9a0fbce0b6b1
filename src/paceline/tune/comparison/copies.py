"""Limits of a comparison, and comparisons for programs that cannot run twice at the same time.

Two copies of a program can run side by side if the host has enough memory for both and if the program can run twice: it
uses no fixed port and needs no GPU for one process alone. `trials.gpus` checks the memory of GPUs. If the program
cannot run twice, each block runs in a process of its own, one process at a time (`RestartedProcess`). Both sides run
the same steps after the same warm-up steps. A pair of blocks is then a pair of processes, so the noise of a pair
includes the differences in speed between processes.
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
_PATIENCE_S = 60.0  # timeout for the first step, in addition to a multiple of the time that the baseline took
_BLOCKS = 14  # least number of blocks that the steps of a short program are divided into
_ANY = 1 << 30
MOST_COPIES = 3  # upper limit on the copies that run at the same time
_OF_FREE = 0.8  # share of the free memory that copies may take
_ATTEMPTS = 2  # attempts to start a second copy: some programs fail to start from time to time
_BLOCK_S = 3.0  # blocks are longer if each block needs a new process, because starting the process takes seconds
_WARMUP_STEPS = 5  # least number of steps before each block in a new process
_LEAST_PAIRS = 4  # a round lasts long enough for this number of pairs, whatever the budget


def side_by_side_limits(
    spec: ComparisonSpec, deadline: Deadline, *, step_s: float, block_s: float, total: int
) -> RoundLimits:
    """Return the limits of a comparison round in which the baseline and the candidate run side by side.

    Args:
        spec: The two recipes.
        deadline: When the comparison has to end.
        step_s: Approximate seconds of one step of the baseline.
        block_s: Approximate seconds of one block.
        total: Number of steps of the whole program, or 0 if unknown.
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
    """Return how many copies of a program can run at the same time, between 1 and `MOST_COPIES`.

    Args:
        copy_bytes: Host memory in bytes that one copy needs.
        free: Free host memory in bytes while no copy runs, or None if unknown.
    """
    if free is None or copy_bytes <= 0:
        return MOST_COPIES
    return max(1, min(MOST_COPIES, int(_OF_FREE * free // copy_bytes)))


def free_bytes() -> float | None:
    """Return the available host memory in bytes, or None if unknown."""
    return available_bytes(LocalFiles())


def wait_for_first_step(process: TrialProcess, recipe: Recipe, deadline: Deadline, start_s: float) -> None:
    """Wait until the process has made its first step.

    The timeout is a multiple of the baseline's start time. If the recipe compiles the model, the timeout is the time
    until the deadline.

    Args:
        process: The program under a recipe.
        recipe: The recipe.
        deadline: When the comparison has to end.
        start_s: Seconds until the first step of the baseline.

    Raises:
        TrialFailed: The first step was not reached in time.
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
    """Return whether a second copy of the unchanged program fails to start while the first copy runs.

    Args:
        started: Function that starts a copy.
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
    """Return `error`, or a `BaselineFailed` if the unchanged program has failed too or fails in its next steps."""
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
    """Return the limits of a comparison round in which each block runs in a process of its own.

    Args:
        spec: The two recipes.
        deadline: When the comparison has to end.
        step_s: Approximate seconds of one step of the baseline.
        start_s: Seconds until the first step of the baseline.
        total: Number of steps of the whole program, or 0 if unknown.
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
    """Runs each block in a new process and ends that process after the block."""

    def __init__(
        self, made: Callable[[], TrialProcess], begin: Callable[[TrialProcess], Any], warmup_steps: int
    ) -> None:
        """Store the arguments. No process is started yet.

        Args:
            made: Function that starts the program.
            begin: Function that waits for the first step of the program.
            warmup_steps: Least number of steps that each process makes before the measured block.
        """
        self._made = made
        self._begin = begin
        self._warmup_steps = max(_WARMUP_STEPS, warmup_steps)
        self.folder = Path()  # folder of the latest process

    def run_steps(self, steps: int, timeout_s: float, *, pause: bool = True) -> StepBlock:
        """Start the program, run the warm-up steps and the steps of the block, and end the program.

        Returns:
            The measured block, without the warm-up steps.

        Raises:
            ProgramOver: The program ended before the block was complete.
            TrialFailed: The program hung or failed.
        """
        with self._made() as process:
            self.folder = process.folder
            self._begin(process)
            process.run_steps(self._warmup_steps, timeout_s)
            return process.run_steps(steps, timeout_s, pause=pause)
