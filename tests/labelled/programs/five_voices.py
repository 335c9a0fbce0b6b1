"""An ensemble: five networks with an optimizer each learn from the same batch in turn."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    members = [
        nn.Sequential(nn.Linear(60, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1))
        for _ in range(5)
    ]
    optimizers = [torch.optim.Adam(member.parameters(), lr=1e-3) for member in members]
    x = torch.randn(4096, 60)
    y = x[:, :5].sin().sum(1, keepdim=True)
    for step in range(80):
        rows = torch.randint(0, 4096, (256,))
        losses = []
        for member, optimizer in zip(members, optimizers):
            loss = nn.functional.mse_loss(member(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if step % 20 == 0:
            print(step, sum(losses) / 5)


if __name__ == "__main__":
    main()
