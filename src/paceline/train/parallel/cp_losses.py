"""Checks in the first steps with cp that a loss uses all positions of a rank's part of the sequences.

A loss in a training loop of the user gets the outputs of this rank's positions only. If it predicts the next position
(`output[:, :-1]` and `tokens[:, 1:]`), it leaves out the last position of each part, and not only that of the sequence.
If it uses the last or first position only, such as a classifier, it uses one of each part. The gradient of the output
shows both.
"""

from __future__ import annotations

from typing import Any

from paceline.core.errors import UsageError
from paceline.train.parallel import cp, cp_check
from paceline.train.ranks.world import World

_FIRST = 8  # backward passes that are looked at
_MOST = 2  # passes in which padding can look like such a loss by chance


def watch(module: Any, world: World) -> None:
    """Check the gradients of the outputs of a module in its first calls in training.

    Args:
        module: The module that is called.
        world: The ranks.
    """
    import torch

    counts = {"seen": 0, "partial": 0}

    def look(gradient: Any) -> None:
        counts["seen"] += 1
        counts["partial"] += _is_partial(gradient, world.position("cp"), world.layout.cp)
        if counts["partial"] == _MOST and counts["seen"] <= _FIRST:
            raise UsageError(
                f"{world.layout}: the loss uses only some positions of this rank's part of the sequences, so the rank "
                "leaves out positions that one process uses, or uses others. With cp, a loss must be a mean over all "
                "positions, each with its own target: shift the targets in the data set instead of in the loss, or use "
                "shard or tp instead of cp"
            )

    def hook(called: Any, args: Any, kwargs: Any, output: Any) -> None:
        if not called.training or not torch.is_grad_enabled() or counts["seen"] >= _FIRST or cp_check.is_postponed():
            return
        length = cp.length_of((args, kwargs))
        for value in cp_check.tensors_of(output):
            if value.requires_grad and cp.is_split(value, length):
                value.register_hook(look)

    module.register_forward_hook(hook, with_kwargs=True)


def _is_partial(gradient: Any, part: int, parts: int) -> bool:
    """Return whether positions next to another rank's part have no gradient, or are the only ones that have one.

    Args:
        gradient: The gradient of an output, [batch, length, ...].
        part: The number of this rank's part.
        parts: The number of parts.
    """
    used = (gradient != 0).transpose(0, 1).flatten(1).any(1).tolist()
    ends = ([used] if part else []) + ([used[::-1]] if part < parts - 1 else [])
    return any(len(end) > 1 and (end[0] != end[1]) and (end[1] or not any(end[1:])) for end in ends)
