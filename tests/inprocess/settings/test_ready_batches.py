"""How many batches lie ready, with real workers that make batches when they are told to."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest
import torch

from paceline.inprocess.settings import ready_batches
from paceline.inprocess.settings.ready_batches import Queues, used_up

BATCHES = 12


class Told(torch.utils.data.Dataset):
    """A sample is made for each release of a semaphore."""

    def __init__(self, may) -> None:
        self.may = may

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, number: int) -> torch.Tensor:
        self.may.acquire()
        return torch.ones(2)


@pytest.fixture
def followed(monkeypatch):
    from torch.utils.data import dataloader

    iterator = dataloader._MultiProcessingDataLoaderIter
    monkeypatch.setattr(iterator, "_reset", iterator._reset)
    ready_batches.patch()


def until(reached: Callable[[Queues], bool]) -> Queues:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        state = ready_batches.now()
        assert state is not None
        if reached(state):
            return state
        time.sleep(0.01)
    raise AssertionError(f"the queues stayed at {ready_batches.now()}")


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_that_are_taken_while_workers_fall_behind_came_from_the_queue(followed, persistent):
    may = multiprocessing.get_context("fork").Semaphore(0)
    loader = torch.utils.data.DataLoader(
        Told(may), num_workers=2, prefetch_factor=2, persistent_workers=persistent, multiprocessing_context="fork"
    )
    batches = iter(loader)
    for _ in range(4):
        may.release()
    full = until(lambda state: state.ready == 4)
    assert full.backlog == 0
    next(batches), next(batches)
    behind = until(lambda state: state.ready == 2)
    assert used_up(full, behind) == behind.backlog == 2
    for _ in range(BATCHES - 4):
        may.release()
    filled = until(lambda state: state.ready == 4)
    assert used_up(behind, filled) == -2
    left = sum(1 for _ in zip(range(6), batches, strict=False))
    last = until(lambda state: state.ready == 4)
    assert left == 6
    list(batches)
    ended = until(lambda state: state.ready == 0)
    assert used_up(last, ended) == 0  # nothing more was asked for: the epoch ends
    if persistent:
        iter(loader)
        assert used_up(last, until(lambda state: state.backlog == 4)) == 0  # another epoch


def test_batches_of_threads_count_too():
    class Ahead:
        futures = (Future(), Future())

        def counts(self):
            return sum(one.done() for one in self.futures), len(self.futures)

    ahead, before = Ahead(), ready_batches.now()
    ready_batches.follow(ahead)
    ahead.futures[0].set_result(None)
    after = ready_batches.now()
    assert (after.ready - before.ready, after.backlog - before.backlog, after.epochs - before.epochs) == (1, 1, 1)


def test_a_queue_whose_length_cannot_be_told_is_not_known():
    class Unknown:
        def counts(self):
            raise NotImplementedError

    unknown = Unknown()
    ready_batches.follow(unknown)
    assert ready_batches.now() is None
