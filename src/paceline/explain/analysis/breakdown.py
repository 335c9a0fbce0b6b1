"""Split the step time of a rank into the shares of the nine phases, from step rows and stack samples.

Three slots of a row are split with stack samples of the training thread (see `inprocess.recorder.stacks.sampler`):

    gap    x share of samples that make the input of the forward pass -> data_wait, the rest -> other; if the program
           updates parameters by hand, also x share in the update -> optimizer, x share in the loss -> forward
    mid    x share of samples outside the program's other work -> forward, the rest -> other
    other  x share of samples that make an input -> data_wait

In a distributed run, off-CPU time inside forward and backward is communication, without the time in which the thread
waited for a CPU.

The host of a GPU runs ahead of the GPU, so times on the host say little about the GPU. If the device timed some steps
(`inprocess.recorder.device.clock`), the other steps get the shares of these steps. If another step took longer than the
median timed step, the difference is added to the phases in which the host spent more time than usual (a checkpoint, a
late batch).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from paceline.core.statistics import Floats, Interval, half_width, median_interval, thin, warmup_length
from paceline.explain.model import HotFunction, RankBreakdown, TimelinePoint
from paceline.record import layout
from paceline.record.layout import FLAG_DEVICE_TIMED, PHASES, SLOTS
from paceline.record.run import Launch, Rank, Rows, column

_FEW = 8  # with fewer stack samples than this, a split also uses a default share
_DEFAULT_WEIGHT = 2  # the default share counts as much as this many samples
_MOST_POINTS = 2000
_FEW_TIMED = 8  # with fewer timed steps than this, they do not represent the other steps


def steady(rank: Rank) -> Rows:
    """Return the steps that count for statistics: after warm-up, and without steps slowed by the profiler."""
    rows = rank.steps[warmup_length(column(rank.steps, "wall_s")) :]
    fair = (rows["flags"] & layout.FLAG_PROFILED) == 0
    return rows[fair] if fair.sum() >= len(rows) / 2 else rows


def of_one_model(rank: Rank, rows: Rows) -> slice:
    """Return the longest part of the rows in which the rank trained models of one size.

    Only these steps are expected to take equally long.
    """
    return max(_models(rank, rows), key=lambda part: part.stop - part.start)


def _models(rank: Rank, rows: Rows) -> list[slice]:
    """Return the slices of step rows that are separated by the starts of training on a model of another size."""
    starts = sorted(int(note["step"]) for note in rank.noted("model"))[1:]
    edges = [0, *np.searchsorted(rows["index"], starts), len(rows)]
    return [slice(int(a), int(b)) for a, b in pairwise(edges)]


def profiled_part(rank: Rank) -> float:
    """Return the share of step time in the models that were trained during the profiled steps, or 1 if unknown."""
    rows = rank.steps
    walls, profiled = column(rows, "wall_s"), (rows["flags"] & layout.FLAG_PROFILED) != 0
    shown = sum(float(walls[part].sum()) for part in _models(rank, rows) if profiled[part].any())
    return shown / float(walls.sum()) if shown > 0 else 1.0


def sample_counts(rank: Rank, slot: str) -> dict[str, int]:
    """Return the number of stack samples in a slot of the step, by side: what the sampled line was doing."""
    return {s["side"]: s["count"] for s in rank.summary.get("samples", ()) if s["slot"] == slot}


def _side_share(rank: Rank, slot: str, sides: Sequence[str], otherwise: float) -> float:
    """Return the share of a slot's stack samples on the given sides (kinds of code), among those with a known side.

    Without samples, the result is the default share `otherwise`. With few samples, the result is a weighted mean of the
    measured share and the default share.
    """
    counts = sample_counts(rank, slot)
    decided = sum(n for side, n in counts.items() if side != "unknown")
    found, weight = sum(counts.get(side, 0) for side in sides), _DEFAULT_WEIGHT if decided < _FEW else 0
    return (found + weight * otherwise) / (decided + weight)


def _share_without_forward(rank: Rank) -> float:
    """Return the share of the gap slot that computes the loss, for a program whose forward pass is not recorded."""
    counts = sample_counts(rank, "gap")
    total = sum(counts.values())
    return sum(counts.get(side, 0) for side in ("loss", "unknown")) / total if total >= _FEW else 1.0


def host_ratio(rank: Rank) -> float | None:
    """Return the share of stack samples between phases that are in code unrelated to forward and backward passes.

    Other samples compute the loss, or their side is unknown: their line leads to such a pass, or their source could not
    be read.

    Returns:
        The share, or None with too few samples.
    """
    counts = [sample_counts(rank, slot) for slot in ("gap", "other")]
    host = sum(c.get("host", 0) for c in counts)
    total = host + sum(c.get(side, 0) for c in counts for side in ("unknown", "loss"))
    return host / total if total >= _FEW else None


def runnable_ratio(rank: Rank) -> float:
    """Return the seconds that the training thread waited for a CPU, per second in which it ran on a CPU."""
    if not len(rank.ticks):
        return 0.0
    last = rank.ticks[-1]
    on_cpu, runnable = float(last["main_on_cpu_s"]), float(last["main_runnable_s"])
    return runnable / on_cpu if on_cpu > 0 and not math.isnan(runnable) else 0.0


def active_share(rank: Rank) -> float | None:
    """Return the share of time in which the training thread ran, or was ready to run, from the first to the last step.

    In the rest of the time, the thread waited for something else, such as data, or another Python thread with the GIL.

    Returns:
        The share (0 to 1), or None if the kernel did not report the times of the thread.
    """
    ticks = rank.ticks[(rank.ticks["step"] > 0) & ~np.isnan(rank.ticks["main_runnable_s"])]
    if len(ticks) < 2 or ticks["time_ns"][-1] <= ticks["time_ns"][0]:
        return None
    passed_s = float(ticks["time_ns"][-1] - ticks["time_ns"][0]) / 1e9
    active = ticks["main_on_cpu_s"] + ticks["main_runnable_s"]
    share = float(active[-1] - active[0]) / passed_s
    return None if math.isnan(share) else min(1.0, share)


def cpu_wait_share(rank: Rank) -> float:
    """Return the share of the time between the first and the last step in which the training thread waited for a CPU.

    In this time, the thread was ready to run, but other threads, other programs or a CPU quota took the cores. The
    share is 0 if it was not measured.
    """
    ticks = rank.ticks[(rank.ticks["step"] > 0) & ~np.isnan(rank.ticks["main_runnable_s"])]
    if len(ticks) < 2 or ticks["time_ns"][-1] <= ticks["time_ns"][0]:
        return 0.0
    passed_s = float(ticks["time_ns"][-1] - ticks["time_ns"][0]) / 1e9
    return min(1.0, float(ticks["main_runnable_s"][-1] - ticks["main_runnable_s"][0]) / passed_s)


def cpu_wait_interval(rank: Rank) -> Interval:
    """Return `cpu_wait_share` with its 95% interval, from the variation between ticks (Student's t)."""
    share = cpu_wait_share(rank)
    ticks = rank.ticks[(rank.ticks["step"] > 0) & ~np.isnan(rank.ticks["main_runnable_s"])]
    passed = np.diff(ticks["time_ns"].astype(np.int64)) / 1e9
    parts = np.diff(ticks["main_runnable_s"])[passed > 0] / passed[passed > 0]
    half = half_width(parts) if len(parts) >= 3 else share
    return Interval(value=share, low=max(0.0, share - half), high=min(1.0, share + half), count=len(parts))


def phase_columns(rank: Rank, rows: Rows) -> dict[str, np.ndarray]:
    """Return the seconds of each phase for each row. The sum over phases is the wall time of the row."""
    found = at_the_device(rows, {name: column(rows, f"{name}_s") for name in SLOTS})
    gap, mid = found.pop("gap"), found.pop("mid")
    fed = (rows["fetches"] > 0) | ((rows["flags"] & layout.FLAG_FRESH) == 0)
    by_hand = (rows["flags"] & layout.FLAG_BY_BACKWARD) != 0
    modules = bool(found["forward"].any())
    gap_update = np.where(by_hand, _side_share(rank, "gap", ("update",), 1.0 if modules else 0.0), 0.0)
    if modules:
        gap_loss = np.where(by_hand, _side_share(rank, "gap", ("loss",), 0.0), 0.0)
    else:  # the forward pass is not recorded; it is in the call that leads to the backward pass, which has no side
        gap_loss = np.where(by_hand | (found["backward"] > 0), _share_without_forward(rank), 0.0)
    gap_input = np.where(
        fed | by_hand, _side_share(rank, "gap", ("input",), 0.0), _side_share(rank, "gap", ("input",), 1.0)
    )
    mid_host = _side_share(rank, "mid", ("host",), 0.0)
    other_input = _side_share(rank, "other", ("input",), 0.0) * found["other"]
    other_update = _side_share(rank, "other", ("optimizer",), 0.0) * found["other"]
    mid_update = _side_share(rank, "mid", ("optimizer",), 0.0)
    found["data_wait"] = found["data_wait"] + gap * gap_input + other_input
    found["forward"] = found["forward"] + mid * (1 - mid_host - mid_update)
    gap_update = _side_share(rank, "gap", ("optimizer",), 0.0) + gap_update
    gap_update = np.minimum(gap_update, 1 - gap_input)
    gap_loss = np.minimum(gap_loss, 1 - gap_input - gap_update)
    found["optimizer"] = found["optimizer"] + gap * gap_update + mid * mid_update + other_update
    found["forward"] = found["forward"] + gap * gap_loss
    found["other"] = found["other"] + gap * (1 - gap_input - gap_update - gap_loss) + mid * mid_host
    found["other"] = found["other"] - other_input - other_update
    return _with_communication(rank, rows, _with_saving(rank, found))


def _with_saving(rank: Rank, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Move the time around a checkpoint save, in functions that save checkpoints, to the checkpoint phase."""
    counts = [sample_counts(rank, slot) for slot in ("gap", "mid", "other")]
    saving = sum(c.get("save", 0) for c in counts)
    host = sum(c.get(side, 0) for c in counts for side in ("host", "unknown", "loss"))
    beside = found["other"] * (found["checkpoint"] > 0)
    if saving and beside.any():
        wanted = float(found["other"].sum()) * saving / (saving + host)
        moved = beside * min(1.0, wanted / float(beside.sum()))
        found["checkpoint"] = found["checkpoint"] + moved
        found["other"] = found["other"] - moved
    return found


def _with_communication(rank: Rank, rows: Rows, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Move the time in which backward passes wait for the reduction of gradients to the communication phase.

    The recorder marks all other waiting for ranks. In a backward pass that reduces gradients, off-CPU time counts as
    waiting, up to the time that DistributedDataParallel measured; the rest is time of the program.
    """
    if not rank.meta.get("distributed") or rank.device != "cpu":  # on a GPU, the thread is always off the CPU
        return found
    contention = runnable_ratio(rank)
    measured = rank.summary.get("exchange_times")
    # earlier records have no exchange times
    for name in ("backward",) if measured is not None else ("forward", "backward"):
        off_cpu = np.nan_to_num(column(rows, f"{name}_blocked_s"))
        kept = np.maximum(found[name] - off_cpu, 0.0) * contention
        waited = np.clip(off_cpu - kept, 0.0, found[name])
        if measured is not None:
            exposed_s = sum(one["exposed_s"] for one in measured) * rows["synced"]  # measured for one pass
            waited = _as_measured(waited * (rows["synced"] > 0), float(exposed_s.mean()) if len(rows) else 0.0)
        found[name] = found[name] - waited
        found["communication"] = found["communication"] + waited
    return found


def _as_measured(waited: np.ndarray, exposed_s: float) -> np.ndarray:
    """Return waiting times, scaled down so that their mean per step is at most `exposed_s` (0: not measured)."""
    mean = float(waited.mean()) if len(waited) else 0.0
    return waited * min(1.0, exposed_s / mean) if exposed_s and mean else waited


def startup_s(rank: Rank, launches: Sequence[Launch]) -> float | None:
    """Return the seconds from the start of the command (or process) to the first batch, forward or backward pass."""
    first_ns, offset = rank.meta.get("first_ns"), rank.meta.get("epoch_offset_ns")
    if first_ns is None or offset is None:
        return None
    first_unix = (first_ns + offset) / 1e9
    begun = [x.started_unix_s for x in launches if x.host == rank.host and x.started_unix_s <= first_unix]
    started = max(begun) if begun else rank.meta.get("started_unix_s")
    return max(0.0, first_unix - started) if started else None


def hot_functions(rank: Rank, slots: Mapping[str, Sequence[str] | None], most: int = 6) -> list[HotFunction]:
    """Return the user's functions with most stack samples in some slots of a step.

    Args:
        rank: The rank.
        slots: For each slot, the sides whose samples count, or None for all sides.
        most: Largest number of functions.
    """
    entries = [e for e in rank.summary.get("hot", ()) if e["slot"] in slots]
    entries = [e for e in entries if (sides := slots[e["slot"]]) is None or e["side"] in sides]
    total = sum(e["count"] for e in entries)
    merged: dict[str, int] = {}
    for entry in entries:
        name = str(entry["function"])
        merged[name] = merged.get(name, 0) + entry["count"]
    ordered = sorted(merged.items(), key=lambda item: -item[1])[:most]
    return [HotFunction(function=name, share=count / total, count=count) for name, count in ordered]


def break_down(rank: Rank, launches: Sequence[Launch]) -> RankBreakdown:
    """Return the breakdown of one rank's steady steps."""
    walls = column(rank.steps, "wall_s")
    rows = steady(rank)
    of_all = rank.count / len(rank.steps) if len(rank.steps) else 1.0  # of a long run, only parts were read
    phases = {name: float(values.sum()) for name, values in phase_columns(rank, rows).items()}
    total = sum(phases[name] for name in PHASES)
    samples = column(rows, "samples")
    known = samples[~np.isnan(samples)]
    wall = float(column(rows, "wall_s").sum())
    return RankBreakdown(
        rank=rank.rank,
        host=rank.host,
        pid=rank.pid,
        device=rank.device,
        steps=rank.count,
        micro_steps=round(float(rank.steps["micro_steps"].astype(np.int64).sum()) * of_all),
        warmup=warmup_length(walls),
        step_s=median_interval(column(rows, "wall_s")) or Interval(value=0.0, low=0.0, high=0.0, count=0),
        p95_s=float(np.quantile(column(rows, "wall_s"), 0.95)) if len(rows) else 0.0,
        seconds={name: phases[name] * of_all for name in PHASES},
        shares={name: phases[name] / total if total > 0 else 0.0 for name in PHASES},
        samples_per_s=float(known.sum()) / wall if len(known) and wall > 0 else None,
        batch_size=float(np.median(known)) if len(known) else None,
        peak_rss_bytes=_peak(rank, "rss_bytes"),
        peak_device_bytes=_peak(rank, "device_peak_bytes"),
        startup_s=startup_s(rank, launches),
        host_functions=hot_functions(
            rank, {"other": ("host", "unknown", "loss"), "gap": _host_sides(rows), "mid": ("host",)}
        ),
    )


def _host_sides(rows: Rows) -> Sequence[str]:
    """Return the sides (kinds) of stack samples in the gap slot that count as the program's own code.

    Samples on lines that use gradients count too, unless the program updates parameters there.
    """
    by_hand = ((rows["flags"] & layout.FLAG_BY_BACKWARD) != 0).any()
    return ("host", "unknown") if by_hand else ("host", "unknown", "update")


def _peak(rank: Rank, name: str) -> float | None:
    values = rank.ticks[name]
    values = values[~np.isnan(values)]
    return float(values.max()) if len(values) else None


def timeline(rank: Rank) -> list[TimelinePoint]:
    """Return all steps of a rank, warm-up included, as groups of consecutive steps for a chart."""
    if not len(rank.steps):
        return []
    rows = rank.steps
    columns = phase_columns(rank, rows)
    walls = column(rows, "wall_s")
    begins = _begins_s(rank)
    edges = thin(walls, _MOST_POINTS)
    sums = {name: np.add.reduceat(columns[name], edges) for name in PHASES}
    wall_sums = np.add.reduceat(walls, edges)
    slowest = np.maximum.reduceat(walls, edges)
    counts = np.diff(np.append(edges, len(walls)))
    steps = np.diff(np.append(rows["index"][edges].astype(np.int64), int(rows["index"][-1]) + 1))
    return [
        TimelinePoint(
            step=int(rows["index"][edge]),
            seconds=float(begins[edge]),
            steps=int(steps[i]),
            step_s=float(wall_sums[i] / counts[i]),
            slowest_s=float(slowest[i]),
            shares=[float(sums[name][i] / wall_sums[i]) if wall_sums[i] > 0 else 0.0 for name in PHASES],
        )
        for i, edge in enumerate(edges)
    ]


def _begins_s(rank: Rank) -> Floats:
    """Return the start of each step in seconds since the start of the first step."""
    walls = column(rank.steps, "wall_s")
    if rank.recorded is None:
        begins: Floats = np.concatenate([[0.0], np.cumsum(walls)[:-1]])
        return begins
    ends = rank.steps["end_ns"].astype(np.int64)
    since: Floats = (ends - ends[0]) / 1e9 - walls + walls[0]
    return since


# -------------------------------------------------------------------------------------------------- times of the device


def device_timed_steps(rows: Rows) -> int:
    """Return the number of steps that the device timed."""
    return int(((rows["flags"] & FLAG_DEVICE_TIMED) != 0).sum())


def at_the_device(rows: Rows, slots: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the times of the phases of each step, corrected by the steps that the device timed.

    In a step that only the host timed, the wall time is divided among the phases as in the steps that the device timed.
    The sum of each step does not change. If the device timed too few steps, the times are returned unchanged.

    Args:
        rows: The step rows.
        slots: The seconds of each phase, one value per row.
    """
    timed = (rows["flags"] & FLAG_DEVICE_TIMED) != 0
    if timed.sum() < _FEW_TIMED or timed.all():
        return slots
    table = np.stack(list(slots.values()))  # slots x rows
    shares = table[:, timed].sum(axis=1, keepdims=True) / max(table[:, timed].sum(), 1e-12)
    walls = table[:, ~timed].sum(axis=0)
    usual = np.minimum(walls, np.median(table[:, timed].sum(axis=0)))
    more = np.maximum(table[:, ~timed] - np.median(table[:, ~timed], axis=1, keepdims=True), 0.0)
    total = more.sum(axis=0)
    where = np.where(total > 0, more / np.where(total > 0, total, 1.0), shares)
    table[:, ~timed] = usual * shares + (walls - usual) * where
    return dict(zip(slots, table, strict=True))


def why_host_times(rank: Rank) -> str | None:
    """Return why the phases of a rank on a GPU were timed on the host, or None if the device timed them."""
    if rank.device == "cpu" or device_timed_steps(rank.steps) >= _FEW_TIMED:
        return None
    told = (rank.summary.get("device") or {}).get("off")
    if told:
        return f"phases were timed on the host, because CUDA events could not be used ({told})"
    return f"phases were timed on the host, because CUDA events timed fewer than {_FEW_TIMED} complete steps"
