"""CUDA timing events on the computing stream, and asynchronous copies of losses to the host.

A program event is timed on the computing stream, even while another stream is current, such as in a prefetcher. The
time between events of two streams cannot be measured.

This code never waits for the device: it records an event, queries whether the device has passed it, and reuses it.
While a CUDA graph is captured, a query in any thread would invalidate the capture. The patches in `graphs` therefore
call `CudaEvents.capture` at the start and at the end of each capture, and no query is made in between.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from paceline.inprocess.recorder.device.clock import EventSource

_LOSS_EVERY_NS = 10_000_000  # a copy takes about 10 µs of the training thread: at most 100 per second, 0.1%
_SLOTS = 256


class CudaEvents:
    """Timing events on the streams of one device: the device of the losses, or the current device before any loss."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._initialized = torch.cuda.is_initialized
        self._pool: deque[Any] = deque()
        self._lock = _thread.allocate_lock()
        self._working: Any = None  # the last computing stream; None while it is unknown
        self._capturing = False
        self.captured = False  # whether a CUDA graph was captured at any time
        self.index: int | None = None
        self.named = False  # whether a loss has determined the device

    def ready(self) -> bool:
        """Return whether an event can be recorded now."""
        return not self._capturing and self._initialized()

    def use(self, index: int) -> None:
        """Record later events on the device with this number, because it has a loss."""
        self.named = True
        if index != self.index:
            self._pool.clear()
            self._working = None
            self.index = index

    def record(self, *, working: bool = True) -> Any:
        """Record an event on a stream and return it.

        Args:
            working: Whether the program computes now, so that the current stream is the computing stream. If false, the
                event is recorded on the last computing stream.
        """
        if not working and self._working is not None:
            return self._put(self._working)
        stream = self._current()
        if working:
            self._working = stream if _lasts(stream) else None
        return self._put(stream)

    def record_beside(self) -> Any:
        """Record an event on the current stream, even if it is not the computing stream, and return the event."""
        return self._put(self._current())

    def beside(self) -> int | None:
        """Return the handle of the current stream if it differs from the computing stream, else None."""
        if self._working is None or not self.ready():
            return None
        handle: int = self._current().cuda_stream
        return handle if handle != self._working.cuda_stream else None

    def computes(self, stream: Any) -> bool:
        """Return whether a stream is the computing stream."""
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
        """Return whether the device has passed the event; False while a graph is captured."""
        with self._lock:
            return not self._capturing and bool(event.query())

    def elapsed_ns(self, earlier: Any, later: Any) -> int | None:
        """Return the time between two events, accurate to 0.5 µs; None if their devices or streams differ."""
        if earlier.device != later.device or earlier.recorded_on != later.recorded_on:
            return None
        with self._lock:
            return None if self._capturing else round(earlier.elapsed_time(later) * 1e6)

    def recycle(self, event: Any) -> None:
        """Take back an event for reuse."""
        if event.device.index == self.index:
            self._pool.append(event)

    def capture(self, capturing: bool) -> None:
        """Record that a graph capture starts or ends. The call waits for a running query (microseconds)."""
        with self._lock:
            self._capturing = capturing
            self.captured |= capturing


def _lasts(stream: Any) -> bool:
    """Return whether a stream is torch's own or the default stream. Other libraries can destroy their streams."""
    number = getattr(stream, "stream_id", 0)
    return number == 0 or bool(number & 1)  # packed by c10/cuda/CUDAStream.cpp: an external handle is an even address


class PendingLoss:
    """A loss that is being copied to the host."""

    __slots__ = ("_done", "_event", "_losses", "_number", "_value")

    def __init__(self, losses: Losses, number: int, event: Any) -> None:
        self._losses = losses
        self._number = number
        self._event = event
        self._done = False
        self._value: float | None = None

    def arrived(self) -> bool:
        """Return whether the value has arrived or will never arrive. The call does not wait."""
        if not self._done:
            self._done, self._value = self._losses.look(self._number, self._event)
        return self._done

    def value(self) -> float | None:
        """Return the loss; None before it has arrived, or if its value was overwritten."""
        return self._value


class Losses:
    """Copies losses into slots of pinned memory, in turn. The device writes to a slot when it reaches the copy."""

    def __init__(self, events: EventSource, make_slots: Callable[[int], Any]) -> None:
        """Store the arguments.

        Args:
            events: Events of the device on which the copies are queued.
            make_slots: Returns a sequence of the given number of one-element tensors in pinned memory.
        """
        self._events = events
        self._make_slots = make_slots
        self._slots: Any = None
        self._count = 0
        self._taken_ns = 0
        self._off = False

    def take(self, loss: Any) -> PendingLoss | None:
        """Queue a copy of a one-element tensor; return None if the previous copy is too recent."""
        now = perf_counter_ns()
        if self._off or now - self._taken_ns < _LOSS_EVERY_NS or not self._events.ready():
            return None
        self._taken_ns = now
        try:
            return self._copy(loss)
        except Exception:  # the error must not reach the program; its losses are not recorded
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
        """Return whether a copy is no longer awaited, and its value; None as value if the slot was reused meanwhile."""
        try:
            if not self._events.query(event):
                return False, None
            self._events.recycle(event)
            value = float(self._slots[number % _SLOTS])
        except Exception:
            return True, None
        return True, value if self._count - number < _SLOTS else None


def pinned_slots(torch: Any) -> Callable[[int], Any]:
    """Return a function that creates one-element tensors in pinned memory."""

    def make(count: int) -> Any:
        return torch.empty(count, dtype=torch.float32, device="cpu", pin_memory=True).split(1)

    return make
