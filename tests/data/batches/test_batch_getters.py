"""Datasets that give a whole batch in one call are asked in this way, and lose nothing by it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from paceline.data import Loader

HOW = [{"threads": 0}, {"threads": 1}, {"processes": 1}]


class Together:
    """Samples that tell whether they were made together; one may be bad."""

    bad: int | None = None
    few = False

    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> tuple[int, int, float]:
        if number == self.bad:
            raise ValueError("bad")
        return number, 1, float(np.random.random())

    def __getitems__(self, numbers: list[int]) -> list[tuple[int, int, float]]:
        if self.bad in numbers:
            raise ValueError("bad")
        return [(number, len(numbers), float(np.random.random())) for number in numbers[: 1 if self.few else None]]


def rows(dataset: object, **how: object) -> list[list[float]]:
    return [list(row) for batch in Loader(dataset, 4, shuffle=True, **how) for row in zip(*(c.tolist() for c in batch))]


@pytest.mark.parametrize("how", HOW)
def test_a_batch_is_made_in_one_call(how):
    found = rows(Together(), **how)
    assert sorted(row[0] for row in found) == list(range(12))
    assert all(row[1] == 4 for row in found)
    assert all(row[1] == 4 for row in rows(Subset(Together(), range(12)), **how))


def test_what_a_batch_draws_does_not_depend_on_who_makes_it():
    here, there = rows(Together(), threads=0), rows(Together(), processes=2)
    assert here == there
    assert len({row[2] for row in here}) == 12


@pytest.mark.parametrize("how", HOW)
def test_a_subset_of_samples_that_are_made_one_by_one_seeds_each(how):
    class Single:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, number: int) -> torch.Tensor:
            return torch.tensor([number, np.random.random()])

    def drawn(dataset: object, batch: int) -> dict[float, float]:
        return {row[0]: row[1] for rows in Loader(dataset, batch, shuffle=True, **how) for row in rows.tolist()}

    if how != {"threads": 1}:  # threads are for samples that draw nothing
        assert drawn(Subset(Single(), range(12)), 4) == drawn(Subset(Single(), range(12)), 3) == drawn(Single(), 4)


@pytest.mark.parametrize("how", HOW)
def test_the_bad_sample_of_a_batch_is_found(how):
    dataset = Together()
    dataset.bad = 5
    with pytest.raises(ValueError, match="bad"):
        rows(dataset, **how)
    loader = Loader(dataset, 4, on_error="skip", **how)
    assert {number for batch in loader for number in batch[0].tolist()} == set(range(12)) - {5}
    assert [bad.name for bad in loader.report().bad] == ["sample 5"]


def test_samples_that_are_not_given_are_missed():
    dataset = Together()
    dataset.few = True
    with pytest.raises(ValueError, match="returned 1 samples for 4 numbers"):
        rows(dataset, threads=0)


OPENMP = """
    import time, numpy as np, torch
    from paceline.data.loader.processes import manner_of
    torch.set_num_threads(2)
    torch.rand(2000, 2000).exp().sum()
    begun = time.monotonic()
    manner_of(lambda number: torch.rand(1000, 1000).exp().sum(), np.arange(8))
    print(time.monotonic() - begun)
"""


def test_threads_of_openmp_from_before_a_fork_are_not_waited_for():
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(OPENMP)], capture_output=True, text=True, timeout=120)
    assert float(done.stdout) < 15, done.stderr
