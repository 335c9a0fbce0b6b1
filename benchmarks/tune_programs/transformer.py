"""A small transformer learns to copy letters; in single precision, with what torch does by default."""

import argparse

import torch
from torch import nn


class Copier(nn.Module):
    """Letters in, letters out."""

    def __init__(self, letters=32, width=128, length=64):
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, letters)

    def forward(self, text):
        return self.head(self.layers(self.letters(text) + self.places))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = Copier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(1, args.steps + 1):
        text = torch.randint(0, 32, (8, 64))
        logits = model(text)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), text.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item()}", flush=True)


if __name__ == "__main__":
    main()
