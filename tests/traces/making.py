"""Captures made by hand: what the GPU did, what the host launched, what it waited for, in microseconds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from paceline.traces.capture import Capture
from paceline.traces.read import kineto

Event = dict[str, Any]


def gpu(start: float, end: float, number: int, name: str = "gemm", stream: int = 7, cat: str = "kernel") -> Event:
    args = {"stream": stream, "device": 0, "correlation": number}
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": end - start, "pid": 0, "tid": stream, "args": args}


def launch(start: float, number: int, lasted: float = 1.0) -> Event:
    return host("cudaLaunchKernel", start, start + lasted, cat="cuda_runtime", correlation=number)


def host(name: str, start: float, end: float, cat: str = "cpu_op", **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": end - start, "pid": 1, "tid": 1, "args": args}


def waiting(start: float, end: float) -> Event:
    return host("cudaDeviceSynchronize", start, end, cat="cuda_runtime")


def fetching(start: float, end: float) -> Event:
    return host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, end, cat="user_annotation")


def captured(folder: Path, *events: Event, name: str = "made.json") -> Capture:
    path = folder / name
    path.write_text(json.dumps({"traceEvents": events}))
    return kineto.read(path)


def by_chance(seed: int, pieces: int = 60) -> list[Event]:
    """Return a run of a host and a GPU of three streams that obey each other; whole microseconds."""
    chance = random.Random(seed)
    events: list[Event] = []
    at, free, last = chance.randint(0, 50), dict.fromkeys((7, 8, 9), 0), 0
    for number in range(1, pieces + 1):
        if chance.random() < 0.2:
            events.append(fetching(at, at := at + chance.randint(1, 60)))
        at += chance.randint(0, 30)
        stream = chance.choice((7, 7, 7, 8, 9))
        begin = max(at + chance.randint(1, 5), free[stream], last if chance.random() < 0.3 else 0)
        end = begin + chance.choice((0, 1, 5, 40, 90))
        name = chance.choice(("gemm", "add", "ncclKernel_AllReduce"))
        events += [launch(at, number), gpu(begin, end, number, name, stream)]
        free[stream], last = end + chance.randint(0, 2), max(last, end)
        at += 1
        if chance.random() < 0.15 and last > at:
            events.append(waiting(at, last + chance.randint(0, 3)))
            at = last + 3
    return events
