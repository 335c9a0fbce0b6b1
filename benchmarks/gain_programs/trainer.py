"""One training program whose faults, and the changes that `paceline run` proposes for them, are flags.

With --changed "FLAGS", the program trains in turns with its own flags and with the changed ones, and prints the seconds
of a step of both, turn by turn, as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--epoch", type=int, default=120, help="steps of an epoch")
    parser.add_argument("--compute-ms", type=float, default=6.0, help="waiting in the forward pass, as for a device")
    parser.add_argument("--sleep-ms", type=float, default=0.0, help="waiting for each of the 8 samples of a batch")
    parser.add_argument("--burn-ms", type=float, default=0.0, help="computing for each sample")
    parser.add_argument("--outlier-ms", type=float, default=0.0, help="waiting for every 128th sample")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="keep workers between epochs")
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--save-ms", type=float, default=30.0, help="waiting for the disk while a checkpoint is saved")
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--evaluate-batches", type=int, default=8)
    parser.add_argument("--log-every", type=int, default=0)
    parser.add_argument("--log-ms", type=float, default=4.0)
    parser.add_argument("--tensors", type=int, default=0, help="further parameter tensors")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--picture", type=int, default=0, help="train a network on pictures of this size")
    parser.add_argument("--rows", type=int, default=8, help="samples of a batch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--changed", help="train in turns with these flags too")
    parser.add_argument("--turns", type=int, default=3)
    return parser


class Samples(Dataset):
    def __init__(self, wanted: argparse.Namespace) -> None:
        self.wanted = wanted

    def __len__(self) -> int:
        return self.wanted.rows * self.wanted.epoch

    def __getitem__(self, index: int) -> torch.Tensor:
        outlier = self.wanted.outlier_ms if index % 128 == 64 else 0.0
        time.sleep((self.wanted.sleep_ms + outlier) / 1e3)
        decode(self.wanted.burn_ms)
        shape = (3, self.wanted.picture, self.wanted.picture) if self.wanted.picture else (64,)
        return torch.full(shape, index % 7 / 7.0)


def decode(milliseconds: float) -> None:
    until = time.thread_time() + milliseconds / 1e3
    while time.thread_time() < until:
        pass


class Net(nn.Module):
    def __init__(self, wanted: argparse.Namespace) -> None:
        super().__init__()
        self.wait_s = wanted.compute_ms / 1e3
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.more = nn.ParameterList(nn.Parameter(torch.zeros(16)) for _ in range(wanted.tensors))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.wait_s)
        out = self.body(x)
        return out + torch.cat([*self.more]).sum() if len(self.more) else out


def pictures() -> nn.Module:
    """Return a network whose activations are large."""
    layers: list[nn.Module] = []
    for before, size in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(before, size, 3, padding=1), nn.BatchNorm2d(size), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1))


def write_log(milliseconds: float) -> None:
    decode(milliseconds)


class Disk:
    """A file whose writes wait."""

    def __init__(self, milliseconds: float) -> None:
        self.left_s = milliseconds / 1e3

    def write(self, data: bytes) -> int:
        time.sleep(self.left_s)
        self.left_s = 0.0
        return len(data)

    def flush(self) -> None:
        pass


class Training:
    """A model, its optimizer and its loader."""

    def __init__(self, wanted: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.wanted = wanted
        self.model = pictures() if wanted.picture else Net(wanted)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=wanted.fused)
        more = {"prefetch_factor": wanted.prefetch, "persistent_workers": wanted.keep} if wanted.workers else {}
        self.loader = DataLoader(Samples(wanted), batch_size=wanted.rows, num_workers=wanted.workers, **more)
        self.held = torch.rand(8, 64)

    def run(self, steps: int) -> float:
        """Train, and return the seconds of a step."""
        begun, done = time.perf_counter(), 0
        while done < steps:
            for batch in self.loader:
                self.step(batch, done)
                done += 1
                if done == steps:
                    break
        return (time.perf_counter() - begun) / steps

    def step(self, batch: torch.Tensor, number: int) -> None:
        wanted = self.wanted
        loss = self.model(batch).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if wanted.log_every and number % wanted.log_every == 0:
            write_log(wanted.log_ms)
        if wanted.save_every and number % wanted.save_every == 0:
            torch.save(self.model.state_dict(), Disk(wanted.save_ms))
        if wanted.evaluate_every and number % wanted.evaluate_every == 0:
            self.evaluate()

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for _ in range(self.wanted.evaluate_batches):
                self.model(self.held)
        self.model.train()


def main() -> None:
    parser = flags()
    wanted = parser.parse_args()
    torch.set_num_threads(wanted.threads)
    first = Training(wanted)
    if wanted.changed is None:
        print(f"{1e3 * first.run(wanted.steps):.2f} ms a step")
        return
    second = Training(parser.parse_args(shlex.split(wanted.changed), argparse.Namespace(**vars(wanted))))
    first.run(8), second.run(8)
    turns = [(first.run(wanted.steps), second.run(wanted.steps)) for _ in range(wanted.turns)]
    print(json.dumps(turns))


if __name__ == "__main__":
    main()
