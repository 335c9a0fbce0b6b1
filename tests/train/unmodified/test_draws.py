"""Random numbers on GPUs: the generators of all devices are noticed and put back. torch.cuda is a stand-in."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from paceline.train.unmodified import draws


class Cuda:
    """Stands in for torch.cuda with two devices, of which 0 is current."""

    def __init__(self) -> None:
        self.generators = [torch.Generator().manual_seed(number) for number in range(2)]

    def is_initialized(self):
        return True

    def get_rng_state(self):
        return self.generators[0].get_state()

    def set_rng_state(self, state):
        self.generators[0].set_state(state)

    def get_rng_state_all(self):
        return [each.get_state() for each in self.generators]

    def set_rng_state_all(self, states):
        for each, state in zip(self.generators, states, strict=True):
            each.set_state(state)


@pytest.mark.parametrize("device", [0, 1])
def test_what_is_drawn_on_any_device_is_noticed_and_put_back(device):
    cuda = Cuda()
    stand_in = SimpleNamespace(
        cuda=cuda, equal=torch.equal, get_rng_state=torch.get_rng_state, set_rng_state=torch.set_rng_state
    )
    before = cuda.generators[device].get_state()
    _, drew = draws.noticed(SimpleNamespace(torch=stand_in), lambda: torch.rand(1, generator=cuda.generators[device]))
    assert drew
    assert torch.equal(cuda.generators[device].get_state(), before)
