"""Q-learning with a target network: the loss grows while the values are learned, and nothing is wrong with that."""

import torch
from torch import nn


def network():
    return nn.Sequential(nn.Linear(8, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 4))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    online, target = network(), network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=5e-4)
    states = torch.randn(20_000, 8)
    for step in range(400):
        chosen = torch.randint(0, 19_999, (512,))
        s, after = states[chosen], states[chosen + 1]
        action = torch.randint(0, 4, (512,))
        reward = s[:, 0].clamp(0) + 1
        with torch.no_grad():
            wanted = reward + 0.99 * target(after).max(1).values
        loss = nn.functional.smooth_l1_loss(online(s)[torch.arange(512), action], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            target.load_state_dict(online.state_dict())
        if step % 100 == 99:
            print(step + 1, f"{loss.item():.3f}")


if __name__ == "__main__":
    main()
