"""Is a mean over a data set on several ranks that of one process, with batches of any size?"""

from __future__ import annotations

import pytest
import torch
from tests.train.launching import results_of
from torch import nn

from paceline.core.errors import UsageError
from paceline.train import Engine

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn import functional as F
from paceline.core.errors import UsageError
from paceline.data import Loader
from paceline.train import Engine, positions

DRAWN = torch.Generator().manual_seed(0)
INPUTS = torch.randint(0, 11, (21, 8), generator=DRAWN)
TARGET = INPUTS.roll(-1, 1)
for number, row in enumerate(TARGET):
    row[1 + number % 7 :] = -100


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        q, k, v = (p(x).view(*x.shape[:2], -1, 4).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        return x + self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Embedding(11, 8), Attention(), nn.Dropout(0.3), Attention(), nn.Linear(8, 11))


def loss_of(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def tokens(target):
    return (target != -100).sum()


def hits(output, target):
    kept = target != -100
    return (output.argmax(-1) == target)[kept].float().mean()


def places(output, target):
    'A mean over samples, whatever their number of tokens.'
    return (output.argmax(-1) == target).float().mean()


def perplexity(output, target):
    return loss_of(output, target).exp()


def loader(size=4, shuffle=True):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(INPUTS, TARGET), size, shuffle=shuffle)


def ours(size, **settings):
    return Loader(torch.utils.data.TensorDataset(INPUTS, TARGET), size, shuffle=True, **settings)


def evaluated(layout, batches):
    engine = Engine({"layout": layout, "memory": {"micro_batches": 2}})
    model, _ = engine.setup(net(), lambda m: torch.optim.SGD(m.parameters(), 0.1), loss=loss_of, weight=tokens)
    found = engine.evaluate(batches, hits=hits)
    assert model.training
    return found


def of_samples(layout, **measures):
    engine = Engine({"layout": layout, "memory": {"micro_batches": 2}})
    engine.setup(net(), lambda m: torch.optim.SGD(m.parameters(), 0.1), loss=loss_of, weight=tokens)
    try:
        return engine.evaluate(loader(5), **measures)
    except UsageError as error:
        return str(error)


def order(layout):
    'Batches of two epochs, with an evaluation in between.'
    torch.manual_seed(5)
    engine = Engine({"layout": layout, "memory": {"micro_batches": 2}})
    plain = net()
    plain[2].p = 0.0
    engine.setup(plain, lambda m: torch.optim.SGD(m.parameters(), 0.0), loss=loss_of, weight=tokens)
    data = torch.utils.data.TensorDataset(INPUTS[:20], TARGET[:20])
    trained, found = engine.loader(torch.utils.data.DataLoader(data, 4, shuffle=True)), []
    for epoch in range(2):
        for inputs, target in trained:
            engine.train_batch(inputs, target)
            found.append(engine.loss())
            engine.step()
        engine.evaluate(loader(5))
    return found


def called(layout):
    engine = Engine({"layout": layout, "memory": {"micro_batches": 2}})
    model, _ = engine.setup(net(), lambda m: torch.optim.SGD(m.parameters(), 0.1), loss=loss_of)
    try:
        model(INPUTS[:4])
    except UsageError as error:
        return str(error)


def clipped(layout):
    engine = Engine({"layout": layout, "memory": {"micro_batches": 2}})
    model, _ = engine.setup(net(), lambda m: torch.optim.SGD(m.parameters(), 0.1), loss=loss_of)
    engine.train_batch(INPUTS[:4], TARGET[:4])
    own = torch.nn.Linear(2, 2)
    own(torch.ones(1, 2)).sum().backward()
    norm = float(torch.nn.utils.clip_grad_norm_(own.parameters(), 1.0))
    try:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    except UsageError as error:
        return [norm, str(error)]


def on_rank_0():
    'A rank evaluates alone: the others wait for nothing.'
    engine = Engine({"layout": "dp=2"})
    made = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    made.register_buffer("scale", torch.ones(1))
    model, _ = engine.setup(made, lambda m: torch.optim.SGD(m.parameters(), 0.1))
    model.eval()
    with torch.no_grad():
        return model(torch.ones(1, 8)).tolist() if engine.is_first else []


