"""A recurrent tagger with a mean over the tokens that count: no repeated blocks, only the batch can be parted."""

import argparse

import torch
from torch import nn

LENGTH, TAGS = 160, 4000


class Tagger(nn.Module):
    """Words [rows, LENGTH] to logits [rows, LENGTH, TAGS]."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(500, 64)
        self.reads = nn.GRU(64, 96, batch_first=True)
        self.tags = nn.Linear(96, TAGS)

    def forward(self, words):
        return self.tags(self.reads(self.words(words))[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, args.steps + 1):
        words = torch.randint(0, 500, (48, LENGTH))
        wanted = words * 7 % TAGS
        wanted[:, LENGTH // 2 :][torch.rand(48, LENGTH // 2) < 0.5] = -100
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), wanted.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item()}", flush=True)


if __name__ == "__main__":
    main()
