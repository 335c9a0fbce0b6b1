"""Where trials are made: watching the program, racing a recipe against another, proving that training is the same."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from paceline.explain.model import Interval, Safety
from paceline.improve import child
from paceline.improve.child.witness import FOLDER as WITNESSED
from paceline.improve.child.witness import SEED
from paceline.improve.confirmed import missing
from paceline.improve.model import Check
from paceline.improve.pairing import Round, RoundLimits, play_alone, play_round
from paceline.improve.recipe import BASELINE, Recipe
from paceline.improve.situation import Situation
from paceline.improve.statistics import decided, scatter_of, speed_up
from paceline.improve.trials import Player, ProgramOver, TrialFailed
from paceline.improve.verify import Seen, checks, read_seen
from paceline.record.read import read_run

_WATCHED_S = 8.0  # of steps, about, to diagnose from
_WATCHED_STEPS = 40
_PROVEN_STEPS = 24
_PROVEN_S = 20.0  # of steps to compare, at most about
_SEEDS = (0, 1, 2)
_MOST_ROUNDS = 3
_MOST_SHORT = 2  # rounds in which the program was over before anything was measured
_BLOCKS = 14  # of a program that is soon over
_ANY = 1 << 30
_ROUND_S = 25.0
_STEP_TIMEOUT_S = 300.0
_SHARP = 1.2  # an interval whose ends are this close says enough
_LARGE = 1.5  # a speed-up that is certainly larger needs no sharper interval
_ENOUGH_PAIRS = 12


@dataclass(frozen=True, kw_only=True)
class Race:
    """A recipe against another, over some rounds."""

    speedup: Interval
    cpu_ratio: float | None
    rounds: Sequence[Round]
    verdict: str  # win, no-win, undecided


class Workshop:
    """Makes trials of one command in a folder of its own."""

    def __init__(self, command: Sequence[str], folder: Path, cwd: Path) -> None:
        self._command = list(command)
        self._folder = folder
        self._cwd = cwd
        self._made = 0
        self._seen: dict[int, list[Seen]] = {}  # what the baseline computed, by seed
        self._again: list[Seen] | None = None  # and once more with the first seed
        self._epoch_steps: int | None = None
        self.scatter = scatter_of([])
        self.step_s = math.nan
        self._total = 0  # steps of the whole program; 0: more than has been made so far

    def _player(self, recipe: Recipe, environment: Mapping[str, str] | None = None) -> Player:
        self._made += 1
        return Player(self._command, recipe, self._folder / f"trial-{self._made:03d}", environment or {}, self._cwd)

    def watch(self, recipe: Recipe) -> Situation:
        """Watch the program under a recipe until there is enough to diagnose.

        Raises:
            TrialFailed: It cannot be run.
        """
        with self._player(recipe) as player:
            try:
                player.begin()
            except ProgramOver as error:
                raise TrialFailed("it made no step of a torch optimizer, and by those trials are conducted") from error
            try:
                first = player.play(10, _STEP_TIMEOUT_S, pause=False)
                step_s = first.seconds / first.steps
                more = max(_WATCHED_STEPS, math.ceil(_WATCHED_S / step_s))
                player.play(more, 60.0 + 30 * more * step_s, pause=False)
                player.end()
            except ProgramOver:
                pass
            run = read_run(player.folder)
        if not run.ranks:
            raise TrialFailed("no training step was seen")
        return Situation(run=run, recipe=recipe)

    def learn(self, step_s: float, epoch_steps: int | None, players: int = 3) -> None:
        """Find out by how much processes of the baseline differ among themselves.

        Args:
            step_s: Seconds of a step of the baseline.
            epoch_steps: Steps of an epoch, where that is known.
            players: Processes to compare.
        """
        self.step_s, self._epoch_steps = step_s, epoch_steps
        with ExitStack() as stack:
            made = [stack.enter_context(self._player(BASELINE)) for _ in range(players)]
            for player in made:
                player.begin()
            self.scatter = scatter_of([b for b in play_alone(made, step_s=step_s, blocks=4) if b])

    def race(self, before: Recipe, after: Recipe, worth: float, deadline: float, warmup_steps: int = 0) -> Race:
        """Race two recipes until one is certainly faster, certainly not by enough, or it takes too long.

        Raises:
            TrialFailed: The second cannot be run, or a setting of it did not take hold.
        """
        rounds: list[Round] = []
        for _ in range(_MOST_ROUNDS + _MOST_SHORT):
            found = self._round((before, after), worth, [r.differences for r in rounds], deadline, warmup_steps)
            rounds += [found] if found.pairs else []
            if time.monotonic() > deadline or (rounds and self._settled(rounds, worth)):
                break
        if not rounds:
            raise TrialFailed(f"too short to measure: the program is over after {self._total} steps")
        return self._judged(rounds, worth)

    def _settled(self, rounds: Sequence[Round], worth: float) -> bool:
        """Say whether another round would be wasted: it is decided, does not look like a win, or was tried enough."""
        outcome = self._judged(rounds, worth)
        promising = outcome.speedup.value >= worth
        return outcome.verdict != "undecided" or not promising or len(rounds) >= _MOST_ROUNDS

    def _round(
        self,
        recipes: tuple[Recipe, Recipe],
        worth: float,
        earlier: list[list[float]],
        deadline: float,
        warmup_steps: int,
    ) -> Round:
        def enough(differences: list[float]) -> bool:
            interval = speed_up([*earlier, differences], self.scatter)
            sharp = interval.high <= _SHARP * interval.low or interval.low >= _LARGE
            return decided(interval, worth) is not None and (
                sharp or interval.high < worth or len(differences) >= _ENOUGH_PAIRS
            )

        budget = max(5.0, min(_ROUND_S, deadline - time.monotonic()))
        limits = RoundLimits(
            step_s=self.step_s,
            most_steps=max(1, self._total // _BLOCKS) if self._total else _ANY,
            warmup_steps=warmup_steps,
            budget_s=budget + 2 * warmup_steps * self.step_s,
        )
        with self._player(recipes[0]) as first, self._player(recipes[1]) as second:
            first.begin()
            second.begin()
            found = play_round(first, second, limits, enough)
            self._check_held(recipes[1], second)
        if found.over:
            self._total = found.steps
        return found

    def _judged(self, rounds: Sequence[Round], worth: float) -> Race:
        interval = speed_up([r.differences for r in rounds], self.scatter)
        pairs = [p for r in rounds for p in r.fair]
        cpu = sum(p.baseline.cpu_s for p in pairs), sum(p.candidate.cpu_s for p in pairs)
        return Race(
            speedup=interval,
            cpu_ratio=cpu[0] / cpu[1] if cpu[1] > 0 else None,
            rounds=rounds,
            verdict=decided(interval, worth) or "undecided",
        )

    def _check_held(self, recipe: Recipe, player: Player) -> None:
        """Make sure that what a recipe sets is in force.

        Raises:
            TrialFailed: It is not, with the reason that was given.
        """
        for key, why in missing(recipe, player.folder).items():
            raise TrialFailed(f"{key} did not take hold: {why}")

    # -- proof ---------------------------------------------------------------------------------------

    def prove(self, recipe: Recipe, safety: Safety) -> list[Check]:
        """Compare what the program computes in its first steps with the baseline."""
        for seed in _SEEDS[:1] if safety == "exact" else _SEEDS:
            if seed not in self._seen:
                self._seen[seed] = self._computed(BASELINE, seed)
        if self._again is None:
            self._again = self._computed(BASELINE, _SEEDS[0])
        return checks(
            safety, [self._seen[s] for s in sorted(self._seen)], self._again, self._computed(recipe, _SEEDS[0])
        )

    def _proven_steps(self) -> int:
        """Return how many steps are compared: into the second epoch, where that does not take too long."""
        affordable = math.ceil(_PROVEN_S / max(self.step_s, 1e-6))
        into_second = (self._epoch_steps or 0) + _PROVEN_STEPS
        wanted = into_second if into_second <= affordable else max(4, min(_PROVEN_STEPS, affordable))
        return min(wanted, self._total or wanted)

    def _computed(self, recipe: Recipe, seed: int) -> list[Seen]:
        steps = self._proven_steps()
        with self._player(recipe, {child.WITNESS: "1", SEED: str(seed)}) as player:
            player.begin()
            player.play(steps, 60.0 + 60 * steps * self.step_s, pause=False)
            player.end()
        return read_seen(player.folder / WITNESSED)
