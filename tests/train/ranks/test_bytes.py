"""The bytes of tensors, of which torch refuses to view some as bytes."""

from __future__ import annotations

import pytest
import torch

from paceline.train.ranks.agreement import bytes_of

TENSORS = {
    "plain": torch.arange(6.0).reshape(2, 3),
    "one element with a stride": torch.arange(6.0).reshape(3, 2)[1:2, 0],
    "one column": torch.arange(6.0).reshape(3, 2)[:, 1],
    "turned": torch.arange(6.0).reshape(2, 3).T,
    "a number": torch.tensor(2.5),
    "nothing": torch.empty(0, 3),
    "bf16": torch.ones(1, 3, dtype=torch.bfloat16)[:, ::2],
    "with a graph": torch.ones(2, requires_grad=True) * 3,
}


@pytest.mark.parametrize("name", TENSORS)
def test_bytes_are_those_of_the_elements_in_order(name):
    tensor = TENSORS[name].detach()
    elements = tensor.clone(memory_format=torch.contiguous_format).reshape(-1).tolist()
    assert bytes_of(TENSORS[name]).view(tensor.dtype).tolist() == elements
