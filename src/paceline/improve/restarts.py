"""A program under one recipe, started anew for each block: for GPUs whose memory has no room for two processes.

Both sides of a comparison make the same steps, after the same warm-up steps, each in a process that has the GPU for
itself. A pair of blocks then is a pair of processes, so the scatter between processes is part of the noise of a pair.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.improve.contest import Contest, Until
from paceline.improve.pairing import RoundLimits
from paceline.improve.trials import Block, Player

_BLOCK_S = 3.0  # a process that took seconds to start makes longer blocks
_WARMUP_STEPS = 5  # before each block, at least
_LEAST_PAIRS = 4  # for which there is time in a round, whatever the budget
_ANY = 1 << 30


def restarted_limits(contest: Contest, until: Until, *, step_s: float, start_s: float, total: int) -> RoundLimits:
    """Return how a round is cut in which each block has a process of its own.

    Args:
        contest: The two recipes.
        until: When the comparison has to end.
        step_s: Seconds of a step of the baseline, about.
        start_s: Seconds until its first step.
        total: Steps of the whole program; 0 if that is not known.
    """
    warmup = max(_WARMUP_STEPS, contest.warmup_steps)
    least_s = _LEAST_PAIRS * 2 * (start_s + warmup * step_s + _BLOCK_S)
    return RoundLimits(
        step_s=step_s,
        block_s=_BLOCK_S,
        most_steps=max(1, total - warmup - 1) if total else _ANY,
        warmup_steps=0,
        budget_s=max(least_s, until.usual - time.monotonic()),
        most_s=max(least_s, until.promising - time.monotonic()),
        large_s=max(least_s, until.large - time.monotonic()),
        warm=True,
    )


class RestartedPlayer:
    """Plays each block in a new process, which ends with it."""

    def __init__(self, made: Callable[[], Player], begin: Callable[[Player], Any], warmup_steps: int) -> None:
        """Prepare; nothing is started yet.

        Args:
            made: Starts the program.
            begin: Waits for its first step.
            warmup_steps: Steps that each process makes before its block, at least.
        """
        self._made = made
        self._begin = begin
        self._warmup_steps = max(_WARMUP_STEPS, warmup_steps)
        self.folder = Path()  # of the process that was started last

    def play(self, steps: int, timeout_s: float, *, pause: bool = True) -> Block:
        """Start the program, let it warm up and make so many steps, and end it.

        Raises:
            ProgramOver: It came to its end before.
            TrialFailed: It hung, or failed.
        """
        with self._made() as player:
            self.folder = player.folder
            self._begin(player)
            player.play(self._warmup_steps, timeout_s)
            return player.play(steps, timeout_s, pause=pause)
