"""Copies from pinned memory to a CUDA device on a side stream, beside the computing stream.

The device memory is allocated on the computing stream, and a copy begins after the work queued there before. The memory
is therefore reused in the order of one stream, and `Tensor.record_stream`, whose events a forked child could not free,
is not needed. A copy still overlaps all work that is queued after it.

Source: PyTorch notes, "CUDA semantics", on pinned memory and streams.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from paceline.core.forks import keep_in_children


class Copy(Protocol):
    """Tensors that are being copied to a device."""

    def arrive(self) -> list[Any]:
        """Return the tensors on the device, once. The current stream waits for the copy, the host does not."""
        ...

    def has_ended(self) -> bool:
        """Return whether the device has read the host memory."""
        ...

    def wait(self) -> None:
        """Wait on the host until the device has read the host memory."""
        ...

    def wall_s(self) -> float | None:
        """Return the duration of a finished copy in seconds, or None if it was not timed."""
        ...


class Copier(Protocol):
    """Starts copies to a device."""

    def begin(self, tensors: Sequence[Any], *, timed: bool = False) -> Copy:
        """Start to copy tensors in host memory. `can_copy` must be true for each tensor."""
        ...


def can_copy(tensor: Any) -> bool:
    """Return whether a tensor can be copied: it is plain, dense, on the host, and without an autograd graph."""
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
        """Create the stream, which initialises the device.

        Args:
            device: A `torch.device` of CUDA, with its index.
        """
        import torch

        self.torch = torch
        self.device = device
        self.stream = torch.cuda.Stream(device)
        keep_in_children(self)

    def begin(self, tensors: Sequence[Any], *, timed: bool = False) -> SideCopy:
        """Start to copy tensors. A tensor that is not pinned is first copied to pinned memory."""
        return SideCopy(self, [one if one.is_pinned() else one.pin_memory() for one in tensors], timed=timed)


class SideCopy:
    """A copy on a side stream. This object keeps the host memory alive."""

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
        """Return whether the stream that was current when the copy began is current, and no graph is being captured."""
        cuda = self._side.torch.cuda
        return bool(cuda.current_stream(self._side.device) == self.computing) and not cuda.is_current_stream_capturing()

    def arrive(self) -> list[Any]:
        """Return the tensors on the device, once. The current stream waits for the copy, the host does not."""
        tensors, self._on_device = self._on_device, []
        current = self._side.torch.cuda.current_stream(self._side.device)
        current.wait_event(self._copied)
        if current != self.computing:
            self.computing.wait_event(self._copied)
            for one in tensors:
                one.record_stream(current)
        return tensors

    def has_ended(self) -> bool:
        """Return whether the device has read the host memory."""
        return bool(self._copied.query())

    def wait(self) -> None:
        """Wait on the host until the device has read the host memory."""
        self._copied.synchronize()

    def wall_s(self) -> float | None:
        """Return the duration of a finished copy in seconds, or None if it was not timed."""
        return None if self._begun is None else float(self._begun.elapsed_time(self._copied)) / 1e3

    def __del__(self) -> None:
        """Let the computing stream wait for an unused copy before this stream reuses the device memory."""
        if self._on_device and os.getpid() == self._pid:
            with suppress(Exception):  # may fail while the interpreter exits
                self.computing.wait_event(self._copied)