ROWS, CLASSES = torch.randn(20, 6, generator=DRAWN), torch.randint(0, 5, (20,), generator=DRAWN)


def classifier(norm):
    torch.manual_seed(3)
    between = nn.ReLU() if norm == "none" else nn.BatchNorm1d(12, track_running_stats=norm == "batch")
    return nn.Sequential(nn.Linear(6, 12), between, nn.ReLU(), nn.Linear(12, 5))


def in_16_bits(layout, precision, norm):
    'The loss of a whole process, and of the ranks, before training.'
    engine = Engine({"layout": layout, "precision": {} if precision == "fp32" else {"autocast": precision}})
    engine.setup(classifier(norm), lambda m: torch.optim.SGD(m.parameters(), 0.1), loss=F.cross_entropy)
    with torch.no_grad():
        expected = float(F.cross_entropy(classifier(norm).eval()(ROWS), CLASSES))
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ROWS, CLASSES), 4)
    try:
        return expected, engine.evaluate(batches)["loss"]
    except UsageError as error:
        return expected, str(error)


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
whole = net().eval()
with torch.no_grad():
    sums = [(tokens(t), loss_of(whole(x), t), hits(whole(x), t)) for x, t in zip(INPUTS.split(4), TARGET.split(4))]
weights = sum(float(w) for w, _, _ in sums)
found = {"one": [sum(float(w) * float(s[n]) for w, *s in sums) / weights for n in (0, 1)]}
for layout in ("dp=2", "shard=2", "tp=2", "pp=2", "cp=2"):
    batches = [loader(4), loader(5), loader(21), ours(4), ours(5, rank=0, world=1)]
    found[layout] = [list(evaluated(layout, each).values()) for each in batches]
    found[f"{layout} places"] = of_samples(layout, places=places)["places"]
    found[f"{layout} order"] = order(layout)
found["perplexity"] = of_samples("dp=2", perplexity=perplexity)
with torch.no_grad():
    found["places"] = float(places(whole(INPUTS), TARGET))
for layout in ("dp=2", "shard=2"):
    for precision in ("bf16", "fp16"):
        for norm in ("none", "batch"):
            found[f"{layout} {precision} {norm}"] = in_16_bits(layout, precision, norm)
    found[f"{layout} untracked"] = in_16_bits(layout, "fp32", "untracked")
found["called"] = called("pp=2")
found["alone"] = on_rank_0()
found["clipped"] = clipped("pp=2")
if torch.distributed.get_rank() == 0:
    Path(sys.argv[1]).write_text(json.dumps(found))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("evaluation"), timeout_s=150)


@pytest.mark.parametrize("layout", ["dp=2", "shard=2", "tp=2", "pp=2", "cp=2"])
def test_means_are_those_of_one_process(found, layout):
    """21 samples in batches of 4, of 5 (the last has 1), and in one batch, also by our loader; weighted by tokens."""
    for means in found[layout]:
        assert means == pytest.approx(found["one"], rel=1e-5)


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_ordinary_losses_are_evaluated_in_16_bits(found, layout, precision, norm):
    expected, mean = found[f"{layout} {precision} {norm}"]
    assert mean == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
def test_statistics_of_a_part_of_a_batch_are_not_evaluated(found, layout):
    assert "1 has no running statistics" in found[f"{layout} untracked"][1]


@pytest.mark.parametrize("layout", ["dp=2", "shard=2", "tp=2", "pp=2", "cp=2"])
def test_a_mean_over_samples_is_not_weighted_by_tokens(found, layout):
    assert found[f"{layout} places"] == pytest.approx(found["places"], rel=1e-5)


@pytest.mark.parametrize("layout", ["shard=2", "tp=2", "pp=2", "cp=2"])
def test_an_evaluation_does_not_change_the_order_of_samples(found, layout):
    assert found[f"{layout} order"] == pytest.approx(found["dp=2 order"], rel=1e-4)


def test_batches_that_come_late_can_show_that_a_measure_is_a_mean_over_samples():
    """The targets of the first five batches have equal weights, so that both weightings give the same value."""
    engine = Engine()
    sgd = lambda m: torch.optim.SGD(m.parameters(), 0.1)  # noqa: E731
    engine.setup(nn.Linear(1, 1), sgd, loss=nn.functional.mse_loss, weight=lambda target: target.abs().sum())
    targets = [torch.ones(4, 1)] * 5 + [torch.tensor([[1.0], [1.0], [9.0], [5.0]])] * 3
    found = engine.evaluate([(target, target) for target in targets], size=lambda output, target: target.mean())
    assert found["size"] == pytest.approx(torch.cat(targets).mean().item())


