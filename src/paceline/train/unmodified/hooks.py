"""Which hooks of the program's would see a part of the rows? Those on weights, which act before ranks exchange."""

from __future__ import annotations

from typing import Any

from paceline.train.unmodified.state import Spread


def check(spread: Spread, weight: Any) -> None:
    """Refuse a hook on a weight."""
    if weight._backward_hooks:
        spread.refuse(
            "a hook on a weight (register_hook) would get the gradient of one rank only; change gradients between "
            "backward() and the optimizer step, for example with torch.nn.utils.clip_grad_value_"
        )
