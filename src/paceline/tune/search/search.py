"""A greedy search for the best recipe: the most promising change first, and a new diagnosis after each kept change.

The search watches the baseline and sorts the candidates by expected gain. It compares each candidate with the best
recipe so far. If a candidate wins, its equivalence is checked and the change is kept. Then the program is watched
again, because the bottleneck has moved. The search ends when no candidate could gain 2%, or when the budget is spent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from paceline.core.recipe import BASELINE, Recipe, describe_recipe, merge_recipes
from paceline.core.remedies import Safety
from paceline.core.statistics import Interval
from paceline.explain.next_step import named_remedy
from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.comparison.model import GOALS, TIME, ComparisonResult, ComparisonSpec, Deadline, Goal
from paceline.tune.comparison.paired_blocks import ComparisonRound
from paceline.tune.comparison.statistics import multiply_intervals
from paceline.tune.equivalence.outputs import Check
from paceline.tune.remedies import candidates
from paceline.tune.search.batch_size import BatchStudy, fastest_candidate, study_batch_sizes
from paceline.tune.search.budget import Budget
from paceline.tune.search.decisions import (
    UndecidedChange,
    best_unfinished,
    check_most_promising,
    combine_undecided,
    drop_prediction,
    earlier_comparison,
    has_bounds,
    is_unconfirmed,
    measured_values,
    prepares_s,
    reason_to_keep,
    record_trial,
    reference_recipe,
    status_of,
    successive_step_times,
    withdraw_kept,
)
from paceline.tune.search.history import TrialHistory
from paceline.tune.search.messages import (
    NOT_TRIED,
    budget_message,
    budget_too_small_message,
    no_win_reason,
    not_confirmed_message,
    nothing_left_message,
    preparation_too_long_message,
    skip_reason,
    start_message,
    trial_message,
    without_time,
)
from paceline.tune.search.predictions import correct_predictions, machine_of
from paceline.tune.search.quality import Quality, verify_quality
from paceline.tune.search.result import Trial, TuneResult
from paceline.tune.search.runner import TrialRunner, watch_baseline
from paceline.tune.trials.blocks import NotMeasured, TrialFailed
from paceline.tune.trials.isolation import isolation_for

_OF_THE_REST = 0.3  # share of the remaining budget that a trial may take to prepare if another trial prepares faster
_STARTS = 8.0  # assumed time of the first compilation, in program starts: 3 to 14 were measured on two cores


@dataclass(frozen=True, kw_only=True)
class SearchLimits:
    """When the search ends, and which changes it is allowed to try."""

    budget_s: float
    trials: int
    allowed: Sequence[Safety]
    goal: str  # a key of GOALS
    verify_quality: bool  # whether to train the best recipe to a loss over several seeds at the end
    price_per_hour: float | None  # price of the machine, in USD; None if unknown
    allows_network: bool = False  # whether trials may use the network
    not_by_kernel: str = ""  # why trials run in the sandbox in Python although the kernel could isolate them


class Search:
    """One search. After an interruption, the result contains the changes kept so far."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        cwd: Path,
        limits: SearchLimits,
        history: TrialHistory,
        report: Callable[[str], None],
    ) -> None:
        self._goal = GOALS[limits.goal]
        self._budget = Budget(total_s=limits.budget_s)
        isolation = isolation_for(folder, cwd, allows_network=limits.allows_network, not_by_kernel=limits.not_by_kernel)
        self._runner = TrialRunner(command, folder, cwd, self._goal, self._budget, isolation)
        self._command = list(command)
        self._limits, self._history, self._report = limits, history, report
        self._begun = time.monotonic()
        self._kept: list[Trial] = []
        self._tried: list[Trial] = []
        self._undecided: list[UndecidedChange] = []
        self._context: DiagnosisContext | None = None
        self._chosen: list[Candidate] = []  # the candidates of the kept trials
        self._unproven: Trial | None = None
        self._out_of_budget = False
        self._candidates_left = 0  # number of candidates after the current one
        self._found: Sequence[Candidate] = ()  # the current candidate and the candidates after it
        self._batch: BatchStudy | None = None
        self._quality: Quality | None = None

    @property
    def best(self) -> Recipe:
        """The best recipe so far: all kept changes together."""
        return merge_recipes(*(trial.recipe for trial in self._kept))

    def run(self) -> TuneResult:
        """Search until no candidate is left, the budget is spent, or the user interrupts.

        Raises:
            TrialFailed: The unchanged program cannot run.
        """
        before = self._context = watch_baseline(self._runner, self._report)
        comparison = None
        try:
            stopped = self._search_from(before)
            comparison = self._confirm()
            if comparison is not None and is_unconfirmed(comparison, self._gain(comparison)):
                stopped = f"{stopped}; {self._withdraw(comparison)}"
                comparison = None
            if not self._kept and self._unproven is None and self._goal.aim == "time" and not self._is_over():
                self._tried, self._unproven = check_most_promising(
                    self._tried, self._undecided, self._checked_trial, self._report
                )
            if self._limits.verify_quality and self.best:
                self._quality = verify_quality(self._runner, self.best, self._report)
        except KeyboardInterrupt:
            stopped = "interrupted; the result contains the changes kept so far"
        except TrialFailed as error:  # under the kept changes or without changes: the program is flaky
            stopped = f"stopped: {error}"
        return self._result(before, stopped, comparison)

    def _search_from(self, before: DiagnosisContext) -> str:
        rank = before.facts.first
        if not before.facts.enough:
            return f"too short to tune: the program has only {len(rank.record.steps)} steps"
        step_s = rank.breakdown.step_s.value
        if self._budget.allows_variation(self._runner.start_s, step_s):
            self._report("measuring how much the step time differs between identical processes of the program")
        self._runner.measure_variation(step_s, before.epoch_steps, waits=before.waits_outside)
        return self._search()

    def _confirm(self) -> ComparisonResult | None:
        """Compare the kept changes with the unchanged program again; None if there are none, or too little time."""
        if not self._kept or self._is_over():
            return None
        warmup_steps = max(candidate.warmup_steps or 0 for candidate in self._chosen)
        if 2 * warmup_steps * self._runner.step_s > self._left_s() + self._budget.confirmation_s:
            return None  # the trials of the kept changes had the time to warm up
        self._report("comparing what was kept with the unchanged program once more")
        progress = math.prod(candidate.progress for candidate in self._chosen)
        spec = ComparisonSpec(before=BASELINE, after=self.best, warmup_steps=warmup_steps, progress=progress)
        times = self._budget.confirmation_s, max(0.0, self._left_s())
        found = _compared_again(self._runner, spec, times, max(trial.rounds for trial in self._kept))
        return found if is_unconfirmed(found, self._gain(found)) or has_bounds(self._gain(found)) else None

    def _withdraw(self, comparison: ComparisonResult) -> str:
        """Withdraw all kept changes after the final comparison did not confirm their gain. Return the reason."""
        why = not_confirmed_message(self._goal, self._gain(comparison))
        reason = f"not confirmed: {describe_recipe(self.best)} made {why}"
        self._tried, self._unproven = withdraw_kept(self._tried, comparison, reason)
        self._kept, self._chosen = [], []
        return reason

    def _search(self) -> str:
        spent_s = time.monotonic() - self._begun
        short = budget_too_small_message(self._budget, spent_s, self._left_s(), self._runner.start_s)
        for candidate in chain(self._candidates(), self._larger_batches()):
            if not self._budget.allows_trial(self._left_s(), self._runner.start_s):
                self._out_of_budget = True
                self._leave_untried()
                return short or budget_message(self._left_s(), self._limits.budget_s)
            if sum(t.status != "skipped" for t in self._tried) >= self._limits.trials:
                return f"the maximum of {self._limits.trials} trials was reached"
            try:
                trial = self._try(candidate)
            except KeyboardInterrupt:
                self._tried.append(self._trial(candidate, status="skipped", reason="interrupted"))
                raise
            self._tried = record_trial(self._tried, trial)
            assert self._context is not None  # the search sets the context before its first trial
            self._history.add(trial, machine_of(self._context))
            self._report(trial_message(trial, self._goal))
            if trial.status == "kept":
                self._kept.append(trial)
                self._tried = [drop_prediction(one) for one in self._tried]
                self._chosen.append(candidate)
                if self._is_over():
                    self._out_of_budget = True
                    return budget_message(self._left_s() + self._budget.confirmation_s, self._limits.budget_s)
                self._context = self._runner.watch(self.best)
        self._out_of_budget |= short is not None or bool(without_time(self._tried, self._limits.allowed))
        return short or nothing_left_message(self._tried, self._limits.allowed, self._goal)

    def _leave_untried(self) -> None:
        """Record the remaining candidates as skipped, because the budget ended."""
        for one in self._found:
            if not any(merge_recipes(trial.recipe, one.recipe) == trial.recipe for trial in self._tried):
                self._tried = record_trial(self._tried, self._trial(one, status="skipped", reason=NOT_TRIED))

    def _candidates(self) -> Iterator[Candidate]:
        """Yield candidates one after the other, each chosen by the latest diagnosis."""
        done: set[str] = set()
        while found := (singles := self._untried(done)) or self._undecided_candidates(done):
            done.add(self._recipe_key(found[0]))
            self._found = found
            self._candidates_left = len(found) - 1 + bool(singles and self._undecided)
            yield found[0]

    def _untried(self, done: set[str]) -> list[Candidate]:
        """Return the candidates that are worth a trial, the next one first. Record the other candidates as skipped."""
        assert self._context is not None  # the search sets the context at its start
        proposed = [c for c in self._proposed(self._context) if self._goal.aim in c.aims]
        found = [c for c in proposed if self._recipe_key(c) not in done]
        worthy = [c for c in found if c.safety in self._limits.allowed and _is_worthwhile(c, self._goal)]
        for candidate in found:
            if candidate not in worthy:
                done.add(self._recipe_key(candidate))
                reason = skip_reason(candidate, self._limits.allowed, self._goal)
                self._tried = record_trial(self._tried, self._trial(candidate, status="skipped", reason=reason))
        timely = [i for i, c in enumerate(worthy) if self._has_time(c)]
        if not timely:
            done.update(self._recipe_key(c) for c in worthy)
            self._tried += [
                self._trial(c, status="skipped", reason=preparation_too_long_message(self._prepares_s(c)))
                for c in worthy
            ]
            return []
        quick = [i for i in timely if self._prepares_s(worthy[i]) <= _OF_THE_REST * self._left_s()]
        named = [i for i in quick if worthy[i].remedy == _remedy_named_by_run(self._context, self._tried)]
        place = (named or quick or timely)[0]
        return [worthy[place], *worthy[:place], *worthy[place + 1 :]]

    def _undecided_candidates(self, done: Collection[str]) -> list[Candidate]:
        """Return a combination of undecided changes, or else an undecided change to measure for longer, or nothing."""
        found = combine_undecided(self._undecided, self.best, self._goal.worth)
        if found is not None and self._recipe_key(found) not in done and self._has_time(found):
            return [found]
        going_on = best_unfinished(self._undecided, self.best, self._goal.worth)
        return [going_on.candidate] if going_on is not None and self._has_time(going_on.candidate) else []

    def _recipe_key(self, candidate: Candidate) -> str:
        """Return the best recipe with a candidate's changes, as text."""
        return describe_recipe(merge_recipes(self.best, candidate.recipe))

    def _has_time(self, candidate: Candidate) -> bool:
        """Return whether the budget is enough to prepare and measure a candidate."""
        left_s, prepares_s = self._left_s(), self._prepares_s(candidate)
        return prepares_s <= 0 or left_s <= 0 or self._budget.allows_trial(left_s, self._runner.start_s, prepares_s)

    def _prepares_s(self, candidate: Candidate) -> float:
        return prepares_s(candidate, self._runner.step_s)

    def _proposed(self, now: DiagnosisContext) -> list[Candidate]:
        """Return the candidates of all remedies, the best first, with predictions corrected by earlier trials."""
        found = correct_predictions(candidates(now), self._history.seen, machine_of(now).device, TIME.worth)
        return [_with_start_time(candidate, self._runner.start_s) for candidate in found]

    def _larger_batches(self) -> Iterator[Candidate]:
        """Yield the batch size that is expected to reach the same loss first, if semantic changes are allowed."""
        if "semantic" not in self._limits.allowed or self._goal.aim != "time" or self._left_s() <= 0:
            return
        assert self._context is not None  # the search sets the context at its start
        self._report("measuring the gradient noise and the speed of larger batches")
        self._batch = study_batch_sizes(self._runner, self._context, self.best, self._left_s)
        candidate = fastest_candidate(self._batch) if self._batch is not None else None
        if candidate is not None:
            yield candidate

    def _try(self, candidate: Candidate) -> Trial:
        """Compare a candidate with the best recipe, and check its equivalence if its gain is a reason to keep it."""
        begun = time.monotonic()
        self._report(start_message(candidate, earlier_comparison(self._undecided, self.best, candidate.recipe)))
        try:
            left_s = self._left_s() - candidate.startup_s
            deadline = self._budget.deadline(begun, left_s, self._candidates_left, candidate.startup_s)
            spec = _spec_of(candidate, self.best)
            comparison = self._runner.compare(spec, deadline, self._earlier_rounds(candidate))
        except TrialFailed as error:
            status = "skipped" if isinstance(error, NotMeasured) else "failed"
            return self._trial(candidate, status=status, reason=str(error), seconds=time.monotonic() - begun)
        gained = self._gain(comparison)
        same = [self._gain(trial) for trial in self._kept if trial.remedy == candidate.remedy]
        kept_for = reason_to_keep(comparison.verdict, gained, same, self._goal.worth)
        if comparison.verdict == "undecided" and gained is not None and kept_for is None:
            change = UndecidedChange(candidate=candidate, base=self.best, gained=gained, rounds=comparison.rounds)
            self._undecided.append(change)
        measured = self._trial(
            candidate,
            status=status_of(comparison.verdict),
            reason=no_win_reason(comparison.verdict, self._goal, gained, self._runner.fewest),
            **measured_values(comparison),
            seconds=time.monotonic() - begun,
        )
        if kept_for is None:
            return measured
        return self._checked_trial(candidate, replace(measured, reason=kept_for), begun)

    def _earlier_rounds(self, candidate: Candidate) -> Sequence[ComparisonRound]:
        """Remove a change from the list of undecided changes and return its earlier rounds; none for a new change."""
        found = earlier_comparison(self._undecided, self.best, candidate.recipe)
        self._undecided = [u for u in self._undecided if u is not found]
        return found.rounds if found is not None else ()

    def _gain(self, comparison: ComparisonResult | Trial) -> Interval | None:
        return comparison.saving if self._goal.aim == "memory" else comparison.speedup

    def _checked_trial(self, candidate: Candidate, measured: Trial, begun: float) -> Trial:
        compared_with, since = reference_recipe(self._kept)
        classes = [candidate.safety, *(trial.safety for trial in since)]
        try:
            found = self._runner.check_equivalence(measured.recipe, classes, compared_with)
        except TrialFailed as error:
            return replace(measured, status="failed", reason=f"Paceline could not check this change: {error}")
        return _with_result(measured, found, time.monotonic() - begun)

    def _trial(self, candidate: Candidate, **known: object) -> Trial:
        values: dict[str, object] = {"speedup": None, **known}
        return Trial(
            id=f"{len(self._tried) + 1}",
            remedy=candidate.remedy,
            recipe=merge_recipes(self.best, candidate.recipe),
            safety=candidate.safety,
            predicted=candidate.predicted,
            predicted_by_findings=candidate.predicted_by_findings,
            **values,  # type: ignore[arg-type]
        )

    def _left_s(self) -> float:
        """Return the seconds left for trials, without the time that is reserved for the final comparison."""
        return self._limits.budget_s - self._budget.confirmation_s - (time.monotonic() - self._begun)

    def _is_over(self) -> bool:
        """Return whether the budget is exceeded by so much that nothing more is measured."""
        return self._left_s() < -self._budget.confirmation_s / 4

    def _result(self, before: DiagnosisContext, stopped: str, comparison: ComparisonResult | None) -> TuneResult:
        """Return the result of the search. Without a final comparison, the gain is the product of the kept gains."""
        in_turn = (
            multiply_intervals([t.speedup for t in self._kept]),
            multiply_intervals([t.saving for t in self._kept]),
        )
        speedup, saving = in_turn if comparison is None else (comparison.speedup, comparison.saving)
        after = self._context if self._context is not None and self.best and self._context.recipe == self.best else None
        return TuneResult(
            command=self._command,
            before=before.diagnosis,
            after=after.diagnosis if after is not None else None,
            trials=self._tried,
            best=self.best,
            speedup=speedup,
            saving=saving,
            step_times=successive_step_times(self._kept) if comparison is None else comparison.step_times,
            in_turn=comparison is None and len(self._kept) > 1,
            checks=self._kept[-1].checks if self._kept else (),
            unproven=self._unproven,
            scatter=self._runner.scatter,
            compared=self._runner.compared,
            wall_s=time.monotonic() - self._begun,
            stopped=stopped,
            out_of_budget=self._out_of_budget,
            budget_s=self._limits.budget_s,
            allowed=self._limits.allowed,
            other_cores=self._runner.other_cores,
            goal=self._limits.goal,
            price_per_hour=self._limits.price_per_hour,
            batch=self._batch,
            quality=self._quality,
            warmup_steps=max((candidate.warmup_steps or 0 for candidate in self._chosen), default=0),
        )


