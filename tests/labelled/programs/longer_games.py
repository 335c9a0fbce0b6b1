"""Policy gradient on a pole that the program balances ever longer: a step takes more as it learns, a sample does not."""

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
rng = np.random.default_rng(0)
policy = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)


def play(most):
    """One game of at most so many moves."""
    state, seen, moves = rng.normal(0, 0.02, 3), [], []
    while len(seen) < most:
        with torch.no_grad():
            odds = torch.softmax(policy(torch.tensor(state, dtype=torch.float32)), -1)
        moves.append(int(rng.random() < odds[1].item()))
        seen.append(state)
        state = 0.9 * state + 0.02 * rng.normal(0, 1, 3)
    return np.array(seen), moves


for game in range(260):
    seen, moves = play(12 + game // 7)
    states, chosen = torch.tensor(seen, dtype=torch.float32), torch.tensor(moves)
    likely = torch.log_softmax(policy(states), -1)[torch.arange(len(moves)), chosen]
    loss = -(likely * torch.linspace(1, 0, len(moves))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
