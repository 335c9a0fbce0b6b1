from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from paceline.inprocess.first_step.autocast import MetaAutocast  # noqa: E402


def meta(*shape: int, dtype: torch.dtype = torch.float32, trained: bool = False) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=trained)


def types_of(autocast: MetaAutocast, name: str, *args: torch.Tensor) -> list[torch.dtype]:
    return [each.dtype for each in autocast.cast(name, args, {})[0]]


def test_products_compute_in_the_requested_format_and_losses_in_fp32():
    autocast = MetaAutocast(torch, lambda: "bfloat16")
    half = meta(2, 4, dtype=torch.bfloat16)
    assert types_of(autocast, "linear", meta(2, 4), meta(3, 4)) == [torch.bfloat16, torch.bfloat16]
    assert types_of(autocast, "log_softmax", half) == [torch.float32]
    assert types_of(autocast, "add", half, meta(2, 4)) == [torch.bfloat16, torch.float32]
    assert types_of(autocast, "linear", meta(2, 4, dtype=torch.float64), half) == [torch.float64, torch.bfloat16]
    assert types_of(MetaAutocast(torch, lambda: None), "linear", meta(2, 4)) == [torch.float32]


def test_a_weight_is_cast_once_until_the_outermost_autocast_ends():
    autocast, weight, given = MetaAutocast(torch, lambda: "float16"), meta(3, 4, trained=True), meta(2, 4)
    first, second = (autocast.cast("linear", (given, weight), {})[0] for _ in range(2))
    assert first[1] is second[1] and first[0] is not second[0]
    autocast.forget_weights()
    assert autocast.cast("linear", (given, weight), {})[0][1] is not first[1]
