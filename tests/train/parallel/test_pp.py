"""Are models cut into stages, and refused where they cannot be?"""

from __future__ import annotations

import pytest
import torch
from tests.train.launching import on_ranks, results_of
from torch import nn

from paceline.core.errors import UsageError
from paceline.train.parallel.pp import Pipeline, Stages, stages_of


def row(count=6):
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(count)))


def test_stages_keep_the_names_of_the_model():
    model = row()
    ((number, stage),), _ = stages_of(model, 1, 3, Pipeline())
    assert (number, [name for name, _ in stage.named_parameters()]) == (1, ["2.weight", "2.bias", "3.weight", "3.bias"])
    assert stage.get_submodule("2") is model[2]


def test_a_rank_has_several_stages_far_apart():
    made, _ = stages_of(row(), 0, 2, Pipeline(schedule="interleaved"))
    assert [number for number, _ in made] == [0, 2]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Linear(4, 4), "Linear is neither an nn.Sequential nor a model of Hugging Face with one list of layers"),
        (row(2), "3 stages, and the model has 2 layers; use at most pp=2"),
    ],
    ids=["no row", "too short"],
)
def test_what_cannot_be_cut_is_refused(model, says):
    with pytest.raises(UsageError, match=says):
        stages_of(model, 0, 3, Pipeline())


PROGRAM = """
import sys
from argparse import ArgumentParser
from pathlib import Path
import torch
from torch import nn
from paceline.train import Engine
from paceline.train.recipe import add_arguments

parser = ArgumentParser()
parser.add_argument("out")
add_arguments(parser)
arguments = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
with Engine(arguments) as engine:
    made = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    engine.setup(made, lambda m: torch.optim.SGD(m.parameters(), 0.1), loss=nn.functional.mse_loss)
    inputs = torch.randn(8, 4)
    engine.train_batch(inputs, inputs.flip(1))
    loss = engine.loss()
    if engine.is_first:
        Path(arguments.out).write_text(str(loss))
"""


@pytest.mark.parametrize(("flags", "lines"), [((), 1), (("--accumulate", "4"), 0)], ids=["default", "set"])
def test_the_number_of_micro_batches_is_said_where_it_is_chosen(tmp_path, flags, lines):
    program, result = tmp_path / "program.py", tmp_path / "loss"
    program.write_text(PROGRAM)
    ran = on_ranks(2, program, result, "--layout", "pp=2", *flags, timeout_s=100)
    assert float(result.read_text()) > 0, ran.stderr[-4000:]
    assert ran.stderr.count("layout pp=2: each batch is split into 4 micro-batches, 2 per rank") == lines


FAILS = """
import sys, torch
from torch import nn
from paceline.train import Engine


class Fails(nn.Linear):
    def forward(self, x):
        raise ValueError("this stage is broken")


with Engine({"layout": "pp=2", "memory": {"micro_batches": 4}}) as engine:
    parts = [nn.Linear(4, 4), nn.Linear(4, 4)]
    parts[int(sys.argv[1])] = Fails(4, 4)
    engine.setup(nn.Sequential(*parts), lambda m: torch.optim.SGD(m.parameters(), lr=0.1), loss=nn.functional.mse_loss)
    engine.train_batch(torch.randn(8, 4), torch.randn(8, 4))
"""


@pytest.mark.parametrize("stage", ["0", "1"])
def test_an_error_in_one_stage_ends_the_run_with_this_error(tmp_path, stage):
    """The ranks of the other stages wait for this one, so it cannot agree with them first."""
    (tmp_path / "program.py").write_text(FAILS)
    done = on_ranks(2, tmp_path / "program.py", stage, timeout_s=90)
    assert done.returncode != 0
    assert "ValueError: this stage is broken" in done.stderr


