"""Does the checksum tell values apart, whatever their number format and shape?"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.improve.child.digest import digest

KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_tensors_of_every_kind_and_shape(kind, shape):
    one = torch.ones(shape).to(kind)
    assert digest(one) == digest(one.clone())
    if one.numel():
        assert digest(one) != digest(torch.zeros(shape).to(kind))


def test_shape_kind_and_the_last_bit_count():
    values = torch.arange(6.0)
    assert digest(values) != digest(values.reshape(2, 3))
    assert digest(values) != digest(values.double())
    assert digest(values) != digest(torch.nextafter(values, torch.tensor(9.0)))
    assert digest(values.reshape(2, 3).t()) != digest(values.reshape(2, 3))


def test_nested_values():
    nested = {"b": [1, torch.ones(2)], "a": (np.zeros(3), "text")}
    assert digest(nested) == digest({"a": (np.zeros(3), "text"), "b": [1, torch.ones(2)]})
    assert digest(nested) != digest({"a": (np.zeros(3), "texts"), "b": [1, torch.ones(2)]})


def test_gradients_are_no_part_of_it():
    assert digest(torch.ones(2, requires_grad=True)) == digest(torch.ones(2))
