"""Where trials are made: watching the program, racing a recipe against another, proving that training is the same."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from paceline.core.recipe import BASELINE, Recipe
from paceline.core.remedies import Safety, least_safe
from paceline.core.statistics import Interval
from paceline.hardware.host import cpu_flags
from paceline.improve.candidates import Situation
from paceline.improve.comparison.copies import (
    RestartedPlayer,
    begin_under,
    blamed,
    copies_that_fit,
    fails_beside_itself,
    free_bytes,
    limits_of,
    restarted_limits,
)
from paceline.improve.comparison.model import MEMORY, SLOWEST, TIME, Contest, Goal, Race, Until
from paceline.improve.comparison.paired_blocks import (
    LONG_S,
    SHORT_S,
    Judges,
    Pair,
    Playing,
    Round,
    Rules,
    judges_of,
    play_alone,
    play_round,
)
from paceline.improve.comparison.statistics import decided, fewest_pairs, noise_prior, scatter_of, speed_up
from paceline.improve.equivalence.outputs import Check
from paceline.improve.equivalence.runs import Proofs, span_of
from paceline.improve.search.budget import Budget
from paceline.improve.trials.applied_settings import missing, refused, require
from paceline.improve.trials.blocks import (
    NO_TIME,
    NotMeasured,
    ProgramFailed,
    ProgramOver,
    TrialFailed,
    unless_it_fails_twice,
)
from paceline.improve.trials.gpus import GpuMemory, fit_together
from paceline.improve.trials.isolation import IN_PYTHON, Isolation, peers_of, shortened
from paceline.improve.trials.process import READY_S, Player
from paceline.record.read import read_run

_PROFILE = "PACELINE_PROFILE"  # read by the probe
_WATCHED_STEPS = 40
_MOST_WATCHED = 3.0  # times what is meant to be watched, where steps are slow
_COMPARED = 3  # processes of the baseline
_LEARNT_S = 2.4  # of blocks of each
_TELLING_STEPS = 2  # after which a process has said what it refuses
_MOST_ROUNDS = 3
_MOST_SHORT = 2  # rounds in which the program was over before anything was measured
_STEP_TIMEOUT_S = 300.0
_NO_MEMORY = "out of memory"  # torch.OutOfMemoryError and cudaErrorMemoryAllocation say so


class TrialRunner:
    """Makes trials of one command in a folder of its own."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        cwd: Path,
        goal: Goal,
        budget: Budget,
        isolation: Isolation = IN_PYTHON,
    ) -> None:
        self._command = list(command)
        self._goal = goal
        self._budget = budget
        self._folder = folder
        self._cwd = cwd
        self.isolation = isolation
        self._made = 0
        self._proofs = Proofs(self.start)
        self._epoch_steps: int | None = None
        self.scatter = scatter_of([])
        self._noise = noise_prior([])  # of a pair of blocks
        self._others: list[float] = []  # cores that other programs used, for each pair of blocks
        self._others_watched: list[float] = []  # the same while the program was watched
        self.compared = 0  # processes by which the scatter was measured
        self.step_s = math.nan
        self._block_s = LONG_S
        self._total = 0  # steps of the whole program; 0: more than has been made so far
        self._on_gpu, self._at_a_time = False, _COMPARED  # processes that its GPUs have room for
        self._can_run_twice: bool | None = None  # None: was not tried
        self._raced_beside = False  # whether some rounds had both processes alive at a time
        self.start_s = READY_S  # until the first step of the baseline, at most

    @property
    def other_cores(self) -> float | None:
        """Cores that other programs used on average, during races or, without a race, while the program was watched."""
        found = self._others or self._others_watched
        return float(np.mean(found)) if found else None

    @property
    def last_folder(self) -> Path:
        """The folder of the trial that was started last."""
        return self._folder / f"trial-{self._made:03d}"

    def start(self, recipe: Recipe, environment: Mapping[str, str] | None = None) -> Player:
        """Start the program; without a profiler window unless that is asked for.

        What a window leaves behind changes how memory is taken later: a net in bf16 was 1.3 times as fast after one.
        """
        self._made += 1
        variables = {_PROFILE: "0", **(environment or {})}
        return Player(self._command, recipe, self.last_folder, variables, self._cwd, self.isolation)

    def watch(self, recipe: Recipe) -> Situation:
        """Watch the program under a recipe until there is enough to diagnose.

        Raises:
            TrialFailed: It cannot be run.
        """
        over, needs, free = False, 0, None
        with self.start(recipe, {_PROFILE: "1"}) as player:
            begun = time.monotonic()
            try:
                player.begin()
            except ProgramOver as error:
                raise TrialFailed("Paceline saw no step of a torch optimizer, and a trial needs such steps") from error
            self.start_s = min(self.start_s, time.monotonic() - begun)
            try:
                first = player.play(10, _STEP_TIMEOUT_S, pause=False)
                step_s = first.seconds / first.steps
                most = math.ceil(_MOST_WATCHED * self._budget.watched_s / step_s)
                more = max(min(_WATCHED_STEPS, most), math.ceil(self._budget.watched_s / step_s))
                block = player.play(more, 60.0 + 30 * more * step_s, pause=False)
                self._others_watched.append(block.other_cores)
                needs, free = player.memory_bytes(), free_bytes()
                player.end()
            except ProgramOver:
                over = True
            run = read_run(player.folder)
            self._find_room(player.gpus.memory, needs, free)
        if not run.ranks:
            raise TrialFailed("no training step was seen")
        self._total = len(run.ranks[0].steps) - 1 if over else self._total  # after the first
        return Situation(run=run, recipe=recipe, cpu_flags=cpu_flags())

    def learn(self, step_s: float, epoch_steps: int | None, *, waits: bool) -> None:
        """Find out by how much processes of the baseline differ among themselves, where there is time for it.

        Args:
            step_s: Seconds of a step of the baseline.
            epoch_steps: Steps of an epoch, where that is known.
            waits: Whether it waits for something outside of the machine, that goes on while it is stopped.
        """
        self.step_s, self._epoch_steps = step_s, epoch_steps
        self._block_s = LONG_S if waits or self._on_gpu else SHORT_S
        if self._at_a_time < 2 or not self._budget.allows_learning(self.start_s, step_s):
            return
        ends = time.monotonic() + self._budget.learning_s
        with ExitStack() as stack:
            made = [stack.enter_context(self.start(BASELINE)) for _ in range(self._at_a_time)]
            going = [player for player in made if _begins(player, ends)]
            blocks = round(_LEARNT_S / self._block_s)
            found = [b for b in play_alone(going, ends, step_s=step_s, block_s=self._block_s, blocks=blocks) if b]
        self.scatter, self.compared, self._noise = scatter_of(found), len(found), noise_prior(found)

    def _find_room(self, memory: Sequence[GpuMemory], needs: int = 0, free: float | None = None) -> None:
        """Decide how many copies of the program may live at a time, by the memory that one needs."""
        on_host = copies_that_fit(needs, None if free is None else free + needs)
        self._on_gpu, self._at_a_time = bool(memory), min(self._at_a_time, fit_together(memory), on_host)
        self._proofs.at_a_time = min(2, self._at_a_time)

    def race(self, contest: Contest, until: Until, earlier: Sequence[Round] = ()) -> Race:
        """Race two recipes until one is certainly better, certainly not by enough, or it takes too long.

        Args:
            contest: The two.
            until: When it has to end.
            earlier: Rounds of the same two in a race that ended undecided: what they showed holds, and it goes on.

        Raises:
            TrialFailed: The second cannot be run, or a setting of it did not take hold.
        """
        rounds = list(earlier)
        for _ in range(_MOST_ROUNDS + _MOST_SHORT):
            found = unless_it_fails_twice(partial(self._round, contest, rounds, until))
            rounds += [found] if found.pairs else []
            if time.monotonic() > until.usual or (rounds and self._settled(contest, rounds, len(earlier))):
                break
        if not rounds:
            over = f"too short to measure: the program ends after {self._total} steps"
            raise TrialFailed(over) if self._total else NotMeasured(f"{NO_TIME} for a pair of blocks")
        return self._judged(contest, rounds)

    def _settled(self, contest: Contest, rounds: Sequence[Round], earlier: int) -> bool:
        """Say whether another round would be wasted: it is decided, does not look like a win, or was tried enough."""
        promising = self._gained(contest, [r.fair for r in rounds]).value >= self._goal.worth
        verdict = self._judged(contest, rounds).verdict
        return verdict != "undecided" or not promising or len(rounds) - earlier >= _MOST_ROUNDS

    def _round(self, contest: Contest, earlier: Sequence[Round], until: Until) -> Round:
        """Play a round in one process of each side; in a new one for each block if two cannot live at a time."""
        if self._at_a_time > 1:
            try:
                found = self._beside(contest, earlier, until)
            except ProgramFailed as error:
                if not self._only_alone(error):
                    raise
                found = self._restarted(contest, earlier, until)
            else:
                self._raced_beside |= bool(found.pairs)
        else:
            found = self._restarted(contest, earlier, until)
        self._others += [pair.other_cores for pair in (*found.warmup, *found.pairs)]
        return found

    def _only_alone(self, error: ProgramFailed) -> bool:
        """Find out whether copies of the program cannot live at a time: their memory, a port or a card is taken."""
        full = self._on_gpu and _NO_MEMORY in str(error)
        if not full and self._can_run_twice is None:
            self._can_run_twice = not fails_beside_itself(partial(self.start, BASELINE))
        if full or self._can_run_twice is False:
            self._at_a_time = self._proofs.at_a_time = 1
        return self._at_a_time == 1

    def _restarted(self, contest: Contest, earlier: Sequence[Round], until: Until) -> Round:
        begin = partial(begin_under, recipe=contest.after, until=until, start_s=self.start_s)
        limits = restarted_limits(contest, until, step_s=self.step_s, start_s=self.start_s, total=self._total)
        first = RestartedPlayer(partial(self.start, contest.before), lambda one: one.begin(), contest.warmup_steps)
        second = RestartedPlayer(partial(self.start, contest.after), begin, contest.warmup_steps)
        judges = self._judges(contest, earlier)
        return self._played(contest, first, second, partial(play_round, limits=limits, judges=judges))

    def _beside(self, contest: Contest, earlier: Sequence[Round], until: Until) -> Round:
        begun = time.monotonic()
        with self.start(contest.before) as first, self.start(contest.after) as second:
            try:
                first.begin()
                begin_under(second, contest.after, until, self.start_s)
                until = until.later(begun, self.start_s)
                limits = limits_of(contest, until, step_s=self.step_s, block_s=self._block_s, total=self._total)
                judges = self._judges(contest, earlier)
                found = self._played(contest, first, second, partial(play_round, limits=limits, judges=judges))
            except ProgramFailed as error:
                raise blamed(error, first, _STEP_TIMEOUT_S) from error
        if found.over:
            self._total = found.steps
        return found

    def _judges(self, contest: Contest, earlier: Sequence[Round]) -> Judges:
        """Return what decides that a round has gone on for long enough, with what earlier rounds have shown."""

        def gained(pairs: Sequence[Pair]) -> Interval:
            return self._gained(contest, [*(r.fair for r in earlier), pairs])

        rules = Rules(self._goal.worth, self.fewest, self._scatter(self._goal), len(earlier) + 1)
        return judges_of(gained, rules)

    def _played(
        self, contest: Contest, first: Playing, second: Playing, play: Callable[[Playing, Playing], Round]
    ) -> Round:
        """Play a round, unless what the second is to set is refused: that is found out before it costs anything."""
        try:
            for player in (first, second):
                player.play(_TELLING_STEPS, _STEP_TIMEOUT_S)
        except ProgramOver:
            found = Round(warmup=[], pairs=[], over=True)
        else:
            require(refused(contest.after, second.folder))
            found = play(first, second)
        require(missing(contest.after, second.folder))
        return found

    def _gained(self, contest: Contest, rounds: Sequence[Sequence[Pair]], goal: Goal | None = None) -> Interval:
        """Return the factor by which pairs of some rounds are better, in what is the goal."""
        goal = goal or self._goal
        credit = contest.progress if goal.aim == "time" else 1.0
        found = [[(v[0] * credit, v[1]) for pair in pairs if (v := goal.values(pair)) is not None] for pairs in rounds]
        return speed_up(found, self._scatter(goal), prior=self._noise if goal.aim == "time" else None)

    @property
    def fewest(self) -> int:
        """Pairs of blocks that a gain needs unless it is certainly large."""
        return fewest_pairs(self._block_s) if self._goal.aim == "time" else 0

    def _scatter(self, goal: Goal) -> float:
        if self._at_a_time < 2 and not self._raced_beside:
            return 0.0  # a pair is a pair of processes: what processes scatter is in the noise of pairs
        return self.scatter if goal.scatter is None else goal.scatter

    def _judged(self, contest: Contest, rounds: Sequence[Round]) -> Race:
        fair = [r.fair for r in rounds]
        speedup, saving = self._gained(contest, fair, TIME), self._gained(contest, fair, MEMORY)
        verdict = decided(self._gained(contest, fair), self._goal.worth, self.fewest) or "undecided"
        return Race(
            speedup=speedup,
            saving=saving if saving.count else None,
            cpu_ratio=_cpu_ratio([pair for each in fair for pair in each]),
            rounds=rounds,
            verdict="slow" if verdict == "win" and speedup.value * SLOWEST < 1 else verdict,
        )

    def prove(self, recipe: Recipe, classes: Sequence[Safety], reference: Recipe) -> list[Check]:
        """Compare what the program computes in its first steps under a recipe and under another.

        Args:
            recipe: The recipe to prove.
            classes: The safety classes of the changes in which it differs from the reference.
            reference: The recipe to compare with.

        Raises:
            TrialFailed: The program cannot be run under one of them.
        """
        span = span_of(self.step_s, self._epoch_steps, self._total or None)
        return self._proofs.prove(recipe, least_safe(classes), reference, span, fixed_draws="resampled" in classes)


