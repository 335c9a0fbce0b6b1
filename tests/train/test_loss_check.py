"""The check of losses in later steps: losses over a whole batch are refused, and the state of a loss is restored."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from tests.train.launching import results_of
from torch.nn import functional as F
from transformers.modeling_outputs import CausalLMOutput

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.train.comparison.loss_check import CheckedLoss

CALLS = 20  # calls 2, 4, 8 and 16 are checked
IGNORED = -100


def tokens(target):
    return (target != IGNORED).sum()


def of_tokens(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=IGNORED)


def of_pairs(output, target):
    first, second = output.view(-1, 2, output.shape[-1]).unbind(1)
    return F.mse_loss(first, second)


def noisy(output, target):
    return F.mse_loss(output + torch.randn_like(output), target)


def of_numbers():
    return torch.randn(6, 5), torch.randn(6, 5)


def of_classes():
    return torch.randn(6, 5), torch.randint(5, (6,))


def of_equal_sentences():
    return torch.randn(6, 7, 5), torch.randint(5, (6, 7))


def of_sentences():
    target = torch.randint(5, (6, 7))
    lengths = torch.randint(1, 8, (6, 1))
    return torch.randn(6, 7, 5), target.masked_fill(torch.arange(7) >= lengths, IGNORED)


ORDINARY = [
    ("squares", F.mse_loss, None, of_numbers),
    ("absolutes", F.l1_loss, None, of_numbers),
    ("classes", F.cross_entropy, None, of_classes),
    ("smoothed", lambda output, target: F.cross_entropy(output, target, label_smoothing=0.1), None, of_classes),
    ("signed", lambda output, target: output.mean(), None, of_numbers),
    ("tokens", of_tokens, tokens, of_sentences),
    ("equal sentences", of_tokens, None, of_equal_sentences),
    ("pairs", of_pairs, None, of_numbers),
    ("noise", noisy, None, of_numbers),
    ("cosine", lambda output, target: 1 - F.cosine_similarity(output, target).mean(), None, of_numbers),
    ("half precision", lambda output, target: F.mse_loss(output.bfloat16(), target.bfloat16()), None, of_numbers),
    ("divergence", lambda o, t: F.kl_div(o.log_softmax(1), t.softmax(1), reduction="batchmean"), None, of_numbers),
]


def decorrelated(output, target):
    return F.mse_loss(output, target) + 0.01 * output.T.cov().pow(2).sum()


def contrastive(output, target):
    return F.cross_entropy(output @ target.T, torch.arange(len(output)))


DEPENDENT = [
    ("decorrelated", decorrelated, None, of_numbers),
    ("contrastive", contrastive, None, of_numbers),
    ("root", lambda output, target: F.mse_loss(output, target).sqrt(), None, of_numbers),
    ("sum", lambda output, target: F.mse_loss(output, target, reduction="sum"), None, of_numbers),
    ("tokens", of_tokens, None, of_sentences),
    ("weighted classes", lambda o, t: F.cross_entropy(o, t, weight=torch.arange(1.0, 6)), None, of_classes),
    ("normalized", lambda o, t: F.mse_loss((o - o.mean(0)) / o.std(0), t), None, of_numbers),
]


def called(loss, weight, made, calls=CALLS):
    torch.manual_seed(0)
    checked = CheckedLoss(loss, weight, Layout(dp=2))
    return [float(checked(*made())) for _ in range(calls)]


@pytest.mark.parametrize(("name", "loss", "weight", "made"), ORDINARY, ids=[each[0] for each in ORDINARY])
def test_ordinary_losses_and_their_random_numbers_are_the_same(name, loss, weight, made):
    torch.manual_seed(0)
    alone = [float(loss(*made())) for _ in range(CALLS)]
    assert called(loss, weight, made) == alone


@pytest.mark.parametrize(("name", "loss", "weight", "made"), DEPENDENT, ids=[each[0] for each in DEPENDENT])
def test_losses_of_a_whole_batch_are_refused(name, loss, weight, made):
    with pytest.raises(UsageError, match=r"dp=2: the loss is not a mean over samples.* two halves is"):
        called(loss, weight, made)


def test_the_output_of_a_hugging_face_model_is_split():
    def loss(output, target):
        return of_tokens(output.logits, target)

    def made():
        logits, target = of_sentences()
        return CausalLMOutput(logits=logits), target

    called(loss, tokens, made)
    with pytest.raises(UsageError, match="two halves"):
        called(loss, None, made)


def test_a_penalty_that_begins_later_is_refused_then():
    factor = [0.0]

    def loss(output, target):
        return F.mse_loss(output, target) + factor[0] * output.mean(0).pow(2).sum()

    checked = CheckedLoss(loss, None, Layout(shard=2))
    for _ in range(10):
        checked(*of_numbers())
    factor[0] = 0.1
    with pytest.raises(UsageError, match="call 16 of the loss"):
        for _ in range(10):
            checked(*of_numbers())


def test_samples_without_a_valid_target_have_no_loss():
    """Their loss is NaN, with weight 0. The same holds for a half."""

    def made(valid):
        target = torch.randint(5, (6, 7))
        target[valid:] = IGNORED
        return torch.randn(6, 7, 5), target

    checked = CheckedLoss(of_tokens, tokens, Layout(dp=2))
    for valid in (6, 0, 3, 0):
        checked(*made(valid))


@dataclass
class Output:
    values: torch.Tensor
    means: torch.Tensor


SHARED = torch.nn.Parameter(torch.rand(6, 5))  # as many rows as samples
KINDS = {
    "parameter": (lambda value: (value, SHARED), lambda output: output[0]),
    "other parameter": (lambda value: (value, SHARED[:, 0].mean()[None] + torch.zeros(9)), lambda output: output[0]),
    "dataclass": (lambda value: Output(value, value.mean(1)), lambda output: output.values),
    "hugging face": (lambda value: (CausalLMOutput(logits=value), SHARED), lambda output: output[0].logits),
    "distribution": (lambda value: torch.distributions.Normal(value, 2.0), lambda output: output.mean),
    "time first": (lambda value: value.unsqueeze(0).expand(3, -1, -1), lambda output: output[0]),
    "flat positions": (lambda value: {"flat": value.repeat_interleave(2, 0)}, lambda output: output["flat"]),
    "mask": (lambda value: {"value": value, "mask": torch.ones(4, 4)}, lambda output: output["value"]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begins", [True, False])
def test_a_later_penalty_is_refused_for_any_output(kind, begins, capsys):
    make, values = KINDS[kind]
    factor = [0.0]

    def loss(output, target):
        found = values(output)
        mean = (found - target.repeat_interleave(len(found) // len(target), 0)).square().mean()
        return mean + factor[0] * found.mean(0).pow(2).sum()

    def train():
        for _ in range(10):
            output, target = of_numbers()
            checked(make(output), target)

    checked = CheckedLoss(loss, None, Layout(dp=2))
    train()
    factor[0] = float(begins)
    with pytest.raises(UsageError, match="call 16 of the loss") if begins else nullcontext():
        train()
    assert capsys.readouterr().err == ""


def test_an_output_that_cannot_be_halved_is_told(capsys):
    checked = CheckedLoss(lambda output, target: F.mse_loss(output[0], target), None, Layout(dp=2))
    for _ in range(4):
        checked((torch.randn(6, 5), object()), torch.randn(6, 5))
    told = capsys.readouterr().err
    assert told.count("compared with that of one process in the first step only") == 1
    assert "cannot be halved (a part fails with ValueError: it contains a value of the type object)" in told


STATES = """
import random
from functools import partial
import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss
from tests.train.small_model import BATCHES, begin, finish, engine_of, small_model, sgd
from paceline.train import Engine

