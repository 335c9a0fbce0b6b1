"""The time budget of a search, and the time limits of its parts."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.tune.comparison.model import Deadline

_WATCHED_S = (2.0, 8.0)  # seconds of the steps for a diagnosis: the least, and enough
_RACE_S = (10.0, 90.0)  # seconds of all rounds of a trial; in less than the first value nothing can be decided
_PROMISING_S = (10.0, 150.0)
_LARGE_S = (10.0, 300.0)
_IN_ALL_S = (5.0, 60.0)
_LEARNT_S = 9.0  # seconds of blocks that compare processes of the baseline
_LEARNT_STEPS = 12  # least number of steps that these processes make together
_OF_LEARNING = 0.15  # largest share of the budget for the comparison of these processes


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The time budget of a search in seconds, and the time limits of its parts."""

    total_s: float

    @property
    def diagnosis_s(self) -> float:
        """Approximate seconds of the steps from which the program is diagnosed."""
        return _within(_WATCHED_S, self.total_s / 20)

    @property
    def confirmation_s(self) -> float:
        """Seconds for the final comparison of the kept changes with the unchanged program."""
        return _within(_IN_ALL_S, 0.15 * self.total_s)

    def comparison_s(self, left_s: float, waiting: int = 0) -> float:
        """Return the seconds for one comparison. The rest of the budget is for the equivalence check and later trials.

        Args:
            left_s: Seconds until the budget is spent.
            waiting: Number of candidates that wait for their trial.
        """
        return _no_longer(left_s, _within(_RACE_S, left_s / (2 + min(waiting, 2))))

    def promising_s(self, left_s: float, waiting: int = 0, startup_s: float = 0.0) -> float:
        """Return the seconds for a comparison whose candidate is probably faster, but not certainly yet.

        Args:
            left_s: Seconds until the budget is spent, without the start-up time of the candidate.
            waiting: Number of candidates that wait for their trial.
            startup_s: Additional start-up seconds of the candidate. The candidate can be measured for as long as it
                took to start.
        """
        most_s = 0.8 * left_s
        share_s = max(most_s / (1 + min(waiting, 2)), min(most_s, startup_s))
        return _no_longer(left_s, _within(_PROMISING_S, share_s))

    def large_s(self, left_s: float) -> float:
        """Return the seconds for a comparison with a probably large gain, independent of how many candidates wait."""
        return _no_longer(left_s, _within(_LARGE_S, 0.8 * left_s))

    def deadline(self, begun: float, left_s: float, waiting: int, startup_s: float) -> Deadline:
        """Return when a comparison must end.

        There are three times: the usual one, one for a candidate that is probably faster, and one for a probably large
        gain.

        Args:
            begun: Start of the comparison, in seconds of the monotonic clock.
            left_s: Seconds until the budget is spent, without the start-up time of the candidate.
            waiting: Number of candidates that wait for their trial.
            startup_s: Additional start-up seconds of the candidate.
        """
        return Deadline(
            usual=begun + self.comparison_s(left_s, waiting),
            promising=begun + self.promising_s(left_s, waiting, startup_s),
            large=begun + self.large_s(left_s),
            startup_s=startup_s,
        )

    @property
    def variation_s(self) -> float:
        """Most seconds for measuring how much identical processes differ in speed."""
        return _OF_LEARNING * self.total_s

    def allows_variation(self, start_s: float, step_s: float) -> bool:
        """Return whether the budget allows measuring how much identical processes differ in speed.

        Args:
            start_s: Seconds that a process takes to reach its first step.
            step_s: Seconds of one step.
        """
        return 2 * start_s + max(_LEARNT_S, _LEARNT_STEPS * step_s) <= self.variation_s

    def least_trial_s(self, start_s: float) -> float:
        """Return the least seconds of a trial, given the seconds that the program takes to reach its first step."""
        return 2 * start_s + _RACE_S[0] / 2

    def allows_trial(self, left_s: float, start_s: float, startup_s: float = 0.0) -> bool:
        """Return whether the time is enough for both sides of a trial to start, and for their comparison and check.

        Args:
            left_s: Seconds until the budget is spent.
            start_s: Seconds that the unchanged program takes to reach its first step.
            startup_s: Additional start-up seconds of the candidate. If it is positive, the full time of the shortest
                comparison must be left; otherwise half of that time is enough.
        """
        if startup_s > 0:
            return left_s >= 2 * start_s + startup_s + _RACE_S[0]
        return left_s >= self.least_trial_s(start_s)


def _no_longer(left_s: float, seconds: float) -> float:
    """Return `seconds`, limited to the time that is left, or to half of the shortest comparison if less is left."""
    return min(seconds, max(left_s, _RACE_S[0] / 2))


def _within(bounds: tuple[float, float], seconds: float) -> float:
    return max(bounds[0], min(bounds[1], seconds))
