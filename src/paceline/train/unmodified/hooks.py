"""Which hooks of the program's would see a part of the rows? Those on weights, which act before ranks exchange."""

from __future__ import annotations

from typing import Any

from paceline.train.unmodified.state import Spread


def check(spread: Spread, weight: Any) -> None:
    """Refuse a hook on a weight."""
    if weight._backward_hooks:
        spread.refuse(
            "a hook on a weight (register_hook) would see the gradient of one rank's rows; change gradients between "
            "backward() and the optimizer's step, such as by torch.nn.utils.clip_grad_value_"
        )
