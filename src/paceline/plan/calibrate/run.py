"""Runs the calibration of a machine: each measurement is a task in its own processes, in a temporary folder.

First, a single rank is measured with all cores. Then two ranks that share the cores, or one rank for each GPU, are
measured at the same time, which is how replicas run. The profile is written only after all measurements, so an
interruption leaves no files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from paceline.core.errors import EnvironmentFault
from paceline.hardware.host import host_busy_s, this_host
from paceline.plan.calibrate.benchmark_models import (
    BLOCKS,
    GRID,
    LARGE,
    LARGE_BLOCKS,
    SMALL,
    SMALL_BLOCKS,
    BenchmarkModel,
)
from paceline.plan.calibrate.local_prediction import Interpolations, count_step
from paceline.plan.calibrate.profile import (
    SCHEMA,
    BlockProfile,
    Figure,
    Message,
    Moved,
    Point,
    Profile,
    RankProfile,
    describe_machine,
)
from paceline.plan.models.operators import kind_of

Tell = Callable[[float, str], None]  # the finished share of the work, and the next measurement
_TASK_LIMIT_S = 300.0
_START_S = 5.0  # approximate time to start the processes of a stage and import torch
_SPEED_S, _SPEED_TIMES = 0.7, 3  # time per repetition, and repetitions, when only the machine's speed is measured
_FAR = 0.08


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much a calibration measures, and its time limits.

    Attributes:
        spend_s: Seconds per operator.
        grid_limit_s: Time limit for all operators at one number of ranks; operators after this time are not measured.
        block_limit_s: Time limit for the steps of a model, once there are enough steps.
        pair: Whether two ranks are also measured together.
    """

    animals: Sequence[BenchmarkModel]
    blocks: Sequence[BenchmarkModel]
    spend_s: float
    grid_limit_s: float
    steps: int
    block_limit_s: float
    pair: bool
    message_bytes: Sequence[int]
    file_bytes: int


FULL = Effort(
    animals=GRID,
    blocks=BLOCKS,
    spend_s=0.004,
    grid_limit_s=45.0,
    steps=300,
    block_limit_s=1.5,
    pair=True,
    message_bytes=tuple(2**power for power in range(12, 27, 2)),
    file_bytes=64 << 20,
)
QUICK = Effort(
    animals=SMALL,
    blocks=SMALL_BLOCKS,
    spend_s=0.002,
    grid_limit_s=10.0,
    steps=6,
    block_limit_s=1.0,
    pair=False,
    message_bytes=(2**14, 2**20),
    file_bytes=4 << 20,
)


