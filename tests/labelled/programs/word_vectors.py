"""Skip-gram word vectors with dense tables."""

import argparse

import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--words", type=int, default=30000)
ap.add_argument("--dims", type=int, default=96)
ap.add_argument("--steps", type=int, default=40)
ap.add_argument("--fused", action="store_true")
args = ap.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
centre = nn.Embedding(args.words, args.dims)
context = nn.Embedding(args.words, args.dims)
nn.init.normal_(centre.weight, std=0.1)
nn.init.normal_(context.weight, std=0.1)
optimizer = torch.optim.AdamW([*centre.parameters(), *context.parameters()], lr=0.01, foreach=False, fused=args.fused)

for step in range(args.steps):
    word = torch.randint(0, 400, (64,))
    near = (word + torch.randint(1, 5, (64,))) % 400
    far = torch.randint(0, 400, (64,))
    vector = centre(word)
    attract = (vector * context(near)).sum(1)
    repel = (vector * context(far)).sum(1)
    loss = nn.functional.softplus(-attract).mean() + nn.functional.softplus(repel).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step}: {loss.item():.4f}")
