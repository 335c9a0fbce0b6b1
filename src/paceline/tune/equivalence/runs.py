"""Equivalence checks: run the first steps with a recorder of their results, and compare the results.

If a check fails, the baseline runs again before the failure counts. Runs with other seeds show how much losses are
allowed to differ. A second run with the same seed shows whether the baseline is reproducible. Nothing is timed here, so
two processes run at a time. If one of them fails, each runs once more alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial

from paceline.core.recipe import BASELINE, Recipe
from paceline.core.remedies import Safety
from paceline.inprocess import settings
from paceline.inprocess.settings.sample_check import STRESS
from paceline.inprocess.settings.seeds import SEED
from paceline.inprocess.settings.trial.checksums import FOLDER as WITNESSED
from paceline.inprocess.settings.trial.first_gradients import FIXED as FIXED_DROPOUT
from paceline.inprocess.settings.trial.fixed_draws import FIXED
from paceline.inprocess.settings.trial.fixed_draws import FOLDER as DRAWS
from paceline.inprocess.settings.trial.short_epochs import BATCHES
from paceline.tune.equivalence.outputs import (
    Check,
    RankOutputs,
    WorkerStates,
    check_worker_draws,
    compare_outputs,
    gradient_tolerance,
    read_outputs,
    read_worker_states,
)
from paceline.tune.trials.applied_settings import revoked_settings
from paceline.tune.trials.blocks import ProgramFailed, ProgramOver, retry_once
from paceline.tune.trials.process import TrialProcess

_SEEDS = (0, 1, 2)
_FIRST = _SEEDS[0]
_STEPS = 24
_ENDS = 2  # number of epoch ends that the compared steps include
_STEPS_S = 20.0  # approximate upper limit on the seconds of the compared steps
_AT_A_TIME = 2

# starts the program with a recipe and additional environment variables
StartProcess = Callable[[Recipe, Mapping[str, str]], TrialProcess]


@dataclass(frozen=True, kw_only=True)
class _RunOutputs:
    """The results that the processes of one run recorded."""

    seen: Sequence[RankOutputs]  # one for each rank
    workers: Sequence[WorkerStates]  # one for each loader worker
    lost: Mapping[str, str]  # settings that were switched off during the run, with the reason


@dataclass(frozen=True, kw_only=True)
class CheckedSteps:
    """The number of steps to compare, their time limit, and the length to which epochs are cut."""

    steps: int
    timeout_s: float
    epoch_batches: int | None = None  # length of an epoch; None: the program's own length


def steps_to_check(step_s: float, epoch_steps: int | None, total: int | None) -> CheckedSteps:
    """Return the number of steps to compare, which extend into the third epoch, and their time limit.

    If three epochs take too long, each epoch is cut to a few batches.

    Args:
        step_s: Seconds of one step of the baseline.
        epoch_steps: Number of steps in an epoch, or None if unknown.
        total: Number of steps of the whole program, or None if unknown.
    """
    affordable = math.ceil(_STEPS_S / max(step_s, 1e-6))
    into_third = _ENDS * (epoch_steps or 0) + _STEPS // (_ENDS + 1)
    if epoch_steps and max(into_third, _STEPS) <= affordable:
        wanted, batches = max(into_third, _STEPS), None
    else:
        wanted = max(4, min(_STEPS, affordable))
        batches = max(1, wanted // (_ENDS + 1))
    steps = min(wanted, total or wanted)
    return CheckedSteps(steps=steps, timeout_s=60.0 + 60 * steps * step_s, epoch_batches=batches)


class EquivalenceChecker:
    """Compares the results of the program under a recipe with those under a reference recipe."""

    def __init__(self, start: StartProcess) -> None:
        self._start = start
        self.at_a_time = _AT_A_TIME  # number of programs that run side by side
        # reference recipe, compared steps and environment variables of the cached outputs
        self._reference: tuple[Recipe, CheckedSteps | None, Mapping[str, str]] = (
            BASELINE,
            None,
            {},
        )
        self._reference_outputs: dict[int, Sequence[RankOutputs]] = {}  # outputs under the reference recipe, by seed
        self._repeated_outputs: Sequence[RankOutputs] | None = None  # outputs of a second run with the first seed

    def check_equivalence(
        self, recipe: Recipe, safety: Safety, reference: Recipe, span: CheckedSteps, *, fixed_draws: bool = False
    ) -> list[Check]:
        """Compare the results of the program's first steps under a recipe with those under a reference recipe.

        Args:
            recipe: The recipe to check.
            safety: The safety class of the recipe.
            reference: The recipe to compare with.
            span: How many steps are compared.
            fixed_draws: Whether to fix the random draws of samples, because the recipe makes them in other processes.

        Raises:
            TrialFailed: The program cannot run under one of the recipes.
        """
        variables = {FIXED: "1"} if fixed_draws else {}
        if safety in ("numeric", "semantic"):
            variables[FIXED_DROPOUT] = "1"
        try:
            return self._check(recipe, safety, (reference, span, variables))
        except ProgramFailed:
            if span.epoch_batches is None:
                raise
            whole = replace(span, epoch_batches=None)  # the program may depend on the length of its epochs
            return self._check(recipe, safety, (reference, whole, variables))

    def _check(
        self, recipe: Recipe, safety: Safety, against: tuple[Recipe, CheckedSteps, Mapping[str, str]]
    ) -> list[Check]:
        if against != self._reference:
            self._reference, self._reference_outputs, self._repeated_outputs = against, {}, None
        candidate = self._candidate_outputs(recipe)
        found = self._compare(recipe, safety, candidate.seen)
        return [*found, *check_worker_draws(candidate.workers), *_revoked_checks(candidate.lost)]

    def _compare(self, recipe: Recipe, safety: Safety, candidate: Sequence[RankOutputs]) -> list[Check]:
        reference = self._reference[0]
        rounding = gradient_tolerance(recipe)
        found = self._judge(safety, candidate, rounding)
        if safety in ("numeric", "semantic") and not _all_passed(found) and len(self._reference_outputs) < len(_SEEDS):
            others = [(reference, seed) for seed in _SEEDS if seed not in self._reference_outputs]
            self._reference_outputs |= {
                job[1]: one.seen for job, one in zip(others, self._run_all(others), strict=True)
            }
            found = self._judge(safety, candidate, rounding)
        if not _all_passed(found) and self._repeated_outputs is None:
            self._repeated_outputs = self._run_all([(reference, _FIRST)])[0].seen
            found = self._judge(safety, candidate, rounding)
        return found

    def _candidate_outputs(self, recipe: Recipe) -> _RunOutputs:
        """Return the outputs under a recipe; also run the reference recipe if its outputs are not known yet."""
        if _FIRST in self._reference_outputs:
            return self._run_all([(recipe, _FIRST)])[0]
        candidate, reference = self._run_all([(recipe, _FIRST), (self._reference[0], _FIRST)])
        self._reference_outputs[_FIRST] = reference.seen
        return candidate

    def _judge(self, safety: Safety, candidate: Sequence[RankOutputs], rounding: float) -> list[Check]:
        """Compare the outputs of the candidate with those of the reference.

        Without a second run of the reference, assume that its results are reproducible.
        """
        baseline = [self._reference_outputs[seed] for seed in sorted(self._reference_outputs)]
        return compare_outputs(safety, baseline, self._repeated_outputs or baseline[0], candidate, rounding)

    def _run_all(self, jobs: Sequence[tuple[Recipe, int]]) -> list[_RunOutputs]:
        return [
            computed
            for begin in range(0, len(jobs), self.at_a_time)
            for computed in self._run_some(jobs[begin : begin + self.at_a_time])
        ]

    def _run_some(self, jobs: Sequence[tuple[Recipe, int]]) -> list[_RunOutputs]:
        try:
            return self._run_side_by_side(jobs)
        except ProgramFailed:  # a fault that happens from time to time, or too little memory for both programs
            return [retry_once(partial(self._run_side_by_side, [job]))[0] for job in jobs]

    def _run_side_by_side(self, jobs: Sequence[tuple[Recipe, int]]) -> list[_RunOutputs]:
        _, span, variables = self._reference
        assert span is not None  # set by `_check` before the first run
        more = {settings.WITNESS: "1", STRESS: "1", **variables}
        if span.epoch_batches is not None:
            more[BATCHES] = str(span.epoch_batches)
        with ExitStack() as stack:
            processes = [stack.enter_context(self._start(recipe, {**more, SEED: str(seed)})) for recipe, seed in jobs]
            run_and_end(processes, span.steps, span.timeout_s)
        return [_read(process, recipe) for process, (recipe, _) in zip(processes, jobs, strict=True)]


def _read(process: TrialProcess, recipe: Recipe) -> _RunOutputs:
    return _RunOutputs(
        seen=read_outputs(process.folder / WITNESSED),
        workers=read_worker_states(process.folder / DRAWS),
        lost=revoked_settings(recipe, process.folder),
    )


def _revoked_checks(lost: Mapping[str, str]) -> list[Check]:
    """Return a failed check for each setting that was switched off while the program ran."""
    return [
        Check(name="settings", passed=False, text=f"{key} was switched off: {why}", vetoes=True)
        for key, why in lost.items()
    ]


def _all_passed(found: Sequence[Check]) -> bool:
    return all(check.passed for check in found)


def run_and_end(processes: Sequence[TrialProcess], steps: int, timeout_s: float) -> None:
    """Run several processes for a number of steps side by side, then end them."""
    for process in processes:
        process.begin()
    for process in processes:
        process.go(steps)
    for process in processes:
        with suppress(ProgramOver):
            process.arrive(timeout_s, pause=False)
            process.end()
