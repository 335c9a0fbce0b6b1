"""optimizer.lr_factor: multiply learning rates by a factor, for another batch size."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.settings import confirmation

_KEY = "optimizer.lr_factor"
_OWN_RATES = {"OneCycleLR": ("max_lr",), "CyclicLR": ("base_lr", "max_lr")}  # schedules with rates as arguments


def patch(torch: Any, factor: float) -> None:
    """Multiply the learning rates of new optimizers and of new schedules."""
    _patch_optimizers(torch.optim.Optimizer, factor)
    for name, arguments in _OWN_RATES.items():
        _patch_schedule(getattr(torch.optim.lr_scheduler, name), arguments, factor)


def _patch_optimizers(kind: Any, factor: float) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        groups = [group for group in self.param_groups if "lr" in group]
        for group in groups:
            group["lr"] = group["lr"] * factor
        if groups:
            confirmation.took(
                _KEY, f"{type(self).__name__}: {groups[0]['lr']:.6g} instead of {groups[0]['lr'] / factor:.6g}"
            )

    hooks.install(kind, "__init__", __init__)


def _patch_schedule(kind: Any, arguments: tuple[str, ...], factor: float) -> None:
    original = kind.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs).arguments
        except TypeError:  # the program's own error, which torch reports
            original(self, *args, **kwargs)
            return
        for name in arguments:
            given = bound[name]
            bound[name] = [r * factor for r in given] if isinstance(given, list | tuple) else given * factor
        original(**bound)

    hooks.install(kind, "__init__", __init__)