def test_an_evaluation_in_one_process_draws_nothing_from_the_training():
    engine = engine_of()
    before = torch.get_rng_state()
    batches = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.ones(4, 1))
    engine.evaluate(torch.utils.data.DataLoader(batches, 2, shuffle=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_measure_that_is_no_mean_of_parts_is_refused(found):
    assert "cannot combine perplexity over ranks" in found["perplexity"]


def test_calling_the_layers_of_one_rank_is_refused(found):
    assert "engine.evaluate(loader)" in found["called"]


def test_gradients_of_some_layers_are_not_clipped_by_their_own_norm(found):
    """torch's function clips no gradients of a model with pp; it still clips those of other models."""
    norm, said = found["clipped"]
    assert norm == pytest.approx(6**0.5)
    assert "set optimizer.clip_norm" in said


def test_a_rank_may_evaluate_alone(found):
    assert len(found["alone"][0]) == 2


PIPELINES = """
import torch
from tests.train.small_model import BATCHES, begin, engine_of, finish, small_model, step

OUT = begin()


def losses(layout):
    'The loss of a checkpoint, after it was saved, loaded by the engine that went on, and loaded by another one.'
    folder, engine = OUT.parent / layout, engine_of(layout)
    step(engine)
    found = [engine.evaluate(BATCHES[:1])["loss"]]
    engine.save(folder)
    step(engine, 2)
    changed = engine.evaluate(BATCHES[:1])["loss"]
    engine.load(folder)
    found.append(engine.evaluate(BATCHES[:1])["loss"])
    again = engine_of(layout)
    again.evaluate(BATCHES[:1])
    again.load(folder)
    return [*found, again.evaluate(BATCHES[:1])["loss"]], changed


finish({layout: losses(layout) for layout in ("dp=2,pp=2", "shard=2,pp=2", "tp=2,pp=2", "dp=2,shard=2")})
"""


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory):
    return results_of(PIPELINES, 4, tmp_path_factory.mktemp("pipelines"), timeout_s=200)


@pytest.mark.parametrize("layout", ["dp=2,pp=2", "shard=2,pp=2", "tp=2,pp=2", "dp=2,shard=2"])
def test_a_checkpoint_can_be_saved_and_loaded_after_an_evaluation(pipelines, layout):
    """After a forward pass, FSDP2 leaves whole weights in pipeline stages, and a checkpoint needs split ones."""
    (saved, *loaded), changed = pipelines[layout]
    assert changed != pytest.approx(saved, rel=1e-2)
    assert loaded == pytest.approx([saved] * 2, rel=1e-6)


def engine_of(loss=nn.functional.mse_loss):
    engine = Engine()
    engine.setup(nn.Linear(2, 1), lambda m: torch.optim.SGD(m.parameters(), 0.1), loss=loss)
    return engine


def test_one_process_weighs_batches_by_their_samples():
    batches = [(torch.zeros(3, 2), torch.ones(3, 1)), (torch.zeros(1, 2), torch.full((1, 1), 3.0))]
    engine = Engine()
    model, _ = engine.setup(nn.Linear(2, 1), lambda m: torch.optim.SGD(m.parameters()), loss=nn.functional.mse_loss)
    bias = model.bias.item()
    assert engine.evaluate(batches)["loss"] == pytest.approx((3 * (1 - bias) ** 2 + (3 - bias) ** 2) / 4)


@pytest.mark.parametrize(
    ("batches", "says"),
    [([], "no batch"), ([torch.zeros(2)], "batches of inputs and target, but got a Tensor")],
)
def test_what_cannot_be_evaluated_is_refused(batches, says):
    with pytest.raises(UsageError, match=says):
        engine_of().evaluate(batches)


def test_a_loader_that_is_split_already_is_refused():
    engine = engine_of()
    data = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4, 1))
    with pytest.raises(UsageError, match="pass the original loader"):
        engine.evaluate(engine.loader(torch.utils.data.DataLoader(data, 2)))
