"""Differentially private training: the gradient of each sample is clipped before they are added up."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    features, labels = torch.randn(4096, 64), torch.randint(0, 2, (4096,))
    for step in range(40):
        chosen = torch.randint(0, len(features), (56,))
        total = [torch.zeros_like(p) for p in model.parameters()]
        for x, y in zip(features[chosen], labels[chosen]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[None]), y[None]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for own, p in zip(total, model.parameters()):
                own += p.grad
        for own, p in zip(total, model.parameters()):
            p.grad = (own + 0.1 * torch.randn_like(own)) / len(chosen)
        optimizer.step()
    print("40 steps")


if __name__ == "__main__":
    main()
