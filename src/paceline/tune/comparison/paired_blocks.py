"""Alternating blocks of the same steps in two processes, until the difference in speed is certain.

The baseline and the candidate each run in processes of their own, and one of them is always stopped. Both make steps
[k, k + n), in alternating order, so that changes of the machine's speed and differences between steps affect both.
Short blocks are better: on a virtual machine whose cores ran at 1.0 or 0.4 times their speed for seconds at a time,
20 s of blocks of 0.6 s resolved differences of 3.6%, and blocks of 0.08 s resolved 1.5%. But a request or a sleep goes
on while its process is stopped, so a program that waits for data has long blocks. Pairs during which other programs
used cores are left out, whatever their result.

Batches that were ready when a block began were made at another time. A queue of 64 feeds many short blocks: their steps
were 915 times as fast as those of a loader that is 17 times as fast. So blocks are a warm-up while most of their
batches come from the queue. In the blocks that count, the batches by which the queue became shorter are subtracted.
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

SHORT_S, LONG_S = 0.12, 0.6  # of the faster of both, about
MOST_BLOCK_S = 3.0  # of the slower
LEAST_STEPS = 4  # of a block; fewer where they take longer than a long block
_SETTLED = 1.5  # a block within this factor of the best so far is no warm-up
_MOST_WARMUP = 3  # pairs
_FROM_QUEUE = 0.25  # of the steps of a block: if it took more of them from the queue, it is a warm-up
_BUSY_CORES = 0.3  # taken by others: more than this sets a pair aside
_SLACK = 30.0  # times longer than expected: it hangs
_FUTILE = (0.9, 1.15)  # speed-up, and its upper end: who is so much slower is not looked at any longer
_PROMISING = (1.05, 0.8)  # speed-up, and its lower end
_SHARP = 1.2  # an interval whose ends are this close says enough
_ROUGH = 2.0  # its ends are no further apart than this factor, if some pairs are enough for that
_FEWEST_PAIRS, _ENOUGH_LARGE, _ENOUGH_PAIRS = 4, 6, 12


class BlockRunner(Protocol):
    """One side of a comparison: the program under a recipe, in one process for all blocks or in a new one for each."""

    folder: Path

    def run_steps(self, steps: int, timeout_s: float, *, pause: bool = True) -> StepBlock:
        """Let the program make so many optimizer steps."""


@dataclass(frozen=True, kw_only=True)
class BlockPair:
    """One block under the baseline and one under the candidate, of the same steps."""

    baseline: StepBlock
    candidate: StepBlock

    @property
    def other_cores(self) -> float:
        """Cores that other programs used, in the block in which they used more."""
        return max(self.baseline.other_cores, self.candidate.other_cores)


@dataclass(frozen=True, kw_only=True)
class ComparisonRound:
    """One process of the baseline and one of the candidate, which run blocks in turn."""

    warmup: Sequence[BlockPair]
    pairs: Sequence[BlockPair]
    over: bool  # the program came to its end

    @property
    def steps(self) -> int:
        """Optimizer steps that each of both has made in whole blocks."""
        return sum(p.baseline.steps for p in [*self.warmup, *self.pairs])

    @property
    def fair(self) -> Sequence[BlockPair]:
        """The pairs that count."""
        return fair_pairs(self.pairs)


@dataclass(frozen=True, kw_only=True)
class RoundLimits:
    """The limits of a round: the length of its blocks and its time."""

    step_s: float  # seconds of a step of the baseline, about
    block_s: float  # seconds of a block of the faster of both, about
    most_steps: int  # of a block: of a program that is soon over
    warmup_steps: int  # that do not count, at least
    budget_s: float  # to stop after
    most_s: float  # to stop after where it looks like a win, but is not certain yet
    large_s: float  # to stop after where it looks like a large win
    warm: bool = False  # whether each block begins warm, because its process made other steps before


def fair_pairs(pairs: Sequence[BlockPair]) -> list[BlockPair]:
    """Return the pairs that nobody disturbed, or all where most were; their seconds are those of steps in the long run.

    Pairs under changed clocks of a GPU are left out too (`trials.gpus`).

    Returns:
        None of the pairs, if the batches of one of both were all made before.
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
    """Return how many times longer steps take when no batch was made before; infinite if all were.

    A queue that became longer says nothing: training was the slower of the two.
    """
    steps = sum(block.steps for block in blocks)
    queued = max(0.0, sum(block.from_queue or 0.0 for block in blocks))
    return steps / (steps - queued) if queued < steps else math.inf if steps else 1.0


def _scale_seconds(block: StepBlock, factor: float) -> StepBlock:
    return replace(block, seconds=block.seconds * factor)


Outlook = Literal["open", "promising", "large"]  # what a comparison that is not decided yet looks like


@dataclass(frozen=True, kw_only=True)
class StoppingRule:
    """Decides from the pairs so far whether a round is long enough."""

    enough: Callable[[Sequence[BlockPair]], bool]
    outlook: Callable[[Sequence[BlockPair]], Outlook]


def run_round(
    baseline: BlockRunner, candidate: BlockRunner, limits: RoundLimits, rule: StoppingRule
) -> ComparisonRound:
    """Run blocks of both in turn until the stopping rule holds, the program ends, or the time is up.

    Args:
        baseline: The program as it is.
        candidate: The same under a recipe.
        limits: How long blocks and the round are.
        rule: Say when that is enough, and what more time may show.
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
    """Run the same steps in several copies of the program, in turn; return the seconds of the blocks of each."""
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
        if block:  # the first warms up
            for times, process in zip(found, processes, strict=True):
                times.append(seconds[id(process)])
    return found


def _run_pairs(baseline: BlockRunner, candidate: BlockRunner, limits: RoundLimits) -> Iterator[BlockPair | None]:
    """Yield pairs of blocks in alternating order; None when the program has ended."""
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
    """Return how many steps make a block, by the seconds of a step in the faster and in the slower of two."""
    wanted, most = math.ceil(block_s / max(faster_s, 1e-6)), math.floor(MOST_BLOCK_S / max(slower_s, 1e-6))
    least = min(LEAST_STEPS, math.ceil(LONG_S / max(faster_s, 1e-6)))
    return max(least, min(wanted, most))


def _fed_from_queue(pair: BlockPair) -> bool:
    """Return whether a block of the pair took many batches from its queue and the queue is not empty."""
    return any(
        (block.from_queue or 0.0) > _FROM_QUEUE * block.steps and bool(block.queued)
        for block in (pair.baseline, pair.candidate)
    )


def _warmed_up(pairs: Sequence[BlockPair]) -> bool:
    """Return whether both have warmed up: the last block is about as fast as the fastest block before it."""
    if len(pairs) < 2:
        return False
    both = ([p.baseline.step_s for p in pairs], [p.candidate.step_s for p in pairs])
    return all(times[-1] <= _SETTLED * min(times) for times in both)


@dataclass(frozen=True)
class StoppingLimits:
    """What decides whether a gain is certain enough.

    Attributes:
        worth: Factor below which a gain is not worth having.
        fewest: Pairs that a small gain needs.
        scatter: Standard deviation of the log of what is to be gained, between processes.
        rounds: Rounds of the comparison, this one included.
    """

    worth: float
    fewest: int
    scatter: float
    rounds: int


def stopping_rule(gained: Callable[[Sequence[BlockPair]], Interval], rules: StoppingLimits) -> StoppingRule:
    """Return the rule that ends a round.

    Args:
        gained: Returns the gain by the pairs of the round so far, and by those of earlier rounds.
        rules: What it is judged by.
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
