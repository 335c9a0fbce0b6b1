"""Batches of many kinds: samples are counted, selected and joined, or the batch is refused."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutput

from paceline.core.errors import UsageError
from paceline.train import batch_samples

Pair = namedtuple("Pair", ["inputs", "target"])
IMAGES = [torch.full((4, 4, 4), float(i)) for i in range(6)]
COUNTS = (1, 4, 2, 3, 6, 2)
BOXES = [{"boxes": torch.full((n, 4), float(i)), "labels": torch.full((n,), i)} for i, n in enumerate(COUNTS)]
X, Y = torch.arange(6.0).view(6, 1), torch.arange(6)


def samples_of(value):
    """Return the sample numbers in a part of a batch."""
    if isinstance(value, torch.Tensor):
        return set(value.flatten().tolist())
    if isinstance(value, dict):
        return set().union(*map(samples_of, value.values()))
    return set().union(*map(samples_of, value)) if isinstance(value, tuple | list) else set()


SPLIT = {
    "tensors": (X, Y),
    "default_collate": [X, Y],
    "a named tuple": Pair(X, Y),
    "dictionaries": ({"x": X, "mask": X}, {"y": Y}),
    "two views": ([{"x": X}, {"x": X}], Y),
    "a list of targets": (X, BOXES),
    "a tuple of targets": (X, tuple(BOXES)),
    "lists of images and targets": (IMAGES, BOXES),
    "tuples of images and targets": (tuple(IMAGES), tuple(BOXES)),
    "images of one channel": ([image[:1] for image in IMAGES], Y),
    "images and labels": (IMAGES, Y),
    "targets with one box each": (X, [{"boxes": torch.full((1, 4), float(i))} for i in range(6)]),
    "targets with as many boxes as samples": (X, [{"boxes": torch.full((6, 4), float(i))} for i in range(6)]),
    "targets without boxes": (X, [{"boxes": torch.zeros(0, 4), "id": torch.tensor([i])} for i in range(6)]),
    "lists of lists": (X, [[torch.full((n,), float(i))] for i, n in enumerate(COUNTS)]),
    "a number for all": (X, Y, 0.5),
    "a scalar tensor for all": {"x": X, "y": Y, "scale": torch.tensor(3.0)},
}


@pytest.mark.parametrize("batch", SPLIT.values(), ids=SPLIT)
@pytest.mark.parametrize("number", [2, 3])
def test_each_part_has_its_own_samples(batch, number):
    parts = batch_samples.split_batch(batch, number)
    size = 6 // number
    for place, part in enumerate(parts):
        values = part if not isinstance(part, dict) else {key: part[key] for key in ("x", "y")}
        assert type(part) is type(batch)
        assert samples_of(values) == set(range(place * size, (place + 1) * size))


@pytest.mark.parametrize("batch", SPLIT.values(), ids=SPLIT)
def test_joined_parts_are_the_batch(batch):
    found = batch_samples.join_batches(batch_samples.split_batch(batch, 2), [3, 3])
    assert type(found) is type(batch)
    flat, expected = (torch.utils._pytree.tree_leaves(value) for value in (found, batch))
    assert all(torch.equal(torch.as_tensor(one), torch.as_tensor(two)) for one, two in zip(flat, expected, strict=True))


def test_two_views_of_a_batch_of_two_are_columns_and_two_targets_are_samples():
    x = torch.arange(2.0).view(2, 1)
    assert samples_of(batch_samples.split_batch(([x, x], x), 2)[1]) == {1.0}
    assert samples_of(batch_samples.split_batch((x, BOXES[:2]), 2)[1]) == {1.0}
    assert samples_of(batch_samples.split_batch(({"a": x}, {"b": x}), 2)[0]) == {0.0}
    with pytest.raises(UsageError, match="2 dictionaries of tensors with 2 rows each"):
        batch_samples.split_batch((x, [{"boxes": torch.zeros(2, 4)}, {"boxes": torch.ones(2, 4)}]), 2)


def test_three_images_of_three_channels_are_refused():
    images = [torch.zeros(3, 4, 4)] * 3
    with pytest.raises(UsageError, match="3 tensors with 3 rows each, so it is unknown"):
        batch_samples.split_batch((images, Y[:3]), 3)


@pytest.mark.parametrize(
    "batch",
    [
        (X, torch.zeros(9, 6)),  # boxes of all images, one below the other
        ((torch.zeros(2, 5), torch.zeros(5, 5, dtype=torch.bool)), torch.zeros(2)),  # a mask for all samples
        {"nodes": torch.zeros(50, 3), "edges": torch.zeros(2, 90), "y": Y},
    ],
)
def test_rows_of_unknown_samples_are_refused(batch):
    with pytest.raises(UsageError, match="tensors and lists have different sizes"):
        batch_samples.split_batch(batch, 2)
    assert batch_samples.split_batch(batch, 1) == [batch]


@pytest.mark.parametrize("wrap", [list, tuple])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "counts", [(1,) * 6, (2,) * 6, (3,) * 6, (4,) * 6, (1, 3, 2, 4, 1, 2), (0,) * 6, (0, 2, 3, 1, 2, 1)]
)
def test_images_with_boxes_are_never_miscounted(channels, counts, wrap):
    """The number of images, or an error where it could be the number of channels or boxes."""
    for number in range(1, 7):
        images = wrap(torch.zeros(channels, 8 + row, 8) for row in range(number))
        of_boxes = [torch.zeros(int(count), 4) for count in counts[:number]]
        kinds = {
            "dictionaries": wrap({"boxes": boxes, "labels": boxes[:, 0]} for boxes in of_boxes),
            "tensors": wrap(of_boxes),
            "labels": torch.zeros(number),
        }
        for kind, target in kinds.items():
            try:
                assert batch_samples.count_samples((images, target)) == number
            except UsageError as error:
                assert kind != "dictionaries" or number in (2, channels), error


def test_the_output_of_a_hugging_face_model_stays_one():
    half = batch_samples.select_samples(CausalLMOutput(logits=X), 6, slice(0, 3))
    assert half.logits.tolist() == X[:3].tolist()


def test_an_object_that_cannot_be_split_is_noticed():
    assert batch_samples.is_splittable((X, None, {"a": [Y]}))
    assert not batch_samples.is_splittable((X, torch.distributions.Normal(X, 1)))
