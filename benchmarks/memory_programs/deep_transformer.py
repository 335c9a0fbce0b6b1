"""A deep transformer learns to copy letters: what its blocks keep for backward is most of what it holds."""

import argparse

import torch
from torch import nn


class Copier(nn.Module):
    """Letters in, letters out."""

    def __init__(self, letters=32, width=192, length=256, depth=8):
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, letters)

    def forward(self, text):
        hidden = self.letters(text) + self.places
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Copier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(1, args.steps + 1):
        text = torch.randint(0, 32, (8, 256))
        loss = nn.functional.cross_entropy(model(text).flatten(0, 1), text.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item()}", flush=True)


if __name__ == "__main__":
    main()
