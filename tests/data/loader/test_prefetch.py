"""The engine: order, room and ends of what threads make; and what is taken to a device before it is asked for."""

from __future__ import annotations

import threading
import time
from collections import namedtuple

import pytest
import torch

from paceline.core.errors import UsageError
from paceline.data import Loader
from paceline.data.loader.prefetch import ThreadPool, made_ahead
from paceline.data.loader.to_device import HostDelivery, bytes_of, delivery_to, each_tensor, samples_of
from paceline.data.loader.tuning import Pace
from paceline.data.reading.stages import StageClock


class Steady:
    """A pace that tests set."""

    def __init__(self, threads: int, ready: int) -> None:
        self.pace = Pace(threads=threads, readers=0, ready=ready)
        self.waits: list[float] = []

    def taken(self, waited_s: float) -> None:
        self.waits.append(waited_s)


class Watched:
    """A maker that notes what is made side by side."""

    def __init__(self, seconds: float = 0.002) -> None:
        self.begun: list[int] = []
        self.at_once = self.most = 0
        self._seconds, self._lock = seconds, threading.Lock()

    def __call__(self, number: int) -> int:
        with self._lock:
            self.begun.append(number)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        time.sleep(self._seconds * (1 + number % 3))
        with self._lock:
            self.at_once -= 1
        return 10 * number


class Noted(HostDelivery):
    """A delivery that notes what it hears of before it takes it."""

    def __init__(self) -> None:
        self.heard: list[list[int]] = []

    def soon(self, made) -> None:
        self.heard.append([one.result() for one in made if one.done()])


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_it_comes_in_order_and_no_more_is_made_than_there_is_room_for(threads):
    make = Watched()
    found = []
    for number, made in made_ahead(range(20), make, Steady(threads, 2), HostDelivery()):
        found.append((number, *made))
        assert len(make.begun) <= len(found) + max(1, threads) + 2
    assert found == [(number, 10 * number) for number in range(20)]
    assert make.most <= max(1, threads)


def test_another_pace_holds_from_the_next_one_on():
    make, pacer = Watched(0.005), Steady(1, 8)
    most = []
    for number, _ in made_ahead(range(60), make, pacer, HostDelivery()):
        if number in (20, 40):
            most.append(make.most)
            make.most = 0
            pacer.pace = Pace(threads=6 if number == 20 else 2, readers=0, ready=8)
            time.sleep(0.05)  # who is at work finishes
            make.most = make.at_once
    most.append(make.most)
    assert most[0] == 1
    assert 3 <= most[1] <= 6
    assert most[2] <= 2


def test_a_fault_comes_in_its_turn_and_nobody_is_left():
    def make(number: int) -> int:
        if number == 3:
            raise ValueError("the third")
        return number

    found = []
    with pytest.raises(ValueError, match="the third"):
        found.extend(made for _, (made,) in made_ahead(range(9), make, Steady(3, 2), HostDelivery()))
    assert not [one for one in threading.enumerate() if one.name.startswith("paceline")]


def test_who_is_closed_makes_nothing_more():
    make = Watched(0.01)
    pool = ThreadPool(make, "paceline-test")
    pool.allow(2)
    asked = [pool.ask(number) for number in range(50)]
    asked[0].result()
    pool.close()
    begun = len(make.begun)
    assert begun < 50
    assert all(one.done() for one in asked)
    time.sleep(0.05)
    assert len(make.begun) == begun


def test_a_delivery_hears_of_what_is_ready_before_it_is_asked_for():
    noted, make = Noted(), Watched(0.0)
    for _ in made_ahead(range(10), make, Steady(2, 3), noted):
        time.sleep(0.02)  # the training, while the next ones are made
    assert noted.heard[3] == [40, 50, 60, 70, 80][: len(noted.heard[3])]
    assert len(noted.heard[3]) >= 2


def test_tensors_are_found_in_whatever_collates_make():
    Pair = namedtuple("Pair", "x y")
    batch = {"a": [torch.zeros(3, 2), "text"], "b": Pair(torch.ones(3), (torch.ones(3, dtype=torch.int64), 1))}
    doubled = each_tensor(batch, lambda tensor: tensor + 1)
    assert isinstance(doubled["b"], Pair)
    assert (doubled["a"][1], float(doubled["b"].y[0][0])) == ("text", 2.0)
    assert bytes_of(batch) == 3 * 2 * 4 + 3 * 4 + 3 * 8
    assert (samples_of(batch), samples_of("none"), samples_of(torch.tensor(1.0))) == (3, 1, 1)


def test_devices():
    assert type(delivery_to(None, StageClock())) is type(delivery_to("cpu", StageClock())) is HostDelivery
    assert delivery_to("cpu", StageClock()).at_once(7) == 7
    with pytest.raises(UsageError, match="Copy batches to other devices yourself"):
        delivery_to("meta", StageClock())
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="torch sees no such device"):
            list(Loader(list(range(4)), 2, device="cuda"))  # a CUDA build of torch is asked in the first loop only
