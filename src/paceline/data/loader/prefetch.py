"""Threads that make batches ahead of the training and deliver them in order.

Decoding and resizing release the GIL, so threads work as fast as worker processes. They also avoid the transfer of
batches between processes, which costs about as much as decoding.
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
    """A thread pool that serves requests in order, with a number of threads that can change."""

    def __init__(self, make: Callable[[Ask], Made], name: str) -> None:
        """Create a pool without threads; `allow` starts them.

        Args:
            make: Serves one request; its exceptions are set in the future of the request.
            name: The name of the threads.
        """
        self._make = make
        self._name = name
        lock = threading.Lock()
        self._work, self._rest = threading.Condition(lock), threading.Condition(lock)  # work; more threads
        self._asked: deque[tuple[Ask, Future[Made]]] = deque()
        self._threads: list[threading.Thread] = []
        self._allowed = 0
        self._closed = False
        _thread_pools.add(self)

    def allow(self, threads: int) -> None:
        """Set how many threads may work at a time; running requests are finished."""
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
        """Add a request, and return the future of its result."""
        future: Future[Made] = Future()
        with self._work:
            self._asked.append((one, future))
            self._work.notify()
        return future

    def close(self) -> None:
        """Cancel the waiting requests, wait for the running ones, and end the threads."""
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
            del task  # keeps no reference to the result

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
    """Close all pools at exit, because the interpreter would stop the threads in the middle of their work."""
    for pool in list(_thread_pools):
        pool.close()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_thread_pools.clear)  # the child has no copies of the threads


class Pacer(Protocol):
    """Controls how many threads work and how many batches wait, and is informed of waits."""

    @property
    def pace(self) -> Pace:
        """The current numbers of threads, readers and ready batches."""

    def taken(self, waited_s: float) -> None:
        """Note that a batch was taken after a wait, in seconds."""


def made_ahead(
    asked: Iterable[Ask],
    make: Callable[[Ask], Any],
    pacer: Pacer,
    delivery: Delivery,
    stop: Callable[[], None] = lambda: None,
) -> Generator[tuple[Ask, list[Any]]]:
    """Yield each request with a list that contains its result, in order. The end of the loop ends the threads.

    A suspended generator keeps a reference to what it has yielded. So the result is in a list, and a caller that takes
    it out of the list has the only reference.

    Args:
        asked: The requests.
        make: Serves a request, in a thread, or in the caller if the pace has no threads. Its exceptions are raised
            here, in order.
        pacer: Says how many threads work, and how many results may wait.
        delivery: Moves results to the device.
        stop: Is called when the loop ends, before the threads are joined, to end what they wait for.
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
            del future  # it has a reference to the result
            pacer.taken(waited_s)
            delivery.soon(one for _, one in pending)
            yield asked_for, made
    finally:
        stop()
        pool.close()


def _asked_for(
    left: Iterator[Ask], pending: deque[tuple[Ask, Future[Made]]], pool: ThreadPool[Ask, Made], pace: Pace
) -> bool:
    """Add requests up to the limit `pace.ahead`, and return whether any request is pending."""
    pool.allow(pace.threads)
    while len(pending) < pace.ahead and (one := next(left, None)) is not None:
        pending.append((one, pool.ask(one)))
    return bool(pending)


def _awaited(future: Future[Made]) -> float:
    """Wait for a future, and return the seconds of the wait."""
    if future.done():
        return 0.0
    begun = time.perf_counter()
    future.exception()
    return time.perf_counter() - begun
