"""Copies of tensors ahead of the moves that a program makes. The device is torch's "meta", and copies are clones.

A copy that was made ahead is recognised by its values: moves to the meta device keep none.
"""

from __future__ import annotations

import gc
import json
import weakref
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from paceline.inprocess.settings import confirmation
from paceline.inprocess.settings.batch_moves import Moves, tensors_in
from paceline.inprocess.settings.device_prefetch import patch_loops

DEVICE = torch.device("meta")
Pair = namedtuple("Pair", "x y")


class OnDevice(torch.Tensor):
    """A tensor with values that claims to be on the device."""

    device = DEVICE


class FakeCopy:
    """Clones of tensors."""

    def __init__(self, fake: FakeDevice, tensors: list[Any]) -> None:
        self._fake = fake
        self._tensors = [one.clone().as_subclass(OnDevice) for one in tensors]

    def suits(self) -> bool:
        return self._fake.suits

    def arrive(self) -> list[Any]:
        return list(self._tensors)

    def wait(self) -> None:
        self._fake.waits += 1


class FakeDevice:
    """Notes what is copied ahead, and who waits."""

    def __init__(self) -> None:
        self.copied: list[list[Any]] = []
        self.waits = 0
        self.suits = True

    def begin(self, device: Any, tensors: list[Any]) -> FakeCopy:
        assert device == DEVICE
        self.copied.append([one.tolist() for one in tensors])
        return FakeCopy(self, tensors)


@pytest.fixture
def told(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_WATCH_DIR", str(tmp_path))
    monkeypatch.setattr(confirmation, "_told", set())

    def lines() -> list[str]:
        entries = [json.loads(line) for p in (tmp_path / "held").glob("*") for line in p.read_text().splitlines()]
        return [("" if entry["held"] else "not: ") + entry["what"] for entry in entries]

    return lines


@pytest.fixture
def fake(monkeypatch, told):
    """torch as a recipe changes it, with a fake in place of CUDA; undone at the end."""
    for name in ("to", "cuda", "numpy", "data_ptr", "untyped_storage", "__dlpack__", "data"):
        monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))
    for module in (torch, torch.utils.dlpack):
        monkeypatch.setattr(module, "to_dlpack", module.to_dlpack)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    for iterator in (_SingleProcessDataLoaderIter, _MultiProcessingDataLoaderIter):
        for name in ("__init__", "_reset", "_next_data"):
            monkeypatch.setattr(iterator, name, getattr(iterator, name))
    device, moves = FakeDevice(), Moves(torch, lambda device: device.type == "meta")
    moves.patch()
    patch_loops(torch, moves, device.begin, _SingleProcessDataLoaderIter, _MultiProcessingDataLoaderIter)
    return device


class Numbers(Dataset):
    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError(f"sample {index} is broken")
        return torch.tensor([float(index)]), index


def is_copy(tensor: Any) -> bool:
    return type(tensor) is OnDevice


def moved(loader: Any, move: Any = lambda tensor: tensor.to("meta")) -> list[Any]:
    """Move the first tensor of each batch; the values of those that were copied ahead, None for others."""
    found = []
    for x, y in loader:
        there = move(x)
        assert (x.device.type, y.device.type) == ("cpu", "cpu")
        found.append(there.flatten().tolist() if is_copy(there) else None)
    return found


AHEAD = [
    None,
    None,
    None,
    *([float(i), i + 1.0] for i in range(6, 16, 2)),
]  # two batches are watched; the third is next


@pytest.mark.parametrize("workers", [0, 1])
def test_what_the_program_moves_is_copied_ahead_and_nothing_else(fake, told, workers):
    loader = DataLoader(Numbers(), 2, num_workers=workers)
    assert moved(loader) == AHEAD
    assert fake.copied == [[[[float(i)], [i + 1.0]]] for i in range(6, 16, 2)]  # never the labels
    assert fake.waits == 5
    assert told() == ["1 tensors of each batch are copied to meta ahead of time"]


