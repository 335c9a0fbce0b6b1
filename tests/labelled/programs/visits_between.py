"""Every sixteenth step the policy plays some games in a simulator of plain Python; the steps between learn from them."""

import argparse
import math
import random

import torch
from torch import nn


def simulate(action, rng, ticks):
    x, v, angle, spin = (rng.uniform(-0.05, 0.05) for _ in range(4))
    reward = 0.0
    for _ in range(ticks):
        force = 10.0 if action > 0.5 else -10.0
        pull = (force + 0.05 * spin**2 * math.sin(angle)) / 1.1
        turn = (9.8 * math.sin(angle) - math.cos(angle) * pull) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        x, v, angle, spin = x + 0.02 * v, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn
        reward += math.cos(angle)
    return [x, math.tanh(v), math.sin(angle), math.tanh(spin)], reward / ticks


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ticks", type=int, default=400)
    args = parser.parse_args()
    rng = random.Random(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    states, rewards = torch.zeros(0, 4), torch.zeros(0)
    for step in range(320):
        if step % 16 == 0:
            with torch.no_grad():
                actions = policy(torch.randn(128, 4)).softmax(1)[:, 0].tolist()
            played = [simulate(action, rng, args.ticks) for action in actions]
            states = torch.tensor([state for state, _ in played])
            rewards = torch.tensor([reward for _, reward in played])
        chosen = torch.randint(0, len(states), (64,))
        said = policy(states[chosen]).log_softmax(1)[:, 0]
        loss = -(said * rewards[chosen]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 80 == 0:
            print(step, f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
