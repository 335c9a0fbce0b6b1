"""Rows that depend on each other in ways that are easy to miss; each program trains a few steps and prints the result.

    python dependent.py NAME ...

For each name one line: losses and the sum of absolute weights, or the exit code of a refusal.
"""

from __future__ import annotations

import itertools
import sys

import torch
from torch import nn
from torch.nn import functional

G = torch.Generator().manual_seed(1)
X = torch.randn(96, 12, generator=G) + torch.linspace(-1, 1, 96)[:, None]
Y = (X.sum(1) > 0).long() + (X[:, 0] > 0).long()
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def batches(steps, size=8):
    for step in range(steps):
        place = step * size % (len(X) - size)
        yield X[place : place + size], Y[place : place + size]


def fit(model, loss_of, steps=3, lr=0.05):
    """Train by SGD; return the losses and what the weights are."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for rows, target in batches(steps):
        loss = loss_of(model, rows, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, weights(model)]


def weights(model):
    return sum(weight.detach().double().abs().sum().item() for weight in model.parameters())


def cross(model, rows, target):
    return functional.cross_entropy(model(rows), target)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(12, 16), nn.Linear(16, 3)

    def hidden(self, rows):
        return self.first(rows).tanh()

    def forward(self, rows):
        return self.last(self.hidden(rows))


@case
def argument_by_value():
    class Model(Net):
        def forward(self, rows, centre=False):
            hidden = self.hidden(rows)
            return self.last(hidden - hidden.mean(0) if centre else hidden)

    model = Model()
    first = fit(model, lambda m, rows, target: functional.cross_entropy(m(rows, False), target))
    return (
        first
        + fit(model, lambda m, rows, target: functional.cross_entropy(m(rows, centre=True), target))
        + fit(model, lambda m, rows, target: functional.cross_entropy(m(rows, True), target))
    )


@case
def loss_by_attribute():
    class Model(Net):
        def forward(self, rows):
            hidden = self.hidden(rows)
            self.auxiliary = hidden.mean(0).square().sum()
            return self.last(hidden)

    return fit(Model(), lambda m, rows, target: cross(m, rows, target) + m.auxiliary)


@case
def mean_loss_by_attribute():
    class Model(Net):
        def forward(self, rows):
            hidden = self.hidden(rows)
            self.auxiliary = hidden.square().mean()
            return self.last(hidden)

    return fit(Model(), lambda m, rows, target: cross(m, rows, target) + m.auxiliary)


@case
def features_by_attribute():
    class Model(Net):
        def forward(self, rows):
            self.features = self.hidden(rows)
            return self.last(self.features)

    return fit(Model(), lambda m, rows, target: cross(m, rows, target) + m.features.std(0).sum())


@case
def features_by_hook():
    model, kept = Net(), {}
    model.first.register_forward_hook(lambda module, given, out: kept.update(first=out))
    return fit(model, lambda m, rows, target: cross(m, rows, target) + kept["first"].std(0).sum())


@case
def features_by_list():
    seen = []

    class Model(Net):
        def forward(self, rows):
            hidden = self.hidden(rows)
            seen.append(hidden)
            return self.last(hidden)

    found = fit(Model(), cross)
    return [*found, torch.cat(seen).mean().item(), torch.cat(seen).shape[0]]


@case
def features_by_object():
    class Tracker:
        def note(self, hidden):
            self.spread = hidden.std(0).sum()

    class Model(Net):
        def __init__(self):
            super().__init__()
            self.tracker = Tracker()

        def forward(self, rows):
            hidden = self.hidden(rows)
            self.tracker.note(hidden)
            return self.last(hidden)

    return fit(Model(), lambda m, rows, target: cross(m, rows, target) + m.tracker.spread)


@case
def python_number_returned():
    class Model(Net):
        def forward(self, rows):
            return super().forward(rows), rows.mean().item()

    def loss(model, rows, target):
        logits, mean = model(rows)
        return functional.cross_entropy(logits * (1 + mean), target)

    return fit(Model(), loss)


@case
def python_number_kept():
    class Model(Net):
        scale = 1.0

        def forward(self, rows):
            out = super().forward(rows) * self.scale
            self.scale = 1.0 + float(out.detach().std())
            return out

    return fit(Model(), cross)


@case
def meter_in_module():
    class Meter:
        total, count = 0.0, 0

        def update(self, value, rows):
            self.total += value * rows
            self.count += rows

    class Model(Net):
        def __init__(self):
            super().__init__()
            self.meter = Meter()

        def forward(self, rows):
            hidden = self.hidden(rows)
            self.meter.update(hidden.abs().max().item(), len(rows))
            return self.last(hidden)

    model = Model()
    return [*fit(model, cross), model.meter.total, model.meter.count]


@case
def masked_logits():
    class Model(Net):
        def forward(self, rows):
            hidden = self.hidden(rows)
            logits = self.last(hidden - 0.5 * hidden.mean(0))
            return torch.cat([logits, torch.full_like(logits[:, :1], -1e9)], 1)

    return fit(Model(), cross)


class TextbookBatchNorm(nn.Module):
    """As textbooks have it: gradients enabled stands for training."""

    def __init__(self, features):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.moving_mean, self.moving_var = torch.zeros(features), torch.ones(features)

    def forward(self, values):
        if not torch.is_grad_enabled():
            return self.gamma * (values - self.moving_mean) / (self.moving_var + 1e-5).sqrt() + self.beta
        mean, var = values.mean(0), ((values - values.mean(0)) ** 2).mean(0)
        self.moving_mean = 0.9 * self.moving_mean + 0.1 * mean.detach()
        self.moving_var = 0.9 * self.moving_var + 0.1 * var.detach()
        return self.gamma * (values - mean) / (var + 1e-5).sqrt() + self.beta


@case
def textbook_batch_norm():
    torch.manual_seed(0)
    return fit(nn.Sequential(nn.Linear(12, 16), TextbookBatchNorm(16), nn.Tanh(), nn.Linear(16, 3)), cross)


@case
def centring_in_training():
    class Model(Net):
        def forward(self, rows):
            hidden = self.hidden(rows)
            if self.training:
                hidden = hidden - hidden.mean(0)
            return self.last(functional.dropout(hidden, 0.0, self.training))

    return fit(Model(), cross)


@case
def centring_with_dropout():
    class Model(Net):
        def forward(self, rows):
            hidden = self.hidden(rows)
            if self.training:
                hidden = functional.dropout(hidden - hidden.mean(0), 0.5)
            return self.last(hidden)

    return fit(Model(), cross)


@case
def auxiliary_in_training():
    class Model(Net):
        def forward(self, rows):
            hidden = functional.dropout(self.hidden(rows), 0.1, self.training)
            if not self.training:
                return self.last(hidden)
            share = hidden.softmax(-1).mean(0)
            return self.last(hidden), (share * share).sum()

    def loss(model, rows, target):
        logits, auxiliary = model(rows)
        return functional.cross_entropy(logits, target) + auxiliary

    return fit(Model(), loss)


@case
def zero_weight():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.alpha = nn.Parameter(torch.zeros(16))

        def forward(self, rows):
            hidden = self.hidden(rows)
            return self.last(hidden + self.alpha * (hidden - hidden.mean(0)))

    return fit(Model(), cross, lr=1.0)


@case
def opens_at_second_step():
    class Model(Net):
        calls = 0

        def forward(self, rows):
            hidden = self.hidden(rows)
            self.calls += 1
            return self.last(hidden - hidden.mean(0) if self.calls > 1 else hidden)

    return fit(Model(), cross)


@case
def clamped_hidden_gradient():
    class Model(Net):
        def forward(self, rows):
            hidden = self.hidden(rows)
            if hidden.requires_grad:
                hidden.register_hook(lambda gradient: gradient.clamp(-1e-2, 1e-2))
            return self.last(hidden)

    return fit(Model(), cross)


@case
def normalised_hidden_gradient():
    class Model(Net):
        def forward(self, rows):
            hidden = self.hidden(rows)
            if hidden.requires_grad:
                hidden.register_hook(lambda gradient: gradient / gradient.norm())
            return self.last(hidden)

    return fit(Model(), cross)


@case
def clipped_by_function():
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.view_as(value)

        @staticmethod
        def backward(ctx, gradient):
            return gradient.clamp(-1e-2, 1e-2)

    class Model(Net):
        def forward(self, rows):
            return self.last(Clip.apply(self.hidden(rows)))

    return fit(Model(), cross)


@case
def clipped_by_module_hook():
    model = Net()
    model.last.register_full_backward_hook(lambda m, given, out: (given[0].clamp(-1e-2, 1e-2),))
    return fit(model, cross)


@case
def gradient_norms_logged():
    model, norms = Net(), []
    model.last.register_full_backward_hook(lambda m, given, out: norms.append(given[0].norm().item()))
    return [*fit(model, cross), *norms]


@case
def state_in_evaluation():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("centre", torch.zeros(16))

        def forward(self, rows):
            hidden = self.hidden(rows)
            if not self.training:
                self.centre.copy_(hidden.mean(0))
            return self.last(hidden - self.centre)

    model = Model()
    found = []
    for _ in range(2):
        found += fit(model.train(), cross)
        model.eval()
        with torch.no_grad():
            found.append(model(X[:16]).sum().item())
    return found


@case
def bank_in_evaluation():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.bank = []

        def forward(self, rows):
            hidden = self.hidden(rows)
            if not self.training:
                self.bank.append(hidden)
            return self.last(hidden)

    model = Model().eval()
    with torch.no_grad():
        model(X[:16]), model(X[16:32])
    bank = torch.cat(model.bank)
    return [bank.shape[0], bank.sum().item(), *fit(model.train(), cross)]


@case
def in_place_input():
    class Model(Net):
        def forward(self, rows):
            return self.last(self.first(rows.mul_(2)).tanh())

    def loss(model, rows, target):
        rows = rows.clone()
        return functional.cross_entropy(model(rows), target) + rows.square().mean()

    return fit(Model(), loss)


@case
def written_to_the_given_dict():
    class Model(Net):
        def forward(self, batch):
            batch["hidden"] = self.hidden(batch["rows"])
            return self.last(batch["hidden"])

    def loss(model, rows, target):
        batch = {"rows": rows}
        logits = model(batch)
        return functional.cross_entropy(logits, target) + batch["hidden"].std(0).sum()

    return fit(Model(), loss)


@case
def mixed_up_rows():
    class Model(Net):
        def forward(self, rows):
            hidden = self.hidden(rows)
            if self.training:
                hidden = 0.5 * hidden + 0.5 * hidden[torch.randperm(len(hidden))]
            return self.last(hidden)

    return fit(Model(), cross)


@case
def contrastive_within():
    class Model(Net):
        def forward(self, rows):
            one = functional.normalize(self.hidden(rows), dim=1)
            two = functional.normalize(self.hidden(rows * 1.1 + 0.1), dim=1)
            return functional.cross_entropy(one @ two.T / 0.1, torch.arange(len(rows)))

    return fit(Model(), lambda m, rows, target: m(rows))


@case
def limited_loss_within():
    class Limited(Net):
        def forward(self, rows, target):
            return functional.mse_loss(super().forward(rows)[:, 0], target).clamp(max=20.0)

    drawn = torch.Generator().manual_seed(3)
    losses, net = [], Limited()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(12):
        rows = torch.randint(0, 2, (8, 12), generator=drawn) * 2.0 - 1
        rows[0] = 1.0
        target = rows[:, :4].sum(1) + (30.0 if step == 10 else 0.0) * (torch.arange(8) == 0)
        loss = net(rows, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@case
def root_of_mean_within():
    class Model(Net):
        def forward(self, rows, target):
            return (self.last(self.hidden(rows))[:, 0] - target).square().mean().sqrt()

    return fit(Model(), lambda m, rows, target: m(rows, target.float()))


@case
def spread_of_batch_within():
    class Model(Net):
        def forward(self, rows):
            hidden = self.hidden(rows)
            return self.last(hidden / hidden.detach().abs().max())

    return fit(Model(), cross)


@case
def queue_of_keys():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("queue", torch.randn(32, 16, generator=torch.Generator().manual_seed(3)))
            self.place = 0

        def forward(self, rows):
            hidden = self.hidden(rows)
            logits = hidden @ self.queue.clone().T
            with torch.no_grad():
                self.queue[self.place : self.place + len(rows)] = hidden
            self.place = (self.place + len(rows)) % 32
            return logits

    return fit(Model(), lambda m, rows, target: functional.cross_entropy(m(rows), target))


@case
def unregistered_weight():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.scales = [nn.Parameter(torch.ones(3))]

        def forward(self, rows):
            return super().forward(rows) * self.scales[0]

    model = Model()
    optimizer = torch.optim.SGD([*model.parameters(), *model.scales], lr=0.5)
    losses = []
    for rows, target in batches(4):
        loss = cross(model, rows, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@case
def number_of_row():
    class Model(Net):
        def forward(self, rows):
            return super().forward(rows) + torch.arange(len(rows))[:, None] * 0.1

    return fit(Model(), cross)


@case
def count_returned():
    class Model(Net):
        def forward(self, rows):
            return super().forward(rows), rows.shape[0]

    def loss(model, rows, target):
        logits, count = model(rows)
        return functional.cross_entropy(logits, target, reduction="sum") / count

    return fit(Model(), loss)


@case
def recurrent_state_kept():
    class Model(Net):
        state = None

        def forward(self, rows):
            hidden = self.hidden(rows) + (0 if self.state is None else self.state)
            self.state = hidden.detach()
            return self.last(hidden)

    return fit(Model(), cross)


@case
def own_generator():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.generator = torch.Generator().manual_seed(5)

        def forward(self, rows):
            hidden = self.hidden(rows)
            return self.last(hidden + torch.randn(hidden.shape, generator=self.generator))

    return fit(Model(), cross)


@case
def numpy_noise_of_rows():
    import numpy

    class Model(Net):
        def forward(self, rows):
            hidden = self.hidden(rows)
            return self.last(hidden + torch.from_numpy(numpy.random.randn(*hidden.shape)).float())

    numpy.random.seed(0)
    return fit(Model(), cross)


@case
def global_registry():
    class Model(Net):
        def forward(self, rows):
            hidden = self.hidden(rows)
            add_loss(hidden.mean(0).square().sum())
            return self.last(hidden)

    def loss(model, rows, target):
        REGISTRY.clear()
        return cross(model, rows, target) + sum(REGISTRY)

    return fit(Model(), loss)


REGISTRY = []


def add_loss(value):
    REGISTRY.append(value)


@case
def class_attribute():
    class Model(Net):
        mean = None

        def forward(self, rows):
            hidden = self.hidden(rows)
            type(self).mean = hidden.mean(0)
            return self.last(hidden)

    return fit(Model(), lambda m, rows, target: cross(m, rows, target) + m.mean.square().sum())


@case
def threshold_of_the_batch():
    class Model(Net):
        def forward(self, rows):
            hidden = self.hidden(rows)
            return self.last(hidden if hidden[:, 0].mean() > 0 else 2 * hidden)

    return fit(Model(), cross)


@case
def mixed_once_it_is_switched_on():
    class Model(Net):
        mixes = False

        def forward(self, rows):
            return self.last(self.hidden(0.7 * rows + 0.3 * rows.roll(1, 0) if self.mixes else rows))

    model = Model()
    found = fit(model, cross, steps=10)
    model.mixes = True
    return found + fit(model, cross, steps=10)


class Counting(Net):
    """Does something else from its twentieth call in training on."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, rows):
        self.calls += self.training
        hidden = self.hidden(rows)
        return self.last(self.late(hidden) if self.calls > 20 else hidden)


