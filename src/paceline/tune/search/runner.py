"""Runs trials: watches the program, compares two recipes, and checks that training stays equivalent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from paceline.core.errors import RecordError
from paceline.core.recipe import BASELINE, Recipe
from paceline.core.remedies import Safety, least_safe
from paceline.core.statistics import Interval
from paceline.hardware.host import cpu_flags
from paceline.record.read import read_run
from paceline.record.run import Run
from paceline.tune.candidates import DiagnosisContext
from paceline.tune.comparison.copies import (
    RestartedProcess,
    attribute_failure,
    cannot_run_twice,
    copies_that_fit,
    free_bytes,
    restarted_limits,
    side_by_side_limits,
    wait_for_first_step,
)
from paceline.tune.comparison.model import MEMORY, SLOWEST, TIME, ComparisonResult, ComparisonSpec, Deadline, Goal
from paceline.tune.comparison.paired_blocks import (
    LONG_S,
    SHORT_S,
    BlockPair,
    BlockRunner,
    ComparisonRound,
    StoppingLimits,
    StoppingRule,
    measure_copies,
    run_round,
    stopping_rule,
)
from paceline.tune.comparison.statistics import fewest_pairs, noise_prior, scatter_of, speed_up, verdict_so_far
from paceline.tune.equivalence.outputs import Check
from paceline.tune.equivalence.runs import EquivalenceChecker, steps_to_check
from paceline.tune.search.budget import Budget
from paceline.tune.trials.applied_settings import refused_settings, require_applied, unapplied_settings
from paceline.tune.trials.blocks import (
    NO_TIME,
    NotMeasured,
    ProgramFailed,
    ProgramOver,
    TrialFailed,
    retry_once,
)
from paceline.tune.trials.gpus import GpuMemory, processes_that_fit
from paceline.tune.trials.isolation import IN_PYTHON, Isolation, list_peers, network_peers
from paceline.tune.trials.process import READY_S, TrialProcess

_PROFILE = "PACELINE_PROFILE"  # environment variable for the recorder in the program
_WATCHED_STEPS = 40
_MOST_WATCHED = 3.0  # longest time for watching, relative to the planned time, if steps are slow
_COMPARED = 3  # number of baseline processes whose speeds are compared
_LEARNT_S = 2.4  # seconds of blocks for each of these processes
_TELLING_STEPS = 2  # steps after which a process has reported the settings that it refuses
_MOST_ROUNDS = 3
_MOST_SHORT = 2  # most rounds in which the program ended before anything was measured
_STEP_TIMEOUT_S = 300.0
_NO_MEMORY = "out of memory"  # part of the messages of torch.OutOfMemoryError and cudaErrorMemoryAllocation


class TrialRunner:
    """Runs trials of one command, each trial in a folder of its own."""

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
        self._started = 0
        self._equivalence = EquivalenceChecker(self.start)
        self._epoch_steps: int | None = None
        self.scatter = scatter_of([])
        self._noise = noise_prior([])  # noise prior of a pair of blocks
        self._other_cores: list[float] = []  # mean cores that other programs used, for each pair of blocks
        self._other_cores_watched: list[float] = []  # the same while the program was watched
        self.compared = 0  # number of processes from which the scatter was measured
        self.step_s = math.nan
        self._block_s = LONG_S
        self._total = 0  # steps of the whole program; 0 if the program has not ended so far
        self._on_gpu, self._at_a_time = False, _COMPARED  # number of processes that run side by side
        self._can_run_twice: bool | None = None  # None: not tried yet
        self._ran_side_by_side = False  # whether both processes of some round ran side by side
        self.start_s = READY_S  # most seconds that the baseline takes to reach its first step

    @property
    def other_cores(self) -> float | None:
        """Mean number of cores that other programs used during comparisons.

        Without comparisons, the mean while the program was watched; None if nothing was measured.
        """
        found = self._other_cores or self._other_cores_watched
        return float(np.mean(found)) if found else None

    @property
    def last_folder(self) -> Path:
        """The folder of the latest trial."""
        return self._folder / f"trial-{self._started:03d}"

    def start(self, recipe: Recipe, environment: Mapping[str, str] | None = None) -> TrialProcess:
        """Start the program under a recipe. The profiler is off unless `environment` switches it on.

        Profiling some steps has an effect on later memory allocation: a network in bf16 was 1.3 times as fast
        afterwards.
        """
        self._started += 1
        variables = {_PROFILE: "0", **(environment or {})}
        return TrialProcess(self._command, recipe, self.last_folder, variables, self._cwd, self.isolation)

    def watch(self, recipe: Recipe) -> DiagnosisContext:
        """Run the program under a recipe until there is enough data for a diagnosis, and return the diagnosis context.

        Raises:
            TrialFailed: The program cannot run, or it makes no optimizer step.
        """
        over, needs, free = False, 0, None
        with self.start(recipe, {_PROFILE: "1"}) as process:
            begun = time.monotonic()
            try:
                process.begin()
            except ProgramOver as error:
                raise TrialFailed(
                    "Paceline saw no step of a torch optimizer, and a trial needs such steps (in trials, standard "
                    "input is empty)"
                ) from error
            self.start_s = min(self.start_s, time.monotonic() - begun)
            try:
                first = process.run_steps(10, _STEP_TIMEOUT_S, pause=False)
                step_s = first.seconds / first.steps
                most = math.ceil(_MOST_WATCHED * self._budget.diagnosis_s / step_s)
                more = max(min(_WATCHED_STEPS, most), math.ceil(self._budget.diagnosis_s / step_s))
                block = process.run_steps(more, 60.0 + 30 * more * step_s, pause=False)
                self._other_cores_watched.append(block.other_cores)
                needs, free = process.memory_bytes(), free_bytes()
                process.end()
            except ProgramOver:
                over = True
            run = read_run(process.folder)
            self._set_copies(process.gpus.memory, needs, free)
        if not run.ranks:
            raise TrialFailed("no training step was seen")
        self._total = _steps_after_first(run) if over else self._total
        return DiagnosisContext(run=run, recipe=recipe, cpu_flags=cpu_flags())

    def measure_variation(self, step_s: float, epoch_steps: int | None, *, waits: bool) -> None:
        """Measure by how much baseline processes differ in speed, if the budget allows it, and store the result.

        Args:
            step_s: Seconds of one step of the baseline.
            epoch_steps: Number of steps in an epoch, or None if unknown.
            waits: Whether the program waits for something outside the machine that continues while the program is
                paused.
        """
        self.step_s, self._epoch_steps = step_s, epoch_steps
        self._block_s = LONG_S if waits or self._on_gpu else SHORT_S
        if self._at_a_time < 2 or not self._budget.allows_variation(self.start_s, step_s):
            return
        ends = time.monotonic() + self._budget.variation_s
        with ExitStack() as stack:
            made = [stack.enter_context(self.start(BASELINE)) for _ in range(self._at_a_time)]
            going = [process for process in made if _starts_in_time(process, ends)]
            blocks = round(_LEARNT_S / self._block_s)
            found = [b for b in measure_copies(going, ends, step_s=step_s, block_s=self._block_s, blocks=blocks) if b]
        self.scatter, self.compared, self._noise = scatter_of(found), len(found), noise_prior(found)

    def _set_copies(self, memory: Sequence[GpuMemory], needs: int = 0, free: float | None = None) -> None:
        """Set how many copies of the program run side by side, given the GPU and host memory that one copy needs."""
        on_host = copies_that_fit(needs, None if free is None else free + needs)
        self._on_gpu, self._at_a_time = bool(memory), min(self._at_a_time, processes_that_fit(memory), on_host)
        self._equivalence.at_a_time = min(2, self._at_a_time)

    def compare(
        self, spec: ComparisonSpec, deadline: Deadline, earlier: Sequence[ComparisonRound] = ()
    ) -> ComparisonResult:
        """Compare two recipes until the result is certain or the time is up.

        Args:
            spec: The two recipes.
            deadline: When the comparison has to end.
            earlier: Rounds of an earlier, undecided comparison of the same recipes. This comparison continues them.

        Raises:
            TrialFailed: The candidate cannot run, or a setting of its recipe had no effect.
            NotMeasured: There was no time for a pair of blocks.
        """
        rounds = list(earlier)
        for _ in range(_MOST_ROUNDS + _MOST_SHORT):
            found = retry_once(partial(self._run_round, spec, rounds, deadline))
            rounds += [found] if found.pairs else []
            if time.monotonic() > deadline.usual or (rounds and self._is_settled(spec, rounds, len(earlier))):
                break
        if not rounds:
            over = f"too short to measure: the program ends after {self._total + 1} steps"
            raise TrialFailed(over) if self._total else NotMeasured(f"{NO_TIME} for a pair of blocks")
        return self._judge(spec, rounds)

    def _is_settled(self, spec: ComparisonSpec, rounds: Sequence[ComparisonRound], earlier: int) -> bool:
        """Return whether no further round is needed: the result is certain, not promising, or has enough rounds."""
        promising = self._gain(spec, [r.fair for r in rounds]).value >= self._goal.worth
        verdict = self._judge(spec, rounds).verdict
        return verdict != "undecided" or not promising or len(rounds) - earlier >= _MOST_ROUNDS

    def _run_round(
        self, spec: ComparisonSpec, earlier: Sequence[ComparisonRound], deadline: Deadline
    ) -> ComparisonRound:
        """Run a round in two processes, or in a new process for each block if only one process can run at a time."""
        if self._at_a_time > 1:
            try:
                found = self._run_side_by_side(spec, earlier, deadline)
            except ProgramFailed as error:
                if not self._must_run_alone(error):
                    raise
                found = self._run_restarted(spec, earlier, deadline)
            else:
                self._ran_side_by_side |= bool(found.pairs)
        else:
            found = self._run_restarted(spec, earlier, deadline)
        self._other_cores += [pair.other_cores for pair in (*found.warmup, *found.pairs)]
        return found

    def _must_run_alone(self, error: ProgramFailed) -> bool:
        """Return whether two copies of the program cannot run at the same time, because of memory, a port or a GPU."""
        full = self._on_gpu and _NO_MEMORY in str(error)
        if not full and self._can_run_twice is None:
            self._can_run_twice = not cannot_run_twice(partial(self.start, BASELINE))
        if full or self._can_run_twice is False:
            self._at_a_time = self._equivalence.at_a_time = 1
        return self._at_a_time == 1

    def _run_restarted(
        self, spec: ComparisonSpec, earlier: Sequence[ComparisonRound], deadline: Deadline
    ) -> ComparisonRound:
        begin = partial(wait_for_first_step, recipe=spec.after, deadline=deadline, start_s=self.start_s)
        limits = restarted_limits(spec, deadline, step_s=self.step_s, start_s=self.start_s, total=self._total)
        first = RestartedProcess(partial(self.start, spec.before), lambda one: one.begin(), spec.warmup_steps)
        second = RestartedProcess(partial(self.start, spec.after), begin, spec.warmup_steps)
        rule = self._stopping_rule(spec, earlier)
        return self._run_unless_refused(spec, first, second, partial(run_round, limits=limits, rule=rule))

    def _run_side_by_side(
        self, spec: ComparisonSpec, earlier: Sequence[ComparisonRound], deadline: Deadline
    ) -> ComparisonRound:
        begun = time.monotonic()
        with self.start(spec.before) as first, self.start(spec.after) as second:
            try:
                first.begin()
                wait_for_first_step(second, spec.after, deadline, self.start_s)
                deadline = deadline.later(begun, self.start_s)
                limits = side_by_side_limits(
                    spec, deadline, step_s=self.step_s, block_s=self._block_s, total=self._total
                )
                rule = self._stopping_rule(spec, earlier)
                found = self._run_unless_refused(spec, first, second, partial(run_round, limits=limits, rule=rule))
            except ProgramFailed as error:
                raise attribute_failure(error, first, _STEP_TIMEOUT_S) from error
        if found.over:
            self._total = max(found.steps, *(_recorded_steps(process) for process in (first, second)))
        return found

    def _stopping_rule(self, spec: ComparisonSpec, earlier: Sequence[ComparisonRound]) -> StoppingRule:
        """Return the rule that ends a round. The rule also counts the pairs of earlier rounds."""

        def gained(pairs: Sequence[BlockPair]) -> Interval:
            return self._gain(spec, [*(r.fair for r in earlier), pairs])

        rules = StoppingLimits(self._goal.worth, self.fewest, self._scatter(self._goal), len(earlier) + 1)
        return stopping_rule(gained, rules)

    def _run_unless_refused(
        self,
        spec: ComparisonSpec,
        first: BlockRunner,
        second: BlockRunner,
        play: Callable[[BlockRunner, BlockRunner], ComparisonRound],
    ) -> ComparisonRound:
        """Run a round.

        Raises:
            TrialFailed: A setting of the candidate was not applied. If the program refuses it, the error is raised
                after a few steps.
        """
        try:
            for process in (first, second):
                process.run_steps(_TELLING_STEPS, _STEP_TIMEOUT_S)
        except ProgramOver:
            found = ComparisonRound(warmup=[], pairs=[], over=True)
        else:
            require_applied(refused_settings(spec.after, second.folder))
            found = play(first, second)
        require_applied(unapplied_settings(spec.after, second.folder))
        return found

    def _gain(self, spec: ComparisonSpec, rounds: Sequence[Sequence[BlockPair]], goal: Goal | None = None) -> Interval:
        """Return the gain over the pairs of some rounds: the factor by which time or memory (the goal) is reduced."""
        goal = goal or self._goal
        credit = spec.progress if goal.aim == "time" else 1.0
        found = [[(v[0] * credit, v[1]) for pair in pairs if (v := goal.values(pair)) is not None] for pairs in rounds]
        return speed_up(found, self._scatter(goal), prior=self._noise if goal.aim == "time" else None)

    @property
    def fewest(self) -> int:
        """Number of pairs of blocks that a gain needs, unless the gain is certainly large."""
        return fewest_pairs(self._block_s) if self._goal.aim == "time" else 0

    def _scatter(self, goal: Goal) -> float:
        if self._at_a_time < 2 and not self._ran_side_by_side:
            return 0.0  # each pair is a pair of processes, so the noise of pairs includes the scatter between processes
        return self.scatter if goal.scatter is None else goal.scatter

    def _judge(self, spec: ComparisonSpec, rounds: Sequence[ComparisonRound]) -> ComparisonResult:
        fair = [r.fair for r in rounds]
        speedup, saving = self._gain(spec, fair, TIME), self._gain(spec, fair, MEMORY)
        verdict = verdict_so_far(self._gain(spec, fair), self._goal.worth, self.fewest) or "undecided"
        return ComparisonResult(
            speedup=speedup,
            saving=saving if saving.count else None,
            cpu_ratio=_cpu_ratio([pair for each in fair for pair in each]),
            rounds=rounds,
            verdict="slow" if verdict == "win" and speedup.value * SLOWEST < 1 else verdict,
        )

    def check_equivalence(self, recipe: Recipe, classes: Sequence[Safety], reference: Recipe) -> list[Check]:
        """Compare the results of the program's first steps under a recipe with those under a reference recipe.

        Args:
            recipe: The recipe to check.
            classes: The safety classes of the changes by which the recipe differs from the reference.
            reference: The recipe to compare with.

        Raises:
            TrialFailed: The program cannot run under one of the recipes.
        """
        span = steps_to_check(self.step_s, self._epoch_steps, self._total or None)
        return self._equivalence.check_equivalence(
            recipe, least_safe(classes), reference, span, fixed_draws="resampled" in classes
        )


def _starts_in_time(process: TrialProcess, ends: float) -> bool:
    """Return whether a process reaches its first step in time. Some programs fail to start from time to time."""
    try:
        process.begin(max(1.0, ends - time.monotonic()))
    except TrialFailed:
        return False
    return True


def _steps_after_first(run: Run) -> int:
    """Return the number of steps of the first rank without the first step, which does not count; 0 without a record."""
    return len(run.ranks[0].steps) - 1 if run.ranks else 0


def _recorded_steps(process: TrialProcess) -> int:
    """Return the number of recorded steps after the first, or 0 if the process has no record yet."""
    try:
        return _steps_after_first(read_run(process.folder))
    except RecordError:
        return 0


def _cpu_ratio(pairs: Sequence[BlockPair]) -> float | None:
    """Return the CPU time of the baseline divided by that of the candidate, or None if the latter is zero."""
    baseline, candidate = sum(p.baseline.cpu_s for p in pairs), sum(p.candidate.cpu_s for p in pairs)
    return baseline / candidate if candidate > 0 else None


def watch_baseline(runner: TrialRunner, report: Callable[[str], None]) -> DiagnosisContext:
    """Watch the unchanged program and return its diagnosis context.

    Raises:
        TrialFailed: The program cannot run, or it connects to the network, which is not allowed.
    """
    report(runner.isolation.in_words())
    report("measuring the unchanged program")
    try:
        found = runner.watch(BASELINE)
    except ProgramFailed as error:
        _check_network(runner)
        if not runner.isolation.by_kernel:
            raise
        raise ProgramFailed(f"{error}; if it runs without paceline tune, use --python-sandbox") from error
    except TrialFailed:
        _check_network(runner)
        raise
    _check_network(runner)
    return found


def _check_network(runner: TrialRunner) -> None:
    peers = network_peers(runner.last_folder)
    if peers and not runner.isolation.allows_network:
        raise TrialFailed(
            f"it opens connections to {list_peers(peers)}, and each trial would do the same; nothing was sent so far. "
            f"If that is harmless, use --allow-network; if not, switch it off in the program"
        )
