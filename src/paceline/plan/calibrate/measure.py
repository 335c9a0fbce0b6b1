"""One calibration task in its own process: ``python -m paceline.plan.calibrate.measure``.

The task is JSON on stdin, the result one line of JSON. Tasks: ``operators`` times the operators of models one by one;
``block`` trains a whole model for some steps and measures the memory of the process; ``exchange`` times collectives
among ranks; ``machine`` times bandwidths and latencies; ``speed`` times only the reference product.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

from paceline.inprocess.first_step.batches import resident_bytes
from paceline.inprocess.first_step.operator_counter import Tally
from paceline.plan.calibrate.benchmark_models import parse_benchmark_model, trainee_of
from paceline.plan.calibrate.timing import ReferenceSpeed, WorkTiming, switches, time_work
from paceline.plan.models.operators import FREE, kind_of

_CHUNK = bytes(range(256)) * 1024  # compressing it takes about as long as decoding an image
_IDLE = 1.5  # seconds of sleep for each second of work: in most runs loaders are not the limit


class BackgroundLoad:
    """A thread that compresses data without holding Python's lock (the GIL).

    It is busy for two fifths of the time if nothing else needs the core.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._burn, daemon=True)

    def _burn(self) -> None:
        while not self._over.is_set():
            at = time.thread_time()
            zlib.compress(_CHUNK, 6)
            took = time.thread_time() - at
            self.cpu_s += took
            self._over.wait(_IDLE * took)

    @contextmanager
    def burning(self) -> Iterator[None]:
        """Return a context manager during which the thread runs."""
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()


def operators_of(step: Any) -> dict[str, Any]:
    """Run one step and return its operators, in the form of `Tally.described`."""
    tally = Tally()
    tally.enter()
    try:
        step()
    finally:
        tally.leave()
    return tally.described()


def unknown_operators(operators: list[Mapping[str, Any]], known: set[Any]) -> list[Mapping[str, Any]]:
    """Return the operators whose family and sizes are not in `known`, and add these to `known`."""
    found = []
    for operator in operators:
        kind = kind_of(operator)
        key = (kind.family, kind.sizes)
        if kind.family != FREE and key not in known:
            known.add(key)
            found.append(operator)
    return found


def replay_of(operator: Mapping[str, Any], device: Any) -> Any:
    """Return a function that runs a recorded operator on new tensors; None if this is not possible."""
    import torch

    try:
        space, name, overload = operator["op"].split(".")
        function = getattr(getattr(getattr(torch.ops, space), name), overload)
        args = [_made(torch, each, device) for each in operator["args"]]
        kwargs = {key: _made(torch, each, device) for key, each in operator["kwargs"].items()}
        with torch.no_grad():
            function(*args, **kwargs)
    except (ValueError, AttributeError, RuntimeError, TypeError, IndexError):
        return None
    return lambda: function(*args, **kwargs)


def _made(torch: Any, value: Any, device: Any) -> Any:
    if isinstance(value, dict) and "t" in value:
        return _tensor(torch, value["t"], device)
    if isinstance(value, dict) and "s" in value:
        return _named(torch, value["s"], device)
    return [_made(torch, each, device) for each in value] if isinstance(value, list) else value


def _tensor(torch: Any, told: list[Any], device: Any) -> Any:
    shape, strides, dtype = told
    kind = getattr(torch, dtype)
    made = torch.empty_strided(shape, strides, dtype=kind, device=device)
    if kind.is_floating_point:
        return made.uniform_(0.1, 1.0)
    return made.zero_()


def _named(torch: Any, name: str, device: Any) -> Any:
    """Return the dtype, layout or memory format with this name; for any other name, return `device`."""
    plain = name.removeprefix("torch.")
    found = getattr(torch, plain, None)
    return found if isinstance(found, torch.dtype | torch.layout | torch.memory_format) else device


_LEAST_STEPS = 5
_REFERENCE = 512  # side of the square matrices of the reference product


