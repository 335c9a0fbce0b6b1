"""Models that a program trains one after the other are told apart by the optimizer that steps."""

from __future__ import annotations

import torch

from paceline.inprocess.recorder.steps.optimizers import describe
from paceline.inprocess.recorder.steps.trained_models import TrainedModels


def noted(*widths: int, most: int = 1000) -> list[tuple[int, int]]:
    """The steps and sizes that are noted if a program makes three steps with a model of each width."""
    notes: list[tuple[int, int]] = []
    described = {}
    models = TrainedModels(lambda kind, **told: notes.append((told["step"], told["parameters"])), described)
    for number, width in enumerate(widths):
        described[number] = describe(torch.optim.SGD(torch.nn.Linear(width, 1, bias=False).parameters(), 0.1))
        for step in range(3):
            models.stepped(number, 3 * number + step)
    return notes


def test_the_first_step_of_each_size_is_noted():
    assert noted(4, 4, 8, 4, 16) == [(0, 4), (6, 8), (12, 16)]


def test_two_networks_that_take_turns_are_noted_once_each():
    assert noted(*[4, 8] * 50) == [(0, 4), (3, 8)]


def test_the_number_of_notes_is_bounded():
    assert len(noted(*range(1, 200))) == 64


def test_an_optimizer_that_was_not_seen_to_be_made_is_left_out():
    notes: list[object] = []
    models = TrainedModels(lambda kind, **told: notes.append(told), {})
    models.stepped(1, 0)
    models.stepped(None, 1)
    assert notes == []
