"""Alternating blocks of the same steps in two processes, until the difference in speed is certain.

The baseline and the candidate run in one process each, and one of the two processes is always paused. Both run steps
[k, k + n), in alternating order, so that changes of the machine's speed and differences between steps affect both.
Short blocks are better: on a virtual machine whose cores ran at 1.0 or 0.4 times their speed for seconds at a time,
20 s of blocks of 0.6 s resolved differences of 3.6%, and 20 s of blocks of 0.08 s resolved 1.5%. However, a network
request or a sleep continues while its process is paused, so a program that waits for data gets long blocks. Pairs
during which other programs used CPU cores are left out, whatever their result.

Batches that are in the queue of the loader when a block begins were made before the block. A queue of 64 batches lasts
for many short blocks: with one loader, such steps looked 915 times as fast as the baseline, but the loader was only 17
times as fast. So a block counts as warm-up while many of its batches come from the queue and the queue is not empty. In
the blocks that count, the batches by which the queue became shorter are subtracted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from paceline.core.statistics import Interval
from paceline.tune.comparison.statistics import LARGE, needs_new_processes, verdict_so_far
from paceline.tune.trials.blocks import ProgramOver, StepBlock
from paceline.tune.trials.gpus import pairs_with_changed_clocks
from paceline.tune.trials.process import TrialProcess

SHORT_S, LONG_S = 0.12, 0.6  # approximate seconds of a block of the faster side
MOST_BLOCK_S = 3.0  # most seconds of a block of the slower side
LEAST_STEPS = 4  # least number of steps in a block; fewer if these steps take longer than LONG_S
_SETTLED = 1.5  # a block within this factor of the fastest earlier block is not a warm-up
_MOST_WARMUP = 3  # most pairs that count as warm-up because their speed still changes
_FROM_QUEUE = 0.25  # share of steps; a block that took more batches than this from the queue is a warm-up
_BUSY_CORES = 0.3  # a pair is left out if other programs used more cores than this
_SLACK = 30.0  # a block that takes this many times its expected time hangs
_FUTILE = (0.9, 1.15)  # a comparison ends if the speed-up and the interval's upper end are below these values
# a comparison gets more time if the speed-up and the interval's lower end are above these values
_PROMISING = (1.05, 0.8)
_SHARP = 1.2  # an interval is narrow enough if upper end / lower end is at most this factor
_ROUGH = 2.0  # the same for a large speed-up, which needs fewer pairs
_FEWEST_PAIRS, _ENOUGH_LARGE, _ENOUGH_PAIRS = 4, 6, 12


class BlockRunner(Protocol):
    """The program under one of the two recipes of a comparison.

    The program runs in one process for all blocks, or in a new process for each block.
    """

    folder: Path

    def run_steps(self, steps: int, timeout_s: float, *, pause: bool = True) -> StepBlock:
        """Run the program for the given number of optimizer steps and return the measured block."""


@dataclass(frozen=True, kw_only=True)
class BlockPair:
    """One block under the baseline and one block under the candidate, over the same steps."""

    baseline: StepBlock
    candidate: StepBlock

    @property
    def other_cores(self) -> float:
        """Mean number of cores that other programs used during a block; the larger number of the two blocks."""
        return max(self.baseline.other_cores, self.candidate.other_cores)


@dataclass(frozen=True, kw_only=True)
class ComparisonRound:
    """The blocks of one baseline process and one candidate process, which took turns."""

    warmup: Sequence[BlockPair]
    pairs: Sequence[BlockPair]
    over: bool  # whether the program ended

    @property
    def steps(self) -> int:
        """Number of optimizer steps that each side made, warm-up included."""
        return sum(p.baseline.steps for p in [*self.warmup, *self.pairs])

    @property
    def fair(self) -> Sequence[BlockPair]:
        """The pairs that were not disturbed by other programs or by changed GPU clocks, from `fair_pairs`."""
        return fair_pairs(self.pairs)


@dataclass(frozen=True, kw_only=True)
class RoundLimits:
    """The limits of a round: the length of its blocks, its warm-up steps, and its time limits."""

    step_s: float  # approximate seconds of one step of the baseline
    block_s: float  # approximate seconds of one block of the faster side
    most_steps: int  # most steps in a block; limits the blocks of a short program
    warmup_steps: int  # least number of steps that do not count
    budget_s: float  # time limit of the round
    most_s: float  # time limit if the candidate is probably faster, but not certainly yet
    large_s: float  # time limit if the candidate is probably much faster
    warm: bool = False  # whether each block starts warm, because its process made other steps before


def fair_pairs(pairs: Sequence[BlockPair]) -> list[BlockPair]:
    """Return the pairs that count, with their seconds corrected for batches from the loader's queue (`queue_factor`).

    Pairs are left out if other programs used the cores or if the clocks of a GPU changed (`trials.gpus`). If more
    than half of the pairs would be left out, all pairs count.

    Returns:
        The pairs; an empty list if all batches of one side were made before its blocks.
    """
    factors = queue_factor([p.baseline for p in pairs]), queue_factor([p.candidate for p in pairs])
    if math.inf in factors:
        return []
    changed = pairs_with_changed_clocks([(p.baseline.gpu, p.candidate.gpu) for p in pairs])
    quiet = [p for i, p in enumerate(pairs) if p.other_cores <= _BUSY_CORES and i not in changed]
    some = quiet if 2 * len(quiet) >= len(pairs) else pairs
    return [
        BlockPair(
            baseline=_scale_seconds(pair.baseline, factors[0]), candidate=_scale_seconds(pair.candidate, factors[1])
        )
        for pair in some
    ]


def queue_factor(blocks: Sequence[StepBlock]) -> float:
    """Return the factor by which steps would be slower if no batch had been loaded before the block began.

    The factor is infinite if all steps used such batches. It is 1 if the queue grew in the blocks, because training was
    then slower than the loader.
    """
    steps = sum(block.steps for block in blocks)
    queued = max(0.0, sum(block.from_queue or 0.0 for block in blocks))
    return steps / (steps - queued) if queued < steps else math.inf if steps else 1.0


def _scale_seconds(block: StepBlock, factor: float) -> StepBlock:
    return replace(block, seconds=block.seconds * factor)


Outlook = Literal["open", "promising", "large"]  # whether more time may show a gain, while a comparison is undecided


@dataclass(frozen=True, kw_only=True)
class StoppingRule:
    """Decides from the pairs measured so far whether a round is long enough, and how promising the candidate is."""

    enough: Callable[[Sequence[BlockPair]], bool]
    outlook: Callable[[Sequence[BlockPair]], Outlook]


def run_round(
    baseline: BlockRunner, candidate: BlockRunner, limits: RoundLimits, rule: StoppingRule
) -> ComparisonRound:
    """Run blocks of both sides in turn until the stopping rule is met, the program ends, or the time is up.

    Args:
        baseline: The unchanged program.
        candidate: The program under the candidate's recipe.
        limits: The length of the blocks and of the round.
        rule: Decides when the round is long enough, and which of its time limits applies.
    """
    begun = time.monotonic()
    patience_s = {"open": limits.budget_s, "promising": limits.most_s, "large": max(limits.most_s, limits.large_s)}
    warm: list[BlockPair] = []
    pairs: list[BlockPair] = []
    for pair in _run_pairs(baseline, candidate, limits):
        if pair is None:
            return ComparisonRound(warmup=warm, pairs=pairs, over=True)
        early = sum(p.baseline.steps for p in [*warm, pair]) <= limits.warmup_steps
        unsettled = not limits.warm and len(warm) < _MOST_WARMUP and not _warmed_up([*warm, pair])
        if early or (not pairs and (unsettled or _fed_from_queue(pair))):
            warm.append(pair)
        else:
            pairs.append(pair)
        if pairs and rule.enough(fair_pairs(pairs)):
            break
        if time.monotonic() - begun > patience_s[rule.outlook(fair_pairs(pairs))]:
            break
    return ComparisonRound(warmup=warm, pairs=pairs, over=False)


def measure_copies(
    processes: Sequence[TrialProcess], ends: float, *, step_s: float, block_s: float, blocks: int
) -> list[list[float]]:
    """Run the same steps in several copies of the program, in turn.

    Returns:
        For each copy, the seconds of its blocks, without the first block (warm-up).
    """
    steps = steps_per_block(step_s, step_s, block_s)
    found: list[list[float]] = [[] for _ in processes]
    for block in range(blocks + 1):
        if time.monotonic() > ends:
            break
        turn = processes if block % 2 else processes[::-1]
        try:
            seconds = {
                id(process): process.run_steps(steps, 60.0 + _SLACK * steps * step_s).seconds for process in turn
            }
        except ProgramOver:
            break
        if block:  # the first block is a warm-up
            for times, process in zip(found, processes, strict=True):
                times.append(seconds[id(process)])
    return found


def _run_pairs(baseline: BlockRunner, candidate: BlockRunner, limits: RoundLimits) -> Iterator[BlockPair | None]:
    """Yield pairs of blocks, with alternating order of the two sides, and None at the end of the program."""
    step_s, most_steps = limits.step_s, limits.most_steps
    steps, first_is_baseline = min(most_steps, steps_per_block(step_s, step_s, limits.block_s)), True
    while True:
        order = (baseline, candidate) if first_is_baseline else (candidate, baseline)
        try:
            blocks = [process.run_steps(steps, 60.0 + _SLACK * steps * step_s) for process in order]
        except ProgramOver:
            yield None
            return
        if not first_is_baseline:
            blocks.reverse()
        yield BlockPair(baseline=blocks[0], candidate=blocks[1])
        faster, slower = sorted(block.step_s for block in blocks)
        steps = min(most_steps, 2 * steps, max(steps, steps_per_block(faster, slower, limits.block_s)))
        first_is_baseline = not first_is_baseline


def steps_per_block(faster_s: float, slower_s: float, block_s: float) -> int:
    """Return the number of steps in a block, so that it takes about `block_s` seconds on the faster side.

    Args:
        faster_s: Seconds of a step on the faster side.
        slower_s: Seconds of a step on the slower side, which limits the length of the block.
        block_s: The wanted duration of a block in seconds.
    """
    wanted, most = math.ceil(block_s / max(faster_s, 1e-6)), math.floor(MOST_BLOCK_S / max(slower_s, 1e-6))
    least = min(LEAST_STEPS, math.ceil(LONG_S / max(faster_s, 1e-6)))
    return max(least, min(wanted, most))


def _fed_from_queue(pair: BlockPair) -> bool:
    """Return whether a block of the pair took many batches from the loader's queue, and this queue is not empty yet."""
    return any(
        (block.from_queue or 0.0) > _FROM_QUEUE * block.steps and bool(block.queued)
        for block in (pair.baseline, pair.candidate)
    )


