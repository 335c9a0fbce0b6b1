"""Graph network over molecules; graphs differ in size and go through the model one after another."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--molecules", type=int, default=24, help="molecules in a batch")
parser.add_argument("--rounds", type=int, default=4, help="rounds of message passing")
parser.add_argument("--iterations", type=int, default=110)
parser.add_argument("--block-diagonal", action="store_true", help="one large graph per batch")
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)


class Messages(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.send, self.keep, self.read = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, atoms, bonds):
        for _ in range(args.rounds):
            atoms = torch.tanh(self.keep(atoms) + bonds @ self.send(atoms))
        return self.read(atoms).squeeze(1)


def one_by_one(batch):
    loss = 0.0
    for atoms, bonds, energy in batch:
        loss = loss + (model(atoms, bonds).sum() - energy) ** 2
    return loss / len(batch)


def all_at_once(batch):
    atoms, bonds, energy = zip(*batch)
    owner = torch.arange(len(batch)).repeat_interleave(torch.tensor([len(a) for a in atoms]))
    parts = model(torch.cat(atoms), torch.block_diag(*bonds))
    return (torch.zeros(len(batch)).index_add(0, owner, parts) - torch.stack(energy)).square().mean()


def molecule():
    size = int(torch.randint(3, 9, ()))
    bonds = (torch.rand(size, size) < 0.3).float()
    atoms = torch.rand(size, 6)
    return atoms, bonds / size, atoms[:, 0].sum()


model = Messages()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
pool = [molecule() for _ in range(300)]
for iteration in range(args.iterations):
    picked = torch.randint(0, len(pool), (args.molecules,)).tolist()
    batch = [pool[index] for index in picked]
    loss = all_at_once(batch) if args.block_diagonal else one_by_one(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if iteration % 20 == 0:
        print(f"iteration {iteration} energy error {loss.item():.3f}")
