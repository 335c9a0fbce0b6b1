"""Times and counts of a step: the parts between two optimizer steps, and the row with their sum."""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.record.layout import FLAG_LOSS, SLOTS

DATA_WAIT, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, CHECKPOINT, EVALUATION, OTHER, GAP, MID = range(11)
assert len(SLOTS) == 11  # noqa: S101  the constants above index SLOTS

NAN = float("nan")


class StepRow(NamedTuple):
    """One step, ready to be packed. Times are in ns, in the order of `layout.SLOTS`."""

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
    """Times and counts between two optimizer steps."""

    __slots__ = (
        "backward_blocked",
        "fetch_cpu",
        "fetches",
        "flags",
        "forward_blocked",
        "forward_samples",
        "loss",
        "micro_steps",
        "most_synced",
        "samples",
        "slots",
        "synced",
    )

    def __init__(self) -> None:
        self.slots = [0] * len(SLOTS)
        self.flags = 0
        self.micro_steps = 0
        self.synced: dict[int, int] = {}  # by module: backward passes that reduced its gradients
        self.most_synced = 0  # largest such count of one module in earlier parts of the step
        self.fetches = 0
        self.samples = 0.0  # samples in batches from loaders
        self.forward_samples = 0.0  # samples in the inputs of forwards
        self.fetch_cpu: float = NAN
        self.forward_blocked: float = NAN
        self.backward_blocked: float = NAN
        self.loss: Any = None

    def add(self, other: Part) -> None:
        """Append the times and counts of a part that follows an optimizer step.

        Samples of the later part count only if there were none before: a second optimizer, as in a GAN, uses
        the same samples.
        """
        samples = self.forward_samples if self.micro_steps else other.forward_samples
        synced, most = self.synced, max(self.most_synced, other.synced_passes)
        self.extend(other)
        self.forward_samples, self.synced, self.most_synced = samples, synced, most

    def extend(self, other: Part) -> None:
        """Append the times and counts of a later part, with no optimizer step between the two parts."""
        self.slots = [a + b for a, b in zip(self.slots, other.slots, strict=True)]
        self.flags |= other.flags
        self.micro_steps += other.micro_steps
        self.synced = {m: self.synced.get(m, 0) + other.synced.get(m, 0) for m in {*self.synced, *other.synced}}
        self.most_synced = max(self.most_synced, other.most_synced)
        self.fetches += other.fetches
        self.samples += other.samples
        self.forward_samples += other.forward_samples
        self.fetch_cpu = known_sum(self.fetch_cpu, other.fetch_cpu)
        self.forward_blocked = known_sum(self.forward_blocked, other.forward_blocked)
        self.backward_blocked = known_sum(self.backward_blocked, other.backward_blocked)
        if other.loss is not None:
            self.loss = other.loss

    def add_evaluation(self, other: Part) -> None:
        """Add the time of another part as evaluation time; its checkpoint and communication time keep their slots."""
        kept = (COMMUNICATION, CHECKPOINT)
        self.slots[EVALUATION] += sum(spent for slot, spent in enumerate(other.slots) if slot not in kept)
        for slot in kept:
            self.slots[slot] += other.slots[slot]

    def add_idle(self, other: Part, stage: int) -> None:
        """Append `other`, the part that follows an evaluation, and move its time in slot MID to slot `stage`."""
        other.slots[stage] += (spent := other.slots[MID])
        other.slots[MID] -= spent
        self.extend(other)

    @property
    def synced_passes(self) -> int:
        """The largest number of backward passes between two optimizer steps that reduced one module's gradients."""
        return max(self.most_synced, *self.synced.values(), 0)

    def row(self, begun_ns: int, end_ns: int) -> StepRow:
        """Return the row of a step between two times."""
        return StepRow(
            end_ns=end_ns,
            wall_ns=end_ns - begun_ns,
            slots_ns=tuple(self.slots),
            flags=self.flags | (FLAG_LOSS if self.loss is not None else 0),
            micro_steps=self.micro_steps,
            synced=self.synced_passes,
            fetches=self.fetches,
            fetch_cpu_ns=self.fetch_cpu,
            forward_blocked_ns=self.forward_blocked,
            backward_blocked_ns=self.backward_blocked,
            samples=self.samples or self.forward_samples or NAN,
            loss=self.loss,
        )


def known_sum(a: float, b: float) -> float:
    """Return the sum of two amounts; if one is unknown (NaN), return the other."""
    if a != a:
        return b
    return a if b != b else a + b


def samples_of(size: Any) -> float | None:
    """Return the number of samples in a batch, from the shape of its first tensor or from a number."""
    if isinstance(size, tuple):
        return float(size[0]) if size else None
    return None if size is None else float(size)
