"""Autoencoder that writes a diary of its weights."""

import argparse
import json
import os
import tempfile

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--diary-every", type=int, default=1)
parser.add_argument("--steps", type=int, default=90)
parser.add_argument("--width", type=int, default=96)
args = parser.parse_args()


def write_diary(file, step, model, loss):
    """One line per step: every weight matrix rounded, as nested lists."""
    entry = {"step": step, "loss": loss, "weights": {}}
    for name, tensor in model.state_dict().items():
        entry["weights"][name] = [round(v, 5) for v in tensor.flatten().tolist()]
    file.write(json.dumps(entry, sort_keys=True) + "\n")
    file.flush()


torch.manual_seed(0)
torch.set_num_threads(1)
encoder = nn.Sequential(nn.Linear(128, args.width), nn.ReLU(), nn.Linear(args.width, 8))
decoder = nn.Sequential(nn.Linear(8, args.width), nn.ReLU(), nn.Linear(args.width, 128))
model = nn.Sequential(encoder, decoder)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
basis = torch.randn(8, 128)

fd, path = tempfile.mkstemp(suffix=".jsonl")
with os.fdopen(fd, "w") as diary:
    for step in range(args.steps):
        x = torch.randn(128, 8) @ basis / 3
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.diary_every and step % args.diary_every == 0:
            write_diary(diary, step, model, loss.item())
        if step % 30 == 0:
            print(step, round(loss.item(), 4))
os.remove(path)