def test_the_next_loop_knows_what_is_moved(fake):
    loader = DataLoader(Numbers(), 2)
    moved(loader)
    assert moved(loader) == [None, *([float(i), i + 1.0] for i in range(2, 16, 2))]


def test_a_move_without_waiting_does_not_wait(fake):
    assert moved(DataLoader(Numbers(), 2), lambda x: x.to("meta", non_blocking=True)) == AHEAD
    assert fake.waits == 0


def test_a_loader_whose_batches_are_used_on_the_host_is_left_alone(fake, told):
    seen = [x.numpy().sum() + y.sum().item() for x, y in DataLoader(Numbers(), 2)]
    assert seen == [2.0 * (4 * i + 1) for i in range(8)]
    assert fake.copied == []
    assert told() == [
        "not: the program moves no tensor of its batches to a CUDA device before it asks for the next batch"
    ]


def test_each_loader_is_judged_by_itself(fake):
    train, evaluate = DataLoader(Numbers(), 2), DataLoader(Numbers(), 4)
    for _ in range(2):
        moved(train)
        assert [x.numpy().shape for x, _ in evaluate] == [(4, 1)] * 4
    assert all(len(one) == 1 and len(one[0]) == 2 for one in fake.copied)


CHANGES = {
    "in place": lambda x: x.mul_(2),
    "a view": lambda x: x[0].fill_(7),
    "numpy": lambda x: np.add(x.numpy(), 1, out=x.numpy()),
    "an array of a view": lambda x: np.asarray(x[:1]).fill(7),
    "data": lambda x: x.data.mul_(2),
    "data of a view": lambda x: x[1:].data.mul_(2),
    "other data": lambda x: setattr(x, "data", torch.zeros(2, 1)),
    "dlpack": lambda x: torch.from_dlpack(x).mul_(2),
    "an older dlpack": lambda x: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)).mul_(2),
    "the address": lambda x: x.data_ptr(),
    "the storage": lambda x: x.untyped_storage().fill_(0),
    "shared memory": lambda x: x.share_memory_(),
    "a shape": lambda x: x.unsqueeze_(0),
    "a graph": lambda x: x.requires_grad_(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_tensor_that_was_changed_is_moved_by_the_program(fake, told, change):
    """Whatever may have changed a tensor: the copy that was made before is not handed over."""

    def move(x):
        change(x)
        return x.to("meta")

    found = [is_copy(move(x)) for x, _ in DataLoader(Numbers(), 2)]
    assert not any(found)
    assert len(fake.copied) == 4  # after three batches in vain no more are made
    assert told()[0].startswith("not: the copies could not be used: unlike in the first batches")


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.to("meta", torch.float64),
        lambda x: x.to("meta", copy=True),
        lambda x: x.to("meta", memory_format=torch.contiguous_format),
        lambda x: x.to(torch.float64).to("meta"),
        lambda x: x.clone().to("meta"),
    ],
)
def test_other_moves_are_the_programs(fake, move):
    assert not any(is_copy(move(x)) for x, _ in DataLoader(Numbers(), 2))
    assert fake.copied == []


def test_a_tensor_that_is_moved_twice_has_two_results(fake):
    results = [(x.to("meta"), x.to("meta")) for x, _ in DataLoader(Numbers(), 2)]
    assert [(is_copy(a), is_copy(b)) for a, b in results[3:]] == [(True, False)] * 5


def test_on_another_stream_the_program_moves_by_itself(fake):
    fake.suits = False
    assert moved(DataLoader(Numbers(), 2)) == [None] * 8


def test_in_inference_mode_the_program_moves_by_itself(fake):
    def move(x):
        with torch.inference_mode():
            return x.to("meta")

    found = [move(x) for x, _ in DataLoader(Numbers(), 2)]
    assert not any(map(is_copy, found))
    assert all(one.is_inference() for one in found)


