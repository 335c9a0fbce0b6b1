"""Is a setting for CUDA devices in force? Told at the first optimizer step.

Not before is it known where the program trains, and what it has set itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.inprocess.gpu_detection import has_gpu
from paceline.inprocess.settings import confirmation


def told_at_first_step(torch: Any, key: str, what: str, why_not: Callable[[Any, Any], str | None]) -> bool:
    """Have it told at the first optimizer step whether a setting is in force.

    Args:
        torch: The module.
        key: The setting.
        what: What it means where it is in force.
        why_not: From the optimizer and its device to why it is not in force, or None.

    Returns:
        False where there is no CUDA device; that is told at once. The device is not touched for it.
    """
    if not has_gpu(torch):
        confirmation.refused(key, "there is no CUDA device")
        return False

    def look(optimizer: Any) -> None:
        try:
            reason = _reason(optimizer, why_not)
        except Exception as error:  # the program's step shall not end for it
            reason = f"{type(error).__name__}: {error}"
        if reason is None:
            confirmation.took(key, what)
        else:
            confirmation.refused(key, reason)

    _at_first_step(look)
    return True


def _reason(optimizer: Any, why_not: Callable[[Any, Any], str | None]) -> str | None:
    devices = [p.device for group in optimizer.param_groups for p in group["params"]]
    on_cuda = [device for device in devices if device.type == "cuda"]
    return why_not(optimizer, on_cuda[0]) if on_cuda else f"training is on {devices[0].type}"


def _at_first_step(look: Callable[[Any], None]) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    waiting = [look]

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        while waiting:
            waiting.pop()(optimizer)

    register_optimizer_step_post_hook(after)
