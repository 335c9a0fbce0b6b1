"""Predicts step time and memory of a program on this machine, from the program's operators and the machine's profile.

    step   = sum of operators, interpolated between measured sizes                  (interpolation.py)
           + calls x seconds per call + bytes read from memory x seconds per byte   (rates fitted to whole models)
           + newly mapped bytes x seconds per byte (the kernel maps the buffers of large convolutions page by page)
           + time to wait for batches + messages that do not overlap with compute
    memory = the process before its first step + first use + share x the peak of live tensors

The three rates of the step and the two of memory are fitted to models that were trained when the profile was
made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.units import seconds
from paceline.plan.calibrate.interpolation import (
    CostInterpolation,
    MessageTime,
    fit_message_time,
    fit_part_rates,
    interpolation_of,
)
from paceline.plan.calibrate.profile import BlockProfile, Figure, Point, Profile, RankProfile
from paceline.plan.models.operators import FREE, OperatorKind, kind_of

_FAR = 23  # bit length of 4 MiB: data last used 4 MiB of reads ago or more has left a core's caches
_COPIED = "each.add.Tensor.float32"  # the estimate for operators that were not measured
_BUCKET = 25 * 2**20  # bytes of gradients that go in one message (DistributedDataParallel)
_FIRST_BUCKET = 2**20
_ALMOST = 0.99
_USUAL = 0.02  # scatter of a block's steps that is normal
_TOLD = 0.01  # share of a step above which unmeasured operators are reported
_ANOTHER = 1.25  # factor of change in speed since the profile above which it is reported; less may be clock frequency


@dataclass(frozen=True, kw_only=True)
class StepCounts:
    """The operators of a step, counted and with interpolated times.

    Attributes:
        seconds: Interpolated seconds of the operators, by part of the step (such as matrix products).
        fresh_bytes: Bytes of convolution tensors as large as the largest tensor. Their internal buffers, equally large,
            are at the top of the heap, which glibc returns to the kernel once the free memory there is twice as large
            as the largest buffer.
        unknown: Seconds of each operator that was not measured, estimated from the bytes that it moves.
    """

    seconds: Mapping[str, float]
    calls: int
    far_bytes: float
    fresh_bytes: float
    live_bytes: int
    unknown: Mapping[str, float]

    @property
    def total_s(self) -> float:
        """Return the seconds of all operators."""
        return sum(self.seconds.values())


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Costs of a step in addition to its operators, fitted to the steps of whole models.

    Attributes:
        beside: Seconds added to a step for each second of CPU time of concurrent threads.
        scatter: Root mean square error of the fit, as a share of the step.
        memory: For each kind of model: bytes of first use, and bytes of the process per live byte.
    """

    call_s: float
    far_byte_s: float
    fresh_byte_s: float
    beside: float
    scatter: float
    memory: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class LocalPrediction:
    """The predicted step time of one rank, and the peak memory of its process.

    Attributes:
        step_s: Predicted seconds of a step. Four of five measured medians are between `step_low_s` and
            `step_high_s`.
        reference: Seconds of the reference matrix product when the profile was made.
        now: Seconds of this product now, which scale the prediction; None to predict at the speed of the profile.
    """

    step_s: float
    step_low_s: float
    step_high_s: float
    step_parts_s: Mapping[str, float]
    memory_bytes: float
    memory_parts_bytes: Mapping[str, float]
    reference: Figure
    now: Figure | None
    told: tuple[str, ...]

    @property
    def pace(self) -> float:
        """Return the factor by which the machine is slower now than in the profile; below 1 if it is faster."""
        return self.now.seconds / self.reference.seconds if self.now else 1.0


class Interpolations:
    """Interpolates the time of operators between the measurements of one profile."""

    def __init__(self, points: Sequence[Point]) -> None:
        families: dict[str, list[tuple[Sequence[float], float, float]]] = {}
        for point in points:
            families.setdefault(point.family, []).append((point.sizes, point.time.seconds, point.work))
        self._families: dict[str, CostInterpolation] = {
            name: interpolation_of(found) for name, found in families.items()
        }

    def seconds(self, kind: OperatorKind) -> float | None:
        """Return the seconds of an operator; None if its family was not measured."""
        found = self._families.get(kind.family)
        return None if found is None else found.seconds(kind.sizes, kind.work)

    def copied(self, kind: OperatorKind) -> float:
        """Return the seconds of an element-wise sum of as many bytes as the operator has; 0 if no sum was measured."""
        found = self._families.get(_COPIED)
        size = max(kind.operand_bytes, 4.0)
        return 0.0 if found is None else found.seconds((size,), size)