def _begins(player: Player, ends: float) -> bool:
    """Let a player begin until then; some programs fail by themselves now and then."""
    try:
        player.begin(max(1.0, ends - time.monotonic()))
    except TrialFailed:
        return False
    return True


def _cpu_ratio(pairs: Sequence[Pair]) -> float | None:
    """Return the CPU seconds of the baseline, as a factor of those of the candidate; None if it used none."""
    baseline, candidate = sum(p.baseline.cpu_s for p in pairs), sum(p.candidate.cpu_s for p in pairs)
    return baseline / candidate if candidate > 0 else None


def watch_baseline(runner: TrialRunner, told: Callable[[str], None]) -> Situation:
    """Watch the unchanged program; one that fails while the kernel isolates it is watched in the sandbox instead.

    Raises:
        TrialFailed: It cannot be run, or wants to speak to the network, which was not allowed.
    """
    told(runner.isolation.in_words())
    told("measuring the unchanged program")
    try:
        found = runner.watch(BASELINE)
    except TrialFailed as error:
        _check_network(runner)
        if not isinstance(error, ProgramFailed) or not runner.isolation.by_kernel:
            raise
        why_not = f"with isolation by the kernel {error}"
        runner.isolation = replace(runner.isolation, by_kernel=False, why_not=why_not)
        told(runner.isolation.in_words())
        found = runner.watch(BASELINE)
    _check_network(runner)
    return found


def _check_network(runner: TrialRunner) -> None:
    peers = peers_of(runner.last_folder)
    if peers and not runner.isolation.allows_network:
        raise TrialFailed(
            f"it opens connections to {shortened(peers)}, and each trial would do the same; nothing was sent so far. "
            f"If that is harmless, use --allow-network; if not, switch it off in the program"
        )
