"""Pack a step row: from nanoseconds of the state machine to 32-bit floats on disk."""

from __future__ import annotations

from paceline.inprocess.recorder.steps.parts import StepRow
from paceline.record.layout import STEP

_U16 = 0xFFFF
_NAN = float("nan")


def pack_step(index: int, row: StepRow, flags: int, loss: float, device_bytes: float) -> bytes:
    """Pack one row. Counts that are too large are clamped."""
    return STEP.pack(
        index & 0xFFFFFFFF,
        flags & _U16,
        min(row.micro_steps, _U16),
        min(row.synced, _U16),
        min(row.fetches, _U16),
        row.end_ns,
        row.wall_ns / 1e9,
        *[slot / 1e9 for slot in row.slots_ns],
        row.fetch_cpu_ns / 1e9,
        row.forward_blocked_ns / 1e9,
        row.backward_blocked_ns / 1e9,
        row.samples,
        as_f32(loss),
        device_bytes,
    )


def as_f32(value: float) -> float:
    """Clamp a value to the range of a 32-bit float; larger values become infinite."""
    if value != value or abs(value) <= 3.4e38:
        return value
    return float("inf") if value > 0 else float("-inf")
