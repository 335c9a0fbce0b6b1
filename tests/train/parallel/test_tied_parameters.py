"""Parameters that pipeline stages share are trained as on one process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.train.launching import environment, results_of

PROGRAM = """
import sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tests.train.small_model import begin, finish
from paceline.core.errors import UsageError
from paceline.train import Engine

TOKENS = torch.randint(0, 12, (5, 8, 6), generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(self.norm(x).cumsum(1)).relu()


def language_model(again=False, repeated=False):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(12, 8), *(Block() for _ in range(4)), nn.Linear(8, 12, bias=False))
    model[5].weight = model[0].weight
    if again:
        model[2].linear.weight = model[4].linear.weight = model[1].linear.weight
    if repeated:
        model = nn.Sequential(model[0], model[1], model[2], model[1], model[2], model[5])
    return model.double()


def optimizer_of(model):
    decayed = [each for name, each in model.named_parameters() if name != "0.weight"]
    others = [each for name, each in model.named_parameters() if name == "0.weight"]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], 0.02)


def loss_of(output, target):
    return cross_entropy(output.flatten(0, 1), target.flatten())


def engine_of(layout, *, model=None, **recipe):
    pipeline = {"pipeline": {"schedule": recipe.pop("schedule")}} if "schedule" in recipe else {}
    clipped = {"optimizer": {"clip_norm": 0.5}, "memory": {"micro_batches": 4}, **pipeline, **recipe}
    engine = Engine({"layout": layout, **clipped} if layout else clipped)
    engine.setup(language_model() if model is None else model, optimizer_of, loss=loss_of)
    return engine


def steps(engine, tokens, change=None):
    parts, part = engine.world.layout.samples, engine.world.sample_part
    found = []
    for number, batch in enumerate(tokens):
        own = batch.chunk(parts)[part]
        engine.train_batch(own[:, :-1], own[:, 1:])
        found.append(float(engine.loss()))
        found.append(float(engine.step().norm))
        if change is not None:
            change(engine)
    return found


def weights(engine, folder):
    engine.export(folder / "model.pt")
    if engine.world.layout.ranks > 1:
        torch.distributed.barrier()
    state = torch.load(folder / "model.pt")
    return {name: value.abs().sum().item() for name, value in state.items()}
"""

TRAIN = (
    PROGRAM
    + """
begin()
folder, layout, schedule = Path(sys.argv[1]).parent, *sys.argv[2:4]
model = language_model(again=schedule == "1f1b" and layout == "pp=4", repeated=schedule == "gpipe")
engine = engine_of(layout, schedule=schedule, model=model)
first = steps(engine, TOKENS[:3])
engine.save(folder / "checkpoint")
found = {"steps": [*first, *steps(engine, TOKENS[3:])], "weights": weights(engine, folder)}
engine.close()
finish(found)
"""
)

ALONE = (
    PROGRAM
    + """
import json

folder, kind = Path(sys.argv[1]), sys.argv[2]
folder.mkdir(exist_ok=True)
engine = engine_of("", model=language_model(again=kind == "again", repeated=kind == "repeated"))
found = {"steps": steps(engine, TOKENS), "weights": weights(engine, folder)}
if sys.argv[3:]:
    engine = engine_of("", model=language_model(again=kind == "again", repeated=kind == "repeated"))
    engine.load(sys.argv[3])
    found["continued"] = steps(engine, TOKENS[3:])
print(json.dumps(found))
"""
)

REFUSED = (
    PROGRAM
    + """
def hooked():
    model = language_model()
    model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    steps(engine_of("pp=2", model=model), TOKENS[:1])


def repeated_statistics():
    norm = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    engine_of("pp=2", model=nn.Sequential(norm, nn.Linear(4, 4), norm, nn.Linear(4, 4)))


def on_one_rank():
    model = language_model()
    model[3].linear.weight = model[1].linear.weight
    model = nn.Sequential(*list(model)[1:5])
    engine_of("pp=2", schedule="interleaved", model=model)


def changed_on_one_rank():
    def scale(engine):
        for name, each in engine._passes.arranged.held.named_parameters():
            if name == "0.weight" and torch.distributed.get_rank() == 1:
                each.data.mul_(1.01)

    steps(engine_of("pp=2"), TOKENS, scale)


begin()
found = {}
for case in (hooked, repeated_statistics, on_one_rank, changed_on_one_rank):
    try:
        case()
        found[case.__name__] = ""
    except UsageError as error:
        found[case.__name__] = str(error)
finish(found)
"""
)


def alone(folder, kind, *checkpoint):
    (folder / "alone.py").write_text(ALONE)
    line = [sys.executable, folder / "alone.py", folder / "alone", kind, *checkpoint]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("layout", "schedule", "ranks"),
    [
        ("pp=2", "1f1b", 2),
        ("pp=2", "zero-bubble", 2),
        ("dp=2,pp=2", "1f1b", 4),
        ("shard=2,pp=2", "interleaved", 4),
        ("pp=4", "1f1b", 4),
        ("pp=2", "gpipe", 2),
    ],
)
def test_losses_norms_weights_and_checkpoints_are_those_of_one_process(tmp_path, layout, schedule, ranks):
    """With pp=4, three stages share a matrix, and with gpipe, layers occur twice. Norms are computed in fp32."""
    found = results_of(TRAIN, ranks, tmp_path, layout, schedule)
    kind = "again" if layout == "pp=4" else "repeated" if schedule == "gpipe" else "-"
    one = alone(tmp_path, kind, tmp_path / "checkpoint")
    assert found["steps"] == pytest.approx(one["steps"], rel=1e-6)
    assert found["weights"] == pytest.approx(one["weights"], rel=1e-6)
    assert one["continued"] == pytest.approx(one["steps"][6:], rel=1e-6)


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    return results_of(REFUSED, 2, tmp_path_factory.mktemp("refused"))


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("hooked", "0.weight is shared by stages 0 and 1 and has a gradient hook"),
        ("repeated_statistics", "layer 2 is in several stages and has buffers"),
        ("on_one_rank", "linear.weight is shared by stages 0 and 2, and one rank has two of them"),
        ("changed_on_one_rank", "0.weight differ between the ranks"),
    ],
)
def test_what_would_train_otherwise_is_refused(refused, case, says):
    assert says in refused[case]
