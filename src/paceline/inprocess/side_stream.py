"""Copies from pinned memory to a CUDA device on a stream of their own, beside the stream that computes.

The memory on the device is taken on the computing stream, and a copy begins when that stream has done what it was given
before: so the memory is used again in the order of one stream, and no `Tensor.record_stream` is needed, whose events a
forked child could not free. A copy still overlaps all work that is queued after it.
Source: PyTorch notes, "CUDA semantics", on pinned memory and streams.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from paceline.core.forks import keep_in_children


class Copy(Protocol):
    """Some tensors on their way to a device."""

    def arrive(self) -> list[Any]:
        """Return the tensors on the device, once; the current stream waits for the copy, the host does not."""
        ...

    def has_ended(self) -> bool:
        """Return whether the device has read the host's memory."""
        ...

    def wait(self) -> None:
        """Wait on the host until the device has read its memory."""
        ...

    def wall_s(self) -> float | None:
        """Return the seconds that an ended copy took; None if it was not timed."""
        ...


class Copier(Protocol):
    """Begins copies to a device."""

    def begin(self, tensors: Sequence[Any], *, timed: bool = False) -> Copy:
        """Begin to copy tensors of the host's memory, each of which `can_copy`."""
        ...


def can_copy(tensor: Any) -> bool:
    """Return whether a copy of a tensor has nothing but its values: it is dense, on the host, and of no graph."""
    import torch

    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


class SideStream:
    """The stream of one device on which copies run."""

    def __init__(self, device: Any) -> None:
        """Make the stream; this uses the device.

        Args:
            device: A `torch.device` of CUDA, with its index.
        """
        import torch

        self.torch = torch
        self.device = device
        self.stream = torch.cuda.Stream(device)
        keep_in_children(self)

    def begin(self, tensors: Sequence[Any], *, timed: bool = False) -> SideCopy:
        """Begin to copy tensors; what is not pinned yet is copied to pinned memory before."""
        return SideCopy(self, [one if one.is_pinned() else one.pin_memory() for one in tensors], timed=timed)


class SideCopy:
    """A copy that was begun on a side stream. It keeps the host's memory until it is dropped."""

    def __init__(self, side: SideStream, pinned: list[Any], *, timed: bool) -> None:
        cuda, device = side.torch.cuda, side.device
        self.computing = cuda.current_stream(device)
        self._side = side
        self._pinned = pinned
        self._on_device = [side.torch.empty_like(one, device=device) for one in pinned]
        side.stream.wait_stream(self.computing)
        with cuda.stream(side.stream):
            self._begun = side.stream.record_event(cuda.Event(enable_timing=True)) if timed else None
            for one, source in zip(self._on_device, pinned, strict=True):
                one.copy_(source, non_blocking=True)
            self._copied = side.stream.record_event(cuda.Event(enable_timing=timed))
        self._pid = os.getpid()
        keep_in_children(self)

    def suits(self) -> bool:
        """Return whether the current stream is the one on which the memory was taken, and is not captured."""
        cuda = self._side.torch.cuda
        return bool(cuda.current_stream(self._side.device) == self.computing) and not cuda.is_current_stream_capturing()

    def arrive(self) -> list[Any]:
        """Return the tensors on the device, once; the current stream waits for the copy, the host does not."""
        tensors, self._on_device = self._on_device, []
        current = self._side.torch.cuda.current_stream(self._side.device)
        current.wait_event(self._copied)
        if current != self.computing:
            self.computing.wait_event(self._copied)
            for one in tensors:
                one.record_stream(current)
        return tensors

    def has_ended(self) -> bool:
        """Return whether the device has read the host's memory."""
        return bool(self._copied.query())

    def wait(self) -> None:
        """Wait on the host until the device has read its memory."""
        self._copied.synchronize()

    def wall_s(self) -> float | None:
        """Return the seconds that an ended copy took; None if it was not timed."""
        return None if self._begun is None else float(self._begun.elapsed_time(self._copied)) / 1e3

    def __del__(self) -> None:
        """Have the computing stream wait for a copy that nobody took: it may use the memory on the device next."""
        if self._on_device and os.getpid() == self._pid:
            with suppress(Exception):  # at the end of the interpreter
                self.computing.wait_event(self._copied)