def count_step(step: Mapping[str, Any], times: Interpolations) -> StepCounts:
    """Return operator counts, times and bytes of a step that `inprocess.first_step.operator_counter` recorded."""
    took_s: dict[str, float] = {}
    unknown: dict[str, float] = {}
    calls, far, fresh, largest = 0, 0.0, 0.0, max(step["sizes"], default=0)
    for operator in step["operators"]:
        kind, count = kind_of(operator), int(operator["count"])
        calls += count
        if kind.family == FREE:
            continue
        took = times.seconds(kind)
        if took is None:
            took = times.copied(kind)
            unknown[operator["op"]] = unknown.get(operator["op"], 0.0) + count * took
        part = "optimizer" if operator["part"] == "optimizer" else kind.part
        took_s[part] = took_s.get(part, 0.0) + count * took
        if kind.part == "convolution":
            fresh += count * kind.operand_bytes * (kind.operand_bytes >= _ALMOST * largest)
        far += sum(size for power, size in operator["reads"].items() if not 0 <= int(power) < _FAR)
    return StepCounts(
        seconds=took_s,
        calls=calls,
        far_bytes=far,
        fresh_bytes=fresh,
        live_bytes=live_bytes(step),
        unknown=unknown,
    )


def live_bytes(step: Mapping[str, Any]) -> int:
    """Return the peak bytes of live tensors in a recorded step."""
    live = sum(step["sizes"][number] for number, _ in step["held"])
    most = live
    for event in step["memory"]:
        size = step["sizes"][abs(event) - 1]
        live += size if event > 0 else -size
        most = max(most, live)
    return int(most)


def fit_rates(place: RankProfile, profile: Profile) -> Rates:
    """Return the costs of a step in addition to its operators, fitted to the whole models of a profile.

    Raises:
        UsageError: The profile has no whole models for this number of ranks.
    """
    if not place.blocks:
        raise UsageError(
            "the profile of this machine has no measurements of whole models; make a new profile: "
            "paceline plan --calibrate"
        )
    rests = [
        each.step.seconds - each.operators - exchange_s(profile, place.ranks, each.exchanged_bytes)
        for each in place.blocks
    ]
    parts = [[float(each.calls), each.far_bytes, each.fresh_bytes] for each in place.blocks]
    found = fit_part_rates(parts, rests, [each.step.seconds * (_USUAL + _scatter(each)) for each in place.blocks])
    missed = [
        (rest - sum(a * b for a, b in zip(part, found, strict=True))) / each.step.seconds
        for each, part, rest in zip(place.blocks, parts, rests, strict=True)
    ]
    call, far, fresh = found
    weights = [1 / (_USUAL + _scatter(each)) ** 2 for each in place.blocks]
    return Rates(
        call_s=call,
        far_byte_s=far,
        fresh_byte_s=fresh,
        beside=_beside(place),
        scatter=math.sqrt(sum(w * each**2 for w, each in zip(weights, missed, strict=True)) / sum(weights)),
        memory={kind: _memory(place, kind) for kind in ("transformer", "convolution")},
    )


def _scatter(block: BlockProfile) -> float:
    """Return half the interquartile range of a model's steps, as a share of the median."""
    return (block.step.high - block.step.low) / 2 / block.step.seconds


def _beside(place: RankProfile) -> float:
    """Return the seconds that one second of concurrent CPU time adds to a step.

    The limit is one second for each thread, because all threads can wait for the one that is delayed.
    """
    longer = [(each.beside.seconds - each.step.seconds) / each.beside_cpu_s for each in place.blocks]
    return min(float(place.ranks * place.threads), max(0.0, median(longer)))


def _memory(place: RankProfile, kind: str) -> tuple[float, float]:
    """Return how much a process grows after its start: a constant number of bytes, and a factor on tensor bytes."""
    own = [each for each in place.blocks if each.kind == kind] or list(place.blocks)
    grown = [float(each.peak_bytes - each.held_bytes) for each in own]
    if len(own) == 1:
        return max(0.0, grown[0] - own[0].live_bytes), 1.0
    first, share = fit_part_rates(
        [[1.0, float(each.live_bytes)] for each in own], grown, [float(e.peak_bytes) for e in own]
    )
    return first, share


def messages_of(profile: Profile, name: str, ranks: int) -> MessageTime | None:
    """Return latency and bandwidth of a collective between `ranks` ranks; None if it was not measured."""
    points = [(e.sent_bytes, e.time.seconds) for e in profile.messages if e.name == name and e.ranks == ranks]
    return fit_message_time(points) if len({sent for sent, _ in points}) > 1 else None


def exchange_s(profile: Profile, ranks: int, gradient_bytes: float) -> float:
    """Return the seconds that replicas need to average their gradients, bucket by bucket.

    Raises:
        UsageError: Messages between this number of ranks were not measured.
    """
    if ranks == 1 or not gradient_bytes:
        return 0.0
    sent = messages_of(profile, "all_reduce", ranks)
    if sent is None:
        raise UsageError(
            f"the profile of this machine has no measurements of communication between {ranks} ranks; make a new "
            f"profile: paceline plan --calibrate"
        )
    first = min(gradient_bytes, _FIRST_BUCKET)
    buckets = 1 + math.ceil((gradient_bytes - first) / _BUCKET)
    return buckets * sent.latency_s + gradient_bytes / sent.bytes_per_s


