"""Ordinary programs; on several ranks each prints what it prints on one process.

python ordinary.py NAME ...
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import random
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

CASES = {}
G = torch.Generator().manual_seed(1)
X = torch.randn(96, 12, generator=G)
Y = (X.sum(1) > 0).long() + (X[:, 0] > 0).long()
IMAGES = torch.randn(32, 3, 8, 8, generator=G)
TOKENS = torch.randint(1, 20, (48, 8), generator=G)


def case(function):
    CASES[function.__name__] = function
    return function


def batches(*tensors, size=8, steps=4):
    for step in range(steps):
        yield tuple(each[step * size % (len(each) - size + 1) :][:size] for each in tensors)


def fit(model, loss_of, tensors, *, steps=4, optimizer=None, size=8):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for batch in batches(*tensors, steps=steps, size=size):
        loss = loss_of(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, weights(model)]


def weights(model):
    return sum(weight.detach().double().abs().sum().item() for weight in model.parameters())


def cross(model, rows, target):
    return functional.cross_entropy(model(rows), target)


def mlp(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), *more, nn.ReLU(), nn.Linear(16, 3))


@case
def multilayer_perceptron():
    return fit(mlp(), cross, (X, Y))


@case
def outputs_changed_in_place():
    def loss(model, rows, target):
        logits = model(rows)
        logits /= 2.0
        logits[rows[:, :3] > 1] = -5.0
        return functional.cross_entropy(logits, target)

    return fit(mlp(), loss, (X, Y))


class Residual(nn.Module):
    """Blocks that return views, which the model changes in place."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.inner = kind, nn.Linear(12, 12) if kind == "linear" else nn.LayerNorm(12)
        self.scale = nn.Parameter(torch.ones(12) / 2)

    def forward(self, rows):
        found = rows.tanh() * self.scale if self.kind == "scale" else self.inner(rows)
        return found[:, :]


class Residuals(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.blocks, self.last = nn.ModuleList(Residual(kind) for _ in range(3)), nn.Linear(12, 3)

    def forward(self, rows):
        for block in self.blocks:
            more = block(rows)
            more += rows
            rows = more
        return self.last(rows)


def residuals(kind):
    def program():
        torch.manual_seed(0)
        return fit(Residuals(kind), cross, (X, Y))

    return program


CASES.update({f"views_of_{kind}_changed_in_place": residuals(kind) for kind in ("linear", "norm", "scale")})


@case
def read_again_from_safetensors():
    from safetensors.torch import load_model, save_model

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 15), nn.ReLU(), nn.Linear(15, 3), nn.Linear(3, 1))
    squared = lambda model, rows, target: (model(rows)[:, 0] - target).square().mean()  # noqa: E731
    losses = fit(model, squared, (X, Y))
    save_model(model, "model.safetensors")
    fit(model, squared, (X, Y))
    load_model(model, "model.safetensors")
    return [*losses, *fit(model, squared, (X, Y))]


@case
def with_loader_and_epochs():
    model, losses = mlp(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        for rows, target in DataLoader(TensorDataset(X[:30], Y[:30]), batch_size=8, shuffle=True):
            loss = cross(model, rows, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            losses.append((model.eval()(X[30:]).argmax(1) == Y[30:]).float().mean().item())
        model.train()
    return losses


@case
def convolutions_with_batch_norm():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, 3),
    )
    return [*fit(model, cross, (IMAGES, Y[:32])), model[1].running_var.sum().item()]


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        nn.init.zeros_(self.norms[1].weight)

    def forward(self, values):
        hidden = functional.relu(self.norms[0](self.first(values)))
        return functional.relu(values + self.norms[1](self.second(hidden)))


