"""What the record of a run must say, for scenarios that name a check: each returns what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.explain.diagnose import diagnose
from paceline.record.layout import FLAG_DEVICE_TIMED
from paceline.record.read import read_run
from paceline.record.run import Rank, column

_NOTICED_NS = 200_000_000
_MOST = 0.05  # of the time of steps, from which on XFER001 is reported


def _rank(run: Path) -> Rank:
    return read_run(run).ranks[0]


def _transfer_share(rank: Rank) -> float:
    """Return the share of transfers in steps that the host timed: an emulated device has no times."""
    steps = rank.steps[(rank.steps["flags"] & FLAG_DEVICE_TIMED) == 0]
    return float(column(steps, "transfer_s").sum() / column(steps, "wall_s").sum())


def _beside(rank: Rank) -> dict[str, Any]:
    return (rank.summary.get("device") or {}).get("overlapped_copies") or {}


def copies_on_a_stream_of_their_own(run: Path) -> list[str]:
    """Copies are counted beside the computing stream, and take no time of the steps.

    The recorder notices within 0.2 s that CUDA is in use; until then a copy is a phase of its step.
    """
    rank = _rank(run)
    share, copies, end_ns = _transfer_share(rank), _beside(rank), rank.steps["end_ns"]
    faults = [f"transfer takes {share:.1%} of the time of steps"] if share >= _MOST else []
    later = int((end_ns - end_ns[0] > _NOTICED_NS).sum())
    if copies.get("off") or not later or copies.get("count", 0) < 2 * later - 4 or not copies.get("timed"):
        faults.append(f"{later} steps with two copies each after 0.2 s, and beside them were counted {copies}")
    remedies = [remedy.id for finding in diagnose(read_run(run)).findings for remedy in finding.remedies]
    return [*faults, "loader.device_prefetch is proposed"] if "loader.device_prefetch" in remedies else faults


def copies_in_steps(run: Path) -> list[str]:
    """Copies on the computing stream are phases of steps: the control of the other two checks."""
    rank = _rank(run)
    with_copies = float((column(rank.steps, "transfer_s") > 0).mean())
    faults = [f"transfer was seen in {with_copies:.0%} of the steps"] if with_copies < 0.9 else []
    return faults + ([f"copies were counted beside: {_beside(rank)}"] if _beside(rank).get("count") else [])


def replays_are_steps(run: Path) -> list[str]:
    """Each of the 80 replays of a whole step is a step, as are 80 steps before them and as many after them."""
    found, wanted = _rank(run).count, 80 + 3 + 80 + 80
    return [] if wanted <= found <= wanted + 2 else [f"{found} steps were recorded of {wanted}"]


def operators_of_the_program(run: Path) -> list[str]:
    """The profiled step has no operators by which Paceline itself copies losses; the program has none of these."""
    windows = [note for note in _rank(run).noted("window") if "operators" in note]
    names = {operator["name"] for note in windows for operator in note["operators"]}
    faults = [] if windows else ["no step was profiled"]
    return [*faults, *(f"{name} was counted" for name in ("aten::split", "aten::narrow") if name in names)]


def no_copies(run: Path) -> list[str]:
    """No step has a copy to the device."""
    found = column(_rank(run).steps, "transfer_s")
    return [f"transfer was seen in {int((found > 0).sum())} of {len(found)} steps"] if (found > 0).any() else []


def all_gpus(run: Path) -> list[str]:
    """Each rank is recorded with a GPU."""
    found = [rank.meta.get("device") for rank in read_run(run).ranks]
    return [] if found == ["cuda", "cuda"] else [f"the ranks were recorded with {found}"]


def fused_was_refused(run: Path) -> list[str]:
    """The setting for fused optimizers was refused, with a reason."""
    entries = [json.loads(line) for file in run.glob("held/*.jsonl") for line in file.open()]
    found = [entry for entry in entries if entry["key"] == "optimizer.fused"]
    refused = bool(found) and all(not entry["held"] and entry["what"] for entry in found)
    return [] if refused else [f"optimizer.fused was not refused: {found}"]


def captured_steps_5_to_8(run: Path) -> list[str]:
    """The capture holds the steps that were asked for and no other; an emulated device has no kernels in it."""
    files = list(run.glob("captures/*.json"))
    events = json.loads(files[0].read_text())["traceEvents"] if len(files) == 1 else []
    found = sorted({event["name"] for event in events if event.get("name", "").startswith("ProfilerStep")})
    return [] if found == [f"ProfilerStep#{step}" for step in range(5, 9)] else [f"{len(files)} captures, of {found}"]


CHECKS: dict[str, Callable[[Path], list[str]]] = {
    check.__name__: check
    for check in (
        copies_on_a_stream_of_their_own,
        copies_in_steps,
        no_copies,
        all_gpus,
        fused_was_refused,
        captured_steps_5_to_8,
        replays_are_steps,
        operators_of_the_program,
    )
}
