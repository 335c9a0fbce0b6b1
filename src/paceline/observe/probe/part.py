"""What is counted of a step? Parts between two optimizer steps, and the row that they add up to."""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.record.layout import FLAG_LOSS, SLOTS

DATA_WAIT, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, CHECKPOINT, EVALUATION, OTHER, GAP, MID = range(11)
assert len(SLOTS) == 11  # noqa: S101  the constants above index SLOTS

NAN = float("nan")


class StepRow(NamedTuple):
    """One step, ready to be packed: times in ns, in the order of `layout.SLOTS`."""

    end_ns: int
    wall_ns: int
    slots_ns: tuple[int, ...]
    flags: int
    micro_steps: int
    synced: int
    fetches: int
    fetch_cpu_ns: float
    forward_blocked_ns: float
    backward_blocked_ns: float
    samples: float
    loss: Any


class Part:
    """What has been counted between two optimizer steps."""

    __slots__ = (
        "backward_blocked",
        "fetch_cpu",
        "fetches",
        "flags",
        "forward_blocked",
        "forward_samples",
        "loss",
        "micro_steps",
        "samples",
        "slots",
        "synced",
    )

    def __init__(self) -> None:
        self.slots = [0] * len(SLOTS)
        self.flags = 0
        self.micro_steps = 0
        self.synced = 0
        self.fetches = 0
        self.samples = 0.0  # in batches from loaders
        self.forward_samples = 0.0  # in the forwards' inputs
        self.fetch_cpu: float = NAN
        self.forward_blocked: float = NAN
        self.backward_blocked: float = NAN
        self.loss: Any = None

    def add(self, other: Part) -> None:
        """Append what came later. The forwards of a second optimizer's part (a GAN's) are on the same samples."""
        if not self.micro_steps:
            self.forward_samples = other.forward_samples
        self.slots = [a + b for a, b in zip(self.slots, other.slots, strict=True)]
        self.flags |= other.flags
        self.micro_steps += other.micro_steps
        self.synced += other.synced
        self.fetches += other.fetches
        self.samples += other.samples
        self.fetch_cpu = known_sum(self.fetch_cpu, other.fetch_cpu)
        self.forward_blocked = known_sum(self.forward_blocked, other.forward_blocked)
        self.backward_blocked = known_sum(self.backward_blocked, other.backward_blocked)
        if other.loss is not None:
            self.loss = other.loss

    def row(self, begun_ns: int, end_ns: int) -> StepRow:
        """Return this as the row of a step between two times."""
        return StepRow(
            end_ns=end_ns,
            wall_ns=end_ns - begun_ns,
            slots_ns=tuple(self.slots),
            flags=self.flags | (FLAG_LOSS if self.loss is not None else 0),
            micro_steps=self.micro_steps,
            synced=self.synced,
            fetches=self.fetches,
            fetch_cpu_ns=self.fetch_cpu,
            forward_blocked_ns=self.forward_blocked,
            backward_blocked_ns=self.backward_blocked,
            samples=self.samples or self.forward_samples or NAN,
            loss=self.loss,
        )


def known_sum(a: float, b: float) -> float:
    """Add two amounts of which either may be unknown (NaN)."""
    if a != a:
        return b
    return a if b != b else a + b


def samples_of(size: Any) -> float | None:
    """Return the number of samples of a batch, from the shape of its first tensor or from the number itself."""
    if isinstance(size, tuple):
        return float(size[0]) if size else None
    return None if size is None else float(size)
