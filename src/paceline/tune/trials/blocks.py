"""What a block of optimizer steps of a trial measured, and the errors of a trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from paceline.core.errors import PacelineError
from paceline.tune.trials.gpus import GpuState

T = TypeVar("T")
NO_TIME = "no time was left"


class TrialFailed(PacelineError):
    """A trial that cannot continue; the message has the reason."""


class NotMeasured(TrialFailed):
    """The time was too short to measure anything."""


class ProgramOver(TrialFailed):
    """The program came to its own end."""


class ProgramFailed(TrialFailed):
    """The program failed, because of an error of its own or because of the change."""


class BaselineFailed(ProgramFailed, NotMeasured):
    """The unchanged program failed, so nothing is known of the change."""


@dataclass(frozen=True, kw_only=True)
class StepBlock:
    """The measurements of a block of consecutive optimizer steps."""

    steps: int  # of the slowest rank
    seconds: float
    cpu_s: float  # of all processes of the program
    other_cores: float  # cores that others took meanwhile
    peak_bytes: float | None = None  # of the ranks together: on GPUs allocated there, else resident; None: not told
    from_queue: float | None = None  # batches by which the loaders' queues became shorter, a rank; None: not known
    queued: float | None = None  # batches that lie ready at its end, a rank
    gpu: GpuState | None = None  # None: the program uses no GPU

    @property
    def step_s(self) -> float:
        """Seconds of one of the steps, on average."""
        return self.seconds / self.steps


def sum_of_known(values: Sequence[float | None]) -> float | None:
    """Return the sum; None when one of the values is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def retry_once(attempt: Callable[[], T]) -> T:
    """Call a function once more if the program failed; some programs fail now and then."""
    try:
        return attempt()
    except ProgramFailed:
        return attempt()