def test_a_batch_that_is_moved_after_the_next_one_was_asked_for_is_not_copied_ahead(fake):
    before = None
    for x, _ in DataLoader(Numbers(), 2):
        if before is not None:
            assert not is_copy(before.to("meta"))
        before = x
    assert fake.copied == []


def packed(samples):
    lengths = [2, 1]
    return pack_padded_sequence(
        default_collate([x for x, _ in samples]).expand(2, 2)[..., None], lengths, True
    ), lengths


def test_packed_sequences_keep_their_lengths_on_the_host(fake):
    for sequence, lengths in DataLoader(Numbers(), 2, collate_fn=packed, num_workers=1):
        there = sequence.to("meta")
        assert (sequence.data.device.type, there.batch_sizes.device.type, lengths) == ("cpu", "cpu", [2, 1])
    assert fake.copied
    assert all(len(one) == 1 for one in fake.copied)


def test_memory_that_is_used_again_by_a_collate_function_is_safe(fake, told):
    kept = torch.zeros(2, 1)

    def into_kept(samples):
        return torch.stack([x for x, _ in samples], out=kept), 0

    assert [x.flatten().tolist() for x, _ in DataLoader(Numbers(), 2, collate_fn=into_kept)] == [
        [float(i), i + 1.0] for i in range(0, 16, 2)
    ]
    assert fake.copied == []
    assert told() == ["not: a collate function in the training process may use the memory of a batch again"]


def test_pageable_memory_is_not_copied_ahead(fake, told, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: False)
    assert moved(DataLoader(Numbers(), 2)) == [None] * 8
    assert told() == ["not: the tensors that the program moves are not in pinned memory"]


def test_a_loop_that_is_left_leaves_nothing_for_the_next(fake):
    loader = DataLoader(Numbers(), 2, num_workers=1, persistent_workers=True)
    moved(loader)
    for _ in range(2):
        x, _ = next(iter(loader))
        assert x.flatten().tolist() == [0, 1]
    assert moved(loader) == [None, *([float(i), i + 1.0] for i in range(2, 16, 2))]


def test_an_error_comes_in_its_turn(fake):
    loader = DataLoader(Numbers(), 2)
    moved(loader)
    loader.dataset.bad = 4
    batches = iter(loader)
    assert [next(batches)[0].flatten().tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="sample 4 is broken"):
        next(batches)
    assert next(batches)[0].flatten().tolist() == [6, 7]


def test_an_interrupt_while_a_batch_is_made_ahead_loses_none(fake, monkeypatch):
    loader = DataLoader(Numbers(), 2)
    moved(loader)
    batches = iter(loader)
    assert next(batches)[0].flatten().tolist() == [0, 1]
    original = Numbers.__getitem__

    def interrupted(self, index):
        monkeypatch.setattr(Numbers, "__getitem__", original)
        raise KeyboardInterrupt

    monkeypatch.setattr(Numbers, "__getitem__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert next(batches)[0].flatten().tolist() == [2, 3]


def test_tensors_of_a_batch_have_positions():
    batch = OrderedDict(pair=Pair(torch.ones(2), "name"), many=[torch.ones(1), (torch.ones(3), 5)], none=None)
    assert [path for path, _ in tensors_in(batch)] == [("pair", 0), ("many", 0), ("many", 1, 0)]


def test_after_a_loop_nothing_of_it_is_kept_for_the_garbage_collector(fake):
    class Marked:
        """Stands for what a frame of the program refers to, such as batches in pinned memory."""

    def loop():
        marked = Marked()
        for x, _ in loader:
            x.to("meta")
        return weakref.ref(marked)

    loader = DataLoader(Numbers(), batch_size=2)
    gc.collect()
    gc.disable()
    try:
        assert [loop()() for _ in range(2)] == [None, None]
    finally:
        gc.enable()