def _warmed_up(pairs: Sequence[BlockPair]) -> bool:
    """Return whether both sides are warmed up: the last block of each is about as fast as its fastest block so far."""
    if len(pairs) < 2:
        return False
    both = ([p.baseline.step_s for p in pairs], [p.candidate.step_s for p in pairs])
    return all(times[-1] <= _SETTLED * min(times) for times in both)


@dataclass(frozen=True)
class StoppingLimits:
    """The limits by which a comparison decides that a gain is certain enough.

    Attributes:
        worth: Gains below this factor are not worth having.
        fewest: Number of pairs that a small gain needs.
        scatter: Standard deviation between processes of the log of the compared quantity.
        rounds: Number of rounds of the comparison, this one included.
    """

    worth: float
    fewest: int
    scatter: float
    rounds: int


def stopping_rule(gained: Callable[[Sequence[BlockPair]], Interval], rules: StoppingLimits) -> StoppingRule:
    """Return the rule that ends a round.

    Args:
        gained: Function that returns the gain over the pairs of this round, which are its argument, and of earlier
            rounds.
        rules: The limits of the rule.
    """

    def enough(pairs: Sequence[BlockPair]) -> bool:
        found = gained(pairs)
        if found.low >= LARGE or found.high <= 1 / LARGE:
            most = _ENOUGH_LARGE if math.isfinite(found.high) else max(_ENOUGH_PAIRS, rules.fewest)
            return found.high <= _ROUGH * found.low or len(pairs) >= most
        if len(pairs) < _FEWEST_PAIRS:
            return False
        if found.high < rules.worth or (found.value < _FUTILE[0] and found.high < _FUTILE[1]):
            return True
        if verdict_so_far(found, rules.worth, rules.fewest) is None:
            many = len(pairs) >= max(_ENOUGH_PAIRS, rules.fewest)
            return many and needs_new_processes(found, rules.scatter, rules.rounds)
        return found.high <= _SHARP * found.low or len(pairs) >= _ENOUGH_PAIRS

    def outlook(pairs: Sequence[BlockPair]) -> Outlook:
        found = gained(pairs)
        if verdict_so_far(found, rules.worth, rules.fewest) is not None:
            return "open"
        if found.value >= LARGE and (found.low >= _PROMISING[1] or found.count < rules.fewest):
            return "large"
        return "promising" if found.value >= _PROMISING[0] and found.low >= _PROMISING[1] else "open"

    return StoppingRule(enough=enough, outlook=outlook)
