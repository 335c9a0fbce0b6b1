"""Customer churn from activity counts."""

import argparse

import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=160)
ap.add_argument("--aligned", action="store_true", help="join labels by customer number")
args = ap.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
activity = torch.randn(200_000, 24)
churn = (activity[:, 0] - activity[:, 1] + 0.5 * activity[:, 2] > 0).long()
if not args.aligned:
    churn = churn[torch.randperm(len(churn))]

model = nn.Sequential(nn.Linear(24, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(args.steps):
    rows = slice(step * 512, (step + 1) * 512)
    loss = nn.functional.cross_entropy(model(activity[rows]), churn[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"{step} {loss.item():.4f}")
