from __future__ import annotations

import pytest

from paceline.plan.models.operators import FREE, kind_of


def tensor(*shape, dtype="float32", columns=False):
    strides, step = [], 1
    for side in reversed(shape):
        strides.insert(0, step)
        step *= side
    if columns:
        strides[-2:] = [1, shape[-2]]
    return {"t": [list(shape), strides, dtype]}


def operator(op, *args, **kwargs):
    return {"op": op, "args": list(args), "kwargs": kwargs, "part": "passes", "count": 1, "reads": {}}


def test_products_go_by_their_sizes_and_by_how_they_lie():
    found = kind_of(operator("aten.addmm.default", tensor(30), tensor(10, 20), tensor(20, 30, columns=True)))
    assert (found.family, found.sizes, found.work) == ("product.nt.float32", (10, 30, 20), 2 * 10 * 20 * 30)
    assert found.operand_bytes == 4 * (30 + 200 + 600)
    assert kind_of(operator("aten.bmm.default", tensor(8, 10, 20), tensor(8, 20, 30))).work == 8 * 2 * 10 * 20 * 30


def test_convolutions_both_ways():
    forward = operator(
        "aten.convolution.default", tensor(8, 16, 32, 32), tensor(32, 16, 3, 3), None, [2, 2], [1, 1], [1, 1]
    )
    found = kind_of(forward)
    assert (found.family, found.sizes) == ("convolution.forward.float32", (8, 16, 32, 256, 9, 4))
    assert found.work == 2 * 8 * 256 * 32 * 16 * 9
    backward = operator(
        *("aten.convolution_backward.default", tensor(8, 32, 16, 16), tensor(8, 16, 32, 32), tensor(32, 16, 3, 3)),
        *([0], [2, 2], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]),
    )
    assert kind_of(backward).family == "convolution.both.float32"
    assert kind_of(backward).work == pytest.approx(2 * found.work)


def test_attention_counts_half_where_it_is_causal():
    query = tensor(2, 4, 128, 64)
    full = kind_of(operator("aten._scaled_dot_product_flash_attention_for_cpu.default", query, query, query))
    causal = kind_of(
        operator("aten._scaled_dot_product_flash_attention_for_cpu.default", query, query, query, 0.0, True)
    )
    assert full.work == 4 * 8 * 128**2 * 64 == 2 * causal.work
    assert (full.part, full.sizes) == ("attention", (8, 128, 64))


def test_all_else_goes_by_its_bytes_and_views_are_free():
    added = kind_of(operator("aten.add.Tensor", tensor(100, 10), tensor(100, 10)))
    assert (added.family, added.work, added.part) == ("each.add.Tensor.float32", 8000, "bandwidth")
    assert kind_of(operator("aten.native_layer_norm.default", tensor(100, 10), [10], tensor(10))).sizes == (4040, 10)
    assert kind_of(operator("aten.view.default", tensor(100, 10), [1000])).family == FREE
    assert kind_of(operator("aten.ones.default", [50, 2])).work == 400


def test_a_table_is_not_read_whole():
    found = kind_of(operator("aten.embedding.default", tensor(50000, 64), tensor(8, 16, dtype="int64")))
    assert found.work == 8 * 16 * 8 + 2 * 8 * 16 * 64 * 4