def main() -> None:
    """Run the task from stdin, and print its result."""
    task = json.load(sys.stdin)
    sys.stdout.write(json.dumps(_TASKS[task["do"]](task)) + "\n")


def _device(torch: Any) -> Any:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _wait(torch: Any, device: Any) -> Callable[[], None]:
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def _reference_speed(torch: Any, device: Any) -> ReferenceSpeed:
    left, right = (torch.rand(_REFERENCE, _REFERENCE, device=device) for _ in range(2))
    return ReferenceSpeed(lambda: left @ right, _wait(torch, device))


def _speed(task: dict[str, Any]) -> dict[str, Any]:
    """Time the reference matrix product several times, and return the times."""
    import torch

    pace = _reference_speed(torch, _device(torch))
    return {"times": [_figures(time_work(pace.work, pace.wait, task["spend_s"])) for _ in range(task["times"])]}


def _operators(task: dict[str, Any]) -> dict[str, Any]:
    """Measure each distinct operator of some models once, and return the times."""
    import torch

    device, known, points = _device(torch), set[Any](), []
    wait, pace = _wait(torch, device), _reference_speed(torch, device)
    until = time.monotonic() + task["limit_s"]
    for text in task["animals"]:
        step = trainee_of(parse_benchmark_model(text), device).step
        step()
        for operator in unknown_operators(operators_of(step)["operators"], known):
            if time.monotonic() > until:
                break
            call = replay_of(operator, device)
            if call is not None:
                with torch.no_grad():
                    points.append([operator, _figures(time_work(call, wait, task["spend_s"])), pace.now()])
    return {"points": points, "reference_s": pace.seen, "described": _described(torch, device)}


def _block(task: dict[str, Any]) -> dict[str, Any]:
    """Train a model for some steps and count the operators of one step. Return its times, counts and memory.

    The reference product is timed after the peak memory is read, because the product needs memory too.
    """
    import torch

    device, together = _device(torch), task["ranks"] > 1
    if together:
        _meet(torch, task, device)
    trainee = trainee_of(parse_benchmark_model(task["animal"]), device, replicas=together)
    held, wait = resident_bytes()["now"], _wait(torch, device)
    for _ in range(3):
        trainee.step()
    steps = _steps(trainee.step, wait, task)
    burner = BackgroundLoad()
    with burner.burning():
        at = time.perf_counter()
        beside = _steps(trainee.step, wait, task)
        beside_s = time.perf_counter() - at
    peak = int(torch.cuda.max_memory_reserved()) if device.type == "cuda" else resident_bytes()["peak"]
    pace = _reference_speed(torch, device)
    reference = [pace.now(), time_work(pace.work, wait, 0.05).seconds]
    counted = operators_of(trainee.step)
    if together:
        torch.distributed.destroy_process_group()
    return {
        "step_s": steps,
        "beside_s": beside,
        "beside_cpu_s": burner.cpu_s / beside_s * median(beside),
        "reference_s": reference,
        "held_bytes": (held or 0) - trainee.weight_bytes if device.type == "cpu" else 0,
        "peak_bytes": peak,
        "weight_bytes": trainee.weight_bytes,
        "counted": counted,
    }


def _steps(step: Callable[[], None], wait: Callable[[], None], task: dict[str, Any]) -> list[float]:
    """Return the seconds of each step, fewer for long steps. Disturbed steps are left out if enough others remain."""
    taken: list[float] = []
    clean: list[float] = []
    begun = time.monotonic()
    while len(taken) < task["steps"] and (len(taken) < _LEAST_STEPS or time.monotonic() - begun < task["limit_s"]):
        before, at = switches(), time.perf_counter()
        step()
        wait()
        taken.append(time.perf_counter() - at)
        if switches() == before:
            clean.append(taken[-1])
    return clean if len(clean) >= _LEAST_STEPS else taken


