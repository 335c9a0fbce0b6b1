"""Run folders as the probe writes them, made by hand: through the same packing, with the numbers that a test wants."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.explain.analysis.run_analysis import RunAnalysis, analyze_run
from paceline.inprocess.recorder.steps.parts import StepRow
from paceline.inprocess.recorder.steps.rows import pack_step
from paceline.record import layout
from paceline.record.layout import FLAG_FRESH, FLAG_LOSS, SLOTS
from paceline.record.read import read_run
from paceline.record.run import Run

S = 1_000_000_000
FIRST_NS = 100 * S  # the first moment of training, on the host's clock
OFFSET_NS = 1_700_000_000 * S  # from the host's clock to the time of day
HOST = "node-a"

Steps = Sequence[Mapping[str, Any]]


def step(**spent_ms: Any) -> dict[str, Any]:
    """One step: milliseconds of slots by name, and any field of a row (loss, samples, fetches, flags, synced …)."""
    return spent_ms


def steps(count: int, each: Callable[[int], Mapping[str, Any]] | None = None, **spent_ms: Any) -> list[dict[str, Any]]:
    """Many alike, or as `each` changes them by their number."""
    return [{**spent_ms, **(each(number) if each else {})} for number in range(count)]


def plain(count: int = 60, wait: float = 0.0, **more: Any) -> list[dict[str, Any]]:
    """Steps of 10 ms of work (3 forward, 6 backward, 1 optimizer), and so many ms of waiting for data."""
    return steps(count, **{"data_wait": wait, "forward": 3, "backward": 6, "optimizer": 1, **more})


def pack(number: int, end_ns: int, values: Mapping[str, Any], tail: bool = False) -> tuple[bytes, int]:
    """Pack one step; returns the row and its wall time in ns."""
    slots = tuple(round(float(values.get(name, 0.0)) * 1e6) for name in SLOTS)
    wall = round(float(values.get("wall", sum(slots) / 1e6)) * 1e6)
    loss = values.get("loss")
    flags = int(values.get("flags", FLAG_FRESH)) | (FLAG_LOSS if loss is not None else 0)
    row = StepRow(
        end_ns=end_ns + wall,
        wall_ns=wall,
        slots_ns=slots,
        flags=flags,
        micro_steps=values.get("micro_steps", 1),
        synced=values.get("synced", 0),
        fetches=values.get("fetches", 1),
        fetch_cpu_ns=_ns(values.get("fetch_cpu")),
        forward_blocked_ns=_ns(values.get("forward_blocked")),
        backward_blocked_ns=_ns(values.get("backward_blocked")),
        samples=values.get("samples", 8.0),
        loss=loss,
    )
    flags |= layout.FLAG_TAIL if tail else 0
    return pack_step(number, row, flags, math.nan if loss is None else loss, math.nan), wall


def _ns(ms: float | None) -> float:
    return math.nan if ms is None else ms * 1e6


def loader(**changes: Any) -> dict[str, Any]:
    """What a summary says of one loader that fed training."""
    values = {
        "class": "DataLoader",
        "dataset": "Photos",
        "num_workers": 2,
        "batch_size": 8,
        "pin_memory": False,
        "persistent_workers": False,
        "prefetch_factor": 2,
        "collate_fn": "default_collate",
        "epochs": 1,
        "meter": None,
        "train_fetches": 60,
        "train_wait_s": 1.0,
        "eval_fetches": 0,
        "eval_wait_s": 0.0,
        "samples": 480.0,
    }
    return values | changes


def histogram(*batches_s: float) -> list[int]:
    """The histogram that a meter makes of these batch times."""
    counts = [0] * (len(layout.BATCH_BOUNDS_S) + 1)
    for seconds in batches_s:
        place = sum(seconds >= bound * (1 - 1e-9) for bound in layout.BATCH_BOUNDS_S)
        counts[place] += 1
    return counts


def meter(batches: int, batch_s: float, cpu_s: float, **changes: Any) -> dict[str, Any]:
    """Counters of one maker of batches: how many, and wall and CPU seconds of each."""
    values = {
        "batches": batches,
        "samples": 8 * batches,
        "produce_s": batches * batch_s,
        "cpu_s": batches * cpu_s,
        "collate_s": 0.0,
        "collate_cpu_s": 0.0,
        "max_batch_s": batch_s,
        "histogram": histogram(*[batch_s] * batches),
    }
    return values | changes


def training(
    *objectives: tuple[Sequence[int], int], forwards: float = 1.0, free: float = 0.0, exchanges: float = 1.0
) -> dict[str, Any]:
    """What a summary says of 100 backward passes for each objective (numbers of modules, number of the optimizer)."""
    told = objectives or (((1,), 0),)
    count = 100 * len(told)
    return {
        "forwards": round(forwards * count),
        "backwards": count,
        "updates": count,
        "updates_with_gradient_free_forwards": round(free * count),
        "objectives": [
            {
                "modules": [f"Net{m}" for m in modules],
                "module_ids": list(modules),
                "optimizer": optimizer,
                "lines": None,
                "backwards": 100,
            }
            for modules, optimizer in told
        ],
        "exchanges": [{"module": "Net1", "updates": 50, "exchanges": round(50 * exchanges)}],
    }


class RunFolder:
    """A run folder in the making."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "run"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.end_ns = FIRST_NS

    def launch(
        self, host: str = HOST, *, exit_code: int | None = 0, wall_s: float | None = None, **more: Any
    ) -> RunFolder:
        started = more.pop("started_ns", FIRST_NS - 3 * S)
        record = {
            "schema": 1,
            "host": host,
            "pid": 7,
            "argv": ["paceline", "run", "train.py"],
            "command": ["python", "train.py"],
            "started_unix_s": (started + OFFSET_NS) / S,
            "started_ns": started,
        }
        self.write_json(f"launch-{host}-7.json", record | more)
        if exit_code is not None:
            wall_s = wall_s if wall_s is not None else (self.end_ns - started) / S
            self.write_json(f"end-{host}-7.json", {"exit_code": exit_code, "wall_s": wall_s})
        return self

    def rank(
        self,
        rows: Steps,
        number: int = 0,
        *,
        pid: int | None = None,
        meta: Mapping[str, Any] | None = None,
        tail: Mapping[str, Any] | None = None,
        summary: Mapping[str, Any] | None = None,
        notes: Sequence[Mapping[str, Any]] = ({"kind": "end", "exception": None},),
        **ticks: Any,
    ) -> RunFolder:
        pid = pid if pid is not None else 1000 + number
        meta = {**_meta(number, pid), **(meta or {})}
        folder = self.folder / layout.RANKS_DIR / f"{meta['host']}-{pid}"
        folder.mkdir(parents=True)
        (folder / layout.META_FILE).write_text(json.dumps(meta))
        packed, ends, end = [], [], int(meta["first_ns"])
        for index, values in enumerate(rows):
            data, wall = pack(index, end, values)
            end += wall
            packed.append(data)
            ends.append(end)
        if tail is not None:
            packed.append(pack(len(rows), end, tail, tail=True)[0])
        (folder / layout.STEPS_FILE).write_bytes(b"".join(packed))
        (folder / layout.TICKS_FILE).write_bytes(_ticks(int(meta["first_ns"]), ends, **ticks))
        lines = [json.dumps({"time_ns": end, **note}) for note in notes]
        (folder / layout.NOTES_FILE).write_text("".join(f"{line}\n" for line in lines))
        (folder / layout.SUMMARY_FILE).write_text(json.dumps({"steps": len(rows), **(summary or {})}))
        self.end_ns = max(self.end_ns, end)
        return self

    def worker(self, number: int, counters: Mapping[str, Any], *, parent: int = 1000, **more: Any) -> RunFolder:
        """One loader worker: a head, and its counters at the end. Blocked is what is neither cpu_s nor runnable_s."""
        pid = more.pop("pid", 2000 + number)
        head = {
            "kind": "worker",
            "schema": 1,
            "host": HOST,
            "pid": pid,
            "parent_pid": parent,
            "worker_id": number,
            "num_workers": 2,
            "base_seed": more.pop("base_seed", 0),
            "time_ns": FIRST_NS,
        }
        tick = {
            "kind": "tick",
            "time_ns": self.end_ns,
            "life_s": max(counters["produce_s"], (self.end_ns - FIRST_NS) / S),
            **counters,
            "on_cpu_s": counters["cpu_s"],
            "runnable_s": 0.0,
            "hand_over_cpu_s": 0.0,
            "read_calls": None,
            "asked_bytes": None,
            "read_bytes": None,
            "system_s": 0.0,
            "rss_bytes": 1e8,
            "hot": [],
            **more,
        }
        folder = self.folder / layout.WORKERS_DIR
        folder.mkdir(exist_ok=True)
        (folder / f"{HOST}-{pid}.jsonl").write_text(f"{json.dumps(head)}\n{json.dumps(tick)}\n")
        return self

    def gauges(
        self, host: str = HOST, *, readings: int = 5, header: Mapping[str, Any] | None = None, **values: Any
    ) -> RunFolder:
        """Readings of the host, alike, over the time of the steps."""
        head = {"kind": "header", "schema": 1, "allowed_cores": 2.0, "unavailable": {}, **(header or {})}
        begun, span = FIRST_NS, self.end_ns - FIRST_NS
        lines = [head]
        for number in range(readings):
            time_ns = begun + span * (number + 1) // readings
            lines.append({"kind": "host", "time_ns": time_ns, "interval_s": span / readings / S, **values})
        folder = self.folder / layout.GAUGES_DIR
        folder.mkdir(exist_ok=True)
        (folder / f"{host}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return self

    def write_json(self, name: str, record: Mapping[str, Any]) -> None:
        (self.folder / name).write_text(json.dumps(record))

    def read(self) -> Run:
        return read_run(self.folder)

    def facts(self) -> RunAnalysis:
        """Close the run, if it was not, and gather its facts."""
        if not list(self.folder.glob("launch-*.json")):
            self.launch()
        return analyze_run(self.read())


def _meta(number: int, pid: int) -> dict[str, Any]:
    return {
        "schema": layout.SCHEMA_VERSION,
        "host": HOST,
        "pid": pid,
        "rank": number,
        "world": 1,
        "distributed": False,
        "thread_id": pid,
        "started_unix_s": (FIRST_NS - 2 * S + OFFSET_NS) / S,
        "imported_ns": FIRST_NS - S // 2,
        "first_ns": FIRST_NS,
        "epoch_offset_ns": OFFSET_NS,
        "torch": "2.13.0",
        "threads": 1,
        "device": "cpu",
        "device_name": None,
        "tick_bytes": layout.TICK.size,
    }


def _ticks(
    first_ns: int,
    ends: Sequence[int],
    *,
    count: int = 20,
    cores: float = 1.0,
    active: float = 1.0,
    contention: float = 0.0,
    rss: Callable[[float], float] = lambda _: 1e9,
    device: Callable[[float], float] = lambda _: math.nan,
    unshared: Callable[[float], float] = lambda _: 1e9,
    system: float = 0.0,
    faults_per_s: float = math.nan,
) -> bytes:
    """Ticks over the time of the steps. `contention`: seconds ready without a CPU for each second on one.

    `active`: the share of the time in which the training thread runs. `system`: the share of CPU time in the operating
    system.
    """
    if not ends:
        return b""
    packed = []
    for number in range(1, count + 1):
        share = number / count
        now = first_ns + round((ends[-1] - first_ns) * share)
        done = sum(end <= now for end in ends)
        spent = (now - first_ns) / S
        memory = (device(share), device(share), device(share), 0.0, unshared(share))
        faults = (system * cores * spent, faults_per_s * spent)
        times = (cores * spent, active * spent, contention * spent)
        packed.append(layout.TICK.pack(now, done, 4, rss(share), *times, 0.0, math.nan, *memory, *faults))
    return b"".join(packed)


def two_ranks(folder: RunFolder, rows: Sequence[Steps], **more: Any) -> RunFolder:
    """Distributed ranks, each with its steps."""
    world = len(rows)
    for number, own in enumerate(rows):
        folder.rank(own, number, meta={"world": world, "distributed": True}, **more)
    return folder