@case
def residual_network_with_zero_gamma():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        ResidualBlock(8),
        ResidualBlock(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    return fit(model, cross, (IMAGES, Y[:32]), size=16)


class Attention(nn.Module):
    """Keeps its weights, as teaching code does."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.attn = nn.Linear(16, 48), nn.Linear(16, 16), None
        self.register_buffer("mask", torch.ones(8, 8).tril()[None, None])

    def forward(self, values):
        rows, length, _ = values.shape
        q, k, v = (each.view(rows, length, 4, 4).transpose(1, 2) for each in self.qkv(values).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1) / 2).masked_fill(self.mask[..., :length, :length] == 0, -1e9)
        self.attn = scores.softmax(-1)
        return self.out((self.attn @ v).transpose(1, 2).reshape(rows, length, 16))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Embedding(8, 16)
        self.attention, self.norm = Attention(), nn.LayerNorm(16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets=None):
        hidden = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        logits = self.head(self.norm(hidden + self.attention(hidden)))
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)


@case
def language_model_that_keeps_attention():
    torch.manual_seed(0)
    model = Language()
    return fit(model, lambda m, tokens: m(tokens, tokens.roll(-1, 1))[1], (TOKENS,))


@case
def a_batch_as_large_as_the_sequence_is_long():
    torch.manual_seed(0)

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(20, 16)
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
            self.head = nn.Linear(16, 20)

        def forward(self, tokens, mask):
            return self.head(self.layer(self.tokens(tokens), mask))

    mask = nn.Transformer.generate_square_subsequent_mask(8)
    return fit(
        Masked(), lambda m, tokens: functional.cross_entropy(m(tokens, mask).flatten(0, 1), tokens.flatten()), (TOKENS,)
    )


@case
def encoder_of_torch_time_first_within():
    torch.manual_seed(0)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(20, 16)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0), 2)
            self.head = nn.Linear(16, 20)

        def forward(self, tokens):
            hidden = self.tokens(tokens) * math.sqrt(16)
            mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
            return self.head(self.encoder(hidden.transpose(0, 1), mask).transpose(0, 1))

    return fit(Encoder(), lambda m, t: functional.cross_entropy(m(t).flatten(0, 1), t.flatten()), (TOKENS,))


def dropped(model, loss_of, tensors, **named):
    """Models that draw random numbers within a call need only train: how many steps were taken."""
    return [float(len(fit(model, loss_of, tensors, **named)))]


@case
def dropout_of_all_kinds():
    torch.manual_seed(0)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(20, 16)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.1), 2)
            self.rnn = nn.LSTM(16, 16, 2, batch_first=True, dropout=0.2)
            self.head = nn.Linear(16, 20)

        def forward(self, tokens):
            hidden = functional.dropout1d(self.tokens(tokens).transpose(1, 2), 0.1, self.training).transpose(1, 2)
            hidden = self.encoder(hidden.transpose(0, 1)).transpose(0, 1)
            return self.head(self.rnn(hidden)[0])

    return dropped(Encoder(), lambda m, t: functional.cross_entropy(m(t).flatten(0, 1), t.flatten()), (TOKENS,))


@case
def recurrent_network():
    torch.manual_seed(0)

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.rnn = nn.Embedding(20, 16), nn.GRU(16, 16, batch_first=True)
            self.head = nn.Linear(16, 3)

        def forward(self, tokens):
            start = torch.zeros(1, len(tokens), 16)
            return self.head(self.rnn(self.tokens(tokens), start)[0][:, -1])

    return fit(Recurrent(), cross, (TOKENS, Y[:48]))


@case
def sequence_to_sequence_with_teacher_forcing():
    torch.manual_seed(0)
    random.seed(0)

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.cell, self.head = nn.Embedding(20, 16), nn.GRUCell(16, 16), nn.Linear(16, 20)

        def forward(self, tokens):
            hidden, given, found = torch.zeros(len(tokens), 16), tokens[:, 0], []
            for place in range(1, tokens.shape[1]):
                hidden = self.cell(self.tokens(given), hidden)
                found.append(self.head(hidden))
                given = tokens[:, place] if random.random() < 0.5 else found[-1].argmax(1)
            return torch.stack(found, 1)

    return fit(Decoder(), lambda m, t: functional.cross_entropy(m(t).flatten(0, 1), t[:, 1:].flatten()), (TOKENS,))


@case
def adversarial_networks_with_batch_norm():
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(4, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 12))
    judge = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    first, second = (torch.optim.Adam(each.parameters(), 2e-3, (0.5, 0.999)) for each in (maker, judge))
    found, loss_of = [], nn.BCEWithLogitsLoss()
    for (rows,) in batches(X, steps=4):
        made = maker(torch.randn(len(rows), 4))
        second.zero_grad()
        lost = loss_of(judge(rows), torch.ones(len(rows), 1)) + loss_of(judge(made.detach()), torch.zeros(len(rows), 1))
        lost.backward()
        second.step()
        first.zero_grad()
        missed = loss_of(judge(made), torch.ones(len(rows), 1))
        missed.backward()
        first.step()
        found += [lost.item(), missed.item()]
    return [*found, weights(judge)]


@case
def distillation():
    torch.manual_seed(0)
    teacher, student = mlp().eval().requires_grad_(False), nn.Linear(12, 3)

    def loss(model, rows, target):
        with torch.no_grad():
            wanted = teacher(rows)
        return cross(model, rows, target) + functional.kl_div(
            model(rows).log_softmax(1), wanted.softmax(1), reduction="batchmean"
        )

    return fit(student, loss, (X, Y))


@case
def accumulation_and_clipping():
    model, found = mlp(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step, (rows, target) in enumerate(batches(X, Y, steps=6)):
        (cross(model, rows, target) / 2).backward()
        if step % 2:
            found.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
            optimizer.step()
            optimizer.zero_grad()
    return [*found, weights(model)]


@case
def detector_with_few_positives():
    """The model divides its loss by the number of positives, at least 1. In some batches a rank, or all have none."""

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Linear(12, 4)

        def forward(self, rows, positive):
            losses = functional.binary_cross_entropy_with_logits(self.net(rows), positive.float(), reduction="none")
            return losses.sum() / max(1, int(positive.sum()))

    positive = torch.zeros(96, 4, dtype=torch.long)
    for row in (0, 5, 8, 9, 21, 24, 25, 26, 29, 33, 39, 54, 55, 64, 65):
        positive[row, row % 4] = 1
    return fit(Detector(), lambda model, *batch: model(*batch), (X, positive), steps=12, size=8)


@case
def mixed_precision():
    model = mlp(nn.LayerNorm(16))

    def loss(m, rows, target):
        with torch.autocast("cpu", torch.bfloat16):
            return cross(m, rows, target)

    return [round(number, 2) for number in fit(model, loss, (X, Y))[:3]]


@case
def limited_memory_bfgs():
    model, found = mlp(), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = cross(model, X[:32], Y[:32])
        loss.backward()
        return loss

    for _ in range(2):
        found.append(optimizer.step(closure).item())
    return found


@case
def average_of_weights():
    model = mlp()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for rows, target in batches(X, Y):
        optimizer.zero_grad()
        cross(model, rows, target).backward()
        optimizer.step()
        average.update_parameters(model)
        with torch.no_grad():
            found.append(cross(average.eval(), rows, target).item())
    return found


@case
def metric_learning():
    torch.manual_seed(0)
    model, loss_of = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8)), nn.TripletMarginLoss()
    return fit(model, lambda m, a, b, c: loss_of(m(a), m(b), m(c)), (X[:40], X[40:80], X[50:90]))


@case
def contrastive_with_two_views():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8))

    def loss(m, rows):
        found = functional.normalize(m(torch.cat([rows, rows * 1.1 + 0.1])), dim=1)
        near = found @ found.T / 0.5 - 1e9 * torch.eye(len(found))
        return functional.cross_entropy(near, torch.arange(len(found)).roll(len(rows)))

    return fit(model, loss, (X,))


@case
def variational_autoencoder():
    torch.manual_seed(0)

    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Linear(12, 8), nn.Linear(4, 12)

        def forward(self, rows):
            mean, variance = self.down(rows).chunk(2, 1)
            hidden = mean + torch.randn_like(mean) * (variance / 2).exp()
            return self.up(hidden), mean, variance

    def loss(m, rows):
        found, mean, variance = m(rows)
        return functional.mse_loss(found, rows) - 0.05 * (1 + variance - mean**2 - variance.exp()).mean()

    return dropped(Autoencoder(), loss, (X,))


@case
def diffusion():
    torch.manual_seed(0)

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.times, self.net = nn.Embedding(10, 12), nn.Sequential(nn.Linear(12, 32), nn.SiLU(), nn.Linear(32, 12))

        def forward(self, rows, times):
            return self.net(rows + self.times(times))

    def loss(m, rows):
        times, noise = torch.randint(0, 10, (len(rows),)), torch.randn_like(rows)
        return functional.mse_loss(m(rows + noise * times[:, None] / 10, times), noise)

    return fit(Denoiser(), loss, (X,))


@case
def mixture_of_experts_with_dropout():
    torch.manual_seed(0)

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(12, 3)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.1), nn.ReLU()) for _ in range(3))
            self.last = nn.Linear(12, 3)

        def forward(self, rows):
            most, chosen = self.gate(rows).softmax(-1).max(-1)
            found = torch.zeros_like(rows)
            for place, expert in enumerate(self.experts):
                own = (chosen == place).nonzero().flatten()
                if len(own):
                    found = found.index_add(0, own, expert(rows[own]) * most[own, None])
            return self.last(found)

    return dropped(Experts(), cross, (X, Y))


@case
def stochastic_depth():
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(12, 12)

        def forward(self, rows):
            if not self.training:
                return rows + self.inner(rows)
            keep = torch.rand(rows.shape[0], 1) < 0.8
            return rows + self.inner(rows) * keep / 0.8

    class LayerDrop(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.last = nn.ModuleList(Block() for _ in range(3)), nn.Linear(12, 3)

        def forward(self, rows):
            for block in self.blocks:
                if torch.rand([]) > 0.2 or not self.training:
                    rows = block(rows)
            return self.last(rows)

    return dropped(LayerDrop(), cross, (X, Y))


@case
def layers_dropped_for_the_whole_batch():
    """One number of each call decides, so all ranks must draw the same."""

    class LayerDrop(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.last = nn.ModuleList(nn.Linear(12, 12) for _ in range(3)), nn.Linear(12, 3)

        def forward(self, rows):
            for block in self.blocks:
                if not self.training or torch.rand(()) > 0.5:
                    rows = rows + block(rows).tanh()
            return self.last(rows * (1 + 0.1 * torch.randn(())))

    torch.manual_seed(0)
    return fit(LayerDrop(), cross, (X, Y))


@case
def positions_and_masks_with_as_many_rows_as_the_batch():
    """Rows of 8 positions in batches of 8: two of four inputs have no rows of the batch."""

    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.at, self.last = nn.Embedding(20, 12), nn.Embedding(8, 12), nn.Linear(12, 3)
            self.attention = nn.MultiheadAttention(12, 2, batch_first=True)

        def forward(self, rows, at, causal, padded):
            hidden = self.embed(rows) + self.at(at)
            mask = (causal[None] | padded[:, None, :]).repeat_interleave(2, 0)
            hidden = hidden + self.attention(hidden, hidden, hidden, attn_mask=mask, need_weights=False)[0]
            return self.last((hidden * ~padded[..., None]).sum(1))

    at, causal = torch.arange(8), torch.ones(8, 8, dtype=torch.bool).triu(1)
    rows = torch.randint(1, 20, (len(X), 8), generator=torch.Generator().manual_seed(2))
    rows[::3, 6:] = 0
    torch.manual_seed(0)
    return fit(Attends(), lambda model, x, y: functional.cross_entropy(model(x, at, causal, x == 0), y), (rows, Y))


@case
def columns_of_outputs_with_a_last_part_of_one_row():
    """torch calls a column of one row contiguous, whatever its stride is."""

    class Columns(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.last = nn.Linear(12, 16), nn.Linear(16, 4)

        def forward(self, rows):
            return self.last(self.hidden(rows).tanh()).unbind(1)

    def loss(model, rows, target):
        first, second, *_ = model(rows)
        return functional.gaussian_nll_loss(first, target.float(), second.exp())

    torch.manual_seed(0)
    model, found = Columns(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for rows, target in DataLoader(TensorDataset(X[:18], Y[:18]), batch_size=8):  # the last batch has two rows
        value = loss(model, rows, target)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        found.append(value.item())
    return [*found, weights(model)]


@case
def spectral_and_weight_norm():
    torch.manual_seed(0)
    from torch.nn.utils import parametrizations

    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(12, 16)), nn.ReLU(), parametrizations.weight_norm(nn.Linear(16, 3))
    )
    return fit(model, cross, (X, Y))


@case
def gradient_checkpointing():
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU()) for _ in range(2)
            )
            self.norm, self.last = nn.LayerNorm(12), nn.Linear(12, 3)

        def forward(self, rows):
            for block in self.blocks:
                rows = checkpoint(block, rows, use_reentrant=False)
            return self.last(self.norm(rows))

    return fit(Deep(), cross, (X, Y))


@case
def siamese_with_shared_encoder():
    torch.manual_seed(0)

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(12, 8), nn.Tanh())

        def forward(self, one, other):
            return functional.cosine_similarity(self.encoder(one), self.encoder(other))

    return fit(Siamese(), lambda m, a, b, y: functional.mse_loss(m(a, b), (y > 1).float()), (X[:48], X[48:], Y[:48]))


@case
def several_outputs_in_a_dictionary():
    torch.manual_seed(0)

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.one, self.two = nn.Linear(12, 16), nn.Linear(16, 3), nn.Linear(16, 1)

        def forward(self, batch):
            hidden = self.body(batch["rows"]).relu()
            return {"kind": self.one(hidden), "size": self.two(hidden).squeeze(1), "name": "heads"}

    def loss(m, rows, target):
        found = m({"rows": rows, "note": "training"})
        return functional.cross_entropy(found["kind"], target) + functional.mse_loss(found["size"], target.float())

    return fit(Heads(), loss, (X, Y))


@case
def fine_tuning_with_low_rank_adapters():
    torch.manual_seed(0)

    class Adapter(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner.requires_grad_(False)
            self.down, self.up = nn.Linear(12, 2, bias=False), nn.Linear(2, 16, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, rows):
            return self.inner(rows) + self.up(self.down(rows))

    model = mlp()
    model[0] = Adapter(model[0])
    return fit(model, cross, (X, Y))


@case
def momentum_teacher():
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16, affine=False), nn.ReLU(), nn.Linear(16, 8))
    teacher = copy.deepcopy(student).requires_grad_(False)

    def loss(m, rows):
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), m.parameters()):
                old.lerp_(new, 0.1)
            wanted = teacher(rows)
        return 2 - 2 * functional.cosine_similarity(m(rows * 1.1), wanted).mean()

    return fit(student, loss, (X,))


@case
def penalty_and_learned_temperature():
    torch.manual_seed(0)

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.temperature = nn.Linear(12, 3), nn.Parameter(torch.zeros(()))

        def forward(self, rows):
            return self.inner(rows) * self.temperature.exp()

    return fit(Scaled(), lambda m, r, t: cross(m, r, t) + 1e-2 * sum(w.square().sum() for w in m.parameters()), (X, Y))


@case
def frozen_backbone_in_evaluation():
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU()).eval().requires_grad_(False)
    head = nn.Linear(16, 3)
    return fit(head, lambda m, rows, target: cross(m, backbone(rows), target), (X, Y))


@case
def attack_on_inputs():
    model, found = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows, target in batches(X, Y):
        rows = rows.clone().requires_grad_()
        (slope,) = torch.autograd.grad(cross(model, rows, target), [rows])
        loss = cross(model, (rows + 0.1 * slope.sign()).detach(), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@case
def scheduled_argument():
    class Annealed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(12, 3)

        def forward(self, rows, strength, step=0):
            return self.inner(rows) * strength

    torch.manual_seed(0)
    model, found = Annealed(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (rows, target) in enumerate(batches(X, Y, steps=12)):
        loss = functional.cross_entropy(model(rows, 1 / (1 + step), step=step), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@case
def counters_and_caches():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.cache, self.steps = nn.Linear(12, 3), {}, 0
            self.register_buffer("seen", torch.zeros((), dtype=torch.long))

        def forward(self, rows):
            self.steps += 1
            self.seen += 1
            if "scale" not in self.cache:
                self.cache["scale"] = torch.linspace(0.5, 1.5, 12)
            return self.inner(rows * self.cache["scale"])

    torch.manual_seed(0)
    model = Cached()
    return [*fit(model, cross, (X, Y)), model.steps, model.seen.item()]


@case
def lazy_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(3))
    model(X[:2])
    other = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(3))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    return [*fit(model, cross, (X, Y)), *fit(other, cross, (X, Y), optimizer=optimizer)]


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(12, 3)

    def forward(self, rows):
        found = self.inner(rows)
        if self.training:
            return found
        return [{"label": int(each.argmax()), "scores": each[each > 0]} for each in found]


@case
def lists_in_evaluation():
    torch.manual_seed(0)
    model = Detector()
    found = fit(model, cross, (X, Y))
    with torch.no_grad():
        said = model.eval()(X[:9])
    return [*found, len(said), sum(each["label"] for each in said), sum(each["scores"].sum().item() for each in said)]


@case
def kept_workers_and_break():
    model, found = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(X, Y), 8, shuffle=True, num_workers=1, persistent_workers=True)
    for _ in range(3):
        for step, (rows, target) in enumerate(loader):
            loss = cross(model, rows, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
            if step == 2:
                break
    return found


@case
def traced_after_training():
    model = mlp()
    found = fit(model, cross, (X, Y))
    traced = torch.jit.trace(model.eval(), X[:4])
    return [*found, traced(X[:3]).sum().item()]


class Noisy(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return X[index] + 0.1 * torch.randn(12), Y[index]


@case
def own_collate_with_workers_and_augmentation():
    model, found = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def collate(samples):
        return torch.stack([rows for rows, _ in samples]), torch.stack([target for _, target in samples])

    torch.manual_seed(3)
    for rows, target in DataLoader(Noisy(), 8, shuffle=True, num_workers=1, collate_fn=collate):
        loss = cross(model, rows, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


class MeanOver(nn.Module):
    """Its loss is a mean over what `count` makes of an input: all of it in the first calls, and less later."""

    def __init__(self, count):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.last, self.count = nn.Embedding(20, 12), nn.Linear(12, 20), count

    def forward(self, ids, about):
        each = -functional.log_softmax(self.last(self.embed(ids)), -1).gather(-1, ids[..., None]).squeeze(-1)
        valid = self.count(ids, about)
        return (each * valid).sum() / valid.sum()


def mean_over(count, about):
    """Train; the rows are whole in the first 8 batches, and of many lengths later."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 20, (96, 7), generator=generator)
    lengths = torch.randint(1, 8, (96,), generator=generator)
    lengths[:48] = 7
    valid = torch.arange(7) < lengths[:, None]
    model = MeanOver(count)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for rows, told in zip((ids * valid).split(6), about(lengths, valid).split(6), strict=True):
        loss = model(rows, told)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@case
def mean_over_a_mask():
    return mean_over(lambda ids, mask: mask, lambda lengths, valid: valid.float())


@case
def mean_over_a_boolean_mask():
    return mean_over(lambda ids, mask: mask, lambda lengths, valid: valid)


@case
def mean_over_a_mask_of_whole_numbers():
    return mean_over(lambda ids, mask: mask, lambda lengths, valid: valid.long())


@case
def mean_over_lengths():
    return mean_over(lambda ids, lengths: torch.arange(7) < lengths[:, None], lambda lengths, valid: lengths)


@case
def mean_without_padding():
    return mean_over(lambda ids, lengths: ids != 0, lambda lengths, valid: lengths)


@case
def mean_by_weights_of_samples():
    return mean_over(lambda ids, weight: weight[:, None].expand(-1, 7), lambda lengths, valid: lengths / 7)


class ZeroHead(nn.Module):
    """Returns its loss, which is almost the same for all samples, because the last layer starts at zero or near it."""

    def __init__(self, scale):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Sequential(nn.Linear(12, 16), nn.GELU()), nn.Linear(16, 10)
        for each in self.head.parameters():
            nn.init.normal_(each, std=scale)

    def forward(self, rows, target):
        return functional.cross_entropy(self.head(self.body(rows)), target, ignore_index=-1)


def with_a_warm_up(scale, ignored):
    generator = torch.Generator().manual_seed(1)
    target = torch.where(torch.rand(96, generator=generator) < ignored, -1, X[:, :10].argmax(1))
    model = ZeroHead(scale)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.0), []
    for step in range(12):
        optimizer.param_groups[0]["lr"] = (step + 1) * 1e-5
        chosen = torch.randint(0, 96, (32,), generator=generator)
        loss = model(X[chosen], target[chosen])
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses += [loss.item(), float(norm)]
    return losses


