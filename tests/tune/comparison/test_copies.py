"""Programs of which two copies cannot run side by side: they are measured one after the other."""

from __future__ import annotations

import socket

import pytest
from tests.tune.search.test_runner import workshop_of

from paceline.core.recipe import BASELINE
from paceline.tune.comparison.copies import copies_that_fit
from paceline.tune.comparison.model import ComparisonSpec, Deadline
from paceline.tune.trials.blocks import BaselineFailed, NotMeasured, ProgramFailed

GIB = 1 << 30
SOON = Deadline(usual=0.0, promising=0.0, large=0.0)  # as little time as a race takes

TRAINS = """
import socket, time
import torch
torch.set_num_threads(1)  # a recipe may set another number
slow = torch.get_num_threads() == 1
{first}
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1_000_000):
    time.sleep(0.02 if slow else 0.005)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    {then}
"""


@pytest.mark.parametrize(
    "copy, free, copies",
    [(GIB, 16 * GIB, 3), (6 * GIB, 16 * GIB, 2), (14 * GIB, 16 * GIB, 1), (40 * GIB, 16 * GIB, 1), (GIB, None, 3)],
)
def test_how_many_copies_fit_in_memory(copy, free, copies):
    assert copies_that_fit(copy, free) == copies


def test_a_program_with_a_port_of_its_own_is_measured_one_copy_after_the_other(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    opens = f"door = socket.create_server(('127.0.0.1', {port}), reuse_port=False)"
    workshop = workshop_of(tmp_path, TRAINS.format(first=opens, then="pass"))
    workshop.measure_variation(0.02, None, waits=True)
    workshop.start_s = 5.0
    found = workshop.compare(ComparisonSpec(before=BASELINE, after={"compute": {"num_threads": 2}}), SOON)
    assert found.speedup.value > 1.5 and found.speedup.count >= 2


def test_an_error_of_both_sides_is_not_blamed_on_the_change(tmp_path):
    workshop = workshop_of(tmp_path, TRAINS.format(first="", then="assert step < 30, 'the data ended'"))
    workshop.measure_variation(0.02, None, waits=True)
    with pytest.raises(BaselineFailed, match="the unchanged program fails too.*the data ended") as caught:
        workshop.compare(ComparisonSpec(before=BASELINE, after={"loader": {}}), SOON)
    assert isinstance(caught.value, NotMeasured)


def test_an_error_of_the_change_alone_is_blamed_on_it(tmp_path):
    workshop = workshop_of(tmp_path, TRAINS.format(first="assert slow, 'no such option'", then="pass"))
    workshop.measure_variation(0.02, None, waits=True)
    with pytest.raises(ProgramFailed, match="no such option") as caught:
        workshop.compare(ComparisonSpec(before=BASELINE, after={"compute": {"num_threads": 2}}), SOON)
    assert not isinstance(caught.value, NotMeasured)
