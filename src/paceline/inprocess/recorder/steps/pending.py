"""Fetches and gradient-free forwards whose purpose (training or evaluation) is not known yet: a later event decides.

A forward with gradients shows that the batches before it are training data. Gradient-free forwards show that the
batches are for evaluation if the next batch comes from the same loader, or if the forwards belong to a trained model in
eval mode. Otherwise these forwards are part of training (a teacher, the samples of a generator, a rollout). Time
between the forwards of a rollout is computation or the program's own code, as is the time between a forward and its
backward; stack samples decide.
"""

from __future__ import annotations

from typing import NamedTuple

from paceline.inprocess.recorder.steps.parts import DATA_WAIT, EVALUATION, FORWARD, MID, Part, known_sum
from paceline.record.layout import FLAG_EPOCH


class Fetch(NamedTuple):
    """The fetch of one batch from a loader."""

    loader: int
    samples: float | None
    wait_ns: int
    cpu_ns: int | None


class LoaderUse:
    """The number of fetches from one loader, by purpose, and their wait times in ns."""

    __slots__ = ("eval_fetches", "eval_wait_ns", "samples", "train_fetches", "train_wait_ns")

    def __init__(self) -> None:
        self.train_fetches = 0
        self.train_wait_ns = 0
        self.eval_fetches = 0
        self.eval_wait_ns = 0
        self.samples = 0.0

    def add(self, other: LoaderUse, *, evaluation: bool) -> None:
        """Add another use of the loader. With `evaluation`, its training fetches count as evaluation."""
        if evaluation:
            self.eval_fetches += other.train_fetches + other.eval_fetches
            self.eval_wait_ns += other.train_wait_ns + other.eval_wait_ns
            return
        self.train_fetches += other.train_fetches
        self.train_wait_ns += other.train_wait_ns
        self.eval_fetches += other.eval_fetches
        self.eval_wait_ns += other.eval_wait_ns
        self.samples += other.samples


class Pending:
    """Times (ns) and fetches that are not assigned to a phase yet."""

    __slots__ = (
        "after",
        "between",
        "evaluating",
        "expecting",
        "fetches",
        "forwards",
        "last_was_evaluation",
        "started",
        "trail",
        "ungraded",
        "wait",
    )

    def __init__(self) -> None:
        self.last_was_evaluation = False  # the last assigned batches were for evaluation
        self._clear()

    def _clear(self) -> None:
        self.wait = 0  # time of fetches and of loader starts
        self.trail = 0  # idle between a fetch and the use of its batch
        self.expecting = False  # there are pending fetches or forwards
        self.forwards = 0  # gradient-free forwards
        self.ungraded = 0  # time in these forwards
        self.between = 0  # idle time between them
        self.after = 0  # idle time after the last of them
        self.evaluating = False  # one of them belongs to a trained module in eval mode
        self.started = False  # a loader's iterator was started
        self.fetches: list[Fetch] = []

    @property
    def is_sure_evaluation(self) -> bool:
        """Whether the pending work is certainly an evaluation if a batch is fetched now.

        This is so after forward passes of a trained model in eval mode, and after forward passes without a batch from a
        loader.
        """
        return bool(self.forwards) and (self.evaluating or not self.fetches)

    @property
    def is_rollout(self) -> bool:
        """Whether forwards ran without a batch from a loader: a rollout, in which an environment provides input."""
        return bool(self.forwards) and not self.fetches and not self.evaluating

    @property
    def _slot_between(self) -> int:
        if self.evaluating:
            return EVALUATION
        return MID if self.is_rollout else FORWARD

    def idle(self, passed: int) -> bool:
        """Add time in which no phase was open to the pending work.

        Args:
            passed: The time in nanoseconds.

        Returns:
            Whether the time was added; False if no fetch or forward pass is pending.
        """
        if self.forwards:
            self.after += passed
        elif self.fetches:
            self.trail += passed
        else:
            return False
        return True

    def add_forward(self, *, evaluating: bool) -> None:
        """Record the start of a gradient-free forward."""
        self.expecting = True
        self.forwards += 1
        self.between += self.after
        self.after = 0
        self.evaluating |= evaluating

    def add_fetch(self, fetch: Fetch) -> None:
        """Record a fetched batch."""
        self.expecting = True
        self.fetches.append(fetch)

    def came_from(self, loader: int) -> bool:
        """Return whether a pending batch came from this loader."""
        return any(fetch.loader == loader for fetch in self.fetches)

    def settle(self, part: Part, stage: int, uses: dict[int, LoaderUse], *, evaluation: bool) -> None:
        """Add all pending times and fetches to `part`, as evaluation or as the start of training on a batch."""
        slots = part.slots
        if evaluation:
            slots[EVALUATION] += self.wait + self.trail + self.ungraded + self.between + self.after
        else:
            slots[DATA_WAIT] += self.wait
            slots[stage] += self.trail
            slots[EVALUATION if self.evaluating else FORWARD] += self.ungraded
            slots[self._slot_between] += self.between
            slots[MID if self.is_rollout else stage] += self.after
            part.flags |= FLAG_EPOCH if self.started else 0
        for fetch in self.fetches:
            _book(fetch, part, uses.setdefault(fetch.loader, LoaderUse()), evaluation)
        if self.fetches:
            self.last_was_evaluation = evaluation
        self._clear()


def _book(fetch: Fetch, part: Part, use: LoaderUse, evaluation: bool) -> None:
    if evaluation:
        use.eval_fetches += 1
        use.eval_wait_ns += fetch.wait_ns
        return
    use.train_fetches += 1
    use.train_wait_ns += fetch.wait_ns
    use.samples += fetch.samples or 0.0
    part.fetches += 1
    part.samples += fetch.samples or 0.0
    if fetch.cpu_ns is not None:
        part.fetch_cpu = known_sum(part.fetch_cpu, fetch.cpu_ns)