SWAPPED = """
import sys
from argparse import ArgumentParser
import torch
from torch import nn
from paceline.train import Engine
from paceline.train.recipe import add_arguments


class Swap(nn.Module):
    def forward(self, rows):
        return rows.transpose(1, 2)


class Pair(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.linear, self.last = nn.Linear(4, 4), last

    def forward(self, given):
        rows = self.linear(given if torch.is_tensor(given) else given[0] * given[1])
        return rows if self.last else (rows, rows > 0)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, rows):
        return rows * self.scale


parser = ArgumentParser()
parser.add_argument("last", choices=["swap", "scale", "pair"])
add_arguments(parser)
arguments = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (nn.Linear(4, 4), Swap() if arguments.last == "swap" else Scaled())]
if arguments.last == "pair":
    layers = [Pair(number == 3) for number in range(4)]
model, inputs = nn.Sequential(*layers), torch.randn(8, 4, 4)
expected = torch.nn.functional.mse_loss(model(inputs), inputs.flip(1)).item()
with Engine(arguments) as engine:
    engine.setup(model, lambda m: torch.optim.SGD(m.parameters(), 0.1), loss=nn.functional.mse_loss)
    for _ in range(2):
        engine.train_batch(inputs, inputs.flip(1))
        loss = engine.loss()
        engine.step()
        if engine.is_first:
            print(f"{loss:.5f}", f"{expected:.5f}", flush=True)
"""


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zero-bubble"])
def test_layers_may_return_their_outputs_in_another_order_in_memory(tmp_path, schedule):
    (tmp_path / "program.py").write_text(SWAPPED)
    (tmp_path / "recipe.toml").write_text(f'[pipeline]\nschedule = "{schedule}"\n')
    given = ["--layout", "pp=2", "--accumulate", "2", "--recipe", tmp_path / "recipe.toml"]
    done = on_ranks(2, tmp_path / "program.py", "swap", *given, timeout_s=90)
    assert done.returncode == 0, done.stderr[-2000:]
    (first, expected), _ = [line.split() for line in done.stdout.splitlines()]
    assert first == expected


def test_a_parameter_without_dimensions_is_refused_where_fsdp2_replicates(tmp_path):
    (tmp_path / "program.py").write_text(SWAPPED)
    done = on_ranks(4, tmp_path / "program.py", "scale", "--layout", "dp=2,pp=2", "--accumulate", "2", timeout_s=90)
    assert done.returncode
    assert "scale is a scalar parameter" in done.stderr
    done = on_ranks(2, tmp_path / "program.py", "scale", "--layout", "pp=2", "--accumulate", "2", timeout_s=90)
    assert done.returncode == 0, done.stderr[-2000:]


def test_layers_that_pass_several_tensors_are_refused_by_name(tmp_path):
    (tmp_path / "program.py").write_text(SWAPPED)
    done = on_ranks(2, tmp_path / "program.py", "pair", "--layout", "pp=2", "--accumulate", "2", timeout_s=90)
    assert done.returncode
    assert "layer 1 returns a tuple, but the last layer of a stage must return a single tensor" in done.stderr


def test_a_target_of_several_tensors_is_refused():
    with pytest.raises(UsageError, match="pp: the target is a tuple, but it must be one tensor"):
        Stages.run(None, torch.zeros(4, 2), (torch.zeros(4), torch.zeros(4)), torch.nn.functional.mse_loss)


OPTIMIZERS = """
import torch
from torch import nn
from tests.train.small_model import begin, finish
from paceline.core.errors import UsageError
from paceline.train import Engine


def decay(number, count):
    return {"lr": 0.1 * 0.5 ** (count - 1 - number)}


def by_position(model):
    layers = list(model.children())
    return [{"params": layer.parameters(), **decay(n, len(layers))} for n, layer in enumerate(layers)]


def by_name(model):
    return [{"params": [each], **decay(int(name[0]), 6)} for name, each in model.named_parameters()]


def by_size(model):
    return [{"params": model.parameters(), "lr": 1.0 / sum(each.numel() for each in model.parameters())}]


def by_dimensions(model):
    flat = [each for each in model.parameters() if each.dim() < 2]
    return [
        {"params": [each for each in model.parameters() if each.dim() > 1], "weight_decay": 0.1},
        {"params": flat, "lr": torch.tensor(0.01)},
    ]


def without_the_first(model):
    return [{"params": list(model.parameters())[1:]}]


def message(groups_of):
    torch.manual_seed(0)
    engine = Engine({"layout": "pp=2"})
    try:
        make = lambda model: torch.optim.AdamW(groups_of(model), lr=0.1)
        engine.setup(nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))), make, loss=nn.functional.mse_loss)
    except UsageError as error:
        return str(error)
    return ""


begin()
kinds = (by_position, by_name, by_size, by_dimensions, without_the_first)
messages = {each.__name__: message(each) for each in kinds}
every = [None, None]
torch.distributed.all_gather_object(every, messages)
finish(every)
"""


def test_an_optimizer_with_other_settings_than_that_of_the_whole_model_is_refused(tmp_path):
    """If the settings differ on one rank, all ranks raise the error."""
    for found in results_of(OPTIMIZERS, 2, tmp_path):
        assert found["by_name"] == found["by_dimensions"] == ""
        assert "gives 0.weight lr=0.025, and in one process 0.003125" in found["by_position"]
        assert "and in one process 0.00833" in found["by_size"]
        assert "the optimizer does not get 3.weight, unlike in one process" in found["without_the_first"]
