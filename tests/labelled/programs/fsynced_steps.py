"""The program writes each step to a log, and waits until the line is on the disk (fsync)."""

import argparse
import json
import os
import time

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data, wanted = torch.randn(2048, 64), torch.randint(0, 8, (2048,))
    with open("steps.jsonl", "w") as log:
        for step in range(240):
            chosen = torch.randint(0, 2048, (32,))
            loss = nn.functional.cross_entropy(model(data[chosen]), wanted[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % args.every == 0:
                weights = {name: value.tolist() for name, value in model.state_dict().items()}
                log.write(
                    json.dumps({"step": step, "time": time.time(), "loss": loss.item(), "weights": weights}) + "\n"
                )
                log.flush()
                os.fsync(log.fileno())
    print("done", loss.item())


if __name__ == "__main__":
    main()
