"""Is a norm of gradients a plain number? Of split weights torch gives a DTensor, and scripts print it."""

from __future__ import annotations

import functools
from typing import Any

from paceline.train.unmodified import shards
from paceline.train.unmodified.state import Spread


def patch(spread: Spread) -> None:
    """Give clipping the weights that are trained, and return norms as one process would."""
    owner = spread.torch.nn.utils.clip_grad
    for name in ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_"):
        if hasattr(owner, name):
            replaced = _replaced(getattr(owner, name))
            setattr(owner, name, replaced)
            setattr(spread.torch.nn.utils, name, replaced)


def _replaced(original: Any) -> Any:
    @functools.wraps(original)
    def clip(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        given = [tensors] if hasattr(tensors, "grad_fn") else list(tensors)
        found = original([shards.now(each) for each in given], *args, **kwargs)
        return found.full_tensor() if hasattr(found, "full_tensor") else found

    return clip
