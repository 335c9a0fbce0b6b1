"""Is training still the same under a recipe? The program's first steps, played with what is computed written down.

What differs is looked into before it counts: other seeds of the program as it is say how much losses may differ, and
a second run of it whether it repeats itself at all. Nothing is timed here, so two processes run at a time; where they
fail together, each has a try alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial

from paceline.core.safety import Safety
from paceline.improve import child
from paceline.improve.child.fixed_draws import FIXED
from paceline.improve.child.fixed_draws import FOLDER as DRAWS
from paceline.improve.child.seeds import SEED
from paceline.improve.child.witness import FOLDER as WITNESSED
from paceline.improve.model import Check
from paceline.improve.recipe import BASELINE, Recipe
from paceline.improve.trials import Player, ProgramFailed, ProgramOver, unless_it_fails_twice
from paceline.improve.verify import Seen, WorkerStates, checks, read_seen, read_worker_states, worker_draws

_SEEDS = (0, 1, 2)
_FIRST = _SEEDS[0]
_STEPS = 24
_STEPS_S = 20.0  # of steps to compare, at most about
_AT_A_TIME = 2

_Computed = tuple[list[Seen], list[WorkerStates]]  # by the ranks of a trial, and by their loader workers
Made = Callable[[Recipe, Mapping[str, str]], Player]  # from a recipe and more environment variables


@dataclass(frozen=True, kw_only=True)
class Span:
    """How many steps are compared, and how long they take at the most."""

    steps: int
    timeout_s: float


def span_of(step_s: float, epoch_steps: int | None, total: int | None) -> Span:
    """Return what to compare: into the second epoch, where that does not take too long.

    Args:
        step_s: Seconds of a step of the baseline.
        epoch_steps: Steps of an epoch, where that is known.
        total: Steps of the whole program, where that is known.
    """
    affordable = math.ceil(_STEPS_S / max(step_s, 1e-6))
    into_second = (epoch_steps or 0) + _STEPS
    wanted = into_second if into_second <= affordable else max(4, min(_STEPS, affordable))
    steps = min(wanted, total or wanted)
    return Span(steps=steps, timeout_s=60.0 + 60 * steps * step_s)


class Proofs:
    """What the program computes under one recipe, with which others are compared."""

    def __init__(self, made: Made) -> None:
        self._made = made
        self.at_a_time = _AT_A_TIME
        self._reference: Recipe = BASELINE
        self._fixed_draws = False  # whether the random draws of samples are fixed, in the reference too
        self._seen: dict[int, list[Seen]] = {}  # what was computed under it, by seed
        self._again: list[Seen] | None = None  # and once more with the first seed

    def prove(
        self, recipe: Recipe, safety: Safety, reference: Recipe, span: Span, *, fixed_draws: bool = False
    ) -> list[Check]:
        """Compare what the program computes in its first steps under a recipe and under another.

        Args:
            recipe: The recipe to prove.
            safety: Its safety class.
            reference: The recipe to compare with.
            span: How many steps are compared.
            fixed_draws: Whether to fix the random draws of samples, because the recipe moves them elsewhere.

        Raises:
            TrialFailed: The program cannot be run under one of them.
        """
        if (reference, fixed_draws) != (self._reference, self._fixed_draws):
            self._reference, self._fixed_draws, self._seen, self._again = reference, fixed_draws, {}, None
        candidate, draws = self._candidate(recipe, span)
        return [*self._compared(safety, candidate, span), *worker_draws(draws)]

    def _compared(self, safety: Safety, candidate: Sequence[Seen], span: Span) -> list[Check]:
        reference = self._reference
        found = self._judged(safety, candidate)
        if safety in ("numeric", "semantic") and not _passed(found) and len(self._seen) < len(_SEEDS):
            others = [(reference, seed) for seed in _SEEDS if seed not in self._seen]
            self._seen |= {job[1]: seen for job, (seen, _) in zip(others, self._computed(others, span), strict=True)}
            found = self._judged(safety, candidate)
        if not _passed(found) and self._again is None:
            ((self._again, _),) = self._computed([(reference, _FIRST)], span)
            found = self._judged(safety, candidate)
        return found

    def _candidate(self, recipe: Recipe, span: Span) -> _Computed:
        """Return what is computed under a recipe; under the reference too, where that is not known yet."""
        if _FIRST in self._seen:
            return self._computed([(recipe, _FIRST)], span)[0]
        candidate, (self._seen[_FIRST], _) = self._computed([(recipe, _FIRST), (self._reference, _FIRST)], span)
        return candidate

    def _judged(self, safety: Safety, candidate: Sequence[Seen]) -> list[Check]:
        """Compare; as long as the reference has not run twice, it is taken to repeat itself."""
        baseline = [self._seen[seed] for seed in sorted(self._seen)]
        return checks(safety, baseline, self._again or baseline[0], candidate)

    def _computed(self, jobs: Sequence[tuple[Recipe, int]], span: Span) -> list[_Computed]:
        return [
            seen
            for begin in range(0, len(jobs), self.at_a_time)
            for seen in self._some(jobs[begin : begin + self.at_a_time], span)
        ]

    def _some(self, jobs: Sequence[tuple[Recipe, int]], span: Span) -> list[_Computed]:
        try:
            return self._together(jobs, span)
        except ProgramFailed:  # a fault that comes now and then, or too little memory for both
            return [unless_it_fails_twice(partial(self._together, [job], span))[0] for job in jobs]

    def _together(self, jobs: Sequence[tuple[Recipe, int]], span: Span) -> list[_Computed]:
        fixed = {FIXED: "1"} if self._fixed_draws else {}
        with ExitStack() as stack:
            players = [
                stack.enter_context(self._made(recipe, {child.WITNESS: "1", SEED: str(seed), **fixed}))
                for recipe, seed in jobs
            ]
            play_to(players, span.steps, span.timeout_s)
        return [(read_seen(p.folder / WITNESSED), read_worker_states(p.folder / DRAWS)) for p in players]


def _passed(found: Sequence[Check]) -> bool:
    return all(check.passed for check in found)


def play_to(players: Sequence[Player], steps: int, timeout_s: float) -> None:
    """Let programs make so many more steps side by side and end them there, unless they come to their end before."""
    for player in players:
        player.begin()
    for player in players:
        player.go(steps)
    for player in players:
        with suppress(ProgramOver):
            player.arrive(timeout_s, pause=False)
            player.end()
