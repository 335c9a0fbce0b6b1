"""Which part of a picture is taken: always inside, as large as was asked, and the same wherever it is drawn."""

from __future__ import annotations

import math
import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.order.counter_rng import key_of, uniforms
from paceline.data.reading.crops import CenterCrop, RandomResizedCrop

SIDES = st.lists(st.tuples(st.integers(1, 700), st.integers(1, 700)), min_size=1, max_size=20)


def boxes_of(crop, sides, key=0):
    height, width = (np.array(one, np.int64) for one in zip(*sides))
    return crop.boxes(height, width, uniforms(key, np.arange(len(sides)), crop.draws)), height, width


@given(SIDES, st.sampled_from([RandomResizedCrop(224), RandomResizedCrop(64, ratio=(0.1, 9.0)), CenterCrop(224)]))
def test_parts_lie_inside(sides, crop):
    found, height, width = boxes_of(crop, sides)
    assert (found.height >= 1).all() and (found.width >= 1).all()
    assert (found.top >= 0).all() and (found.left >= 0).all()
    assert (found.top + found.height <= height).all() and (found.left + found.width <= width).all()


def mean_area_one_by_one(height: int, width: int, count: int) -> float:
    """The same rule, drawn for one picture after the other by another generator."""
    chance, areas = random.Random(0), []
    while len(areas) < count:
        area = height * width * chance.uniform(0.08, 1.0)
        shape = math.exp(chance.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            areas.append(w * h / (height * width))
    return sum(areas) / count


def test_areas_and_shapes_are_those_that_were_asked_for():
    crop = RandomResizedCrop(224)
    found, height, width = boxes_of(crop, [(300, 400)] * 4000)
    area = found.height * found.width / (height * width)
    assert 0.07 < area.min() < 0.1
    assert area.max() > 0.9
    assert abs(area.mean() - mean_area_one_by_one(300, 400, 4000)) < 0.02
    assert 0.45 < found.mirrored.mean() < 0.55
    shape = found.width / found.height
    assert (0.73 < shape.min() < 0.8) and (1.25 < shape.max() < 1.36)


def test_of_very_long_pictures_the_middle_is_taken():
    found, _, _ = boxes_of(RandomResizedCrop(10, scale=(1.0, 1.0)), [(100, 1000), (1000, 100)])
    assert found.height.tolist() == [100, 133]
    assert found.width.tolist() == [133, 100]
    assert (found.top[1], found.left[0]) == (433, 433)


def test_the_middle():
    found, _, _ = boxes_of(CenterCrop(224, 256), [(256, 512), (500, 375)])
    assert found.height.tolist() == [224, 328]
    assert (found.top[0], found.left[0]) == (16, 144)
    assert not found.mirrored.any()


def test_numbers_of_a_sample_are_its_own():
    key = key_of(1, 2, 3)
    several = uniforms(key, np.array([5, 9, 7]), 4)
    assert np.array_equal(uniforms(key, np.array([9]), 4)[0], several[1])
    assert not np.array_equal(uniforms(key_of(1, 2, 4), np.array([9]), 4)[0], several[1])
    many = uniforms(key, np.arange(20_000), 2)
    assert abs(many.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(many[:, 0], many[:, 1])[0, 1]) < 0.03
    assert abs(np.corrcoef(many[:-1, 0], many[1:, 0])[0, 1]) < 0.03
