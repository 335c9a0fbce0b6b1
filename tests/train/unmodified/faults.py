"""Thirty programs that several ranks could train otherwise than one process; each prints its result or a refusal.

    python faults.py NAME ...

In most of them something differs between processes: the time, the process id, numbers of the system, or one rank alone
does something, which stands for a decision that came out otherwise there.
"""

from __future__ import annotations

import json
import os
import queue
import random
import sys
import tempfile
import threading
import time
import uuid
from concurrent import futures
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

ODD = json.loads(os.environ.get("PACELINE_RANK", '{"rank": 0}'))["rank"] == 1
X = torch.randn(256, 12, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
LATE = 14  # step at which something happens, after the comparison at call 13
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def fit(model, steps=20, *, inputs=lambda step, rows: rows, loss_of=None, before=None, after=None, size=8):
    """Train by SGD; `before` acts before a step of the optimizer, `after` behind it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        place = torch.arange(step * size, step * size + size) % len(X)
        rows, targets = inputs(step, X[place]), Y[place]
        loss = loss_of(step, model, rows, targets) if loss_of else cross_entropy(model(rows), targets)
        optimizer.zero_grad()
        loss.backward()
        if not (before and before(step, model, optimizer)):
            optimizer.step()
        if after:
            after(step, model, optimizer)
    return [weights(model), loss.item()]


def weights(model):
    return sum(weight.detach().double().abs().sum().item() for weight in model.parameters())


def mlp(middle=None):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), middle or nn.Tanh(), nn.Linear(16, 3))


def on_order(order):
    rows, model = list(order), mlp()
    return fit(model, len(rows) // 8, inputs=lambda step, unused: X[rows[step * 8 : step * 8 + 8]])


@case
def targets_of_the_process():
    drawn = torch.Generator().manual_seed(os.getpid())

    def loss(step, model, rows, targets):
        return cross_entropy(model(rows), torch.randint(3, targets.shape, generator=drawn) if step == LATE else targets)

    return fit(mlp(), loss_of=loss)


@case
def noise_of_the_process():
    drawn = torch.Generator().manual_seed(os.getpid())
    return fit(mlp(), inputs=lambda step, rows: rows + 0.01 * torch.randn(rows.shape, generator=drawn) * (step > LATE))


@case
def weighed_by_the_system():
    drawn = random.SystemRandom()

    def loss(step, model, rows, targets):
        return cross_entropy(model(rows), targets) * (drawn.random() if step == LATE else 1)

    return fit(mlp(), loss_of=loss)


@case
def penalty_by_the_system():
    drawn = random.SystemRandom()

    def loss(step, model, rows, targets):
        share = drawn.random() if step == LATE else 0.1
        return cross_entropy(model(rows), targets) + share * sum(each.square().sum() for each in model.parameters())

    return fit(mlp(), 140, loss_of=loss)


@case
def rate_of_the_time():
    begun = time.time()

    def before(step, model, optimizer):
        optimizer.param_groups[0]["lr"] = 0.05 + (time.time() - begun) / 100

    return fit(mlp(), before=before)


@case
def rate_of_one_step():
    def before(step, model, optimizer):
        optimizer.param_groups[0]["lr"] = 0.07 if step == LATE and ODD else 0.05

    return fit(mlp(), before=before)


def chosen_by(draw):
    def loss(step, model, rows, targets):
        return cross_entropy(model(rows), targets, reduction="none")[torch.from_numpy(draw(8)[:4])].mean()

    return fit(mlp(), loss_of=loss)


@case
def hard_rows_of_numpy():
    return chosen_by(numpy.random.RandomState(None).permutation)


@case
def hard_rows_of_a_bit_generator():
    return chosen_by(numpy.random.Generator(numpy.random.PCG64()).permutation)


@case
def frozen_on_one_rank():
    return fit(mlp(), after=lambda step, model, optimizer: model[0].requires_grad_(not (step >= LATE and ODD)))


@case
def buffer_of_one_rank():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()
            self.register_buffer("scale", torch.ones(3))

        def forward(self, rows):
            return self.inner(rows) * self.scale

    return fit(Scaled(), after=lambda step, model, optimizer: model.scale.add_(float(step == LATE and ODD)))


@case
def dropout_rate_of_one_rank():
    def after(step, model, optimizer):
        model[1].p = 0.5 if step >= LATE and ODD else 0.1

    return fit(mlp(nn.Dropout(0.1)), after=after)


@case
def clipped_otherwise_on_one_rank():
    def before(step, model, optimizer):
        nn.utils.clip_grad_norm_(model.parameters(), 0.1 if step == LATE and ODD else 1.0)

    return fit(mlp(), 140, before=before)


@case
def gradient_dropped_on_one_rank():
    def before(step, model, optimizer):
        if step == LATE and ODD:
            optimizer.zero_grad()

    return fit(mlp(), 140, before=before)


@case
def order_of_objects():
    """A set of objects has the order of their addresses, which are by chance."""
    order = list(range(64))
    random.SystemRandom().shuffle(order)
    return on_order(order)


@case
def order_of_unique_names():
    return on_order(sorted(range(64), key=lambda each: uuid.uuid4().hex))


def finished(count):
    """Numbers in the order in which threads are done with them."""

    def load(number):
        time.sleep(random.SystemRandom().random() / 100)
        return number

    with futures.ThreadPoolExecutor(8) as pool:
        return [each.result() for each in futures.as_completed([pool.submit(load, each) for each in range(count)])]


@case
def samples_as_threads_load_them():
    order = finished(64)
    model = mlp()
    for rows, _ in DataLoader(TensorDataset(X[order], Y[order]), batch_size=8):
        model(rows)
    return [0.0]


@case
def samples_listed_outside_of_the_dataset():
    order = finished(64)

    class Listed(Dataset):
        def __len__(self):
            return len(order)

        def __getitem__(self, place):
            return X[order[place]], Y[order[place]]

    loader = DataLoader(Listed(), batch_size=8)
    return [float(rows.sum()) for rows, _ in loader]


@case
def order_of_a_set_of_names():
    return on_order(int(name[1:]) for name in {f"s{each}" for each in range(64)})


@case
def rate_read_from_the_own_log():
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "losses")

        def after(step, model, optimizer):
            with log.open("a") as file:
                file.write(f"{weights(model)}\n")
            first, *_, last = map(float, [*log.read_text().split(), "1"])
            optimizer.param_groups[0]["lr"] = 0.05 * min(1.0, first) * last

        return fit(mlp(), after=after)


@case
def best_checkpoint_read_again():
    with tempfile.TemporaryDirectory() as folder:

        def after(step, model, optimizer):
            torch.save(model.state_dict(), Path(folder, f"{weights(model):.3f}.pt"))

        model = mlp()
        fit(model, 6, after=after)
        model.load_state_dict(torch.load(min(Path(folder).glob("*.pt"))))
        return fit(model, 3)


@case
def dictionaries_and_lists_as_inputs():
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, batch):
            return torch.stack([self.inner(view) for view in batch["views"]]).mean(0)

    return fit(Views(), 6, loss_of=lambda step, m, rows, y: cross_entropy(m({"views": [rows, 2 * rows], "of": "a"}), y))


@case
def a_list_with_one_tensor_for_each_sample():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, images):
            return torch.stack([self.inner(image) for image in images])

    return fit(Listed(), 6, loss_of=lambda step, model, rows, targets: cross_entropy(model(list(rows)), targets))


@case
def packed_sequences():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inner, self.last = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, packed):
            return self.last(self.inner(packed)[1][0])

    def loss(step, model, rows, targets):
        lengths = torch.tensor([3, 3, 2, 2, 2, 1, 1, 1])
        packed = nn.utils.rnn.pack_padded_sequence(rows.view(-1, 3, 4), lengths, batch_first=True)
        return cross_entropy(model(packed), targets)

    return fit(Packed(), 6, loss_of=loss)


@case
def rate_by_plateau():
    model, found = mlp(), []

    def before(step, model, optimizer):
        if not found:
            found.append(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1))
        found[0].step(weights(model))

    return fit(model, before=before)


@case
def averaged_weights_called_in_training():
    model = mlp()
    average = torch.optim.swa_utils.AveragedModel(model)
    fit(model, 6, after=lambda *unused: average.update_parameters(model))
    return [cross_entropy(average(X[:8]), Y[:8]).item()]


@case
def micro_batches_of_other_sizes():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(4):
        optimizer.zero_grad()
        for size in (8, 3, 5):
            place = slice(step * 16, step * 16 + size)
            cross_entropy(model(X[place]), Y[place], reduction="sum").div(16).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return [weights(model)]


@case
def batches_of_a_thread():
    ready = queue.Queue(2)

    def feed():
        for step in range(6):
            ready.put(X[step * 8 : step * 8 + 8] * 2)

    threading.Thread(target=feed, daemon=True).start()
    return fit(mlp(), 6, inputs=lambda step, rows: ready.get())


@case
def settings_of_the_world():
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    return fit(mlp(), 6, inputs=lambda step, rows: rows * ranks + rank)


@case
def step_left_out_on_one_rank():
    return fit(mlp(), before=lambda step, model, optimizer: step == LATE and ODD)


@case
def backward_left_out_on_one_rank():
    """The other rank would wait for the exchange of gradients."""

    def loss(step, model, rows, targets):
        if step == LATE and ODD:
            model(rows)
        return cross_entropy(model(rows), targets)

    return fit(mlp(), loss_of=loss)


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        sys.stderr.write(f"\n{name}: ")
        try:
            print(name, *(f"{number:.6f}" for number in CASES[name]()), flush=True)
        except SystemExit as ending:
            print(name, "refused", ending.code, flush=True)
    sys.stderr.write("\nend: ")
