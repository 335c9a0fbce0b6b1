"""Forecast the tide with an LSTM."""

import torch
from torch import nn

SEQUENCE = 48
BATCH = 64
STEPS = 100


class TideModel(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.lstm = nn.LSTM(input_size=2, hidden_size=hidden, num_layers=1, batch_first=True)
        self.linear = nn.Linear(hidden, 1)

    def forward(self, x):
        states, _ = self.lstm(x)
        return self.linear(states[:, -1])


def tide(hours):
    return torch.sin(hours / 12.42 * 6.283) + 0.4 * torch.sin(hours / 24 * 6.283)


def sample(batch):
    start = torch.rand(batch, 1) * 2000
    hours = start + torch.arange(SEQUENCE + 1)
    level = tide(hours)
    clock = (hours % 24) / 24
    return torch.stack([level[:, :-1], clock[:, :-1]], 2), level[:, -1:]


def main():
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = TideModel()
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.5)
    for step in range(STEPS):
        history, level = sample(BATCH)
        optimizer.zero_grad()
        loss = criterion(model(history), level)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:3d}  mse {loss.item():.4f}")


if __name__ == "__main__":
    main()