@case
def centred_after_some_calls():
    class Model(Counting):
        def late(self, hidden):
            return hidden - hidden.mean(0)

    return fit(Model(), cross, steps=30)


@case
def centred_little_by_little():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, rows):
            self.calls += 1
            hidden = self.hidden(rows)
            return self.last(hidden - hidden.mean(0) * (self.calls / 100 - 0.08).clamp(0, 1))

    return fit(Model(), cross, steps=30)


@case
def scaled_where_the_batch_is_large():
    class Model(Net):
        def forward(self, rows):
            hidden = self.first(rows)
            if hidden.abs().max() > 3.6:
                hidden = 3 * hidden / hidden.abs().max()
            return self.last(hidden.tanh())

    return fit(Model(), cross, steps=80)


@case
def penalty_after_a_warm_up():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, rows, target):
            self.calls += 1
            hidden = self.hidden(rows)
            loss = functional.cross_entropy(self.last(hidden), target)
            return loss + 0.1 * torch.cov(hidden.T).square().mean() if self.calls > 20 else loss

    return fit(Model(), lambda model, rows, target: model(rows, target), steps=30)


@case
def another_layer_later():
    """Rows stay independent."""

    class Model(Counting):
        def late(self, hidden):
            return functional.layer_norm(hidden, hidden.shape[1:])

    return fit(Model(), cross, steps=30)