def _is_worthwhile(candidate: Candidate, goal: Goal) -> bool:
    return goal.aim != "time" or candidate.predicted is None or candidate.predicted.high >= goal.worth


def _with_start_time(candidate: Candidate, start_s: float) -> Candidate:
    """Return the candidate with its start-up time limited to a multiple of `start_s`, the program's start time."""
    return replace(candidate, startup_s=min(candidate.startup_s, _STARTS * start_s))


def _remedy_named_by_run(now: DiagnosisContext, tried: Sequence[Trial]) -> str | None:
    """Return the remedy that `paceline run` names for a diagnosis, or None if it was already tried."""
    remedy = named_remedy(now.diagnosis)
    return None if any(trial.remedy == remedy and trial.status != "skipped" for trial in tried) else remedy


def _spec_of(candidate: Candidate, best: Recipe) -> ComparisonSpec:
    """Return the comparison of the best recipe with the same recipe plus a candidate's changes."""
    after = merge_recipes(best, candidate.recipe)
    warmup_steps = candidate.warmup_steps or 0
    return ComparisonSpec(before=best, after=after, warmup_steps=warmup_steps, progress=candidate.progress)


def _with_result(measured: Trial, checks: Sequence[Check], seconds: float) -> Trial:
    """Return a trial with its checks and the status "kept" or "unsafe".

    A failed check makes a change unsafe; a semantic change only if the check has a veto.
    """
    failed = [check for check in checks if not check.passed]
    against = failed if measured.safety != "semantic" else [check for check in failed if check.vetoes]
    if against:
        return replace(measured, status="unsafe", reason=against[0].text, checks=checks, seconds=seconds)
    return replace(measured, status="kept", checks=checks, seconds=seconds)


def _compared_again(
    runner: TrialRunner, spec: ComparisonSpec, times: tuple[float, float], rounds: int
) -> ComparisonResult:
    """Compare two recipes once more.

    Args:
        runner: Runs the trials.
        spec: The two recipes.
        times: Seconds for the comparison, and more seconds that it may take while the result is not certain.
        rounds: The number of rounds that the trial of a change had; this comparison has at most as many.
    """
    usual, more = times
    ends = time.monotonic() + usual
    deadline = Deadline(usual=ends, promising=ends + more, large=ends + more)
    found = runner.compare(spec, deadline)
    while found.verdict == "undecided" and len(found.rounds) < rounds and time.monotonic() < deadline.promising:
        try:
            found = runner.compare(spec, deadline, found.rounds)
        except NotMeasured:  # no time was left for a pair of blocks
            break
    return found
