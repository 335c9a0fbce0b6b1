"""How does CUDA say when it is done? Timing events on the stream that computes, and losses copied beside it.

A moment of the program belongs to the stream that computes, also while the program has made another one current, as a
prefetcher does for its copies. Between events of two streams no time is told.
Nothing here waits for the device: an event is recorded, asked whether it was passed, and used again. While a CUDA graph
is captured not even that is allowed (a query in any thread would spoil the capture), so capturing is announced.
No GPU has been seen by the authors of this file.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.recorder.device.clock import EventSource
from paceline.inprocess.wrappers import stand_in

_LOSS_EVERY_NS = 10_000_000  # a copy takes some 10 µs of the training thread: at most 100 a second, 0.1%
_SLOTS = 256


class CudaEvents:
    """Events on the streams of one device: the one that losses are on, until then the current one."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._initialized = torch.cuda.is_initialized
        self._pool: deque[Any] = deque()
        self._lock = _thread.allocate_lock()
        self._working: Any = None  # the stream that computed last; None while it is unknown
        self._capturing = False
        self.captured = False  # a CUDA graph was captured at some time
        self.index: int | None = None
        self.named = False  # the device was named by a loss on it

    def ready(self) -> bool:
        """Say whether an event can be recorded now."""
        return not self._capturing and self._initialized()

    def use(self, index: int) -> None:
        """Record on the device of this number from here on; a loss is on it."""
        self.named = True
        if index != self.index:
            self._pool.clear()
            self._working = None
            self.index = index

    def record(self, *, working: bool = True) -> Any:
        """Put an event into a stream and return it.

        Args:
            working: The program computes now, so the current stream is the one that computes. Otherwise the event goes
                into the stream that computed last.
        """
        if not working and self._working is not None:
            return self._put(self._working)
        stream = self._current()
        if working:
            self._working = stream if _lasts(stream) else None
        return self._put(stream)

    def record_beside(self) -> Any:
        """Put an event into the current stream, whatever it is for, and return it."""
        return self._put(self._current())

    def beside(self) -> int | None:
        """Return the handle of the current stream if it is another one than the stream that computes; else None."""
        if self._working is None or not self.ready():
            return None
        handle: int = self._current().cuda_stream
        return handle if handle != self._working.cuda_stream else None

    def computes(self, stream: Any) -> bool:
        """Say whether a stream is the one that computes."""
        return self._working is not None and bool(stream.cuda_stream == self._working.cuda_stream)

    def _current(self) -> Any:
        if self.index is None:
            self.index = self._torch.cuda.current_device()
        return self._torch.cuda.current_stream(self.index)

    def _put(self, stream: Any) -> Any:
        try:
            event = self._pool.pop()
        except IndexError:
            event = self._torch.cuda.Event(enable_timing=True)
        event.record(stream)
        event.recorded_on = stream.cuda_stream
        return event

    def query(self, event: Any) -> bool:
        """Say whether the device has passed the event; no, while a graph is captured."""
        with self._lock:
            return not self._capturing and bool(event.query())

    def elapsed_ns(self, earlier: Any, later: Any) -> int | None:
        """Return the time between two events, to half a microsecond; None if they are of two devices or streams."""
        if earlier.device != later.device or earlier.recorded_on != later.recorded_on:
            return None
        with self._lock:
            return None if self._capturing else round(earlier.elapsed_time(later) * 1e6)

    def recycle(self, event: Any) -> None:
        """Take back an event."""
        if event.device.index == self.index:
            self._pool.append(event)

    def capture(self, capturing: bool) -> None:
        """Say that a graph is being captured, or no longer; waits for a query that is under way (microseconds)."""
        with self._lock:
            self._capturing = capturing
            self.captured |= capturing


def _lasts(stream: Any) -> bool:
    """Say whether a stream is torch's own or the default one: those of other libraries may be destroyed at any time."""
    number = getattr(stream, "stream_id", 0)
    return number == 0 or bool(number & 1)  # as c10/cuda/CUDAStream.cpp packs it: an outside handle is an even address


def patch_capture(torch: Any, events: CudaEvents, before: Callable[[], None]) -> None:
    """Keep still while the program captures a CUDA graph; `before` is called when a capture is about to begin."""
    graph = torch.cuda.CUDAGraph

    def begin(args: Any, kwargs: Any) -> bool:
        before()
        events.capture(True)
        return True

    def begun(_: bool, result: Any, raised: BaseException | None) -> None:
        if raised is not None:
            events.capture(False)

    def ended(_: bool, result: Any, raised: BaseException | None) -> None:
        events.capture(False)

    hooks.replace(graph, "capture_begin", stand_in(graph.capture_begin, "graph probe", begin, begun))
    hooks.replace(graph, "capture_end", stand_in(graph.capture_end, "graph probe", lambda args, kwargs: True, ended))


class PendingLoss:
    """A loss on its way to the host."""

    __slots__ = ("_done", "_event", "_losses", "_number", "_value")

    def __init__(self, losses: Losses, number: int, event: Any) -> None:
        self._losses = losses
        self._number = number
        self._event = event
        self._done = False
        self._value: float | None = None

    def arrived(self) -> bool:
        """Say whether the value is here, or lost for good; never waits."""
        if not self._done:
            self._done, self._value = self._losses.look(self._number, self._event)
        return self._done

    def value(self) -> float | None:
        """Return the value; None when it was lost."""
        return self._value


class Losses:
    """Copy losses into slots of pinned memory, in turn. The device fills a slot when it reaches the copy."""

    def __init__(self, events: EventSource, make_slots: Callable[[int], Any]) -> None:
        """Prepare.

        Args:
            events: Where the copies are queued.
            make_slots: Returns a sequence of so many one-element tensors in pinned memory.
        """
        self._events = events
        self._make_slots = make_slots
        self._slots: Any = None
        self._count = 0
        self._taken_ns = 0
        self._off = False

    def take(self, loss: Any) -> PendingLoss | None:
        """Queue a copy of a one-element tensor; None when one was taken a moment ago."""
        now = perf_counter_ns()
        if self._off or now - self._taken_ns < _LOSS_EVERY_NS or not self._events.ready():
            return None
        self._taken_ns = now
        try:
            return self._copy(loss)
        except Exception:  # never the program's trouble: its loss is not shown
            self._off = True
            return None

    def _copy(self, loss: Any) -> PendingLoss:
        if self._slots is None:
            self._slots = self._make_slots(_SLOTS)
        self._events.use(loss.device.index)
        number, self._count = self._count, self._count + 1
        self._slots[number % _SLOTS].copy_(loss.detach().reshape(1), non_blocking=True)
        return PendingLoss(self, number, self._events.record())

    def look(self, number: int, event: Any) -> tuple[bool, float | None]:
        """Return whether a copy is here or lost, and its value. A slot that is in use again is lost."""
        try:
            if not self._events.query(event):
                return False, None
            self._events.recycle(event)
            value = float(self._slots[number % _SLOTS])
        except Exception:
            return True, None
        return True, value if self._count - number < _SLOTS else None


def pinned_slots(torch: Any) -> Callable[[int], Any]:
    """Return a maker of one-element tensors in pinned memory."""

    def make(count: int) -> Any:
        return torch.empty(count, dtype=torch.float32, device="cpu", pin_memory=True).split(1)

    return make
