"""Momentum contrast: a slow copy of the encoder makes keys, and a queue of a fixed size remembers them."""

import copy

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    fast = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
    )
    slow = copy.deepcopy(fast)
    for weight in slow.parameters():
        weight.requires_grad_(False)
    keys = nn.functional.normalize(torch.randn(1024, 64), dim=1)
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.03, momentum=0.9)
    pictures = torch.rand(1000, 1, 28, 28)
    for step in range(160):
        chosen = pictures[torch.randint(0, 1000, (48,))]
        one, other = chosen + 0.1 * torch.randn_like(chosen), chosen.flip(3)
        query = nn.functional.normalize(fast(one), dim=1)
        with torch.no_grad():
            torch._foreach_lerp_(list(slow.parameters()), list(fast.parameters()), 0.01)
            key = nn.functional.normalize(slow(other), dim=1)
        scores = torch.cat([(query * key).sum(1, keepdim=True), query @ keys.T], 1) / 0.1
        loss = nn.functional.cross_entropy(scores, torch.zeros(48, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keys = torch.cat([keys[48:], key])
        if step % 40 == 0:
            print(step, f"{loss.item():.3f}")


if __name__ == "__main__":
    main()
