"""Plants a fault in each of the watcher's functions in turn, trains, and tells whether anyone could notice.

Torch is imported once; each plant gets a forked process of its own that trains a little in many ways. For each it
prints a JSON line: what was planted, what that process printed, and how it ended. The first is without a fault.

    python faults.py FOLDER first|second        a folder to write in, and which half of the plants
"""

from __future__ import annotations

import atexit
import errno
import importlib
import inspect
import io
import json
import os
import sys
import time
import traceback
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

PACKAGE = "paceline.inprocess."
# Modules whose functions run in the program's own threads, or in a loader worker; then some that the recorder calls.
FILES = (
    "identity",
    "recorder.loaders.fetch",
    "recorder.loaders.iteration",
    "recorder.loaders.worker",
    "recorder.recorder",
    "recorder.start",
    "recorder.steps.backward",
    "recorder.steps.forward",
    "recorder.steps.optimizers",
    "recorder.tensors",
)
ALSO = {
    "recorder.device.readings:device_of",
    "recorder.files:Appender.write",
    "recorder.files:replace_json",
    "recorder.process:thread_times_s",
    "recorder.profiler.window:OperatorWindow.end",
    "recorder.profiler.window:OperatorWindow.take",
    "recorder.stacks.sampler:Sampler.sample",
    "recorder.stacks.sampler:Sampler.sample_inside",
    "recorder.stacks.sampler:Slices.learn",
    "recorder.steps.rows:pack_step",
    "recorder.steps.state_machine:Automaton.feed",
}
SPARED = {  # what keeps faults inside cannot be what fails
    "recorder.loaders.fetch:_TimedCollate.__call__",
    "recorder.loaders.worker:Ticker._loop",
    "recorder.loaders.worker:Ticker.last",
    "recorder.recorder:Scribe._loop",
    "recorder.start:_end_window",
}


class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.arange(8.0).reshape(4, 2)


def train():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    data = TensorDataset(torch.randn(56, 4), torch.randn(56, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for workers in (1, 0):
        for inputs, targets in DataLoader(data, batch_size=8, num_workers=workers):
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
    """Every function and method that is to fail: (its place, owner, name)."""
    for file in sorted({*FILES, *(place.partition(":")[0] for place in ALSO)}):
        module = importlib.import_module(PACKAGE + file)
        for key, value in sorted(vars(module).items()):
            if getattr(value, "__module__", None) != module.__name__:
                continue
            owner, names = (value, sorted(vars(value))) if isinstance(value, type) else (module, [key])
            for name in names:
                place = f"{file}:{key}" if owner is module else f"{file}:{key}.{name}"
                wanted = place in ALSO if file not in FILES else place not in SPARED and "patch" not in name
                if wanted and inspect.isfunction(vars(owner)[name]):
                    yield place, owner, name


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


def begin(folder, owner=None, name=None):
    """Fork, plant, train; what the child prints goes to files."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    for descriptor, name_of in enumerate(("out", "err"), 1):
        os.dup2(os.open(f"{folder}/{name_of}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    if owner is not None:
        plant(owner, name)
    code = 7
    try:
        train()
    except BaseException:
        traceback.print_exc()
        code = 8
    atexit._run_exitfuncs()  # and not the whole end of an interpreter, which takes longer than all this
    sys.stdout.flush()
    os._exit(code)


def finish(child, folder):
    _, status = os.waitpid(child, 0)
    out, err = (Path(folder, name).read_text() for name in ("out", "err"))
    return {"out": out, "err": err, "code": os.waitstatus_to_exitcode(status)}


def main():
    found, odd = list(places()), sys.argv[2] == "second"
    plants = [(None, None, None), *found[odd::2]]
    importlib.import_module("torch._dynamo")  # which the first step of an optimizer would do in each child
    torch.set_num_threads(1)
    told = Path(os.environ.get("PACELINE_WATCH_DIR", "."), "warned")
    for place, owner, name in plants:
        told.unlink(missing_ok=True)
        child = begin(sys.argv[1], owner, name)
        print(json.dumps({"planted": place, **finish(child, sys.argv[1])}), flush=True)


if __name__ == "__main__":
    main()