def calibrate(effort: Effort, folder: Path, today: date, tell: Tell) -> Profile:
    """Measure this machine and return its profile.

    Args:
        effort: How much to measure.
        folder: A folder on the storage to measure; a temporary file is created there.
        today: Date for the profile.
        tell: Called with the finished share of the work, from 0 to 1, and the name of the next measurement.

    Raises:
        EnvironmentFault: torch is not installed, or a task failed.
    """
    begun, busy, own = time.monotonic(), host_busy_s(), _own_cpu_s()
    cores = _threads(os.environ)
    with tempfile.TemporaryDirectory(prefix="paceline-calibrate-") as scratch:
        tell(0.0, "measuring bandwidths, latencies and storage")
        machine = _machine(effort, folder, cores)
        devices = machine["described"]["devices"]
        ranks = _ranks(effort, devices)
        if devices and effort.animals is GRID:  # small models do not fill accelerators
            effort = replace(effort, animals=LARGE, blocks=LARGE_BLOCKS)
        stages = _Stages(effort, ranks, tell)
        places = [_place(effort, Path(scratch), 1, cores, stages)]
        if ranks > 1:
            places.append(_place(effort, Path(scratch), ranks, max(1, cores // ranks), stages))
            stages.begin(_START_S, f"messages between {ranks} ranks")
        messages = _messages(effort, Path(scratch), ranks, cores) if ranks > 1 else ()
    took_s = time.monotonic() - begun
    return Profile(
        schema=SCHEMA,
        made=describe_machine(machine["described"], today),
        others_cores=max(0.0, (host_busy_s() - busy - (_own_cpu_s() - own)) / took_s),
        took_s=took_s,
        places=tuple(_corrected(place) for place in places),
        messages=messages,
        copies=tuple(Moved(moved_bytes=size, time=_figure(found)) for size, found in machine["copies"]),
        host_copies=_moved(machine["host_copies"]),
        storage=_moved(machine["storage"]),
        launch=_figure(machine["launch"]),
    )


class _Stages:
    """Computes the progress of a calibration from the time limits of its stages."""

    def __init__(self, effort: Effort, ranks: int, tell: Tell) -> None:
        blocks = [len(effort.blocks), len(effort.blocks[::2])]
        places = blocks if ranks > 1 else blocks[:1]
        self._total_s = _START_S * (1 + (ranks > 1)) + sum(
            _START_S + effort.grid_limit_s + count * (_START_S + effort.block_limit_s) for count in places
        )
        self._done_s, self._next_s, self._tell = 0.0, _START_S, tell

    def begin(self, allowed_s: float, text: str) -> None:
        """Report that a stage with this time limit begins, so that the previous stage counts as finished."""
        self._done_s, self._next_s = self._done_s + self._next_s, allowed_s
        self._tell(min(1.0, self._done_s / self._total_s), f"measuring {text}")


def speed_now(place: RankProfile) -> Figure:
    """Return the current time of the reference product, with as many busy ranks as in the profile.

    The product is timed several times, because a momentary slowdown does not last for a whole run. The first time that
    is close to that of the profile is returned, or else the shortest time.

    Raises:
        EnvironmentFault: torch is not installed, or the task failed.
    """
    task = {"do": "speed", "spend_s": _SPEED_S, "times": _SPEED_TIMES}
    found = [_figure(told) for told in _done([task] * place.ranks, place.threads)[0]["times"]]
    near = [each for each in found if abs(each.seconds / place.reference.seconds - 1) < _FAR]
    return near[0] if near else min(found, key=lambda each: each.seconds)


def _threads(environment: Mapping[str, str]) -> int:
    """Return the number of threads of a single rank: OMP_NUM_THREADS, or all cores."""
    given = environment.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) else max(1, int(this_host().allowed_cores))


def _ranks(effort: Effort, devices: int) -> int:
    """Return the number of ranks to measure together: one for each GPU, or two that share the cores."""
    if not effort.pair:
        return 1
    return devices if devices else min(2, int(this_host().allowed_cores))


def _machine(effort: Effort, folder: Path, cores: int) -> dict[str, Any]:
    file = folder / f".paceline-calibrate-{os.getpid()}"
    task = {
        "do": "machine",
        "powers": list(range(14, 28, 2)),
        "file": str(file),
        "file_bytes": effort.file_bytes,
    }
    try:
        return _done([task], cores)[0]
    finally:
        file.unlink(missing_ok=True)


def _place(
    effort: Effort, scratch: Path, ranks: int, threads: int, stages: _Stages
) -> tuple[RankProfile, list[dict[str, Any]]]:
    step = 1 if ranks == 1 else 2  # with several ranks every second size is enough
    stages.begin(
        _START_S + effort.grid_limit_s,
        f"operators, {ranks} rank{'s' * (ranks > 1)} of {threads} thread{'s' * (threads > 1)}",
    )
    grid: dict[str, Any] = {"do": "operators", "animals": [str(each) for each in _thinned(effort.animals, step)]}
    grid |= {"spend_s": effort.spend_s, "limit_s": effort.grid_limit_s}
    found = _done([grid] * ranks, threads)[0]
    usual = median(found["reference_s"])
    points = tuple(_point(operator, told, usual / pace) for operator, told, pace in found["points"])
    blocks = []
    for number, animal in enumerate(effort.blocks[::step]):
        stages.begin(
            _START_S + effort.block_limit_s, f"{animal.kind} of width {animal.width}, {ranks} rank{'s' * (ranks > 1)}"
        )
        task = {"do": "block", "animal": str(animal), "steps": effort.steps, "limit_s": effort.block_limit_s}
        meet = {"ranks": ranks, "meet": str(scratch / f"meet-{ranks}-{number}")}
        done = _done([{**task, **meet, "rank": rank} for rank in range(ranks)], threads)[0]
        blocks.append({**done, "animal": animal, "ranks": ranks})
    references = [*found["reference_s"], *(each for block in blocks for each in block["reference_s"])]
    place = RankProfile(ranks=ranks, threads=threads, reference=_of_samples(references), points=points, blocks=())
    return place, blocks


def _thinned(animals: Sequence[BenchmarkModel], step: int) -> list[BenchmarkModel]:
    """Return every `step`-th model of each kind, in their order."""
    kept = {kind: [each for each in animals if each.kind == kind][::step] for kind in ("transformer", "convolution")}
    return [each for each in animals if each in kept[each.kind]]


def _corrected(found: tuple[RankProfile, list[dict[str, Any]]]) -> RankProfile:
    """Return a rank profile with its whole models, whose operator times are corrected to the same machine speed."""
    place, blocks = found
    times = Interpolations(place.points)
    usual = place.reference.seconds
    return RankProfile(
        ranks=place.ranks,
        threads=place.threads,
        reference=place.reference,
        points=place.points,
        blocks=tuple(_block(each, times, usual) for each in blocks),
    )


def _block(found: Mapping[str, Any], times: Interpolations, usual_s: float) -> BlockProfile:
    counts = count_step(found["counted"], times)
    pace = usual_s / median(found["reference_s"])
    return BlockProfile(
        name=str(found["animal"]),
        kind=found["animal"].kind,
        step=_of_samples([each * pace for each in found["step_s"]]),
        beside=_of_samples([each * pace for each in found["beside_s"]]),
        beside_cpu_s=found["beside_cpu_s"] * pace,
        operators=counts.total_s,
        calls=counts.calls,
        far_bytes=counts.far_bytes,
        fresh_bytes=counts.fresh_bytes,
        exchanged_bytes=float(found["weight_bytes"]) if found["ranks"] > 1 else 0.0,
        held_bytes=found["held_bytes"],
        live_bytes=counts.live_bytes,
        peak_bytes=found["peak_bytes"] or 0,
    )


def _messages(effort: Effort, scratch: Path, ranks: int, cores: int) -> tuple[Message, ...]:
    task = {"do": "exchange", "ranks": ranks, "meet": str(scratch / "meet"), "sizes": effort.message_bytes, "times": 12}
    found = _done([{**task, "rank": rank} for rank in range(ranks)], max(1, cores // ranks))[0]["exchange"]
    return tuple(
        Message(name=name, ranks=ranks, sent_bytes=float(size), time=_of_samples(seconds))
        for name, sizes in found.items()
        for size, seconds in sizes
        if seconds
    )


def _point(operator: Mapping[str, Any], told: Mapping[str, Any], pace: float) -> Point:
    kind = kind_of(operator)
    scaled = {name: told[name] * pace for name in ("seconds", "low", "high")}
    time_taken = Figure(**scaled, count=told["count"], disturbed=told["disturbed"])
    return Point(family=kind.family, sizes=kind.sizes, work=kind.work, time=time_taken)


def _of_samples(samples: Sequence[float]) -> Figure:
    low, _, high = quantiles(samples, n=4) if len(samples) > 1 else (samples[0],) * 3
    return Figure(seconds=median(samples), low=low, high=high, count=len(samples))


def _figure(told: Mapping[str, Any]) -> Figure:
    return Figure(**told)


def _moved(found: Sequence[Any] | None) -> tuple[Moved, ...]:
    return () if found is None else (Moved(moved_bytes=found[0], time=_figure(found[1])),)


def _own_cpu_s() -> float:
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def _done(tasks: Sequence[Mapping[str, Any]], threads: int) -> list[dict[str, Any]]:
    """Run tasks in parallel, one process each, and return their results. All processes have ended afterwards.

    Raises:
        EnvironmentFault: A task failed or took too long.
    """
    with _children(tasks, threads) as children:
        results = []
        for child, task in zip(children, tasks, strict=True):
            try:
                out, err = child.communicate(json.dumps(task) if child.stdin else None, timeout=_TASK_LIMIT_S)
            except subprocess.TimeoutExpired:
                raise EnvironmentFault(f"measuring {task['do']} took more than {_TASK_LIMIT_S:g} s") from None
            if child.returncode:
                raise EnvironmentFault(_why(task, err))
            results.append(json.loads(out.splitlines()[-1]))
    return results


def _why(task: Mapping[str, Any], errors: str) -> str:
    last = next((line for line in reversed(errors.splitlines()) if line.strip()), "no message")
    if "No module named 'torch'" in errors:
        return "calibration needs torch; install it with `pip install torch`"
    return f"measuring {task['do']} failed: {last.strip()[:300]}"


@contextmanager
def _children(tasks: Sequence[Mapping[str, Any]], threads: int) -> Iterator[list[subprocess.Popen[str]]]:
    children: list[subprocess.Popen[str]] = []
    try:
        for rank in range(len(tasks)):
            children.append(_child(rank, threads))
        for child, task in zip(children[1:], tasks[1:], strict=True):
            _give(child, task)
        yield children
    finally:
        for child in children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _give(child: subprocess.Popen[str], task: Mapping[str, Any]) -> None:
    """Send a rank its task; the first rank gets its task later, when its result is awaited."""
    if child.stdin is not None:
        child.stdin.write(json.dumps(task))
        child.stdin.close()
        child.stdin = None


def _child(rank: int, threads: int) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    return subprocess.Popen(
        [sys.executable, "-m", "paceline.plan.calibrate.measure"],
        env={**kept, "OMP_NUM_THREADS": str(threads), "LOCAL_RANK": str(rank)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
