"""Backward passes by objective, and exchanges of gradients by module, from events as the training thread notes them."""

from __future__ import annotations

import pytest

from paceline.inprocess.recorder import probe_state as g
from paceline.inprocess.recorder.steps.objectives import Objectives

GENERATOR, DISCRIMINATOR = 1, 2
NAMES = {GENERATOR: "Generator", DISCRIMINATOR: "Discriminator"}


class Program:
    """Feeds the events of a program."""

    def __init__(self) -> None:
        self.seen = Objectives(NAMES.get, lambda file: True)

    def forward(self, module: int, *, graded: bool = True, synced: bool = True) -> None:
        self.seen.feed((0, g.FORWARD, (graded, True, module, 8.0, True, synced, None)))

    def backward(self) -> None:
        self.seen.feed((0, g.BACKWARD, 0.5, None))

    def step(self, optimizer: int) -> None:
        self.seen.feed((0, g.OPTIMIZER + 1, optimizer))

    def told(self) -> dict[str, object]:
        return self.seen.as_json()


def gan(program: Program) -> None:
    program.forward(GENERATOR)
    program.forward(DISCRIMINATOR)
    program.backward()
    program.step(7)
    program.forward(DISCRIMINATOR)
    program.backward()
    program.step(8)


def test_the_two_networks_of_a_gan_are_two_objectives_and_exchange_once_an_update():
    program = Program()
    for _ in range(10):
        gan(program)
    told = program.told()
    assert [one["backwards"] for one in told["objectives"]] == [10, 10]
    assert {one["optimizer"] for one in told["objectives"]} == {0, 1}
    assert all(one["exchanges"] == one["updates"] for one in told["exchanges"])


@pytest.mark.parametrize("micro_steps, exchanging, expected", [(4, 4, 4.0), (4, 1, 1.0), (1, 1, 1.0)])
def test_accumulation_is_one_objective_with_its_exchanges_counted(micro_steps, exchanging, expected):
    program = Program()
    for _ in range(10):
        for number in range(micro_steps):
            program.forward(GENERATOR, synced=number >= micro_steps - exchanging)
            program.backward()
        program.step(7)
        program.step(9)  # a second optimizer for other parameters
    told = program.told()
    (objective,), (exchanges,) = told["objectives"], told["exchanges"]
    assert objective["backwards"] == 10 * micro_steps
    assert exchanges["exchanges"] / exchanges["updates"] == expected


def test_updates_with_forward_passes_without_gradients_are_counted():
    program = Program()
    for number in range(10):
        if number % 2:
            program.forward(DISCRIMINATOR, graded=False)
        program.forward(GENERATOR)
        program.backward()
        program.step(7)
    assert (program.told()["updates"], program.told()["updates_with_gradient_free_forwards"]) == (10, 5)


def test_what_is_told_is_bounded():
    """A model for each client: thousands of modules and optimizers."""
    program = Program()
    for number in range(5000):
        program.forward(number)
        program.backward()
        program.step(number)
    assert program.seen.done
    assert len(program.told()["objectives"]) <= 8
    assert len(program.told()["exchanges"]) <= 8
