from __future__ import annotations

import pytest

from paceline.core.errors import UsageError
from paceline.plan.described import model_of

SIZE = {"layers": 32, "hidden": 4096, "heads": 32}


def test_weights_that_are_given_are_the_weights_of_the_model():
    assert model_of(None, SIZE | {"params": 8e9}).params == pytest.approx(8e9, rel=0.001)
    assert model_of(None, SIZE | {"params": 47e9, "experts": 8, "gated": True}).params == pytest.approx(47e9, rel=0.001)


def test_experts_are_counted():
    made = model_of(None, SIZE | {"experts": 8, "top_k": 2, "expert_ffn": 14336, "gated": True})
    assert made.params > 40e9
    assert made.top_k == 2


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"params": 800e9}, "not 800"),
        ({"params": 8e9, "ffn": 1024}, "not 8"),
        ({"heads": 31}, "number of heads, 31"),
        ({"kv_heads": 3}, "3 key/value heads"),
        ({"experts": 8, "top_k": 20}, "20 of 8"),
        ({"top_k": 2}, "--experts"),
    ],
)
def test_numbers_that_do_not_agree_are_refused(numbers, said):
    with pytest.raises(UsageError, match=said):
        model_of(None, SIZE | numbers)


def test_numbers_must_agree_with_a_name_too():
    with pytest.raises(UsageError, match="do not divide"):
        model_of("llama-3-8b", {"kv_heads": 5})
    with pytest.raises(UsageError, match="leave out --params"):
        model_of("llama-3-8b", {"params": 70e9})
