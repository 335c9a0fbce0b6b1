"""Meta-learning (MAML): for each task some inner steps with gradients of gradients, then one outer step."""

import torch
from torch import nn
from torch.func import functional_call, grad


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    outer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(parameters, x, y):
        return ((functional_call(model, parameters, (x,)) - y) ** 2).mean()

    for step in range(60):
        total = 0.0
        for _ in range(8):
            amplitude, phase = 0.1 + 4.9 * torch.rand(1), 3.14 * torch.rand(1)
            x = 10 * torch.rand(20, 1) - 5
            y = amplitude * torch.sin(x - phase)
            fast = dict(model.named_parameters())
            for _ in range(3):
                slopes = grad(loss_of)(fast, x[:10], y[:10])
                fast = {name: value - 0.01 * slopes[name] for name, value in fast.items()}
            total = total + loss_of(fast, x[10:], y[10:])
        outer.zero_grad()
        (total / 8).backward()
        outer.step()
        if step % 20 == 0:
            print(step, float(total) / 8)


if __name__ == "__main__":
    main()
