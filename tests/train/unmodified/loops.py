"""Loops as people write them for one process, each with something that ranks could get wrong."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(75, 12, generator=GENERATOR)
Y = (X.sum(1) > 0).long() + (X[:, 0] > 0).long()


def told(name, *numbers):
    print(name, *(f"{float(number):.9f}" for number in numbers))


def mlp(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), *more, nn.Tanh(), nn.Linear(16, 3))


def plain(saved):
    """Shuffled, a worker, a ragged last batch, accumulation, clipping, a schedule, evaluation, checkpoints."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train, test = TensorDataset(X[:59], Y[:59]), TensorDataset(X[59:], Y[59:])
    loader = DataLoader(train, batch_size=8, shuffle=True, num_workers=1)
    for _ in range(2):
        model.train()
        correct = seen = 0
        for i, (inputs, target) in enumerate(loader):
            outputs = model(inputs)
            loss = cross_entropy(outputs, target)
            (loss / 2).backward()
            correct += (outputs.argmax(1) == target).sum().item()
            seen += len(target)
            if i % 2 or i + 1 == len(loader):
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                told("plain", loss.item(), norm.item())
        schedule.step()
        model.eval()
        with torch.no_grad():
            found = [
                (model(inputs).argmax(1) == target).sum().item() for inputs, target in DataLoader(test, batch_size=5)
            ]
        told("accuracy", correct / seen, sum(found) / len(test))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)


def gone_on(saved):
    """From a checkpoint, once loaded before the first step and once in the middle of training."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        content = torch.load(saved)
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        for place in (0, 8, 16):
            loss = cross_entropy(model(X[place : place + 8]), Y[place : place + 8])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            told("gone on", loss.item(), model[0].weight.square().sum().item())


def normalised():
    """BatchNorm, in training and in evaluation; the optimizer is none of torch's."""
    model = mlp(nn.BatchNorm1d(16))
    for place in range(0, 64, 9):
        loss = cross_entropy(model(X[place : place + 9]), Y[place : place + 9])
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
        told("batch norm", loss.item(), model[1].running_var.sum())
    model.eval()
    told("batch norm, evaluated", cross_entropy(model(X), Y).item())


class Language(nn.Module):
    """Computes its loss itself, a mean over those targets that count."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(2))
        self.unused = nn.Linear(4, 4)

    def forward(self, tokens, target=None):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = hidden + checkpoint(block, hidden, use_reentrant=False)
        logits = hidden @ self.embedding.weight.T
        loss = None if target is None else cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100)
        return {"logits": logits, "loss": loss}


def language():
    """Targets that count are not spread evenly; weights are tied, and some get no gradient; a penalty on weights."""
    torch.manual_seed(0)
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    tokens = torch.randint(0, 20, (40, 7), generator=GENERATOR)
    lengths = torch.randint(2, 8, (40,), generator=GENERATOR)
    target = torch.where(torch.arange(7) < lengths[:, None], tokens.roll(-1, 1), -100)
    target[:10] = tokens[:10]
    for place in range(0, 40, 10):
        found = model(tokens[place : place + 10], target=target[place : place + 10])
        optimizer.zero_grad(set_to_none=False)
        found["loss"].backward()
        optimizer.step()
        told("language", found["loss"].item(), found["logits"].sum().item())
    told("unused", model.unused.weight.sum().item())


def adversaries():
    """Two models and two optimizers, one model's output going through the other; a penalty on weights."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 12), nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1))
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (maker, judge))
    for place in (0, 16, 32):
        noise = torch.randn(16, 4)
        made = maker(noise)
        lost = judge(made.detach()).mean() - judge(X[place : place + 16]).mean()
        lost = lost + 0.1 * sum(weight.square().sum() for weight in judge.parameters())
        second.zero_grad()
        lost.backward()
        second.step()
        missed = -judge(made).mean()
        first.zero_grad()
        missed.backward()
        first.step()
        (slope,) = torch.autograd.grad(judge(X[:10]).sum(), [judge[0].weight])
        told("adversaries", lost.item(), missed.item(), slope.norm())


