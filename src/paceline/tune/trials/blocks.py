"""The measurements of a block of optimizer steps, and the errors of a trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from paceline.core.errors import PacelineError
from paceline.tune.trials.gpus import GpuState

T = TypeVar("T")
NO_TIME = "no time was left"


class TrialFailed(PacelineError):
    """A trial cannot continue. The message gives the reason."""


class NotMeasured(TrialFailed):
    """There was not enough time to measure anything."""


class ProgramOver(TrialFailed):
    """The program ended normally."""


class ProgramFailed(TrialFailed):
    """The program failed, because of an error of its own or because of the change."""


class BaselineFailed(ProgramFailed, NotMeasured):
    """The unchanged program failed, so the change could not be judged."""


@dataclass(frozen=True, kw_only=True)
class StepBlock:
    """The measurements of a block of consecutive optimizer steps."""

    steps: int  # steps of the slowest rank
    seconds: float
    cpu_s: float  # CPU time of all processes of the program
    other_cores: float  # mean cores that other programs used
    # sum over ranks of the peak memory, allocated on GPUs or else resident; None if unknown
    peak_bytes: float | None = None
    # per rank, batches by which the queues of the loaders became shorter; None if unknown
    from_queue: float | None = None
    queued: float | None = None  # per rank, batches that are ready at the end of the block
    gpu: GpuState | None = None  # None if the program uses no GPU

    @property
    def step_s(self) -> float:
        """Mean seconds of one step."""
        return self.seconds / self.steps


def sum_of_known(values: Sequence[float | None]) -> float | None:
    """Return the sum, or None if one of the values is None."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def retry_once(attempt: Callable[[], T]) -> T:
    """Call the function, and call it again if the program failed. Some programs fail from time to time."""
    try:
        return attempt()
    except ProgramFailed:
        return attempt()
