"""What cannot be split safely, one after the other; prints the exit code that each would have ended with."""

from __future__ import annotations

import csv
import dataclasses
import logging
import os
import pathlib
import sys
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(X)


class OwnNumbers:
    """A batch sampler that nobody can seed."""

    def __iter__(self):
        return iter([[os.urandom(1)[0] % 32 for _ in range(8)] for _ in range(4)])


class AcrossRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 2)

    def forward(self, rows):
        return self.inner(rows).softmax(0)


class Counting(nn.Module):
    """Keeps a mean of what it has seen."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 2)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, rows):
        if self.training:
            self.mean.lerp_(rows.detach().mean(0), 0.1)
        return self.inner(rows)


def stream():
    next(iter(DataLoader(Stream(), batch_size=8)))


def own_numbers():
    next(iter(DataLoader(TensorDataset(X), batch_sampler=OwnNumbers())))


def distributed_sampler():
    data = TensorDataset(X)
    next(iter(DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=2, rank=0))))


def own_group():
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:1", rank=0, world_size=1)


def no_tensor():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 2)

        def forward(self, name):
            return self.inner(X)

    Named()("all")


def one_row():
    nn.Linear(6, 2)(X[:1])


def keeps_gradients():
    """A hook keeps the gradient of a layer's output, for a plot."""
    model, kept = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)), {}
    model[2].register_full_backward_hook(lambda module, _, gradients: kept.update(plot=gradients[0].detach()))
    model(X)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(6, 2)

    def forward(self, rows):
        return torch.distributions.Categorical(logits=self.scores(rows))


@dataclasses.dataclass
class Record:
    scores: torch.Tensor


class Records(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(6, 3)

    def forward(self, rows):
        return Record(self.scores(rows))


def record_of_tensors():
    Records()(X).scores.mean().backward()


def distribution():
    Policy()(X)


def across_rows():
    AcrossRows()(X)


class Trimming(nn.Module):
    """Pads sequences to the longest one of the rows that it gets."""

    def __init__(self):
        super().__init__()
        self.inner = nn.RNN(6, 2, batch_first=True)

    def forward(self, rows, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.inner(packed)[0], batch_first=True)[0]


def trimming():
    Trimming()(X.unsqueeze(1).expand(-1, 5, -1).contiguous(), torch.tensor([5] * 16 + [3] * 16))


class Telling(nn.Module):
    """Prints a text about its rows."""

    def __init__(self, tell):
        super().__init__()
        self.inner, self.tell = nn.Linear(6, 2), tell

    def forward(self, rows):
        found = self.inner(rows)
        self.tell(f"{len(rows)} rows, mean {found.mean():.4f}")
        return found


def prints_of_its_rows():
    Telling(print)(X)


def logs_of_its_rows():
    Telling(logging.getLogger("model").warning)(X)


def writes_of_its_rows():
    with open("rows.txt", "w") as file:
        Telling(file.write)(X)


def writes_rows_of_a_table():
    with open("rows.csv", "w") as file:
        Telling(lambda text: csv.writer(file).writerow([text]))(X)


def opens_a_file_for_its_rows():
    Telling(lambda text: pathlib.Path("last.txt").write_text(text))(X)


def rows_second():
    nn.LSTM(6, 4)(X.view(4, 8, 6))


def own_seed():
    nn.Linear(6, 2)(X + os.urandom(1)[0] + os.getpid())


def counting():
    Counting()(X)


def sparse():
    model = nn.EmbeddingBag(8, 2, sparse=True, mode="sum")
    model(torch.arange(32).view(8, 4) % 8).sum().backward()


def step_in_backward():
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.weight.register_post_accumulate_grad_hook(lambda weight: optimizer.step())
    model(X).sum().backward()


def hook_on_weight():
    model = nn.Linear(6, 2)
    model.weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X).sum().backward()
    optimizer.step()


def computed_weights():
    model, shift = nn.Linear(6, 2), torch.zeros(6, requires_grad=True)
    weights = {"weight": model.weight.detach() + shift, "bias": model.bias.detach()}
    torch.func.functional_call(model, weights, (X,)).sum().backward()


class Choosing(nn.Module):
    """Sends rows to blocks."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True) for _ in range(2))

    def forward(self, rows, chosen):
        found = rows
        for number, block in enumerate(self.blocks):
            own = (chosen == number).nonzero().flatten()
            if len(own):
                found = found.index_add(0, own, block(rows[own, None])[:, 0])
        return found


def other_blocks():
    model = Choosing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X, torch.arange(32) // 16)
    optimizer.step()


def fused_sgd():
    """The fused SGD kernel of torch does not update DTensors."""
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    model(X).sum().backward()
    optimizer.step()


def trained():
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X).sum().backward()
    optimizer.step()
    return model


def weight_replaced():
    model = trained()
    model.weight = nn.Parameter(torch.ones(2, 6))
    model(X)


def weight_replaced_before_evaluation():
    model = trained()
    model.bias = nn.Parameter(torch.ones(2))
    with torch.no_grad():
        model(X)


def turned_in_place():
    trained().weight.data.t_()


def widened_in_place():
    trained().bias.detach().unsqueeze_(0)


def by_hand():
    nn.Linear(6, 2)(X)


def lbfgs():
    model = nn.Linear(6, 2)
    optimizer = torch.optim.LBFGS(model.parameters())
    model(X)
    optimizer.zero_grad()


def slope():
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.autograd.grad(model(X).sum(), list(model.parameters()))
    optimizer.step()


if __name__ == "__main__":
    for name in sys.argv[1:-1]:
        sys.stderr.write(f"\n{name}: ")
        try:
            globals()[name]()
        except SystemExit as ending:
            print(name, ending.code)
    sys.stderr.write("\nend: ")
    batches = iter(DataLoader(TensorDataset(X), batch_size=8))
    reader = threading.Thread(target=next, args=(batches,))
    reader.start()
    reader.join()