NOW = {"step": 0}  # read by models, as scripts do that count their steps in a variable


class OnlySometimes(Net):
    """Mixes its rows in a single call, from the thirtieth on; `is_time` says in which."""

    def is_time(self):
        return NOW["step"] >= 30 and NOW["step"] % 7 == 0

    def forward(self, rows):
        hidden = self.hidden(rows)
        return self.last(hidden - hidden.mean(0) if self.training and self.is_time() else hidden)


def fit_counting(model, loss_of=cross):
    """Train and count the steps in `NOW` and in an attribute of the model, before each call."""
    steps = iter(range(40))

    def counted(*given):
        NOW["step"] = model.step = next(steps)
        return loss_of(*given)

    return fit(model, counted, steps=40)


@case
def mixed_at_some_steps():
    return fit_counting(OnlySometimes())


@case
def mixed_at_some_steps_by_attribute():
    class Model(OnlySometimes):
        def is_time(self):
            return self.step >= 30 and self.step % 7 == 0

    return fit_counting(Model())


@case
def mixed_at_some_of_its_calls():
    class Model(OnlySometimes):
        calls = 0

        def is_time(self):
            self.calls += 1
            return self.calls >= 30 and self.calls % 10 == 0

    return fit_counting(Model())


@case
def mixed_at_some_of_its_calls_by_a_buffer():
    class Model(OnlySometimes):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def is_time(self):
            self.calls += 1
            return self.calls.item() >= 30 and self.calls.item() % 10 == 0

    return fit_counting(Model())


