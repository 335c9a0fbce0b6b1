"""How is the best recipe found? Greedily, the most promising change first, with a new diagnosis after each kept one.

watch the baseline -> candidates by expected gain -> race each against what is kept -> prove the winner -> keep it,
watch again, and go on: the bottleneck has moved. It ends when nothing is left that could gain 2 %, or the budget is
spent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.explain.model import Interval, Safety
from paceline.improve.model import Candidate, Trial, Tuned
from paceline.improve.recipe import BASELINE, Recipe, in_words, merged
from paceline.improve.remedies import candidates
from paceline.improve.situation import Situation
from paceline.improve.trials import TrialFailed
from paceline.improve.workshop import Workshop

WORTH = 1.02
_RACE_S = 90.0  # for all rounds of a trial
_IN_ALL_S = 60.0  # for all that was kept against the program as it was
_ORDER: dict[Safety, int] = {"exact": 0, "numeric": 1, "semantic": 2}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to stop, and what may be tried."""

    budget_s: float
    trials: int
    allowed: Sequence[Safety]


class Search:
    """One search, as far as it has come; what is kept so far survives an interruption."""

    def __init__(
        self, command: Sequence[str], folder: Path, cwd: Path, limits: Limits, told: Callable[[str], None]
    ) -> None:
        self._workshop = Workshop(command, folder, cwd)
        self._command = list(command)
        self._limits = limits
        self._told = told
        self._begun = time.monotonic()
        self._kept: list[Trial] = []
        self._tried: list[Trial] = []
        self._now: Situation | None = None

    @property
    def best(self) -> Recipe:
        """What is kept so far."""
        return merged(*(trial.recipe for trial in self._kept))

    def run(self) -> Tuned:
        """Search until nothing is left to gain, the budget is spent, or somebody interrupts.

        Raises:
            TrialFailed: The program cannot be run as it is.
        """
        self._told("watching the program as it is")
        before = self._now = self._workshop.watch(BASELINE)
        speedup = None
        try:
            stopped = self._search_from(before)
            speedup = self._in_all()
        except KeyboardInterrupt:
            stopped = "interrupted: what was kept so far stands"
        except TrialFailed as error:  # of the program under what is kept, or as it is: it is flaky
            stopped = f"stopped: {error}"
        return self._result(before, stopped, speedup or self._alone())

    def _search_from(self, before: Situation) -> str:
        rank = before.facts.first
        if not before.facts.enough:
            return f"too short to tune: {len(rank.record.steps)} steps in all"
        self._told("measuring how much processes of it differ among themselves")
        self._workshop.learn(rank.breakdown.step_s.value, before.epoch_steps)
        return self._search()

    def _alone(self) -> Interval | None:
        """Return the speed-up of the one change that was kept; None where there are several, or none."""
        return self._kept[0].speedup if len(self._kept) == 1 else None

    def _in_all(self) -> Interval | None:
        """Measure all that was kept against the program as it was, where that is more than one change."""
        if len(self._kept) < 2:
            return None
        self._told("measuring all that was kept against the program as it was")
        return self._workshop.race(BASELINE, self.best, WORTH, time.monotonic() + _IN_ALL_S).speedup

    def _search(self) -> str:
        for candidate in self._queue():
            if self._left_s() <= 0:
                return f"the budget of {self._limits.budget_s:.0f} s is spent"
            if sum(t.status != "skipped" for t in self._tried) >= self._limits.trials:
                return f"{self._limits.trials} trials were made"
            trial = self._try(candidate)
            self._tried.append(trial)
            self._told(told(trial))
            if trial.status == "kept":
                self._kept.append(trial)
                self._now = self._workshop.watch(self.best)
        return "nothing is left that could gain 2 %"

    def _queue(self) -> Iterator[Candidate]:
        """Yield what to try next in the situation as it is then."""
        done: set[str] = set()
        while True:
            assert self._now is not None  # the search begins with it
            left = [c for c in candidates(self._now) if in_words(merged(self.best, c.recipe)) not in done]
            if not left:
                return
            for candidate in left:
                if candidate.safety not in self._limits.allowed or not self._could_gain(candidate):
                    done.add(in_words(merged(self.best, candidate.recipe)))
                    self._skip(candidate)
            left = [c for c in left if in_words(merged(self.best, c.recipe)) not in done]
            if left:
                done.add(in_words(merged(self.best, left[0].recipe)))
                yield left[0]

    def _could_gain(self, candidate: Candidate) -> bool:
        return candidate.predicted is None or candidate.predicted.high >= WORTH

    def _skip(self, candidate: Candidate) -> None:
        if candidate.safety in self._limits.allowed:
            reason = "expected to gain less than 2 %"
        else:
            reason = f"needs --allow {candidate.safety}"
        if not any(t.remedy == candidate.remedy and t.status == "skipped" for t in self._tried):
            self._tried.append(self._trial(candidate, status="skipped", reason=reason))

    def _try(self, candidate: Candidate) -> Trial:
        """Race a candidate against what is kept, and prove it if it wins."""
        begun = time.monotonic()
        recipe = merged(self.best, candidate.recipe)
        self._told(f"trying {in_words(candidate.recipe)}")
        try:
            deadline = begun + min(_RACE_S, max(10.0, self._left_s()))
            race = self._workshop.race(self.best, recipe, WORTH, deadline, candidate.warmup_steps or 0)
        except TrialFailed as error:
            return self._trial(candidate, status="failed", reason=str(error), seconds=time.monotonic() - begun)
        measured = self._trial(
            candidate,
            status="no-win",
            reason=_no_win(race.verdict),
            speedup=race.speedup,
            cpu_ratio=race.cpu_ratio,
            set_aside=sum(len(r.pairs) - len(r.fair) for r in race.rounds),
            rounds=len(race.rounds),
            seconds=time.monotonic() - begun,
        )
        if race.verdict != "win":
            return measured
        return self._proven(candidate, measured, begun)

    def _proven(self, candidate: Candidate, measured: Trial, begun: float) -> Trial:
        worst = max([candidate.safety, *(t.safety for t in self._kept)], key=lambda s: _ORDER[s])
        try:
            found = self._workshop.prove(measured.recipe, worst)
        except TrialFailed as error:
            return replace(measured, status="failed", reason=f"could not be proven: {error}")
        failed = [check for check in found if not check.passed]
        taken = time.monotonic() - begun
        if failed and candidate.safety != "semantic":
            return replace(measured, status="unsafe", reason=failed[0].text, checks=found, seconds=taken)
        return replace(measured, status="kept", reason="a proven win", checks=found, seconds=taken)

    def _trial(self, candidate: Candidate, **known: object) -> Trial:
        values: dict[str, object] = {"speedup": None, **known}
        return Trial(
            id=f"{len(self._tried) + 1}",
            remedy=candidate.remedy,
            recipe=merged(self.best, candidate.recipe),
            safety=candidate.safety,
            predicted=candidate.predicted,
            **values,  # type: ignore[arg-type]
        )

    def _left_s(self) -> float:
        return self._limits.budget_s - (time.monotonic() - self._begun)

    def _result(self, before: Situation, stopped: str, speedup: Interval | None) -> Tuned:
        after = self._now if self._now is not None and self._now.recipe else None
        return Tuned(
            command=self._command,
            before=before.diagnosis,
            after=after.diagnosis if after is not None else None,
            trials=self._tried,
            best=self.best,
            speedup=speedup,
            checks=self._kept[-1].checks if self._kept else (),
            scatter=self._workshop.scatter,
            wall_s=time.monotonic() - self._begun,
            stopped=stopped,
        )


def _no_win(verdict: str) -> str:
    if verdict == "no-win":
        return "certainly gains less than 2 %"
    return "no proven win"


def told(trial: Trial) -> str:
    """Say in a line what became of a trial."""
    what, s = in_words(trial.recipe), trial.speedup
    if s is None:
        return f"{what}: {trial.status}, {trial.reason}"
    measured = f"{s.value:.2f}x ({s.low:.2f} to {s.high:.2f}, {s.count} pairs of blocks)"
    return f"{what}: {measured}, {trial.status}: {trial.reason}"
