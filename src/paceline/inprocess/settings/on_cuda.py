"""Report at the first optimizer step whether a setting for CUDA devices is in effect.

Only then is it known on which device the program trains, and which settings the program itself has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.inprocess.gpu_detection import has_gpu
from paceline.inprocess.settings import confirmation


def told_at_first_step(torch: Any, key: str, what: str, why_not: Callable[[Any, Any], str | None]) -> bool:
    """Report at the first optimizer step whether a setting is in effect.

    Args:
        torch: The module.
        key: The setting.
        what: A description of its effect.
        why_not: Called with the optimizer and its device; returns why the setting is not in effect, or None if it is.

    Returns:
        Whether there is a CUDA device. If not, the setting is reported as not applied. The call does not initialise a
        device.
    """
    if not has_gpu(torch):
        confirmation.refused(key, "there is no CUDA device")
        return False

    def look(optimizer: Any) -> None:
        try:
            reason = _reason(optimizer, why_not)
        except Exception as error:  # an error must not end the program's step
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