@case
def a_last_layer_that_starts_at_zero():
    return with_a_warm_up(0.0, 0.0)


@case
def a_last_layer_with_small_weights():
    return with_a_warm_up(1e-6, 0.0)


@case
def ignored_targets_of_a_last_layer_that_starts_at_zero():
    return with_a_warm_up(0.0, 0.4)


@case
def ignored_targets_of_a_last_layer_with_small_weights():
    return with_a_warm_up(1e-6, 0.4)


class Written(nn.Linear):
    """Changes its weight in forward, as masked convolutions and layers with limited weights do."""

    def __init__(self, inputs, outputs, how):
        super().__init__(inputs, outputs)
        self.how = how
        self.register_buffer("mask", torch.ones(outputs, inputs).tril(2))

    def forward(self, rows):
        if self.how == "mask":
            self.weight.data *= self.mask
        elif self.how == "limit":
            with torch.no_grad():
                self.weight.copy_(self.weight.clamp(min=-0.1))
        elif self.how == "norm":
            self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.6)
        elif self.training:
            self.weight.data.mul_(0.97)
        return super().forward(rows)


def written(how):
    def program():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 12), Written(12, 12, how), nn.ReLU(), Written(12, 3, how))
        losses = fit(model, cross, (X, Y), optimizer=torch.optim.Adam(model.parameters(), lr=0.01), steps=6)
        with torch.no_grad():  # evaluation after training, which changes the weights again
            return [*losses, float(cross(model.eval(), X, Y)), weights(model)]

    return program


