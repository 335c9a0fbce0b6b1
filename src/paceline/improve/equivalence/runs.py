"""Is training still the same under a recipe? The program's first steps, played with what is computed written down.

What differs is looked into before it counts: other seeds of the program as it is say how much losses may differ, and
a second run of it whether it repeats itself at all. Nothing is timed here, so two processes run at a time; where they
fail together, each has a try alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial

from paceline.core.recipe import BASELINE, Recipe
from paceline.core.remedies import Safety
from paceline.improve.equivalence.outputs import (
    Check,
    Seen,
    WorkerStates,
    checks,
    read_seen,
    read_worker_states,
    rounding_of,
    worker_draws,
)
from paceline.improve.trials.applied_settings import given_up
from paceline.improve.trials.blocks import ProgramFailed, ProgramOver, unless_it_fails_twice
from paceline.improve.trials.process import Player
from paceline.inprocess import settings
from paceline.inprocess.settings.sample_check import STRESS
from paceline.inprocess.settings.seeds import SEED
from paceline.inprocess.settings.trial.checksums import FOLDER as WITNESSED
from paceline.inprocess.settings.trial.first_gradients import FIXED as FIXED_DROPOUT
from paceline.inprocess.settings.trial.fixed_draws import FIXED
from paceline.inprocess.settings.trial.fixed_draws import FOLDER as DRAWS
from paceline.inprocess.settings.trial.short_epochs import BATCHES

_SEEDS = (0, 1, 2)
_FIRST = _SEEDS[0]
_STEPS = 24
_ENDS = 2  # of epochs, that are crossed
_STEPS_S = 20.0  # of steps to compare, at most about
_AT_A_TIME = 2

Made = Callable[[Recipe, Mapping[str, str]], Player]  # from a recipe and more environment variables


@dataclass(frozen=True, kw_only=True)
class _Computed:
    """What a trial computed."""

    seen: Sequence[Seen]  # by its ranks
    workers: Sequence[WorkerStates]  # of their loaders
    lost: Mapping[str, str]  # settings that were given up, with the reason


@dataclass(frozen=True, kw_only=True)
class Span:
    """How many steps are compared, and how long they take at the most."""

    steps: int
    timeout_s: float
    epoch_batches: int | None = None  # after which an epoch ends; None: where the program's own epochs end


def span_of(step_s: float, epoch_steps: int | None, total: int | None) -> Span:
    """Return what to compare: into the third epoch. Where that takes too long, epochs are shortened.

    Args:
        step_s: Seconds of a step of the baseline.
        epoch_steps: Steps of an epoch, where that is known.
        total: Steps of the whole program, where that is known.
    """
    affordable = math.ceil(_STEPS_S / max(step_s, 1e-6))
    into_third = _ENDS * (epoch_steps or 0) + _STEPS // (_ENDS + 1)
    if epoch_steps and max(into_third, _STEPS) <= affordable:
        wanted, batches = max(into_third, _STEPS), None
    else:
        wanted = max(4, min(_STEPS, affordable))
        batches = max(1, wanted // (_ENDS + 1))
    steps = min(wanted, total or wanted)
    return Span(steps=steps, timeout_s=60.0 + 60 * steps * step_s, epoch_batches=batches)


class Proofs:
    """What the program computes under one recipe, with which others are compared."""

    def __init__(self, made: Made) -> None:
        self._made = made
        self.at_a_time = _AT_A_TIME  # programs that run side by side
        self._settled: tuple[Recipe, Span | None, Mapping[str, str]] = (BASELINE, None, {})  # for what follows
        self._seen: dict[int, Sequence[Seen]] = {}  # what was computed under it, by seed
        self._again: Sequence[Seen] | None = None  # and once more with the first seed

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
        variables = {FIXED: "1"} if fixed_draws else {}
        if safety in ("numeric", "semantic"):
            variables[FIXED_DROPOUT] = "1"
        try:
            return self._proven(recipe, safety, (reference, span, variables))
        except ProgramFailed:
            if span.epoch_batches is None:
                raise
            whole = replace(span, epoch_batches=None)  # a program may count on the length of its epochs
            return self._proven(recipe, safety, (reference, whole, variables))

    def _proven(self, recipe: Recipe, safety: Safety, against: tuple[Recipe, Span, Mapping[str, str]]) -> list[Check]:
        if against != self._settled:
            self._settled, self._seen, self._again = against, {}, None
        candidate = self._candidate(recipe)
        found = self._compared(recipe, safety, candidate.seen)
        return [*found, *worker_draws(candidate.workers), *_given_up(candidate.lost)]

    def _compared(self, recipe: Recipe, safety: Safety, candidate: Sequence[Seen]) -> list[Check]:
        reference = self._settled[0]
        rounding = rounding_of(recipe)
        found = self._judged(safety, candidate, rounding)
        if safety in ("numeric", "semantic") and not _passed(found) and len(self._seen) < len(_SEEDS):
            others = [(reference, seed) for seed in _SEEDS if seed not in self._seen]
            self._seen |= {job[1]: one.seen for job, one in zip(others, self._computed(others), strict=True)}
            found = self._judged(safety, candidate, rounding)
        if not _passed(found) and self._again is None:
            self._again = self._computed([(reference, _FIRST)])[0].seen
            found = self._judged(safety, candidate, rounding)
        return found

    def _candidate(self, recipe: Recipe) -> _Computed:
        """Return what is computed under a recipe; under the reference too, where that is not known yet."""
        if _FIRST in self._seen:
            return self._computed([(recipe, _FIRST)])[0]
        candidate, reference = self._computed([(recipe, _FIRST), (self._settled[0], _FIRST)])
        self._seen[_FIRST] = reference.seen
        return candidate

    def _judged(self, safety: Safety, candidate: Sequence[Seen], rounding: float) -> list[Check]:
        """Compare; as long as the reference has not run twice, it is taken to repeat itself."""
        baseline = [self._seen[seed] for seed in sorted(self._seen)]
        return checks(safety, baseline, self._again or baseline[0], candidate, rounding)

    def _computed(self, jobs: Sequence[tuple[Recipe, int]]) -> list[_Computed]:
        return [
            computed
            for begin in range(0, len(jobs), self.at_a_time)
            for computed in self._some(jobs[begin : begin + self.at_a_time])
        ]

    def _some(self, jobs: Sequence[tuple[Recipe, int]]) -> list[_Computed]:
        try:
            return self._together(jobs)
        except ProgramFailed:  # a fault that comes now and then, or too little memory for both
            return [unless_it_fails_twice(partial(self._together, [job]))[0] for job in jobs]

    def _together(self, jobs: Sequence[tuple[Recipe, int]]) -> list[_Computed]:
        _, span, variables = self._settled
        assert span is not None  # set before anything is computed
        more = {settings.WITNESS: "1", STRESS: "1", **variables}
        if span.epoch_batches is not None:
            more[BATCHES] = str(span.epoch_batches)
        with ExitStack() as stack:
            players = [stack.enter_context(self._made(recipe, {**more, SEED: str(seed)})) for recipe, seed in jobs]
            play_to(players, span.steps, span.timeout_s)
        return [_read(player, recipe) for player, (recipe, _) in zip(players, jobs, strict=True)]


def _read(player: Player, recipe: Recipe) -> _Computed:
    return _Computed(
        seen=read_seen(player.folder / WITNESSED),
        workers=read_worker_states(player.folder / DRAWS),
        lost=given_up(recipe, player.folder),
    )


def _given_up(lost: Mapping[str, str]) -> list[Check]:
    """Return a failed check for each setting that was given up while the program ran."""
    return [
        Check(name="settings", passed=False, text=f"{key} was switched off: {why}", vetoes=True)
        for key, why in lost.items()
    ]


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