@case
def calls_counted_by_an_iterator():
    """A comparison would advance the iterator."""

    class Model(OnlySometimes):
        def __init__(self):
            super().__init__()
            self.calls = itertools.count(1)

        def is_time(self):
            return next(self.calls) % 10 == 0

    return fit_counting(Model())


@case
def weights_that_a_forward_pass_limits():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.words, self.last = nn.Embedding(12, 16, max_norm=1.0), nn.Linear(16, 3)

        def forward(self, rows):
            return self.last(self.words(rows.argmax(1)))

    return fit(Model(), cross)


@case
def gradients_limited_at_some_steps():
    class Model(OnlySometimes):
        def forward(self, rows):
            hidden = self.first(rows)
            if self.is_time() and hidden.requires_grad:
                hidden.register_hook(lambda gradient: gradient * min(1.0, 0.002 / (gradient.norm() + 1e-9)))
            return self.last(hidden.tanh())

    return fit_counting(Model())


@case
def gradients_changed_by_a_function_at_some_steps():
    class Centred(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient - gradient.mean(0)

    class Model(OnlySometimes):
        def forward(self, rows):
            hidden = self.first(rows)
            return self.last((Centred.apply(hidden) if self.is_time() else hidden).tanh())

    return fit_counting(Model())


@case
def other_operations_at_each_call():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, rows):
            self.calls += 1
            hidden = self.first(rows)
            for _ in range(self.calls % 13):
                hidden = self.first(hidden[:, :12]).sin() if self.calls % 2 else hidden.tanh()
            return self.last(hidden)

    return fit(Model(), cross, steps=40)


