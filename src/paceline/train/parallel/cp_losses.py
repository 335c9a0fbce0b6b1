"""Refuses losses that are wrong with `cp` because they treat a part of a sequence as the whole sequence.

With `cp`, the loss of a user's training loop gets the output for this rank's positions only. A loss that compares
`output[:, :-1]` with `tokens[:, 1:]` then skips the last position of every part, not only the last position of the
sequence. A loss of `output[:, -1]` uses one position of every part. In both cases, the gradient of the output is zero
at other positions than in one process.
"""

from __future__ import annotations

from typing import Any

from paceline.core.errors import UsageError
from paceline.train.parallel import cp, cp_check
from paceline.train.ranks.world import World

_CHECKED = 8  # backward passes; in a few of them, padding can have the same effect by chance


def register(module: Any, world: World) -> None:
    """Register a hook that refuses a loss if it skips such positions in each of the first backward passes.

    Args:
        module: The module that is called.
        world: The ranks.
    """
    import torch

    results: list[bool] = []

    def check(gradient: Any) -> None:
        if len(results) >= _CHECKED:
            return
        results.append(_skips_positions(gradient, world.position("cp"), world.layout.cp))
        if len(results) == _CHECKED and all(results):
            raise UsageError(
                f"{world.layout}: the loss skips a position where the sequence is split between ranks, or uses only "
                "this position. With cp, the loss must be a mean over all positions of this rank: shift the targets in "
                "the data set instead of in the loss, or use shard or tp instead of cp. To train without this check, "
                "set first_step = false in the section [checks] of the recipe"
            )

    def register_check(called: Any, args: Any, kwargs: Any, output: Any) -> None:
        is_training = called.training and torch.is_grad_enabled() and not cp_check.is_postponed()
        if not is_training or len(results) >= _CHECKED:
            return
        length = cp.length_of((args, kwargs))
        for value in cp_check.tensors_of(output):
            if value.requires_grad and cp.is_split(value, length):
                value.register_hook(check)

    module.register_forward_hook(register_check, with_kwargs=True)


def _skips_positions(gradient: Any, part: int, parts: int) -> bool:
    """Return whether a position next to another rank's part has no gradient, or is the only position with a gradient.

    Args:
        gradient: The gradient of an output, [batch, length, ...].
        part: The number of this rank's part.
        parts: The number of parts.
    """
    used = (gradient != 0).transpose(0, 1).flatten(1).any(1).tolist()
    ends = ([used] if part else []) + ([used[::-1]] if part < parts - 1 else [])
    return any(len(end) > 1 and (end[0] != end[1]) and (end[1] or not any(end[1:])) for end in ends)
