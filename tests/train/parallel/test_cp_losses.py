"""With `cp`, a loss in a training loop of the user is refused if it skips positions at the cuts of a sequence."""

from __future__ import annotations

import pytest
import torch
from tests.train.launching import on_ranks

from paceline.train.parallel.cp_check import _skips_positions

PROGRAM = """
import sys
import torch
from torch.nn import functional as F
from examples.gpt import gpt
from tests.train.small_model import begin, finish
from paceline.train import Engine

begin()
VOCABULARY, LENGTH, BATCH = 256, 16, 4
TOKENS = [torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(i)) for i in range(10)]
LENGTHS = [7, 7, 5, 6]  # no sample uses the last position of the first part
PADDED = torch.arange(LENGTH) >= torch.tensor(LENGTHS)[:, None]


def shifted_in_the_loss(output, tokens, target):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def last_position(output, tokens, target):
    return F.cross_entropy(output[:, -1], tokens[:, 0])


def first_position(output, tokens, target):
    return F.cross_entropy(output[:, 0], tokens[:, 0])


def shifted_in_the_data(output, tokens, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def padded(output, tokens, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100, reduction="sum") / 28


def mask(target, step):
    'Return the target with padding, of which two batches in three look like a shifted loss.'
    return target if step % 3 == 0 else target.masked_fill(PADDED, -100)


def trained(loss, layout):
    torch.manual_seed(0)
    engine = Engine({"layout": layout})
    net = gpt(width=16, depth=1, heads=2, length=LENGTH)
    model, _ = engine.setup(net, lambda m: torch.optim.SGD(m.parameters(), 0.1))
    for step, tokens in enumerate(TOKENS):
        target = tokens.roll(-1, 1)
        target = mask(target, step) if loss is padded else target
        size = LENGTH // engine.world.layout.cp
        place = slice(engine.world.position("cp") * size, (engine.world.position("cp") + 1) * size)
        with engine.micro_step():
            engine.backward(loss(model(tokens[:, place]), tokens[:, place], target[:, place]))
        engine.step()


for loss in sys.argv[2].split(","):
    trained(globals()[loss], sys.argv[3])
finish("trained")
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("cp") / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("loss", ["shifted_in_the_loss", "last_position", "first_position"])
def test_a_loss_of_some_positions_is_refused(program, tmp_path, loss):
    ran = on_ranks(2, program, tmp_path / "result", loss, "cp=2")
    assert "cp=2: the loss skips a position where the sequence is split" in ran.stderr


def test_a_loss_of_all_positions_trains(program, tmp_path):
    ran = on_ranks(2, program, tmp_path / "result", "shifted_in_the_data,padded", "cp=2")
    assert (tmp_path / "result").exists(), ran.stderr[-3000:]


def test_without_cp_a_loss_may_shift(program, tmp_path):
    ran = on_ranks(2, program, tmp_path / "result", "shifted_in_the_loss,last_position", "dp=2")
    assert (tmp_path / "result").exists(), ran.stderr[-3000:]


@pytest.mark.parametrize(
    ("used", "part", "expected"),
    [
        ([1, 1, 1, 0], 0, True),  # the last position predicts the first one of the next part
        ([1, 1, 1, 0], 1, False),  # the end of the sequence
        ([0, 1, 1, 1], 1, True),
        ([0, 1, 1, 1], 0, False),
        ([0, 0, 0, 1], 0, True),
        ([0, 0, 0, 1], 1, False),
        ([1, 0, 0, 0], 1, True),
        ([1, 1, 0, 0], 0, False),  # padding
        ([0, 0, 0, 0], 0, False),
        ([1, 1, 1, 1], 0, False),
    ],
)
def test_which_positions_have_a_gradient(used, part, expected):
    gradient = torch.tensor(used, dtype=torch.float32)[None, :, None] * torch.randn(2, 4, 3)
    assert _skips_positions(gradient, part, 2) is expected
