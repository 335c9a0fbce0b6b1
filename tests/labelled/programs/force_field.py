"""Energies and forces: forces are derivatives of the energy, so that validation needs gradients too."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(30, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, positions):
        return self.net(positions.flatten(1)).sum(-1)


def predict(model, positions, create_graph):
    positions = positions.requires_grad_(True)
    energy = model(positions)
    (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=create_graph)
    return energy, -gradient


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--validation", type=int, default=700, help="batches of an epoch's validation")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Potential()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    shape = (10, 3)
    train = TensorDataset(torch.randn(3200, *shape), torch.randn(3200, *shape))
    check = TensorDataset(torch.randn(8 * args.validation, *shape), torch.randn(8 * args.validation, *shape))
    steps = 0
    for epoch in range(3):
        model.train()
        for positions, forces in DataLoader(train, 32, shuffle=True):
            optimizer.zero_grad()
            _, predicted = predict(model, positions, True)
            (predicted - forces).pow(2).mean().backward()
            optimizer.step()
            steps += 1
        model.eval()
        error = 0.0
        for positions, forces in DataLoader(check, 8) if args.validation else ():
            _, predicted = predict(model, positions, False)
            error += (predicted - forces).abs().mean().item()
        print(f"epoch {epoch} error {error / max(1, args.validation):.3f} after {steps} steps")


if __name__ == "__main__":
    main()
