"""How well samples are mixed is measured: from not at all to as well as can be."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from paceline.data.convert.describe import describe, mixing_of
from paceline.data.convert.writer import Writer
from paceline.data.order.order import Shuffle, shuffle_of
from paceline.data.reading.sharded import ShardedDataset

BLOCKS = np.arange(0, 10_000, 100)


def test_in_their_order_a_batch_is_of_one_or_two_blocks():
    found = mixing_of(BLOCKS, 10_000, None)
    assert 1 <= found.blocks <= 2
    assert found.epochs_alike == pytest.approx(1.0)


def test_a_window_over_all_blocks_mixes_as_well_as_can_be():
    found = mixing_of(BLOCKS, 10_000, Shuffle(seed=0, window=100))
    assert found.blocks == pytest.approx(found.perfect, rel=0.02)
    assert abs(found.epochs_alike) < 0.05


def test_wider_windows_mix_better():
    each = [mixing_of(BLOCKS, 10_000, Shuffle(seed=0, window=window)).blocks for window in (1, 4, 16, 64)]
    assert each == sorted(each)
    assert each[0] < 2.5 < each[-1]


def test_of_one_sample():
    assert mixing_of(np.array([0]), 1, shuffle_of(0)).blocks == 1


def test_missing_values_are_counted_and_do_not_change_the_other_figures(tmp_path):
    with Writer(tmp_path / "shards", images="png") as writer:
        writer.write({"image": Image.new("RGB", (8, 8)), "size": 2.5, "count": 7, "text": "abcd"})
        writer.write({"image": None, "size": None, "count": None, "text": None})
        writer.write({"image": Image.new("RGB", (8, 8)), "size": float("nan"), "count": 9, "text": "abcd"})
    lines = "\n".join(describe(ShardedDataset(tmp_path / "shards")))
    gap = "missing in 1 of 3 samples"
    assert f"size (float): 2.5 to 2.5, NaN in 1 samples; {gap}" in lines
    assert f"count (int): 7 to 9; {gap}" in lines
    assert f"text (text): 2 txt; 4.00 B (mean); {gap}" in lines
    assert "image (image): 2 png; " in lines and "0 of 2 images can be decoded partially" in lines
