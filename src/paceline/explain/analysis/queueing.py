"""A simulation of the queue of a loader: the step time at other prefetch factors and numbers of workers.

A loader returns batches in order. With w workers and the prefetch factor p, worker i makes batches i, i + w, i + 2w, …
Batch j is requested when batch j - w·p is taken. A batch is taken when it is ready and the step before is over. From
the measured times of batches, the simulation computes the step time for any w and p. It was checked on a grid of 20
settings (`jitter` in `benchmarks/tune_programs`): 2 workers with a factor of 8 were 1.32 times as fast in the
simulation, and 1.31 times as fast when measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paceline.explain import words
from paceline.explain.analysis.loader_model import LoaderModel
from paceline.explain.model import Gain, LoaderBreakdown

_PLAYED = 3000  # number of simulated batches
_SETTLED = 500  # number of batches after which the initial queue no longer matters
_MOST_FACTOR, _MOST_WORKERS, _MOST_BATCHES = 64, 16, 256
_NEAR, _WORTH = 1.01, 1.03
_LEAST, _MOST = 0.5, 1.5  # ends of the predicted gain, as factors on the simulated gain


@dataclass(frozen=True, kw_only=True, order=True)
class Queue:
    """The queue of batches that a loader keeps ready."""

    workers: int
    factor: int  # batches that each worker makes in advance (prefetch factor)

    @property
    def batches(self) -> int:
        """Number of batches in the queue."""
        return self.workers * self.factor


@dataclass(frozen=True, kw_only=True)
class QueueSimulation:
    """A simulation of the loader with a queue of batches.

    Without workers there is no queue, and a step takes the measured time.
    """

    loader_model: LoaderModel
    loader: LoaderBreakdown

    @property
    def now(self) -> Queue:
        """The current queue of the loader."""
        return Queue(workers=self.loader.workers, factor=int(str(self.loader.settings.get("prefetch_factor") or 2)))

    @cached_property
    def _made(self) -> list[float]:
        """Seconds of each simulated batch, drawn from the measured times with a fixed seed."""
        counts, seconds = (np.array(column, float) for column in zip(*self.loader.batch_times, strict=True))
        return [float(s) for s in np.random.default_rng(0).choice(seconds, _PLAYED, p=counts / counts.sum())]

    def step_s(self, queue: Queue) -> float:
        """Return the seconds of a step with a queue, at least the time of the step's CPU work on all cores."""
        return self._step_s(queue, self.loader_model.compute_s)

    def _step_s(self, queue: Queue, compute_s: float) -> float:
        taken = _taken(self._made, compute_s, queue)
        return max(self._burnt_s, (taken[-1] - taken[_SETTLED]) / (len(taken) - 1 - _SETTLED))

    @property
    def _burnt_s(self) -> float:
        """Seconds that the CPU work of a step takes on all cores."""
        return (
            self.loader_model.other_cpu_s + self.loader_model.make_cpu_s + self.loader_model.hand_over_s
        ) / self.loader_model.cores

    def gain(self, queue: Queue) -> Gain:
        """Return the gain of a queue. The lower end is half the simulated gain, because few slow batches were seen."""
        return self._gain_of(self.step_s(queue))

    @cached_property
    def _now_s(self) -> float:
        return self.step_s(self.now) if self.loader.workers else self.loader_model.step_s

    def _gain_of(self, step_s: float) -> Gain:
        more = max(0.0, self._now_s / step_s - 1)
        most = self._now_s / max(self.loader_model.compute_s / self.loader_model.warmer, 1e-9)
        return Gain(low=1 + _LEAST * more, high=max(1 + _LEAST * more, min(1 + _MOST * more, most)))

    def gain_in_any_order(self) -> Gain:
        """Return the gain if training takes batches in any order. Then only the mean time of a batch matters."""
        made = float(np.mean(self._made)) / self.now.workers
        return self._gain_of(max(self.loader_model.compute_s, made, self._burnt_s))

    def better(self) -> list[Queue]:
        """Return the shortest queues that are nearly the best: one with as many workers as now, one with more workers.

        The queue to try first comes first. Of two equally fast queues, the shorter one comes first, because it needs
        less memory. A queue with more workers must save time or half of the batches. For a stream, more workers are not
        proposed, because the workers would have to share the stream.
        """
        if not self.loader.batch_times:
            return []
        now, stream = self.now.workers, words.is_stream(self.loader)
        same = self._best(self._queues([max(now, 1)]))
        more = None if stream else self._best(self._queues([2 * now, 4 * now] if now else [2, 4]))
        found = [q for q in (same, more) if q is not None and self._now_s >= _WORTH * self.step_s(q)]
        if len(found) < 2:
            return found
        same, more = found
        if self.step_s(same) >= _WORTH * self.step_s(more) or same.batches >= 2 * more.batches:
            return [more, same]
        return [same]

    def _queues(self, workers: Sequence[int]) -> list[Queue]:
        factors = [self.now.factor * 2**power for power in range(6)]
        found = (Queue(workers=w, factor=f) for w in workers for f in factors)
        return [
            q for q in found if q.workers <= _MOST_WORKERS and q.factor <= _MOST_FACTOR and q.batches <= _MOST_BATCHES
        ]

    def _best(self, queues: Iterable[Queue]) -> Queue | None:
        """Return the smallest queue whose step time is nearly the best.

        The queue must also be nearly the best if compute runs faster when it does not wait for data.
        """
        steps = {queue: self._step_s(queue, self.loader_model.compute_s / self.loader_model.warmer) for queue in queues}
        near = [queue for queue, step_s in steps.items() if step_s <= _NEAR * min(steps.values())]
        return min(near, key=lambda queue: (queue.batches, queue), default=None)


def _taken(made: Sequence[float], compute_s: float, queue: Queue) -> list[float]:
    """Return the time in seconds at which each batch is taken."""
    ready: list[float] = []
    taken: list[float] = []
    for batch, seconds in enumerate(made):
        ordered = taken[batch - queue.batches] if batch >= queue.batches else 0.0
        free = ready[batch - queue.workers] if batch >= queue.workers else 0.0
        ready.append(max(ordered, free) + seconds)
        taken.append(max(taken[-1] + compute_s, ready[-1]) if taken else ready[-1])
    return taken
