"""A training loop for `overhead.py` to time: blocks of steps with a tool's hooks in place and without, in turn.

    python overhead_program.py CASE PAIRS STEPS bare|sketch|paceline|traceml

Prints one line of JSON at the end: CPU time of the main thread and wall time of a step, block by block. Both kinds of
block run in one process, because two processes of the same program differ by more than any hook costs. The loop is
plain torch; under TraceML each step is wrapped as it asks for, since it sees no step otherwise.
"""

from __future__ import annotations

import collections
import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

CASES = {"step_1ms": (1, 190), "step_10ms": (1, 760), "submodules_200": (200, 32), "tiny": (1, 8)}
Switch = Callable[[bool], None]
replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, torch's function, Paceline's

if "paceline.inprocess.hooks" in sys.modules:  # as in every process that `paceline run` started
    guard = sys.modules["paceline.inprocess.hooks"]
    _replace = guard.replace

    def _remember(owner: Any, name: str, new: Any) -> None:
        replaced.append((owner, name, getattr(owner, name), new))
        _replace(owner, name, new)

    guard.replace = _remember

import torch  # noqa: E402
from torch.optim import optimizer as optimizers  # noqa: E402


def main() -> None:
    case, pairs, steps, tool = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers, width = CASES[case]
    switch, wrap = {"bare": _nothing, "sketch": _sketch, "paceline": _paceline, "traceml": _traceml}[tool]()
    block = _loop(layers, width, wrap)
    found: dict[str, list[float]] = {"cpu_us": [], "wall_us": [], "bare_cpu_us": [], "bare_wall_us": []}
    for pair in range(pairs + 2):
        for on in (True, False) if pair % 2 else (False, True):
            switch(on)
            cpu_us, wall_us = block(steps, on)
            if pair >= 2:  # the first ones warm up
                found["cpu_us" if on else "bare_cpu_us"].append(cpu_us)
                found["wall_us" if on else "bare_wall_us"].append(wall_us)
    print(json.dumps({**found, "peak_kib": _peak_kib()}))


def _loop(layers: int, width: int, wrap: Callable[[Any], Any]) -> Callable[[int, bool], tuple[float, float]]:
    """Return a function that trains some steps and returns CPU and wall time of one, in µs."""
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = [torch.randn(64, width) for _ in range(64)]
    loader = torch.utils.data.DataLoader(data * 64, batch_size=None)
    batches = iter(loader)

    def block(steps: int, on: bool) -> tuple[float, float]:
        nonlocal batches
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        for _ in range(steps):
            with wrap(model) if on else contextlib.nullcontext():
                try:
                    x = next(batches)
                except StopIteration:
                    batches = iter(loader)
                    x = next(batches)
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return (time.thread_time_ns() - cpu) / steps / 1e3, (time.perf_counter_ns() - wall) / steps / 1e3

    return block


def _nothing() -> tuple[Switch, Callable[[Any], Any]]:
    return lambda on: None, contextlib.nullcontext


def _paceline() -> tuple[Switch, Callable[[Any], Any]]:
    """Put Paceline's functions in the place of torch's, and torch's back."""
    hooks = [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
    kept = [dict(each) for each in hooks]
    if not replaced or not all(kept):
        raise SystemExit("Paceline has not hooked torch: run this under `paceline run`")

    def switch(on: bool) -> None:
        for owner, name, old, new in replaced if on else reversed(replaced):
            setattr(owner, name, new if on else old)
        for each, ours in zip(hooks, kept, strict=True):
            each.update(ours) if on else each.clear()

    return switch, contextlib.nullcontext


def _traceml() -> tuple[Switch, Callable[[Any], Any]]:
    """Wrap steps for TraceML; its patches stay in place and look away from steps that are not wrapped."""
    import traceml_ai

    traceml_ai.init()
    return lambda on: None, traceml_ai.trace_step


def _sketch() -> tuple[Switch, Callable[[Any], Any]]:
    """Hook what Paceline hooks, with as little as can be: a clock and an append at both ends."""
    from torch.utils.data import dataloader

    note, clock = collections.deque(maxlen=1 << 16).append, time.perf_counter_ns
    call, inside = torch.nn.Module.__call__, False

    def hooked(original: Any, code: int) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            note((clock(), code))
            try:
                return original(*args, **kwargs)
            finally:
                note((clock(), code))

        return hook

    def outermost(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside:
            return call(self, *args, **kwargs)
        inside = True
        note((clock(), 0))
        try:
            return call(self, *args, **kwargs)
        finally:
            inside = False
            note((clock(), 0))

    places = [(dataloader._BaseDataLoaderIter, "__next__"), (torch.optim.Optimizer, "zero_grad")]
    places.append((torch.autograd, "_engine_run_backward"))
    swaps = [(owner, name, getattr(owner, name), hooked(getattr(owner, name), 1)) for owner, name in places]
    swaps.append((torch.nn.Module, "__call__", call, outermost))

    def switch(on: bool) -> None:
        for owner, name, old, new in swaps:
            setattr(owner, name, new if on else old)
        for hooks in (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks):
            hooks.update({0: lambda *_: note((clock(), 2))}) if on else hooks.clear()

    return switch, contextlib.nullcontext


def _peak_kib() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