def _meet(torch: Any, task: dict[str, Any], device: Any) -> None:
    """Create the process group of the ranks that were started together."""
    torch.distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{task['meet']}",
        rank=task["rank"],
        world_size=task["ranks"],
    )


def _exchange(task: dict[str, Any]) -> dict[str, Any]:
    """Time collectives among the ranks that were started together, and return the times."""
    import torch
    import torch.distributed as dist

    device = _device(torch)
    _meet(torch, task, device)
    try:
        found = {
            name: [_sent(torch, dist, name, size, task, device) for size in task["sizes"]] for name in _COLLECTIVES
        }
    finally:
        dist.destroy_process_group()
    return {"exchange": found}


_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


def _sent(torch: Any, dist: Any, name: str, size: int, task: dict[str, Any], device: Any) -> list[Any]:
    """Time a collective; return the bytes of the whole tensor, and the seconds (None if the backend lacks it)."""
    ranks = task["ranks"]
    whole = torch.zeros(max(ranks, size // 4 // ranks * ranks), device=device)
    part = whole[: len(whole) // ranks].clone()
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
    }
    wait = _wait(torch, device)
    try:
        seconds = []
        for _ in range(task["times"]):
            dist.barrier()
            at = time.perf_counter()
            calls[name]()
            wait()
            seconds.append(time.perf_counter() - at)
    except RuntimeError:
        return [whole.nbytes, None]
    return [whole.nbytes, seconds[2:]]


def _machine(task: dict[str, Any]) -> dict[str, Any]:
    """Measure copies of growing size, the smallest operator, and reading a file; return the times."""
    import torch

    device = _device(torch)
    wait = _wait(torch, device)
    copies = []
    for power in task["powers"]:
        source = torch.ones(2**power // 4, device=device)
        target = torch.empty_like(source)
        copies.append([2 * source.nbytes, _figures(time_work(partial(target.copy_, source), wait, 0.02))])
    one = torch.ones(1, device=device)
    host = None
    if device.type == "cuda":
        pinned = torch.ones(2**24, pin_memory=True)
        there = torch.empty(2**24, device=device)
        host = [pinned.nbytes, _figures(time_work(lambda: there.copy_(pinned, non_blocking=True), wait, 0.1))]
    return {
        "copies": copies,
        "host_copies": host,
        "launch": _figures(time_work(lambda: one.add_(1.0), lambda: None, 0.02)),
        "storage": _storage(task),
        "described": _described(torch, device),
    }


def _storage(task: dict[str, Any]) -> list[Any] | None:
    """Write a file and time reading it without the page cache; return None if this fails."""
    path, size = task["file"], task["file_bytes"]
    block, seconds = os.urandom(1 << 20), []
    try:
        with open(path, "wb") as file:
            for _ in range(size >> 20):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        for _ in range(3):
            with open(path, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                at = time.perf_counter()
                while file.read(1 << 20):
                    pass
                seconds.append(time.perf_counter() - at)
    except OSError:
        return None
    finally:
        if os.path.exists(path):
            os.unlink(path)
    return [size, {"seconds": median(seconds), "low": min(seconds), "high": max(seconds), "count": 3, "disturbed": 0.0}]


def _figures(found: WorkTiming) -> dict[str, Any]:
    names = ("seconds", "low", "high", "count", "disturbed")
    return {name: getattr(found, name) for name in names}


def _described(torch: Any, device: Any) -> dict[str, Any]:
    cuda = device.type == "cuda"
    return {
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "devices": torch.cuda.device_count() if cuda else 0,
        "device_memory_bytes": torch.cuda.get_device_properties(device).total_memory if cuda else None,
        "context_bytes": _context_bytes(torch) if cuda else None,
    }


def _context_bytes(torch: Any) -> int:
    """Return the bytes of device memory that are in use, except what torch has reserved."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())


_TASKS = {"operators": _operators, "block": _block, "exchange": _exchange, "machine": _machine, "speed": _speed}

if __name__ == "__main__":
    main()
