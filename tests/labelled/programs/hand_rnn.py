"""A recurrent cell written out gate by gate, run over short byte strings."""

import argparse

import torch
from torch import nn


class Cell(nn.Module):
    """Every gate has its own small maps; `fused` computes all gates in one product."""

    def __init__(self, inputs, hidden, fused):
        super().__init__()
        self.fused, self.hidden = fused, hidden
        if fused:
            self.lstm = nn.LSTM(inputs, hidden)
        else:
            self.from_x = nn.ModuleList(nn.Linear(inputs, hidden) for _ in range(4))
            self.from_h = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(4))

    def forward(self, sequence):
        if self.fused:
            return self.lstm(sequence)[1][0][0]
        h = sequence.new_zeros(sequence.shape[1], self.hidden)
        c = torch.zeros_like(h)
        for x in sequence:
            i, f, o, g = (a(x) + b(h) for a, b in zip(self.from_x, self.from_h))
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=8)
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--fused", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cell, head = Cell(3, args.hidden, args.fused), nn.Linear(args.hidden, 1)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.05, momentum=0.5)
    for step in range(args.steps):
        bits = torch.randint(0, 2, (args.length, args.batch, 3)).float()
        wanted = bits[-4:, :, 0].mean(0)
        loss = nn.functional.mse_loss(head(cell(bits)).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