class Routed(nn.Module):
    """Sends each row to one of its experts: which of them get gradients depends on the rows."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(12, 4)
        self.experts = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))
        self.last = nn.Linear(12, 3)

    def forward(self, rows):
        most, chosen = self.gate(rows).softmax(-1).max(-1)
        found = torch.zeros_like(rows)
        for place, expert in enumerate(self.experts):
            own = (chosen == place).nonzero().flatten()
            if len(own):
                found = found.index_add(0, own, expert(rows[own]) * most[own, None])
        return self.last(found)


def routed():
    """Few rows, so that ranks use different experts, and some nobody's; weight decay moves all that have a gradient."""
    torch.manual_seed(0)
    model = Routed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    for place in range(0, 60, 4):
        loss = cross_entropy(model(X[place : place + 4]), Y[place : place + 4])
        optimizer.zero_grad()
        loss.backward()
        used = sum(expert.weight.grad is not None for expert in model.experts)
        optimizer.step()
        told("routed", loss.item(), used, sum(expert.weight.detach().norm().item() for expert in model.experts))


class Prompted(nn.Module):
    """Is given a weight of the program's with the rows."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(12, 8), nn.Linear(8, 3)

    def forward(self, rows, prompt):
        return self.last((self.first(rows) + prompt).tanh())


def thawed():
    """Training in evaluation mode, with weights that are not trained at first, and one that is no part of the model."""
    torch.manual_seed(0)
    model, prompt = Prompted().eval(), nn.Parameter(torch.zeros(8))
    model.first.requires_grad_(False)
    optimizer = torch.optim.AdamW([*model.parameters(), prompt], lr=1e-2)
    for place in range(0, 64, 8):
        if place == 24:
            model.first.requires_grad_(True)
        loss = cross_entropy(model(X[place : place + 8], prompt), Y[place : place + 8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told("thawed", loss.item(), prompt.sum().item(), model.first.weight.detach().sum().item())
    told("groups seen", torch.distributed.is_initialized())


def grown():
    """A model that gets another layer while it is trained."""
    model = mlp()
    for place in range(0, 64, 8):
        if place == 24:
            model.append(nn.Tanh()).append(nn.Linear(3, 3))
        loss = cross_entropy(model(X[place : place + 8]), Y[place : place + 8])
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
        told("grown", loss.item())


def kept(saved):
    """A folder that must be new, what is made where it is not there, a file that grows; one rank comes later."""
    if json.loads(os.environ.get("PACELINE_RANK", '{"rank": 0}'))["rank"]:
        time.sleep(0.5)
    folder = Path(f"{saved}.d")
    told("kept", folder.exists())
    folder.mkdir()
    for number in range(2):
        with open(folder / "log", "a", encoding="utf-8") as file:
            file.write(f"{number}\n")
    told("kept", len(os.listdir(folder)), len((folder / "log").read_text().split()))


def scaled():
    """fp16 on the CPU, with a scaled loss."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for place in (0, 16, 32):
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(X[place : place + 16]), Y[place : place + 16])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        told("scaled", loss.item(), scaler.get_scale())


class Drawing(torch.utils.data.Dataset):
    """Samples with noise, which is drawn as they are read."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return X[index] + 0.01 * torch.randn(12), index


def drawn():
    """Augmentation and dropout: the order of samples stays that of one process, and no two rows have one noise."""
    model = mlp(nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    orders = []
    for inputs, index in DataLoader(Drawing(), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        orders += index.tolist()
        noise = inputs - X[index]
        outputs = model(torch.ones(8, 12))
        told("rows alike", sum(torch.equal(a, b) for a, b in zip(noise[:4], noise[4:])), len(outputs.unique(dim=0)))
    print("order", orders[:8])
    torch.manual_seed(5)
    print("order", [index.tolist() for _, index in DataLoader(Drawing(), batch_size=8, shuffle=True)])


if __name__ == "__main__":
    kept(sys.argv[1])
    plain(sys.argv[1])
    gone_on(sys.argv[1])
    language()
    routed()
    thawed()
    if "whole" in sys.argv:
        grown()
        normalised()
        adversaries()
    scaled()
    drawn()
