"""A training loop for `overhead.py` to time: blocks of steps, each with its CPU time on the main thread.

    python overhead_program.py CASE BLOCKS STEPS [--traceml]

Prints one line of JSON at the end. The loop is plain torch; with --traceml each step is wrapped as TraceML asks for,
since it sees no step otherwise.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time

import torch

CASES = {"step_1ms": (1, 190), "step_10ms": (1, 760), "submodules_200": (200, 32), "tiny": (1, 8)}


def model_of(layers: int, width: int) -> torch.nn.Module:
    """Return a stack of linear layers."""
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])


def main() -> None:
    case, blocks, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    wrap = _wrapper("--traceml" in sys.argv)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers, width = CASES[case]
    model = model_of(layers, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = [torch.randn(64, width) for _ in range(64)]
    loader = torch.utils.data.DataLoader(data, batch_size=None)
    batches = iter(loader)
    cpu, wall = [], []
    for _ in range(blocks):
        begun, begun_wall = time.thread_time_ns(), time.perf_counter_ns()
        for _ in range(steps):
            with wrap(model):
                try:
                    x = next(batches)
                except StopIteration:
                    batches = iter(loader)
                    x = next(batches)
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        cpu.append((time.thread_time_ns() - begun) / steps / 1e3)
        wall.append((time.perf_counter_ns() - begun_wall) / steps / 1e3)
    print(json.dumps({"cpu_us": cpu, "wall_us": wall, "peak_kib": _peak_kib(), "loss": loss.item()}))


def _wrapper(traceml: bool):
    if not traceml:
        return lambda model: contextlib.nullcontext()
    import traceml_ai

    traceml_ai.init()
    return traceml_ai.trace_step


def _peak_kib() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
