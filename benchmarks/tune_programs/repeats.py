"""A few hundred molecules are parsed from text in pure Python, the same ones again in every epoch."""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ATOMS = "CNOSPFHI"


def formula(number):
    draw = random.Random(number)
    return "".join(draw.choice(ATOMS) for _ in range(150))


class Molecules(Dataset):
    """How often each kind of atom follows each, at distances of up to 30 places."""

    def __init__(self, count=320):
        self.formulas = [formula(number) for number in range(count)]

    def __len__(self):
        return len(self.formulas)

    def __getitem__(self, index):
        text = self.formulas[index]
        counts = torch.zeros(8 * 8)
        table = [0] * 64
        for place, atom in enumerate(text):
            for other in text[place + 1 : place + 31]:
                table[8 * ATOMS.index(atom) + ATOMS.index(other)] += 1
        counts += torch.tensor(table)
        return counts / 100, float(text.count("N")) / 20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Molecules(), batch_size=16, shuffle=True, num_workers=2)
    step = 0
    while step < args.steps:
        for counts, target in loader:
            loss = nn.functional.mse_loss(model(counts).squeeze(1), target.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5 == 0:
                print(f"step {step} loss {loss.item()}", flush=True)
            if step == args.steps:
                return


if __name__ == "__main__":
    main()
