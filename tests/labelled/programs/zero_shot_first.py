"""Fine-tune a sentence scorer; its score before any training is reported first."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, count, seed, disk=0.0):
        g = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, 100, (count, 40), generator=g)
        self.labels = (self.tokens[:, 0] > 50).long()
        self.disk = disk

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        if self.disk:
            time.sleep(self.disk)
        return self.tokens[i], self.labels[i]


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 160, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(64, 2)

    def forward(self, tokens):
        return self.out(self.encoder(self.embed(tokens))[:, 0])


def evaluate(model, loader):
    model.eval()
    with torch.inference_mode():
        hits = [(model(t).argmax(1) == y).float().mean() for t, y in loader]
    model.train()
    return torch.stack(hits).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--eval-every", type=int, default=10)
    parser.add_argument("--held-out", type=int, default=160)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train = DataLoader(Sentences(32 * args.steps, 0), batch_size=32, num_workers=1)
    held_out = DataLoader(Sentences(args.held_out, 1, disk=0.002), batch_size=32)
    model = Scorer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if args.eval_every:
        print(f"before training: {evaluate(model, held_out):.3f}")
    for step, (tokens, labels) in enumerate(train, 1):
        loss = nn.functional.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.eval_every and step % args.eval_every == 0:
            print(f"step {step}: loss {loss.item():.3f} held out {evaluate(model, held_out):.3f}")


if __name__ == "__main__":
    main()