CASES.update({f"weights_{how}_in_forward": written(how) for how in ("mask", "limit", "norm", "decay")})


class OwnNumbers(Dataset):
    """Draws samples from a generator of its own, as synthetic data often does."""

    def __init__(self):
        self.numbers = random.Random(3)

    def __len__(self):
        return 32

    def __getitem__(self, place):
        row = torch.tensor([self.numbers.gauss(0, 1) for _ in range(12)])
        return row, int(row.sum() > 0)


class InTurn(Dataset):
    """Reads the next line of a file for each sample; the index does not matter."""

    def __init__(self):
        self.file = tempfile.TemporaryFile("w+")  # noqa: SIM115  open as long as the dataset
        self.file.writelines(" ".join(f"{value:.4f}" for value in row) + "\n" for row in X[:32].tolist())
        self.file.seek(0)

    def __len__(self):
        return 16

    def __getitem__(self, place):
        row = torch.tensor([float(each) for each in self.file.readline().split()])
        return row, int(row.sum() > 0)


class Centred(Dataset):
    """Subtracts the mean of the samples that were read so far."""

    def __init__(self):
        self.mean, self.count = torch.zeros(12), 0

    def __len__(self):
        return 32

    def __getitem__(self, place):
        self.count += 1
        self.mean += (X[place] - self.mean) / self.count
        return X[place] - self.mean, int(Y[place])