class Penalised(Net):
    """Has a term over the batch whose weight is 0 at first; the same operations in each call."""

    def __init__(self):
        super().__init__()
        self.weight_of_term = 0.0
        self.register_buffer("factor", torch.zeros(()))

    def forward(self, rows):
        hidden = self.hidden(rows)
        return self.last(hidden + (self.weight_of_term + self.factor) * hidden.mean(0))


@case
def weight_of_a_term_set_later():
    model = Penalised()
    found = fit(model, cross, steps=16)
    model.weight_of_term = 1.0
    return found + fit(model, cross, steps=4)


@case
def buffer_set_later():
    model = Penalised()
    found = fit(model, cross, steps=16)
    model.factor.fill_(1.0)
    return found + fit(model, cross, steps=4)


@case
def settings_of_each_step():
    """Rows stay independent."""

    class Model(Net):
        def forward(self, rows):
            return self.last(self.hidden(rows) / self.temperature)

    model = Model()

    def loss_of(model, rows, target):
        model.temperature = getattr(model, "temperature", 1.0) * 0.98
        return cross(model, rows, target)

    return fit(model, loss_of, steps=40)


def fit_until_a_large_row(model):
    """Train on rows of ordinary size, and then on a batch with a large row, at a call that is not compared."""
    X[33] *= 6
    try:
        return fit(model, cross, steps=5)
    finally:
        X[33] /= 6


@case
def divided_by_the_largest_value_if_it_is_large():
    class Model(Net):
        def forward(self, rows):
            return self.last(self.hidden(rows / rows.abs().max().clamp(min=6.0)))

    return fit_until_a_large_row(Model())


@case
def limited_by_the_norm_of_the_batch():
    class Model(Net):
        def forward(self, rows):
            scale = (40.0 / rows.norm()).clamp(max=1.0)
            return self.last(self.hidden(rows * scale))

    return fit_until_a_large_row(Model())


@case
def shifted_if_any_row_is_large():
    class Model(Net):
        def forward(self, rows):
            return self.last(self.hidden(torch.where((rows.abs() > 8).any(), rows - rows.mean(0), rows)))

    return fit_until_a_large_row(Model())


def main():
    names = sys.argv[1:] or list(CASES)
    for name in names:
        try:
            found = CASES[name]()
            print(name, *(f"{number:.6f}" for number in found), flush=True)
        except SystemExit as ending:
            print(name, "refused", ending.code, flush=True)


if __name__ == "__main__":
    main()