calls = 0


def of_variable(output, target):
    global calls
    calls += 1
    return mse_loss(output, target) * (1 + 0.1 * calls)


class OfAttributes:
    def __init__(self):
        self.calls, self.history, self.drawn = 0, {"means": []}, random.Random(3)

    def __call__(self, output, target):
        self.calls += 1
        self.history["means"].append(self.calls * 0.1)
        return mse_loss(output, target) * (1 + sum(self.history["means"][-3:]) + self.drawn.random())


class OfBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.seen = np.zeros(2)

    def forward(self, output, target):
        self.count += 1
        self.seen[0] += 0.1
        return mse_loss(output, target) * (1 + self.count + self.seen[0])


def of_closure():
    count, rng = 0, np.random.default_rng(1)

    def loss(output, target):
        nonlocal count
        count += 1
        return mse_loss(output, target) * (count + rng.random())

    return loss


def annealed(state, output, target):
    state["step"] = state["step"] + 1
    return mse_loss(output, target) * state["step"]


kept = []


def of_activations(output, target):
    found = mse_loss(output, target) + 0.1 * sum(each.square().mean() for each in kept)
    kept.clear()
    return found


def of_last_activations(output, target):
    return mse_loss(output, target) + 0.1 * kept.pop().square().mean()


LOSSES = {
    "variable": lambda: of_variable, "attributes": OfAttributes, "buffer": OfBuffer, "closure": of_closure,
    "method": lambda: OfAttributes().__call__, "partial": lambda: partial(annealed, {"step": 0}),
    "activations": lambda: of_activations, "last activations": lambda: of_last_activations,
}


