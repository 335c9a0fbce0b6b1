"""How many steps does an equivalence check take, and does it cross the ends of epochs?"""

from __future__ import annotations

import pytest
from tests.tune.search.test_runner import failed, workshop_of

from paceline.tune.equivalence.runs import steps_to_check


@pytest.mark.parametrize(
    "step_s, epoch_steps, total, steps, batches",
    [
        (0.01, 20, None, 48, None),  # the program's own epochs are short enough
        (0.01, 5, None, 24, None),
        (0.01, 5000, None, 24, 8),
        (0.01, None, None, 24, 8),
        (5.0, None, None, 4, 1),
        (0.01, None, 10, 10, 8),
    ],
)
def test_a_check_crosses_two_ends_of_epochs(step_s, epoch_steps, total, steps, batches):
    span = steps_to_check(step_s, epoch_steps, total)
    assert (span.steps, span.epoch_batches) == (steps, batches)


SET_EPOCH = """
import json, os, torch
from torch.utils.data import DataLoader, Dataset
planted = json.loads(os.environ.get("PACELINE_RECIPE", "{}")).get("planted", {})

class Numbers(Dataset):
    epoch = 0
    def __len__(self):
        return 40_000
    def __getitem__(self, index):
        return torch.full((4,), float(index + self.epoch)), index % 3

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(7)
    dataset = Numbers()
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1000):
        dataset.epoch = 0 if planted.get("forgets") else epoch
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def test_what_happens_between_long_epochs_is_compared(tmp_path):
    workshop = workshop_of(tmp_path, SET_EPOCH)
    workshop.measure_variation(0.01, 10_000, waits=False)
    assert "samples" in failed(workshop, {"planted": {"forgets": True}})
    assert failed(workshop, {"loader": {"num_workers": 1, "persistent_workers": True}}) == set()
