"""Tuning: is what pays found, and only that, whatever the machine is like?"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from paceline.data.loader.settings import Settings, bounds_of, first_pace, within_memory
from paceline.data.loader.tuning import Bounds, Pace, Tuning, Window, tuned
from paceline.data.order.ranks import Share


@dataclass(frozen=True)
class Machine:
    """A machine as queueing theory sees it: the training takes what threads make, that wait for what readers read."""

    training_s: float  # of a batch
    making_s: float  # of a batch, by one thread, without waiting for blocks
    cores: float  # that threads can really use, such as 1.0 where the interpreter is held
    reading_s: float = 0.0  # of a batch's blocks, by one reader
    jitter: float = 0.0  # share of their time in which threads stand still for lack of room; less with more room
    crowded: float = 0.0
    noise: float = 0.0

    def window(self, pace: Pace, chance: random.Random) -> Window:
        supply = min(pace.threads, self.cores) / self.making_s * (1 - self.jitter / max(1, pace.ready))
        reads = pace.readers / self.reading_s if self.reading_s else float("inf")
        rate = min(1 / self.training_s, supply, reads) * chance.uniform(1 - self.noise, 1 + self.noise)
        making = self.making_s * max(1.0, pace.threads / self.cores)
        blocked = max(0.0, pace.threads - rate * making) if reads <= min(supply, 1 / self.training_s) else 0.0
        return Window(
            batches=100,
            wall_s=100 / rate,
            waited_s=max(0.0, 100 / rate - 100 * self.training_s),
            made=100,
            making_s=100 * making + blocked * 100 / rate,
            reading_s=blocked * 100 / rate,
            crowded=self.crowded,
        )


BOUNDS = Bounds(least=Pace(threads=1, readers=1, ready=1), most=Pace(threads=16, readers=32, ready=32))
BEGIN = Pace(threads=2, readers=4, ready=2)


def played(machine: Machine, windows: int, begin: Tuning | None = None, seed: int = 0) -> Tuning:
    now, chance = begin or Tuning(pace=BEGIN), random.Random(seed)
    for _ in range(windows):
        now = tuned(now, machine.window(now.pace, chance), BOUNDS)
    return now


def test_a_training_that_does_not_wait_is_left_alone():
    found = played(Machine(training_s=0.1, making_s=0.1, cores=16), 20)
    assert (found.pace, found.changes) == (BEGIN, ())


def test_as_many_threads_as_keep_up_in_a_few_windows():
    found = played(Machine(training_s=0.01, making_s=0.1, cores=16), 12)
    assert 10 <= found.pace.threads <= 11
    assert all(change.kept and change.knob == "threads" for change in found.changes)


@pytest.mark.parametrize("seed", range(5))
def test_threads_that_do_not_pay_are_taken_back(seed):
    """Where the interpreter is held a second thread is worth nothing, however noisy the machine is."""
    found = played(Machine(training_s=0.01, making_s=0.1, cores=1, noise=0.02), 40, seed=seed)
    assert found.pace.threads <= 3
    assert sum(not change.kept for change in found.changes) >= 1
    assert len(found.changes) < 10  # it rests, longer each time


def test_readers_where_threads_wait_for_blocks():
    found = played(Machine(training_s=0.01, making_s=0.015, cores=16, reading_s=0.15), 20)
    assert found.pace.readers >= 15
    assert found.pace.threads <= 4


def test_room_where_threads_stand_still():
    found = played(Machine(training_s=0.01, making_s=0.019, cores=16, jitter=0.6), 20)
    assert found.pace.ready > 2
    assert found.changes[0].knob == "ready"


def test_others_on_our_cores_are_made_room_for_and_their_place_is_taken_again():
    alone = Machine(training_s=0.01, making_s=0.1, cores=16)
    shared = played(replace(alone, crowded=12.0), 2, played(alone, 12))
    assert shared.pace.threads == 4
    assert "other processes use 12.0 of the cores" in shared.changes[-1].why
    assert played(alone, 12, shared).pace.threads >= 10


def test_one_window_of_others_is_no_reason():
    alone = Machine(training_s=0.01, making_s=0.1, cores=16)
    before = played(alone, 12)
    assert played(replace(alone, crowded=12.0), 1, before).pace == before.pace


def test_what_the_user_has_set_stays():
    share = Share(cores=16, spare_cores=0.0, memory_bytes=1 << 30)
    bounds = bounds_of(Settings(threads=3, prefetch=5), share, alone=False)
    now = Tuning(pace=first_pace(bounds))
    chance = random.Random(0)
    for _ in range(20):
        crowded = Machine(training_s=0.01, making_s=0.1, cores=16, crowded=15.0)
        now = tuned(now, crowded.window(now.pace, chance), bounds)
    assert (now.pace.threads, now.pace.ready) == (3, 5)


def test_memory_bounds_what_is_made_ahead():
    share = Share(cores=16, spare_cores=0.0, memory_bytes=1 << 30)
    free = bounds_of(Settings(), share, alone=False)
    batch = 40 << 20
    for memory in (1 << 20, 256 << 20, 1 << 30, 8 << 30):
        most = within_memory(free, batch, memory, 3).most
        assert most.threads >= 1 and most.ready >= 1
        assert (most.ahead + 3) * batch <= max(memory, 5 * batch)
    assert within_memory(free, batch, 1 << 40, 3).most == free.most
