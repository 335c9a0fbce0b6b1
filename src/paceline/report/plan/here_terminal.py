"""A prediction of step time and memory on this machine, as lines for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.units import count, percent, seconds, size
from paceline.plan.calibrate.local_prediction import LocalPrediction
from paceline.plan.calibrate.profile import Figure, Profile

_NAMES = {
    "matrix": "matrix products",
    "convolution": "convolutions",
    "attention": "attention",
    "bandwidth": "all other operators",
    "optimizer": "optimizer",
    "host": "operator calls",
    "caches": "reading memory outside the CPU caches",
    "buffers": "new buffers of convolutions",
    "communication": "averaging gradients",
    "data": "loading batches",
}
_HELD = {
    "process": "memory of the process before the first step",
    "first_use": "first use of kernels",
    "tensors": "tensors",
    "allocator": "allocator overhead",
}
_LEAST = 0.002  # share of a step below which a part is not shown


def lines_of(found: LocalPrediction, profile: Profile, ranks: int) -> Iterator[str]:
    """Yield the lines of a prediction."""
    made = profile.made
    who = "1 rank" if ranks == 1 else f"{ranks} ranks, each with the batch size of the program"
    yield f"on {made.host} ({made.cpu_model or made.device}, {made.cores:g} cores), {who}; profile of {made.day}"
    low, high = seconds(found.step_low_s), seconds(found.step_high_s)
    yield f"step {seconds(found.step_s)} (80% interval {low} to {high})"
    for name, took in sorted(found.step_parts_s.items(), key=lambda each: -each[1]):
        if took >= _LEAST * found.step_s:
            yield f"  {_NAMES[name]:34} {seconds(took):>10}  {percent(took / found.step_s):>5}"
    kind = "resident" if made.device == "cpu" else "on the device"
    yield f"peak memory per rank {size(found.memory_bytes)}, {kind}"
    for name, held in found.memory_parts_bytes.items():
        yield f"  {_HELD[name]:34} {size(held):>10}"
    yield speed(found)
    yield from found.told


def speed(found: LocalPrediction) -> str:
    """Return a sentence on the machine speed that the predicted times are for."""
    then, now = found.reference, found.now
    what = "a product of two 512 x 512 fp32 matrices takes"
    if now is None:
        return f"as a measure of the machine's speed at calibration, {what} {_taken(then)}"
    return f"as a measure of the machine's speed now, {what} {_taken(now)}; at calibration {_taken(then)}"


def _taken(figure: Figure) -> str:
    return f"{seconds(figure.seconds)} ({seconds(figure.low)} to {seconds(figure.high)}, {count(figure.count, 'time')})"