def fit_to(dataset, epochs=2, **settings):
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(epochs):
        for rows, target in DataLoader(dataset, 8, **settings):
            loss = cross(model, rows, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return [*losses, weights(model)]


@case
def samples_of_a_datasets_own_generator():
    return fit_to(OwnNumbers())


@case
def samples_of_a_datasets_own_generator_in_workers():
    return fit_to(torch.utils.data.Subset(OwnNumbers(), range(16)), num_workers=2)


@case
def samples_that_are_read_in_turn():
    return fit_to(InTurn())


@case
def samples_less_the_mean_so_far():
    return fit_to(torch.utils.data.Subset(Centred(), range(16)), shuffle=True)


@case
def samples_less_the_mean_so_far_in_workers():
    return fit_to(Centred(), shuffle=True, num_workers=2)


@case
def samples_less_the_mean_so_far_in_kept_workers():
    return fit_to(Centred(), num_workers=3, persistent_workers=True)


READ = {"samples": 0}  # changed by a function that a dataset calls


def share_of_noise():
    READ["samples"] += 1
    return min(1.0, READ["samples"] / 40)


class Warming(Centred):
    def __getitem__(self, place):
        return X[place] * share_of_noise(), int(Y[place])


@case
def samples_counted_outside_of_the_dataset():
    return fit_to(torch.utils.data.Subset(Warming(), range(16)), shuffle=True)


class WithIterators(Centred):
    """Counts with itertools, and takes numbers from a generator; nothing shows their positions."""

    def __init__(self, kind):
        super().__init__()
        numbers = itertools.count(1)
        self.numbers = numbers if kind == "count" else (number * 0.5 for number in numbers)

    def __getitem__(self, place):
        return X[place] * min(1.0, next(self.numbers) / 30), int(Y[place])


@case
def samples_counted_by_itertools():
    return fit_to(WithIterators("count"), shuffle=True)


@case
def samples_with_numbers_of_a_generator():
    return fit_to(torch.utils.data.Subset(WithIterators("generator"), range(24)))


def jittered(row, counted=[0]):  # noqa: B006  the default is the state
    counted[0] += 1
    return row * (1 + counted[0] % 7 / 7)


def jittered_by_attribute(row):
    jittered_by_attribute.calls = getattr(jittered_by_attribute, "calls", 0) + 1
    return row * (1 + jittered_by_attribute.calls % 7 / 7)


class Slotted:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0

    def __call__(self, row):
        self.calls += 1
        return row * (1 + self.calls % 7 / 7)


class CountedByClass:
    calls = 0

    def __call__(self, row):
        CountedByClass.calls += 1
        return row * (1 + CountedByClass.calls % 7 / 7)


class Changed(Centred):
    def __init__(self, change):
        super().__init__()
        self.changes = [change]

    def __getitem__(self, place):
        return self.changes[0](X[place]), int(Y[place])


@case
def samples_counted_in_a_default_argument():
    return fit_to(Changed(jittered), shuffle=True)


@case
def samples_counted_in_an_attribute_of_a_function():
    jittered_by_attribute.calls = 0
    return fit_to(Changed(jittered_by_attribute), shuffle=True)


@case
def samples_counted_in_slots():
    return fit_to(Changed(Slotted()), shuffle=True)


@case
def samples_counted_by_a_class():
    return fit_to(Changed(CountedByClass()), shuffle=True)


@case
def samples_scaled_by_a_generator_in_a_partial():
    drawn = functools.partial(lambda generator, row: row * generator.uniform(0.5, 1.5), random.Random(3))
    return fit_to(Changed(drawn), shuffle=True)


class OfBatches(Centred):
    """Reads a batch at once, and uses all of its samples."""

    def __getitems__(self, places):
        rows = X[places]
        return [(row, int(Y[place])) for row, place in zip(rows - rows.mean(0), places, strict=True)]


@case
def samples_normalized_by_batch():
    return fit_to(torch.utils.data.Subset(OfBatches(), range(24)), shuffle=True)


@case
def samples_normalized_by_batch_in_workers():
    return fit_to(OfBatches(), shuffle=True, num_workers=2)


class Counted(Centred):
    """Samples as dictionaries with text, which change with the number of samples that were read."""

    def __getitem__(self, place):
        self.count += 1
        return {"row": X[place] / self.count, "of": ("text", [int(Y[place])]), "name": f"sample {self.count}"}


def counted(**settings):
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for batch in DataLoader(Counted(), 8, **settings):
        loss = cross(model, batch["row"], batch["of"][1][0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses += [loss.item(), *(int(name.split()[1]) for name in batch["name"])]
    return losses


@case
def samples_with_text_that_change_when_read_in_workers():
    return counted(num_workers=2)


@case
def samples_that_change_when_read_in_workers_that_start_anew():
    return counted(num_workers=2, multiprocessing_context="forkserver")


@case
def evaluation_in_inference_mode():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    told = []
    for _ in range(2):
        for x, y in batches(X, Y):
            loss = cross(model.train(), x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            told += [model(X).sum().item(), model[0].weight.norm().item()]
            model[0].weight.mul_(0.5)
    return [*told, weights(model)]


@case
def frozen_between_forward_and_backward():
    torch.manual_seed(0)
    makes, judges = nn.Linear(12, 6), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    one, two = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (makes, judges))
    told = []
    for x, _ in batches(X, Y):
        made = makes(x)
        loss = -judges(made).mean()
        judges.requires_grad_(False)
        one.zero_grad()
        loss.backward()
        one.step()
        judges.requires_grad_(True)
        other = judges(made.detach()).mean() - judges(x[:, :6]).mean()
        two.zero_grad()
        other.backward()
        two.step()
        told += [loss.item(), other.item()]
    return [*told, weights(makes), weights(judges)]


@case
def statistics_of_standardized_columns():
    told = []
    for seed in range(4, 7):  # the mean of one column of a batch is near 0
        torch.manual_seed(seed)
        rows = torch.randn(300, 2)
        model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        chosen = torch.stack([torch.randperm(300)[:32] for _ in range(4)])
        parts = [(rows[each], (rows[each, 0] > 0).long()) for each in chosen]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for x, y in parts:
            loss = cross(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        told += [loss.item(), weights(model), model[0].running_var.sum().item()]
    return told


def layers_of_pictures(*sizes):
    """Return convolutions with biases, whose gradients before BatchNorm are nothing but rounding, and poolings."""
    layers, before = [], 3
    for size in sizes:
        layers += [nn.Conv2d(before, size, 3, padding=1), nn.BatchNorm2d(size), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        before = size
    return layers


def fit_pictures(model, pixels, target):
    """Train for steps that are compared with the whole batch four times."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return fit(model, cross, (pixels, target), steps=7, size=len(target), optimizer=optimizer)


@case
def large_pictures_with_pooling():
    torch.manual_seed(1)
    pixels, target = torch.randn(16, 3, 96, 96), torch.randint(0, 4, (16,))
    end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4)
    return fit_pictures(nn.Sequential(*layers_of_pictures(32, 64)[:-1], *end), pixels, target)


@case
def large_pictures_with_a_label_for_each_pixel():
    torch.manual_seed(3)
    pixels, target = torch.rand(8, 3, 64, 64), torch.randint(0, 4, (8, 64, 64))
    up = nn.ConvTranspose2d(16, 8, 2, 2), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 1)
    return fit_pictures(nn.Sequential(*layers_of_pictures(16), *up), pixels, target)


@case
def sounds_with_convolutions():
    torch.manual_seed(4)
    waves, target = torch.randn(16, 3, 4000), torch.randint(0, 4, (16,))
    parts = [nn.Conv1d(3, 16, 9, 4), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Conv1d(16, 16, 9, 4)]
    parts += [nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 4)]
    return fit_pictures(nn.Sequential(*parts), waves, target)


class WeightsOfLosses(nn.Module):
    """Weighs losses by learned uncertainties."""

    def __init__(self):
        super().__init__()
        self.logs = nn.Parameter(torch.zeros(2))

    def forward(self, *losses):
        return sum(loss * (-log).exp() + log for loss, log in zip(losses, self.logs, strict=True))


@case
def weights_of_several_losses():
    model, weigh = mlp(), WeightsOfLosses()
    optimizer = torch.optim.SGD([*model.parameters(), *weigh.parameters()], lr=0.05)

    def loss_of(model, rows, target):
        scores = model(rows)
        return weigh(functional.cross_entropy(scores, target), scores.square().mean())

    return [*fit(model, loss_of, (X, Y), steps=6, optimizer=optimizer), *weigh.logs.tolist()]


class MaskedWords(nn.Module):
    """Returns a mean over the masked words; some halves of a batch have none."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 16), nn.Linear(16, 20)

    def forward(self, tokens, labels):
        scores = self.head(self.words(tokens).tanh())
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten()), scores


@case
def few_masked_words():
    torch.manual_seed(5)
    labels = TOKENS.masked_fill(torch.rand(TOKENS.shape, generator=G) > 0.04, -100)
    labels[::8, 0] = TOKENS[::8, 0]  # each batch has one
    labels[4:8] = labels[20:24] = -100
    return fit(MaskedWords(), lambda model, tokens, wanted: model(tokens, wanted)[0], (TOKENS, labels), steps=6)


class Picky(nn.Sequential):
    """Refuses large values."""

    def forward(self, rows):
        if rows.abs().max() > 6:
            raise ValueError("values must be at most 6")
        return super().forward(rows)


@case
def a_model_that_refuses_large_values():
    return fit(Picky(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3)), cross, (X, Y))


@case
def a_model_that_limits_each_value():
    class Limited(nn.Sequential):
        def forward(self, rows):
            return super().forward(rows.clamp(-1, 1))

    return fit(Limited(nn.Linear(12, 16), nn.ReLU6(), nn.Linear(16, 3)), cross, (X, Y))


@case
def a_model_with_an_open_file():
    class Logged(nn.Sequential):
        def __init__(self, *parts):
            super().__init__(*parts)
            self.log = tempfile.TemporaryFile("w")  # noqa: SIM115 - open as long as the model

    return fit(Logged(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3)), cross, (X, Y))


def main():
    for name in sys.argv[1:] or CASES:
        torch.manual_seed(7)
        try:
            print(name, *(f"{number:.6f}" for number in CASES[name]()), flush=True)
        except SystemExit as ending:
            print(name, "refused", ending.code, flush=True)
        except RuntimeError as error:
            print(name, "failed", str(error).replace("\n", " ")[:200], flush=True)


if __name__ == "__main__":
    main()
