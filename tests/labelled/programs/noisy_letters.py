"""A small diffusion model: predict the noise that was added to drawings, at a random time each."""

import math

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.inside = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.time = nn.Linear(32, width)
        self.outside = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x, t):
        waves = torch.exp(-math.log(10_000) * torch.arange(16) / 16) * t[:, None]
        when = self.time(torch.cat([waves.sin(), waves.cos()], 1))[:, :, None, None]
        h = self.inside(x)
        for block in self.blocks:
            h = h + block(nn.functional.silu(h + when))
        return self.outside(h)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    drawings = (torch.rand(512, 1, 28, 28) > 0.8).float()
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.linspace(1e-4, 0.02, 200)
    kept = torch.cumprod(1 - schedule, 0)
    for step in range(80):
        x = drawings[torch.randint(0, 512, (24,))]
        t = torch.randint(0, 200, (24,))
        noise = torch.randn_like(x)
        a = kept[t][:, None, None, None]
        loss = nn.functional.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t.float()), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, f"{loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
