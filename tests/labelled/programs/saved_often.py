"""Model, optimizer and an average of the weights are saved after every third step, as a safeguard."""

import argparse
import copy

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 1200), nn.ReLU(), nn.Linear(1200, 600), nn.ReLU(), nn.Linear(600, 10))
    average = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step in range(90):
        x = torch.randn(48, 256)
        loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)
        if step % args.every == 0:
            state = {"model": model.state_dict(), "average": average.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step}, "last.pt")
    print("loss", loss.item())


if __name__ == "__main__":
    main()
