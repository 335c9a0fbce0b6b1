"""Check that threads load the same samples as one thread: some samples are loaded again by one thread alone.

Threads can move the position of a shared file, or overwrite a shared buffer. Some of the samples that the loader
threads load are loaded again while no other thread loads, and compared. In each of the first 4 batches, one sample is
checked; later, as many as fit in 2% of the time. In the equivalence check of `tune`, all threads also load the same few
samples repeatedly for two seconds before training begins.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from paceline.inprocess.recorder.loaders.randomness import states
from paceline.inprocess.settings.digest import digest
from paceline.inprocess.settings.seeds import save_states

STRESS = "PACELINE_STRESS_SAMPLES"  # set in the equivalence check
DIFFERS = "samples that several threads load at the same time differ from samples that one thread loads"
_ALWAYS = 4  # first batches, each with one compared sample
_SHARE = 0.02  # largest share of the time for later samples
_STRESS_S, _ALONE_S = 2.0, 1.0
_STRESS_SAMPLES = 256
_SWITCH_S = 5e-5  # switch interval of threads in the stress test
_HELD = 4  # samples that a thread keeps before it checks them again; a shared buffer is overwritten by then


class Turns:
    """A lock that many threads hold together, or one thread holds alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._together = 0
        self._alone = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """Hold the lock; other threads may hold it in this way at the same time."""
        with self._changed:
            while self._alone:
                self._changed.wait()
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock exclusively: wait until no other thread holds it, and keep others out."""
        with self._changed:
            while self._alone:
                self._changed.wait()
            self._alone = True
            while self._together:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


class SampleCheck:
    """Compares samples of one dataset that many threads load with the same samples loaded by one thread alone."""

    def __init__(self, torch: Any, dataset: Any, *, in_batches: bool) -> None:
        """Start the clock.

        Args:
            torch: The module.
            dataset: A map-style dataset.
            in_batches: Whether the sampler returns lists of indices.
        """
        self.turns = Turns()
        self.is_stressed = False
        self._torch = torch
        self._dataset = dataset
        self._in_batches = in_batches
        self._draws = False  # loading draws random numbers, so samples differ
        self._begun_s = time.monotonic()
        self._spent_s = 0.0
        self._planned = 0  # number of samples selected for a comparison so far
        self._checked = 0

    def begin_epoch(self) -> None:
        """Forget the checks that were planned for unused batches of the last epoch."""
        self._planned = self._checked

    def is_due(self) -> bool:
        """Decide whether one sample of the next batch is loaded again and compared. Called once per batch."""
        waiting = self._planned - self._checked
        has_time = self._spent_s < _SHARE * (time.monotonic() - self._begun_s) and not waiting
        if self._draws or not (self._planned < _ALWAYS or has_time):
            return False
        self._planned += 1
        return True

    def load(self, indices: Any) -> tuple[Any, Any, int]:
        """Load one sample of a batch while other threads load; return its index, the sample, and its checksum."""
        index = random.Random(self._checked).choice(list(indices)) if self._in_batches else indices  # noqa: S311
        sample = self._loaded(index)
        return index, sample, digest(sample)

    def agrees(self, index: Any, sample: Any, checksum: int) -> bool:
        """Load a sample again, alone, and return whether it equals the one loaded while other threads were loading."""
        begun = time.monotonic()
        with self.turns.alone():
            alone = self._alone(index)
        self._checked += 1
        self._spent_s += time.monotonic() - begun
        return self._draws or (alone == checksum and digest(sample) == checksum)

    def withstands(self, indices: Sequence[Any], pool: Executor, threads: int) -> bool:
        """Load the same samples in all threads for two seconds; return whether each sample was always the same."""
        keys = [index for batch in indices for index in (batch if self._in_batches else [batch])][:_STRESS_SAMPLES]
        self.is_stressed = True
        wanted = self._loaded_alone(keys)
        if self._draws or not wanted:
            return True
        ends, switch_s = time.monotonic() + _STRESS_S, sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        try:
            jobs = [pool.submit(self._stressed, wanted, ends, number) for number in range(threads)]
            return min(job.result() for job in jobs)
        finally:
            sys.setswitchinterval(switch_s)

    def _loaded_alone(self, keys: Sequence[Any]) -> list[tuple[Any, int]]:
        ends, found = time.monotonic() + _ALONE_S, []
        with self.turns.alone():
            for key in keys:
                found.append((key, self._alone(key)))
                if self._draws or time.monotonic() > ends:
                    break
        return found

    def _stressed(self, wanted: Sequence[tuple[Any, int]], ends: float, number: int) -> bool:
        order, held = random.Random(number), deque[tuple[Any, int]]()  # noqa: S311
        while time.monotonic() < ends:
            key, checksum = order.choice(wanted)
            sample = self._loaded(key)
            held.append((sample, checksum))
            if digest(sample) != checksum:
                return False
            if len(held) > _HELD:
                earlier, before = held.popleft()
                if digest(earlier) != before:
                    return False
        return True

    def _alone(self, index: Any) -> int:
        """Load a sample alone and restore the generators. Record whether loading draws random numbers."""
        restore, before = save_states(self._torch), states()
        checksum = digest(self._loaded(index))
        self._draws = self._draws or states() != before
        restore()
        return checksum

    def _loaded(self, index: Any) -> Any:
        many: Callable[[list[Any]], Any] | None = getattr(self._dataset, "__getitems__", None)
        return many([index]) if many is not None and self._in_batches else self._dataset[index]


def stresses() -> bool:
    """Return whether this process is part of an equivalence check with a stress test."""
    return bool(os.environ.get(STRESS))
