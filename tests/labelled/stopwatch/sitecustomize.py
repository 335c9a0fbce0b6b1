"""Where did the wall time of one program go?  A second opinion, owing nothing to Paceline.

Put this folder first on PYTHONPATH and name a file prefix in STOPWATCH_OUT: every process that takes optimizer steps
writes `<prefix>.<pid>.json` when it ends.  Time is exclusive: a stack of phases, and the clock belongs to the top.
Meant to be crude and obviously right; it patches where Paceline hooks, so it shares no code with it.
"""

import json
import os
import resource
import sys
import time

BORN = time.perf_counter()


class Stopwatch:
    """Exclusive seconds per phase between the first and the last step of one process."""

    def __init__(self):
        self.stack, self.spent, self.since, self.fresh = ["other"], {}, BORN, False
        self.marks, self.backwards, self.losses, self.resident = [], [], [], []

    def push(self, phase):
        self._charge()
        self.stack.append(phase)
        self.fresh = self.fresh and phase != "forward"

    def pop(self):
        self._charge()
        self.stack.pop()

    def _charge(self):
        now, phase = time.perf_counter(), self.stack[-1]
        if phase == "other" and self.fresh:
            phase = "between"  # a step has ended and no forward has begun: logging, or a reader written by hand
        self.spent[phase] = self.spent.get(phase, 0.0) + now - self.since
        self.since = now

    def within(self, phase):
        return phase in self.stack

    def mark(self, marks):
        self._charge()
        with open("/proc/self/statm") as f:
            resident = int(f.read().split()[1]) * 4096
        marks.append((time.perf_counter(), time.process_time(), dict(self.spent), resident))
        self.fresh = True


WATCH = Stopwatch()


def timed(phase, function, outermost=True):
    def call(*args, **kwargs):
        name = phase() if callable(phase) else phase
        if outermost and WATCH.within(name):
            return function(*args, **kwargs)
        WATCH.push(name)
        try:
            return function(*args, **kwargs)
        finally:
            WATCH.pop()

    return call


def install():
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader
    from torch.utils.data import dataloader as dl

    def fetch_phase():
        return "data_wait" if torch.is_grad_enabled() else "evaluation"

    def forward_phase():
        return "forward" if torch.is_grad_enabled() else "evaluation"

    dl._BaseDataLoaderIter.__next__ = timed(fetch_phase, dl._BaseDataLoaderIter.__next__)
    DataLoader.__iter__ = timed(fetch_phase, DataLoader.__iter__)
    torch.nn.Module.__call__ = timed(forward_phase, torch.nn.Module.__call__)
    torch.save = timed("checkpoint", torch.save)
    if dist.is_available():
        for name in ("all_reduce", "barrier", "broadcast", "all_gather", "reduce_scatter"):
            setattr(dist, name, timed("communication", getattr(dist, name)))

    original = torch.autograd.backward

    def backward(tensors, *args, **kwargs):
        first = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
        if first.numel() == 1:
            WATCH.losses.append(float(first.detach()))
        if not WATCH.marks:
            WATCH.mark(WATCH.backwards)  # the steps of a program that has no optimizer
        return original(tensors, *args, **kwargs)

    torch.autograd.backward = timed("backward", backward)

    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(lambda *_: WATCH.push("optimizer"))

    def after(*_):
        WATCH.pop()
        WATCH.mark(WATCH.marks)

    register_optimizer_step_post_hook(after)

    import multiprocessing.util

    multiprocessing.util.Finalize(None, write, exitpriority=0)


def write():
    marks, children = WATCH.marks or WATCH.backwards, resource.getrusage(resource.RUSAGE_CHILDREN)
    if len(marks) < 3:
        return
    skip = 1
    (t0, c0, spent0, _), (t1, c1, spent1, _) = marks[skip], marks[-1]
    gaps = sorted(b[0] - a[0] for a, b in zip(marks[skip:], marks[skip + 1 :]))
    order = [b[0] - a[0] for a, b in zip(marks[skip:], marks[skip + 1 :])]
    half = len(order) // 2
    report = {
        "rank": os.environ.get("RANK", "0"),
        "steps": len(marks),
        "wall_s": t1 - t0,
        "cpu_s": c1 - c0,
        "children_cpu_s": children.ru_utime + children.ru_stime,
        "startup_s": marks[0][0] - BORN,
        "tail_s": time.perf_counter() - t1,
        "median_ms": 1e3 * gaps[len(gaps) // 2],
        "p95_ms": 1e3 * gaps[int(len(gaps) * 0.95)],
        "drift": sum(order[half:]) / max(sum(order[:half]), 1e-9) * half / max(len(order) - half, 1),
        "rss_mb": [m[3] / 1e6 for m in (marks[len(marks) // 4], marks[-1])],
        "loss": quarters(WATCH.losses),
        "share": {k: (v - spent0.get(k, 0.0)) / (t1 - t0) for k, v in spent1.items()},
    }
    with open(f"{os.environ['STOPWATCH_OUT']}.{os.getpid()}.json", "w") as f:
        json.dump(report, f)


def quarters(values):
    n = max(len(values) // 4, 1)
    return [sum(values[i : i + n]) / len(values[i : i + n]) for i in range(0, len(values), n) if values[i : i + n]][:4]


if os.environ.get("STOPWATCH_OUT") and not any("torchrun" in a or "resource_tracker" in a for a in sys.orig_argv):
    install()
