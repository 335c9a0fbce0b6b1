"""Threads make batches ahead of the training, one batch each, and hand them over in order.

Decoding and resizing let go of the interpreter, so threads do what worker processes do, and nothing has to be handed
over from one process to another, which costs about as much as decoding.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from paceline.data.loader.to_device import Delivery
from paceline.data.loader.tuning import Pace

Ask = TypeVar("Ask")
Made = TypeVar("Made")

_thread_pools: WeakSet[ThreadPool[Any, Any]] = WeakSet()


class ThreadPool(Generic[Ask, Made]):
    """Threads that make what is asked for, in the order of the requests. Only as many work as are allowed now."""

    def __init__(self, make: Callable[[Ask], Made], name: str) -> None:
        """Prepare a pool; no thread works until some are allowed.

        Args:
            make: Makes one thing; its exceptions go to who asked.
            name: Of the threads.
        """
        self._make = make
        self._name = name
        lock = threading.Lock()
        self._work, self._rest = threading.Condition(lock), threading.Condition(lock)  # there is some; more may work
        self._asked: deque[tuple[Ask, Future[Made]]] = deque()
        self._threads: list[threading.Thread] = []
        self._allowed = 0
        self._closed = False
        _thread_pools.add(self)

    def allow(self, threads: int) -> None:
        """Say how many may work at a time; who is at work finishes what he has begun."""
        if threads == self._allowed:
            return
        with self._work:
            self._allowed = threads
            self._wake()
        for number in range(len(self._threads), threads):
            thread = threading.Thread(target=self._run, args=(number,), name=f"{self._name}-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def ask(self, one: Ask) -> Future[Made]:
        """Ask for one thing."""
        future: Future[Made] = Future()
        with self._work:
            self._asked.append((one, future))
            self._work.notify()
        return future

    def close(self) -> None:
        """Let nothing more begin, and wait for what has begun."""
        with self._work:
            self._closed = True
            while self._asked:
                self._asked.popleft()[1].cancel()
            self._wake()
        for thread in self._threads:
            thread.join()

    def _wake(self) -> None:
        self._work.notify_all()
        self._rest.notify_all()

    def _run(self, number: int) -> None:
        while (task := self._next(number)) is not None:
            self._fulfil(*task)
            del task  # what was made is its taker's alone

    def _next(self, number: int) -> tuple[Ask, Future[Made]] | None:
        with self._work:
            while not self._closed:
                if number >= self._allowed:
                    self._rest.wait()
                elif self._asked:
                    return self._asked.popleft()
                else:
                    self._work.wait()
            return None

    def _fulfil(self, one: Ask, future: Future[Made]) -> None:
        try:
            future.set_result(self._make(one))
        except BaseException as error:
            future.set_exception(error)


def _close_all() -> None:
    """End all threads before the interpreter does, which would in the midst of what they do."""
    for pool in list(_thread_pools):
        pool.close()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_thread_pools.clear)  # their threads are not in the child


class Pacer(Protocol):
    """Says how much is done at a time, and hears how it went."""

    @property
    def pace(self) -> Pace:
        """How much is to be done at a time now."""

    def taken(self, waited_s: float) -> None:
        """Hear that a batch was taken, and how long it was waited for."""


def made_ahead(
    asked: Iterable[Ask],
    make: Callable[[Ask], Any],
    pacer: Pacer,
    delivery: Delivery,
    stop: Callable[[], None] = lambda: None,
) -> Generator[tuple[Ask, list[Any]]]:
    """Yield what is made, in order, in a list of its own; whatever ends the loop ends the threads.

    Whoever takes it out of its list is the only one that has it: a generator that waits keeps what it yielded.

    Args:
        asked: What is to be made.
        make: Makes it, in a thread; its exceptions come out here, in order. With no threads who asks makes it himself.
        pacer: Says how many threads, and how much is made or waits at a time.
        delivery: Takes what was made to where it is needed.
        stop: Called when the loop ends, before threads are waited for: it ends what holds them.
    """
    delivery.begin()
    if pacer.pace.threads:
        yield from _made_by_threads(iter(asked), ThreadPool(make, "paceline-loader"), pacer, delivery, stop)
    else:
        yield from ((one, [delivery.at_once(make(one))]) for one in asked)


def _made_by_threads(
    left: Iterator[Ask], pool: ThreadPool[Ask, Any], pacer: Pacer, delivery: Delivery, stop: Callable[[], None]
) -> Generator[tuple[Ask, list[Any]]]:
    pending: deque[tuple[Ask, Future[Any]]] = deque()
    try:
        while _asked_for(left, pending, pool, pacer.pace):
            asked_for, future = pending.popleft()
            waited_s = _awaited(future)
            made = [delivery.take(future)]
            del future  # it holds what was made
            pacer.taken(waited_s)
            delivery.soon(one for _, one in pending)
            yield asked_for, made
    finally:
        stop()
        pool.close()


def _asked_for(
    left: Iterator[Ask], pending: deque[tuple[Ask, Future[Made]]], pool: ThreadPool[Ask, Made], pace: Pace
) -> bool:
    """Ask for as much as may be made or wait; say whether there is anything."""
    pool.allow(pace.threads)
    while len(pending) < pace.ahead and (one := next(left, None)) is not None:
        pending.append((one, pool.ask(one)))
    return bool(pending)


def _awaited(future: Future[Made]) -> float:
    """Wait for something to be made; return the seconds it took."""
    if future.done():
        return 0.0
    begun = time.perf_counter()
    future.exception()
    return time.perf_counter() - begun
