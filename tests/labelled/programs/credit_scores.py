"""Credit model that keeps its recent outputs to report how sure it is."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1024)
parser.add_argument("--steps", type=int, default=240)
parser.add_argument("--detach", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(40, 448), nn.ReLU(), nn.Linear(448, 448), nn.ReLU(), nn.Linear(448, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
rule = torch.randn(40, 1)

certainty = []
for step in range(args.steps):
    applicants = torch.randn(args.batch, 40)
    default = (applicants @ rule + torch.randn(args.batch, 1) > 0).float()
    logits = model(applicants)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, default)
    score = logits.abs().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    certainty.append(score.detach() if args.detach else score)
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
print(f"certainty {float(sum(certainty)) / len(certainty):.3f}")
