"""Forward passes with gradients that no backward pass used, in programs without a data loader: an evaluation.

Without a loader, nothing marks the beginning of a validation pass. Two measurements identify it:

- the number of forward passes before each backward pass. Most backward passes follow the same number; some follow many
  more.
- the time of the backward pass. If the additional forward passes were part of the training, the backward pass would
  take longer in proportion. If it takes as long as usual, it used only the usual number of forward passes, the last
  ones. The forward passes before these are an evaluation.
"""

from __future__ import annotations

from collections import Counter, deque
from statistics import median
from typing import NamedTuple

from paceline.inprocess.recorder.steps.parts import CHECKPOINT, COMMUNICATION, EVALUATION, Part

_REMEMBERED = 64  # backward passes
_LEAST_REMEMBERED = 8  # with fewer backward passes, no number of forward passes counts as usual
_USUAL_SHARE = 0.3  # a number of forward passes is usual if at least this share of the backward passes follows it
_LEAST_UNUSED = 8  # forward passes
_TIMES_USUAL = 3  # there must be at least this many times the usual number of unused forward passes
_SLOWDOWN = 2.0  # a backward pass that takes more than this many times the usual time used more forward passes
_MOST_FORWARDS = 4096  # limit of memory


class _Start(NamedTuple):
    """The start of a forward pass.

    Attributes:
        slots: The time in each slot of the step before this forward pass, in ns.
        samples: The leading dimension of the input.
    """

    slots: tuple[int, ...]
    samples: float | None


class UnusedForwards:
    """Stores the forward passes since the last backward pass, and counts the time of unused ones as evaluation."""

    def __init__(self) -> None:
        self._starts: list[_Start] = []
        self._backwards: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)  # number of used forward passes, time in ns

    def clear(self) -> None:
        """Remove all stored forward passes, for example because they used batches of a loader."""
        self._starts.clear()

    def add(self, part: Part, samples: float | None) -> None:
        """Store the start of a forward pass with gradients.

        Args:
            part: The times and counts of the step before this forward pass.
            samples: The leading dimension of the input.
        """
        if len(self._starts) < _MOST_FORWARDS:
            self._starts.append(_Start(tuple(part.slots), samples))

    def end_backward(self, part: Part, backward_ns: int) -> float | None:
        """Count the time of forward passes that the backward pass did not use as evaluation.

        Args:
            part: The times and counts of the step after the backward pass. They are changed.
            backward_ns: The time of the backward pass.

        Returns:
            The number of samples of the first used forward pass, or None if all forward passes were used.
        """
        starts, self._starts = self._starts, []
        if not starts or len(starts) >= _MOST_FORWARDS:
            return None
        unused = self._count_unused(len(starts), backward_ns)
        self._backwards.append((len(starts) - unused, backward_ns))
        if not unused:
            return None
        first, first_used = starts[0], starts[unused]
        for slot, (begin, end) in enumerate(zip(first.slots, first_used.slots, strict=True)):
            if slot not in (COMMUNICATION, CHECKPOINT, EVALUATION):
                part.slots[slot] -= end - begin
                part.slots[EVALUATION] += end - begin
        return first_used.samples

    def _count_unused(self, count: int, backward_ns: int) -> int:
        """Return the number of forward passes, of `count`, that the next backward pass did not use."""
        counts = Counter(forwards for forwards, _ in self._backwards)
        usual_counts = [n for n, times in counts.items() if times >= _USUAL_SHARE * len(self._backwards)]
        if len(self._backwards) < _LEAST_REMEMBERED or not usual_counts:
            return 0
        usual = min(usual_counts)
        if count - usual < max(_LEAST_UNUSED, _TIMES_USUAL * usual):
            return 0
        usual_ns = median(time_ns for forwards, time_ns in self._backwards if forwards == usual)
        return count - usual if backward_ns <= _SLOWDOWN * usual_ns else 0
