"""Plants a fault in each of the watcher's functions in turn, trains, and tells whether anyone could notice.

Torch is imported once; each plant gets a forked process of its own that trains a little in many ways. For each it
prints a JSON line: what was planted, what that process printed, and how it ended. The first is without a fault.
"""

from __future__ import annotations

import errno
import inspect
import io
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

PACKAGE = "paceline.observe.probe."
# What keeps faults inside cannot be what fails; the rest runs only where there is a GPU, or before torch is imported.
SPARED = {"guard", "gate.Gate.silence", "stand_in.step_out", "fetchers._TimedCollate.__call__", "lazy.Finder.find_spec"}
NOT_HERE = {"cuda_events", "device_clock", "held_rows", "timing", "precision", "syncs", "flops", "weave", "unread"}
LATER = ("scribe", "device", "files", "rows", "worker", "stacks", "automaton")


class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.arange(8.0).reshape(4, 2)


def train():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    data = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for workers in (1, 0):
        for inputs, targets in DataLoader(data, batch_size=4, num_workers=workers):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(inputs), targets)
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            print(loss.item().hex())
        time.sleep(0.03)
    for batch in DataLoader(Stream(), batch_size=2):
        print(batch.sum().item().hex())
    with torch.no_grad():
        print(model(torch.ones(1, 4)).item().hex())
    torch.save(model.state_dict(), io.BytesIO())
    solver = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        solver.zero_grad()
        loss = model(torch.ones(2, 4)).pow(2).sum()
        loss.backward()
        return loss

    print(solver.step(closure).item().hex())
    print(torch.autograd.grad(model(torch.ones(1, 4)).sum(), model[0].bias)[0].sum().item().hex())
    time.sleep(0.03)
    try:
        model("no tensor")
    except TypeError:
        print("a fault of the program's own")


def places():
    """Every function and method of the probe: (module, owner, name)."""
    for name, module in sorted(sys.modules.items()):
        if not name.startswith(PACKAGE):
            continue
        short = name.removeprefix(PACKAGE)
        if short in SPARED | NOT_HERE:
            continue
        for key, value in sorted(vars(module).items()):
            if (
                getattr(value, "__module__", None) != name
                or isinstance(value, type)
                and issubclass(value, (tuple, Exception))
            ):
                continue
            owner, names = (value, sorted(vars(value))) if isinstance(value, type) else (module, [key])
            for function in names:
                place = f"{short}.{key}" if owner is module else f"{short}.{key}.{function}"
                if inspect.isfunction(vars(owner)[function]) and place not in SPARED and "patch" not in function:
                    yield place, owner, function


def plant(owner, name):
    """Put a function that fails wherever the right one is known by name."""
    right = vars(owner)[name]

    def fails(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    setattr(owner, name, fails)
    if not isinstance(owner, type):
        for module in [m for n, m in sys.modules.items() if n.startswith(PACKAGE)]:
            for key in [key for key, value in vars(module).items() if value is right]:
                setattr(module, key, fails)


def in_a_process(folder, owner=None, name=None):
    """Fork, plant, train; return what the child printed and how it ended."""
    files = [Path(folder, "out"), Path(folder, "err")]
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        for descriptor, path in enumerate(files, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        if owner is not None:
            plant(owner, name)
        train()
        sys.exit(7)
    _, status = os.waitpid(child, 0)
    return {"out": files[0].read_text(), "err": files[1].read_text(), "code": os.waitstatus_to_exitcode(status)}


def main():
    for name in [*(PACKAGE + name for name in LATER), "torch._dynamo"]:  # the last is what an optimizer imports
        __import__(name)
    torch.set_num_threads(1)

    told = Path(os.environ["PACELINE_WATCH_DIR"], "warned")
    folder = sys.argv[1]
    print(json.dumps({"planted": None, **in_a_process(folder)}), flush=True)
    for place, owner, name in list(places()):
        told.unlink(missing_ok=True)
        print(json.dumps({"planted": place, **in_a_process(folder, owner, name)}), flush=True)


if __name__ == "__main__":
    main()
