"""Who makes batches, and when? Threads, a batch each, so many ahead as there is room for; they come in order.

Decoding and resizing let go of the interpreter, so threads do what worker processes do, and nothing has to be handed
over from one process to another, which costs about as much as decoding.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from paceline.data.loader.crew import Crew
from paceline.data.loader.to_device import Delivery
from paceline.data.loader.tuning import Pace

Ask = TypeVar("Ask")
Made = TypeVar("Made")


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
        yield from _made_by_threads(iter(asked), Crew(make, "paceline-loader"), pacer, delivery, stop)
    else:
        yield from ((one, [delivery.at_once(make(one))]) for one in asked)


def _made_by_threads(
    left: Iterator[Ask], crew: Crew[Ask, Any], pacer: Pacer, delivery: Delivery, stop: Callable[[], None]
) -> Generator[tuple[Ask, list[Any]]]:
    pending: deque[tuple[Ask, Future[Any]]] = deque()
    try:
        while _asked_for(left, pending, crew, pacer.pace):
            asked_for, future = pending.popleft()
            waited_s = _awaited(future)
            made = [delivery.take(future)]
            del future  # it holds what was made
            pacer.taken(waited_s)
            delivery.soon(one for _, one in pending)
            yield asked_for, made
    finally:
        stop()
        crew.close()


def _asked_for(
    left: Iterator[Ask], pending: deque[tuple[Ask, Future[Made]]], crew: Crew[Ask, Made], pace: Pace
) -> bool:
    """Ask for as much as may be made or wait; say whether there is anything."""
    crew.allow(pace.threads)
    while len(pending) < pace.ahead and (one := next(left, None)) is not None:
        pending.append((one, crew.ask(one)))
    return bool(pending)


def _awaited(future: Future[Made]) -> float:
    """Wait for something to be made; return the seconds it took."""
    if future.done():
        return 0.0
    begun = time.perf_counter()
    future.exception()
    return time.perf_counter() - begun
