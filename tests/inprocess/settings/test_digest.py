"""Does the checksum tell values apart, whatever their number format and shape?"""

from __future__ import annotations

from fractions import Fraction
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from paceline.inprocess.settings.digest import digest

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


class Node:
    """As a graph's: prints as its class and an address, and knows who points to it."""

    def __init__(self, number):
        self.values, self.near = torch.full((3,), number), [self]


class Slim:
    __slots__ = ("__weakref__", "values")

    def __init__(self, number):
        self.values = np.full(2000, number)  # numpy prints the first and the last of so many


@pytest.mark.parametrize(
    "made",
    [
        Node,
        Slim,
        lambda n: SimpleNamespace(inside=Slim(n)),
        lambda n: Image.fromarray(np.full((4, 4), n, np.uint8)),
        lambda n: np.array([{"n": n}, "text"], dtype=object),
        lambda n: {"one", "two", str(n)},
        lambda n: [Slim(0), Slim(n)],
        lambda n: Fraction(n, 7),
        lambda n: BytesIO(bytes([n])),
    ],
)
def test_objects_count_by_what_they_hold(made):
    assert digest(made(1)) == digest(made(1))
    assert digest(made(1)) != digest(made(2))


def test_a_long_chain_of_objects_has_an_end():
    first = last = Node(0)
    for number in range(5000):
        last.near = [Node(number)]
        last = last.near[0]
    assert digest(first) == digest(first)


def test_gradients_are_no_part_of_it():
    assert digest(torch.ones(2, requires_grad=True)) == digest(torch.ones(2))
