"""How much of a step is matrix work on the GPU? By the device's own time in those operators of the profiled step."""

from __future__ import annotations

from paceline.explain.facts import RankFacts

_MATRIX = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::_scaled_mm",
    "aten::cudnn_convolution",
    "aten::convolution_backward",
    "aten::_convolution",
    "aten::_scaled_dot_product_",
    "aten::_flash_attention_",
    "aten::_efficient_attention_",
)


def matrix_share(rank: RankFacts) -> float | None:
    """Return the share of step time in matrix operators; None when the device's time in them was not taken."""
    window = rank.window
    if window is None or window.operator_s <= 0 or any(o.device_self_s is None for o in window.operators):
        return None
    compute = sum(rank.breakdown.shares[name] for name in ("forward", "backward", "optimizer"))
    spent = sum(o.time_s for o in window.operators if o.name.startswith(_MATRIX))
    return spent / window.operator_s * compute
