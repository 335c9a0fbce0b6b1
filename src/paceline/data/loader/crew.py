"""Who works? Threads, of which so many do as are allowed now; the others sleep, and cost nothing."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar
from weakref import WeakSet

Ask = TypeVar("Ask")
Made = TypeVar("Made")

_crews: WeakSet[Crew[Any, Any]] = WeakSet()


class Crew(Generic[Ask, Made]):
    """Threads that make what is asked for, in the order in which it is asked for."""

    def __init__(self, make: Callable[[Ask], Made], name: str) -> None:
        """Prepare a crew; nobody works until some are allowed.

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
        _crews.add(self)

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
    for crew in list(_crews):
        crew.close()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_crews.clear)  # their threads are not in the child