def trained(layout, loss, compared):
    global calls
    calls = 0
    torch.manual_seed(1)
    engine = Engine({"layout": layout, "checks": {"first_step": compared}})
    model = small_model()
    if loss() in (of_activations, of_last_activations):
        kept.clear()
        model[0].register_forward_hook(lambda _, given, output: kept.append(output))
    engine.setup(model, sgd, loss=loss())
    losses = []
    for inputs, target in BATCHES:
        part, parts = engine.world.sample_part, engine.world.layout.samples
        engine.train_batch(inputs.chunk(parts)[part], target.chunk(parts)[part])
        losses.append(engine.loss())
        engine.step()
    return losses


begin()
finish({
    f"{name} {layout}": [trained(layout, loss, compared) for compared in (True, False)]
    for name, loss in LOSSES.items() for layout in ("dp=2", "shard=2")
})
"""


def test_the_comparison_restores_the_state_of_a_loss(tmp_path):
    """Counters, buffers, histories and generators of a loss are those of training without the comparison."""
    found = results_of(STATES, 2, tmp_path, timeout_s=200)
    assert [name for name, (compared, plain) in found.items() if compared != plain] == []
    assert len({tuple(plain) for _, plain in found.values()}) > len(found) // 3  # the losses do depend on a state


SPLIT = """
import torch
from torch import nn
from tests.train.small_model import begin, finish
from paceline.core.errors import UsageError
from paceline.train import Engine


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)
        self.drop, self.end = nn.Dropout(0.3), nn.Linear(2, 2)
        self.tp_plan = {"first": "colwise", "last": "rowwise"}

    def forward(self, rows):
        return self.end(self.drop(self.last(self.act(self.first(rows)))))


def message(layer, autocast):
    'Train with a penalty on the outputs of a layer, which a hook keeps.'
    torch.manual_seed(0)
    inputs, target, kept = torch.randn(8, 4), torch.randn(8, 2), []
    engine = Engine({"layout": "tp=2", "precision": {"autocast": autocast} if autocast else {}})
    model, _ = engine.setup(Net(), lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    model.get_submodule(layer).register_forward_hook(lambda _, given, output: kept.append(output))
    try:
        for _ in range(3):
            with engine.micro_step():
                output = model(inputs)
                noise = torch.rand(())
                engine.backward(nn.functional.mse_loss(output + noise, target) + kept[-1].abs().mean())
            engine.step()
    except UsageError as error:
        return str(error)
    return ""


begin()
found = {f"{layer} {autocast}": message(layer, autocast) for layer in ("act", "end") for autocast in ("", "bf16")}
finish(found)
"""


def test_with_tp_a_loss_of_a_part_of_the_activations_is_refused(tmp_path):
    found = results_of(SPLIT, 2, tmp_path)
    for autocast in ("", "bf16"):
        assert "ranks with the same samples have losses from" in found[f"act {autocast}"]
        assert found[f"end {autocast}"] == ""
