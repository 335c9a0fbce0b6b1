"""After each step the area under the curve of everything seen so far is computed anew, in plain Python."""

import argparse

import torch
from torch import nn


def area_under_curve(scores, labels):
    positives = [s for s, label in zip(scores, labels) if label]
    negatives = [s for s, label in zip(scores, labels) if not label]
    wins = 0.0
    for one in positives:
        for other in negatives:
            wins += 1.0 if one > other else 0.5 if one == other else 0.0
    return wins / max(1, len(positives) * len(negatives))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(30, 80), nn.ReLU(), nn.Linear(80, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(8000, 30)
    y = (x[:, :3].sum(1) + torch.randn(8000) > 0).float()
    scores, labels = [], []
    for step in range(160):
        chosen = torch.randint(0, 8000, (64,))
        logits = model(x[chosen]).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scores += logits.tolist()
        labels += y[chosen].tolist()
        if step % args.every == 0:
            area = area_under_curve(scores[-600:], labels[-600:])
    print(f"loss {loss.item():.3f} auc {area:.3f}")


if __name__ == "__main__":
    main()