def predict_program(
    note: Mapping[str, Any], profile: Profile, ranks: int = 1, now: Figure | None = None
) -> LocalPrediction:
    """Return the predicted step time and memory of a captured program, on one or more replicas.

    Args:
        note: The record of the program's first step by `inprocess.first_step.capture`, with a counted step.
        profile: The profile of the machine.
        ranks: Number of replicas, each with the captured batch.
        now: Current time of the reference product; None to predict at the speed of the profile.

    Raises:
        UsageError: The step was not counted, or the profile has no measurement for this number of ranks.
    """
    if "step" not in note:
        raise UsageError(f"two steps of {note['model']['class']} could not be traced without real weights: {_REASON}")
    place = profile.place(ranks)
    rate, counts = fit_rates(place, profile), count_step(note["step"], Interpolations(place.points))
    parts = {
        **dict(counts.seconds),
        "host": counts.calls * rate.call_s,
        "caches": counts.far_bytes * rate.far_byte_s,
        "buffers": counts.fresh_bytes * rate.fresh_byte_s,
    }
    gradients = float(note["trained"] * note["model"]["weight_bytes"]) if ranks > 1 else 0.0
    parts["communication"] = exchange_s(profile, ranks, gradients)
    pace = now.seconds / place.reference.seconds if now else 1.0
    parts = {name: took_s * pace for name, took_s in parts.items()}
    parts["data"] = _data_s(note["step"]["batches"], rate.beside, sum(parts.values()))  # measured now
    step_s = sum(parts.values())
    drift = (
        (place.reference.high - place.reference.low) / 2 / place.reference.seconds
    )  # drift of the machine while the profile was made
    off = 1.28 * math.hypot(rate.scatter, drift)
    memory = _memory_parts(counts, rate, _before(note, place, profile), gradients)
    return LocalPrediction(
        step_s=step_s,
        step_low_s=step_s / (1 + off),
        step_high_s=step_s * (1 + off),
        step_parts_s=parts,
        memory_bytes=sum(memory.values()),
        memory_parts_bytes=memory,
        reference=place.reference,
        now=now,
        told=(*_remarks(note, counts), *_another_speed(pace)),
    )


_REASON = "the program reads values of tensors, or its optimizer does not run on the meta device"


def _another_speed(pace: float) -> Iterator[str]:
    if not 1 / _ANOTHER < pace < _ANOTHER:
        than = f"{pace:.2f} times slower" if pace > 1 else f"{1 / pace:.2f} times faster"
        yield (
            f"the machine is {than} now than when its profile was measured: another process uses it, or its clock "
            "changed. If the difference persists, measure the machine again: paceline plan --calibrate"
        )


def _data_s(batches: Mapping[str, Any] | None, share: float, compute_s: float) -> float:
    """Return the seconds that data loading adds to a step.

    If the loader kept up with the other work of the recorded step, this is the measured addition. Otherwise, a loader
    in the training thread adds all of its time. Worker threads or processes take CPU time from training, and add more
    only if they cannot keep up.
    """
    if not batches or not batches["wall_s"]:
        return 0.0
    wall_s, cpu_s = median(batches["wall_s"]), float(batches["cpu_s"] or 0.0)
    if batches["beside_s"] is not None and wall_s < batches["work_s"]:
        return float(max(0.0, batches["beside_s"], wall_s - compute_s))
    beside = batches["workers"] or cpu_s > 1.2 * wall_s
    if not beside:
        return float(wall_s)
    return float(max(share * cpu_s, wall_s - compute_s))


def _memory_parts(counts: StepCounts, rate: Rates, before: float, gradient_bytes: float) -> dict[str, float]:
    """Return the memory of the process by part, in bytes. Gradients that replicas keep are `gradient_bytes`."""
    convolves = counts.seconds.get("convolution", 0.0) > counts.seconds.get("matrix", 0.0)
    first, share = rate.memory["convolution" if convolves else "transformer"]
    live = counts.live_bytes + gradient_bytes
    return {"process": before, "first_use": first, "tensors": live, "allocator": (share - 1) * live}


def _before(note: Mapping[str, Any], place: RankProfile, profile: Profile) -> float:
    """Return the memory before the first step in bytes.

    On a GPU, this is the CUDA context; otherwise it is the process with its threads for communication.
    """
    if profile.made.device != "cpu":
        return float(profile.made.context_bytes or 0)
    own, alone = (median(each.held_bytes for each in one.blocks) for one in (place, profile.places[0]))
    return float(note["step"]["resident"]["now"] or 0) + max(0.0, own - alone)


def _remarks(note: Mapping[str, Any], counts: StepCounts) -> list[str]:
    found = []
    if sum(counts.unknown.values()) > _TOLD * counts.total_s:
        names = ", ".join(f"{name.removeprefix('aten.')} ({seconds(took)})" for name, took in counts.unknown.items())
        found.append(f"operators that the profile does not contain, estimated as copies of the same size: {names}")
    if note["autocast"]:
        found.append(
            f"autocast to {note['autocast']} is ignored: the prediction assumes that operators run in "
            f"{note['model']['dtype']}"
        )
    if note["compiled"]:
        found.append(
            "the program compiles its model, but the prediction assumes that operators run without compilation"
        )
    if note["step"]["batches"] is None:
        found.append(
            "the program uses no DataLoader or paceline.data.Loader, so the predicted step time does not "
            "include loading batches"
        )
    return found
