"""Does the comparison of the first step find planted faults, leave ordinary models alone, and change nothing?"""

from __future__ import annotations

import json

import pytest
import torch
from tests.train.launching import ROOT, on_ranks, results_of

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.train.comparison import differences, rounding, samples
from paceline.train.recipe import made

RANKS_PROGRAM = ROOT / "benchmarks" / "_first_step_ranks.py"

UNTOUCHED = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from paceline.train import Engine


class Statistics:
    def __init__(self):
        self.calls, self.by_name = 0, {"calls": [0]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.a, self.b = nn.BatchNorm1d(4), nn.Linear(4, 8), nn.Linear(8, 2)
        self.drop, self.calls, self.kept = nn.Dropout(0.5), 0, []
        self.statistics, self.queue = Statistics(), torch.zeros(3)

    def forward(self, x):
        self.calls += 1
        self.kept.append(self.calls)
        self.statistics.calls += 1
        self.statistics.by_name["calls"][0] += 1
        self.queue[self.calls % 3] += 1
        return self.b(self.drop(self.a(self.norm(x) + torch.randn_like(x))))


def trained(layout, compared, own):
    torch.manual_seed(0)
    engine = Engine({"layout": layout, "checks": {"first_step": compared}})
    net = Net()
    if "tp" in layout:
        net.tp_plan = {"a": "colwise", "b": "rowwise"}
    for each in net.parameters():
        each.lr = 0.1
    loss = nn.functional.mse_loss
    rates = lambda m: [{"params": [p], "lr": p.lr} for p in m.parameters()]
    model, _ = engine.setup(net, lambda m: torch.optim.SGD(rates(m)), loss=loss)
    losses = []
    for step in range(3):
        drawn = torch.Generator().manual_seed(step * 10 + engine.world.sample_part)
        inputs, target = torch.randn(8, 4, generator=drawn), torch.randn(8, 2, generator=drawn)
        if own:
            with engine.micro_step():
                engine.backward(loss(model(inputs), target))
        else:
            engine.train_batch(inputs, target)
        losses.append(engine.loss())
        engine.step()
    net = getattr(model, "module", model)
    inside = [net.statistics.calls, net.statistics.by_name, net.queue.tolist()]
    return [losses, inside, net.calls, net.kept, net.norm.running_mean.tolist(), torch.rand(3).tolist()]


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
found = {
    f"{layout} {own}": [trained(layout, compared, own) for compared in (True, False)]
    for layout in ("dp=2", "shard=2", "tp=2") for own in (False, True)
}
if torch.distributed.get_rank() == 0:
    Path(sys.argv[1]).write_text(json.dumps(found))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""

SENSITIVE = """
import torch
from torch import nn
from tests.train.small_model import begin, finish
from paceline.core.errors import UsageError
from paceline.train import Engine


class Masked(nn.Module):
    \"""In double precision, the mask is infinite after the cast to fp32, as in attention with a masked row.\"""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 32), nn.Linear(32, 8), nn.Linear(8, 2)
        self.tp_plan = {"first": "colwise", "second": "rowwise"}

    def forward(self, rows):
        values = self.second(self.first(rows).relu())
        share = (values + torch.finfo(values.dtype).min).softmax(1, dtype=torch.float32)
        return self.last((1e4 * values).sin() * share)  # rounding is 10,000 times larger in the output


def message():
    torch.manual_seed(0)
    engine = Engine({"layout": "tp=2"})
    optimizer_of = lambda model: torch.optim.SGD(model.parameters(), lr=0.1)
    engine.setup(Masked(), optimizer_of, loss=nn.functional.mse_loss)
    try:
        engine.train_batch(torch.randn(8, 8), torch.randn(8, 2))
    except UsageError as error:
        return str(error)
    return ""


begin()
found = message()
finish(found)
"""


LEGAL = """
import torch
from torch import nn
from torch.nn import functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM
from tests.train.small_model import begin, finish
from paceline.core.errors import UsageError
from paceline.train import Engine

DRAWN = torch.Generator().manual_seed(0)
TOKENS = torch.randint(0, 40, (8, 12), generator=DRAWN)
IMAGES = torch.randn(8, 3, 6, 6, generator=DRAWN)
BOXES = [{"boxes": torch.rand(2, 4, generator=DRAWN), "labels": torch.tensor([1, 2])} for _ in range(8)]


def norms_of_heads():
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, head_dim=8)
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=40, num_key_value_heads=2, tie_word_embeddings=False, **sizes))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 8)

    def forward(self, images):
        return self.head(self.body(images).relu().mean((2, 3))).view(-1, 2, 4)


def of_tokens(output, target):
    return F.cross_entropy(output.logits.flatten(0, 1), target.flatten())


def of_boxes(output, targets):
    return torch.stack([F.l1_loss(own, each["boxes"]) for own, each in zip(output, targets)]).mean()


CASES = {
    "norms of heads": (norms_of_heads, "tp=2", of_tokens, lambda part: (TOKENS, TOKENS.roll(-1, 1))),
    "lists": (Detector, "dp=2", of_boxes, lambda part: (IMAGES.chunk(2)[part], BOXES[part * 4 : part * 4 + 4])),
}


def losses(make, layout, loss, batch_of):
    torch.manual_seed(0)
    model, found = make(), []
    engine = Engine({"layout": layout}) if layout else None
    optimizer_of = lambda model: torch.optim.AdamW(model.parameters(), lr=0.01)
    try:
        model, optimizer = engine.setup(model, optimizer_of, loss=loss) if engine else (model, optimizer_of(model))
        for _ in range(3):
            if engine:
                engine.train_batch(*batch_of(engine.world.sample_part))
                found.append(engine.loss())
                engine.step()
                continue
            inputs, target = (IMAGES, BOXES) if loss is of_boxes else batch_of(0)
            value = loss(model(inputs), target)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(value.detach()))
    except UsageError as error:
        return str(error)
    return found


begin()
found = {
    name: [losses(make, each, loss, batch_of) for each in ("", layout)]
    for name, (make, layout, loss, batch_of) in CASES.items()
}
finish(found)
"""


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    result = tmp_path_factory.mktemp("cases") / "result.json"
    ran = on_ranks(2, RANKS_PROGRAM, result, "--once")
    assert result.exists(), ran.stderr[-4000:]
    return json.loads(result.read_text())


def test_planted_faults_are_refused(cases):
    faults = [case for case in cases if case["kind"] not in ("ordinary", "cost")]
    assert len(faults) >= 30
    assert [case["name"] for case in faults if "refused" not in case] == []


def test_the_first_module_that_differs_is_named(cases):
    said = {case["name"]: case.get("refused", "") for case in cases}
    assert "attn.o_proj differs by" in said["heads of a fixed number"]
    assert "mlp.fc2 differs by" in said["gate and value packed"]
    assert "the gradient of blocks." in said["a whole parameter between split matrices"]
    assert "exchanges tensors between ranks itself" in said["a loss summed over ranks"]


def test_ordinary_models_train(cases):
    ordinary = [case for case in cases if case["kind"] == "ordinary"]
    assert len({case["name"] for case in ordinary}) >= 20
    assert [(case["name"], case) for case in ordinary if "seconds" not in case] == []


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    return results_of(UNTOUCHED, 2, tmp_path_factory.mktemp("untouched"), timeout_s=120)


def test_training_is_the_same_with_and_without_it(untouched):
    """Losses, attributes, buffers and the random numbers that come after are the same to the last bit."""
    assert all(compared == plain for compared, plain in untouched.values())


def test_a_model_without_a_result_in_double_precision_trains(tmp_path):
    """To measure rounding, the model also runs in double precision. Its loss there is NaN, and is not compared."""
    assert results_of(SENSITIVE, 2, tmp_path, timeout_s=120) == ""


def test_norms_of_heads_and_lists_of_samples_train(tmp_path):
    """Gradients of such norms are summed later, and among 2 samples with 2 boxes each, lists are ambiguous."""
    for one, several in results_of(LEGAL, 2, tmp_path, timeout_s=150).values():
        assert several == pytest.approx(one, rel=1e-5)


def test_it_can_be_switched_off():
    assert made({"checks": {"first_step": False}}).checks.first_step is False
    with pytest.raises(UsageError, match="it takes true or false"):
        made({"checks": {"first_step": "no"}})


def test_extreme_elements_do_not_hide_a_difference():
    expected = torch.randn(100, generator=torch.Generator().manual_seed(0))
    expected[:40] = -1e9
    own = expected.clone()
    own[50] += 0.01
    assert differences.excess(own, expected, 4) > 1
    assert differences.excess(expected * (1 + 1e-6), expected, 4) < 1
    assert differences.excess(own * float("nan"), expected, 4) == float("inf")


class _World:
    layout = Layout(dp=2, tp=3)
    sample_part = 1

    def position(self, axis):
        return 1 if axis == "tp" else 0


def test_slices_are_those_of_samples_and_of_units():
    whole = torch.arange(4 * 6).view(4, 6)
    (found,) = samples.slices((2, 2), whole, _World(), joined=True)
    assert found.tolist() == whole[2:, 2:4].tolist()
    assert list(samples.slices((2, 5), whole, _World(), joined=True)) == []


def test_a_list_of_images_is_one_sample_each():
    images = [torch.zeros(1, 4, size) for size in (4, 5, 6)]
    assert samples.count(((images,), {})) == 3
    assert [image.shape[-1] for image in samples.cut(((images,), {}), 3, 2)[0][0]] == [4, 5]


def test_a_list_of_views_has_the_samples_of_the_batch():
    views = [torch.zeros(8, 5), torch.zeros(8, 5)]
    assert samples.count(((views,), {}), (8, 4)) == 8
    assert [len(view) for view in samples.cut(((views,), {}), 8, 3)[0][0]] == [3, 3]
    with pytest.raises(ValueError, match="unknown whether each of 2 tensors with 2 rows is a sample"):
        samples.cut([torch.zeros(2, 5), torch.zeros(2, 5)], 2, 1)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_the_gradient_of_a_bias_without_influence_is_rounding(kind):
    """A loss of differences between scores does not depend on the last bias; its gradient is the rest of a sum."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to(kind)
    documents = torch.randn(16, 5, 8, dtype=kind)

    def gradients():
        model.zero_grad()
        scores = model(documents)
        torch.nn.functional.softplus(scores[:, 1:] - scores[:, :1]).mean().backward()
        return {f"the gradient of {name}": each.grad.clone() for name, each in model.named_parameters()}

    first, size = gradients(), kind.itemsize
    noise = rounding.measured(model, size, first, gradients)
    allowed = differences.times(size) * noise["the gradient of 2.bias"]
    eps = torch.finfo(kind).eps
    assert eps < allowed < 1e5 * eps  # the absolute terms of the sum add up to about 1
    other = first["the gradient of 0.bias"]
    assert differences.excess(other * 1.01, other, size, noise["the gradient of 0.bias"]) > 1
