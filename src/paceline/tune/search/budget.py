"""How is the time of a search spent? What each part of it may take, so that the whole takes no longer than asked."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.tune.comparison.model import Deadline

_WATCHED_S = (2.0, 8.0)  # of steps to diagnose from: the least, and what is enough
_RACE_S = (10.0, 90.0)  # of all rounds of a trial: below the first nothing can be decided
_PROMISING_S = (10.0, 150.0)
_LARGE_S = (10.0, 300.0)
_IN_ALL_S = (5.0, 60.0)
_LEARNT_S = 9.0  # of blocks by which processes of the baseline are compared
_LEARNT_STEPS = 12  # that they make together, at least
_OF_LEARNING = 0.15  # of the whole, at most


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The time of a search, in seconds, and its parts."""

    total_s: float

    @property
    def diagnosis_s(self) -> float:
        """Steps from which the program is diagnosed, about."""
        return _within(_WATCHED_S, self.total_s / 20)

    @property
    def confirmation_s(self) -> float:
        """All that was kept against the program as it was, in the end."""
        return _within(_IN_ALL_S, 0.15 * self.total_s)

    def comparison_s(self, left_s: float, waiting: int = 0) -> float:
        """A trial, when so much is left: the rest is for its proof, and for what comes after it."""
        return _no_longer(left_s, _within(_RACE_S, left_s / (2 + min(waiting, 2))))

    def promising_s(self, left_s: float, waiting: int = 0, startup_s: float = 0.0) -> float:
        """A trial that looks like a win, but is not certain yet: the next one would have to begin from nothing.

        Args:
            left_s: Until the budget is spent, without the time that it takes to begin.
            waiting: Candidates that wait for their trial, which may bring more.
            startup_s: That it takes to begin: what was paid for with so much may be measured for as long.
        """
        most_s = 0.8 * left_s
        share_s = max(most_s / (1 + min(waiting, 2)), min(most_s, startup_s))
        return _no_longer(left_s, _within(_PROMISING_S, share_s))

    def large_s(self, left_s: float) -> float:
        """A trial that looks like a large gain, but is not certain yet: nothing that waits is worth more time."""
        return _no_longer(left_s, _within(_LARGE_S, 0.8 * left_s))

    def deadline(self, begun: float, left_s: float, waiting: int, startup_s: float) -> Deadline:
        """A trial that began at some time on the monotonic clock; the rest as in `promising_s`."""
        return Deadline(
            usual=begun + self.comparison_s(left_s, waiting),
            promising=begun + self.promising_s(left_s, waiting, startup_s),
            large=begun + self.large_s(left_s),
            startup_s=startup_s,
        )

    @property
    def variation_s(self) -> float:
        """To find out how much processes differ among themselves, at most."""
        return _OF_LEARNING * self.total_s

    def allows_variation(self, start_s: float, step_s: float) -> bool:
        """Return whether the budget allows measuring how much identical processes differ in speed.

        Args:
            start_s: That one takes to its first step.
            step_s: Seconds of a step.
        """
        return 2 * start_s + max(_LEARNT_S, _LEARNT_STEPS * step_s) <= self.variation_s

    def least_trial_s(self, start_s: float) -> float:
        """Return the least time of a trial of a program that takes so long to start."""
        return 2 * start_s + _RACE_S[0] / 2

    def allows_trial(self, left_s: float, start_s: float, startup_s: float = 0.0) -> bool:
        """Say whether a trial that is begun now can come to anything: both sides start, race and are proven.

        Args:
            left_s: Until the budget is spent.
            start_s: That the program takes to its first step.
            startup_s: That the change takes more than that; such a one is not begun in the hope that it may be faster.
        """
        if startup_s > 0:
            return left_s >= 2 * start_s + startup_s + _RACE_S[0]
        return left_s >= self.least_trial_s(start_s)


def _no_longer(left_s: float, seconds: float) -> float:
    """Return some time, or what is left where that is less: at least half of what a race takes."""
    return min(seconds, max(left_s, _RACE_S[0] / 2))


def _within(bounds: tuple[float, float], seconds: float) -> float:
    return max(bounds[0], min(bounds[1], seconds))
