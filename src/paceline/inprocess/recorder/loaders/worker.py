"""The recorder in a loader worker: a thread that writes the worker's cumulative counters at intervals."""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections import Counter
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.recorder import process
from paceline.inprocess.recorder.bounded import run_bounded
from paceline.inprocess.recorder.files import Appender, another
from paceline.inprocess.recorder.loaders.fetch import Meter
from paceline.inprocess.recorder.stacks.sampler import Sampler
from paceline.inprocess.recorder.stacks.switch_interval import Prompt

_PERIOD_S = 0.02
_MOST_GENERATIONS = 200  # worker processes of one rank, above which only some write, to limit the number of files


class Ticker:
    """Writes a worker's identity and, at growing intervals, its cumulative counters."""

    def __init__(self, path: str, identity: dict[str, Any], meter: Meter) -> None:
        self._path = path
        self._file = Appender(path)
        self._hangs = False
        self._identity = identity
        self._meter = meter
        self._main = _thread.get_native_id()
        self._ident = _thread.get_ident()
        self._sampler = Sampler()
        self._begun_ns = time.perf_counter_ns()
        self._own: int | None = None
        self._interval_s = 0.1

    def start(self) -> None:
        """Write the worker's identity and start the thread. If access to the folder hangs, recording stops."""
        if run_bounded(self._identify):
            _thread.start_new_thread(self._loop, ())
            return
        self._hangs = True
        hooks.fault(TimeoutError("a write to the record hangs"), "worker recorder", in_folder=False)

    def _identify(self) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        if os.path.exists(self._path):  # the file of a process in another container
            self._path = another(self._path)
            self._file = Appender(self._path)
        self._file.write_json(self._identity)

    def _loop(self) -> None:
        self._own = _thread.get_native_id()
        due = 0.0
        prompt = Prompt()
        try:
            while not prompt.wait(lambda: time.sleep(_PERIOD_S)):
                self._sampler.sample_inside(self._ident, "produce", "metered")
                self._meter.settle()
                if time.monotonic() >= due:
                    self.write()
                    due = time.monotonic() + self._interval_s
                    self._interval_s = min(5.0, self._interval_s * 1.3)
        except Exception as error:
            hooks.fault(error, "worker recorder")

    def write(self) -> None:
        """Append the current counters to the worker's file."""
        on_cpu, runnable = process.thread_times_s(self._main) or (None, None)
        feeders = [process.thread_times_s(t) for t in _feeders()]
        self._file.write_json(
            {
                "kind": "tick",
                "time_ns": time.monotonic_ns(),
                "life_s": (time.perf_counter_ns() - self._begun_ns) / 1e9,
                **self._meter.as_json(),
                "on_cpu_s": on_cpu,
                "runnable_s": runnable,
                "hand_over_cpu_s": sum(t[0] for t in feeders if t),
                "threads": len(process.thread_ids()),
                **process.input_counters(self._main),
                "system_s": os.times().system,
                "rss_bytes": process.resident_bytes(),
                "hot": _producing(self._sampler),
            }
        )

    def last(self) -> None:
        """Append the final counters when the worker ends. If the write hangs, the call returns after a timeout."""
        if self._hangs:
            return
        try:
            run_bounded(self.write)
        except OSError as error:
            hooks.fault(error, "worker recorder")


def _feeders() -> list[int]:
    """Return the native ids of the threads that pickle and send batches."""
    return [t.native_id for t in threading.enumerate() if t.name.startswith("QueueFeederThread") and t.native_id]


def _producing(sampler: Sampler) -> list[dict[str, Any]]:
    """Return the functions with the most stack samples during batch creation, most samples first."""
    merged: Counter[tuple[str, str]] = Counter()
    for entry in sampler.as_json():
        merged[entry["function"], entry["file"]] += entry["count"]
    return [{"function": name, "file": file, "count": count} for (name, file), count in merged.most_common(8)]


def begin(run_dir: str, host: str, generation: int, info: Any, meter: Meter) -> None:
    """Start the ticker of this worker process, and register its last write with multiprocessing's finalizers."""
    from multiprocessing import parent_process, util

    if generation > _MOST_GENERATIONS and generation % 16:
        return
    parent = parent_process()
    identity = {
        "kind": "worker",
        "schema": 1,
        "host": host,
        "pid": os.getpid(),
        "parent_pid": parent.pid if parent is not None else os.getppid(),
        "worker_id": info.id,
        "num_workers": info.num_workers,
        "base_seed": info.seed - info.id,
        "time_ns": time.monotonic_ns(),
    }
    ticker = Ticker(os.path.join(run_dir, "workers", f"{host}-{os.getpid()}.jsonl"), identity, meter)
    ticker.start()
    util.Finalize(None, ticker.last, exitpriority=100)
