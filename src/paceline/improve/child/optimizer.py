"""[optimizer]: one kernel for all parameters where the program did not choose itself; 8-bit state; learning rate."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from paceline.improve.child import eight_bit, held, rates


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Change every optimizer of torch's that has the choice."""
    if "lr_factor" in settings:
        rates.patch(torch, settings["lr_factor"])
    if settings.get("state_8bit"):
        eight_bit.patch(torch)
    for kind in vars(torch.optim).values():
        if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer):
            continue
        for key in ("fused", "foreach"):
            if settings.get(key) and key in inspect.signature(kind).parameters:
                _patch_init(kind, key)


def _patch_init(kind: Any, key: str) -> None:
    original = kind.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind_partial(self, *args, **kwargs).arguments
        given = given | given.get("kwargs", {})
        chosen = [name for name in ("fused", "foreach") if given.get(name) is not None]
        if type(self) is not kind or chosen:
            held.refused(
                f"optimizer.{key}", f"the program passed {type(self).__name__} {chosen or 'a class of its own'}"
            )
            original(self, *args, **kwargs)
            return
        original(self, *args, **{**kwargs, key: True})
        held.took(f"optimizer.{key}", f"{kind.__name__}({key}=True)")

    kind.__init__ = __init__
