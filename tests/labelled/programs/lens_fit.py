"""Fit the surface of a lens with a small network and L-BFGS."""

import torch

torch.manual_seed(0)
torch.set_num_threads(1)

u, v = torch.meshgrid(torch.linspace(-1, 1, 90), torch.linspace(-1, 1, 90), indexing="ij")
points = torch.stack([u.flatten(), v.flatten()], dim=1)
height = (torch.exp(-3 * (u**2 + v**2)) + 0.2 * torch.sin(6 * u) * torch.cos(4 * v)).reshape(-1, 1)

surface = torch.nn.Sequential(
    torch.nn.Linear(2, 96), torch.nn.Tanh(), torch.nn.Linear(96, 96), torch.nn.Tanh(), torch.nn.Linear(96, 1)
)
optimizer = torch.optim.LBFGS(surface.parameters(), lr=0.8, max_iter=5, history_size=8)


def closure():
    optimizer.zero_grad()
    error = torch.nn.functional.mse_loss(surface(points), height)
    error.backward()
    return error


for iteration in range(40):
    error = optimizer.step(closure)
    if iteration % 7 == 0:
        print(iteration, float(error))
