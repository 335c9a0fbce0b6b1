"""Federated averaging: each client trains a copy for some steps, then the copies are averaged, parameter by parameter."""

import argparse
import copy

import torch
from torch import nn


def averaged(states, slow):
    if not slow:
        return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    found = {}
    for name, first in states[0].items():
        flat = first.clone().flatten()
        values = [state[name].flatten().tolist() for state in states]
        for place in range(len(flat)):
            flat[place] = sum(value[place] for value in values) / len(values)
        found[name] = flat.reshape(first.shape)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    server = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 2))
    clients = [(torch.randn(256, 32) + 0.2 * n, torch.randint(0, 2, (256,))) for n in range(4)]
    for turn in range(25):
        states = []
        for x, y in clients:
            model = copy.deepcopy(server)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for start in range(0, 256, 64):
                loss = nn.functional.cross_entropy(model(x[start : start + 64]), y[start : start + 64])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            states.append(model.state_dict())
        server.load_state_dict(averaged(states, slow=not args.fast))
        if turn % 5 == 0:
            print(f"round {turn} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
