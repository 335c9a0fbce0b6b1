"""With threads=N, threads of the training process make the samples of a Dataset, unless they draw random numbers."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from tests.data.loader.test_loader import Holding, Numbers
from tests.data.making import converted
from torch.utils.data import TensorDataset

from paceline.data import Loader


class Where:
    """Wraps a Dataset; a sample is the process and the thread that made it."""

    def __init__(self, inner) -> None:
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, number: int) -> tuple[int, str]:
        self._inner[number]
        return os.getpid(), threading.current_thread().name


class Asleep(Numbers):
    def __getitem__(self, number: int) -> int:
        threading.Event().wait(0.002)
        return number


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("data", [Numbers(40), Holding(40), Asleep(40), TensorDataset(torch.arange(40))])
def test_threads_make_the_samples_of_a_dataset_if_they_are_asked_for(data, threads, caplog):
    loader = Loader(Where(data), 2, threads=threads, collate_fn=list)
    made_by = {sample for batch in loader for sample in batch}
    assert {process for process, _ in made_by} == {os.getpid()}
    assert threading.main_thread().name not in {name for _, name in made_by}
    assert len(made_by) <= threads and loader.threads == threads and not loader.num_workers
    assert not caplog.text


def test_threads_call_a_function_of_samples_that_holds_the_interpreter_if_they_are_asked_for(tmp_path):
    def hold(sample):
        return os.getpid() + 0 * Holding(1)[0]

    loader = Loader(converted(tmp_path), 4, transform=hold, collate_fn=list, threads=2)
    assert {process for batch in loader for process in batch} == {os.getpid()}
