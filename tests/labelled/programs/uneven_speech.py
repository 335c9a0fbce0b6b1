"""Speech commands of uneven length; a long one comes along now and then."""

import argparse

import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--long", type=int, default=1900, help="frames of a long recording")
ap.add_argument("--short", type=int, default=110)
ap.add_argument("--steps", type=int, default=120)
a = ap.parse_args()

torch.manual_seed(4)
torch.set_num_threads(1)


class Commands(nn.Module):
    def __init__(self):
        super().__init__()
        self.near, self.far = nn.Conv1d(20, 96, 5, padding=2), nn.Conv1d(96, 96, 5, padding=2)
        self.out = nn.Linear(96, 4)

    def forward(self, frames):
        heard = torch.relu(self.far(torch.relu(self.near(frames))))
        return self.out(heard.mean(2))


def recordings():
    gen = torch.Generator().manual_seed(1)
    tones = torch.randn(4, 20, generator=gen)
    for number in range(a.steps):
        frames = a.long if number % 13 == 11 else a.short
        command = torch.randint(0, 4, (16,), generator=gen)
        yield 0.4 * tones[command].unsqueeze(2) + torch.randn(16, 20, frames, generator=gen), command


model = Commands()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
data = list(recordings())
for number, (frames, command) in enumerate(data):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(frames), command)
    loss.backward()
    optimizer.step()
    if number % 16 == 0:
        print(f"{number:3d} {loss.item():.3f}")
