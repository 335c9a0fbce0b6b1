"""How do batches get to a GPU while it computes? From pinned memory, on a stream of their own, before they are needed.

A copy begins as soon as its batch is ready, two batches ahead of the training. The training's stream waits for it where
the batch is taken, and nobody else does. The host's memory is used again only when the copy has ended.
Source: PyTorch notes, "CUDA semantics", on pinned memory, streams and `Tensor.record_stream`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.data.stages import Clock, Spent
from paceline.errors import UsageError

_AHEAD = 2  # batches that are copied before they are taken
_TIMED = 8  # one copy in so many


class Delivery(Protocol):
    """Takes what was made to where it is needed."""

    def soon(self, made: Iterable[Future[Any]]) -> None:
        """Hear what comes next, in order, ready or not."""

    def take(self, made: Future[Any]) -> Any:
        """Return what was made, there where it is needed."""

    def at_once(self, made: Any) -> Any:
        """The same for what nobody was told of before."""


class Here:
    """It is needed where it was made."""

    def soon(self, made: Iterable[Future[Any]]) -> None:
        """Do nothing."""

    def take(self, made: Future[Any]) -> Any:
        """Return it as it is."""
        return made.result()

    def at_once(self, made: Any) -> Any:
        """Return it as it is."""
        return made


@dataclass(frozen=True, kw_only=True)
class OnItsWay:
    """A batch that is being copied."""

    here: Any  # in the host's memory
    there: Any  # on the device
    copied: Any  # event
    begun: Any | None  # event; of copies that are timed


class ToDevice:
    """Copies batches to a CUDA device beside what that computes."""

    def __init__(self, device: Any, clock: Clock) -> None:
        """Prepare copying.

        Args:
            device: A `torch.device` of CUDA.
            clock: Adds up what copying takes.
        """
        import torch

        self._torch = torch
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._clock = clock
        self._on_way: dict[Future[Any], OnItsWay] = {}
        self._held: deque[OnItsWay] = deque()  # whose copy may not have ended
        self._copies = 0

    def soon(self, made: Iterable[Future[Any]]) -> None:
        """Begin to copy what is ready of the next two."""
        for one in islice(made, _AHEAD):
            if one not in self._on_way and one.done() and not one.cancelled() and one.exception() is None:
                self._on_way[one] = self._begun(one.result())

    def take(self, made: Future[Any]) -> Any:
        """Return a batch on the device; the current stream waits for its copy, the host does not."""
        way = self._on_way.pop(made) if made in self._on_way else self._begun(made.result())
        return self._arrived(way)

    def at_once(self, made: Any) -> Any:
        """Return a batch on the device, whose copy begins now."""
        return self._arrived(self._begun(made))

    def _arrived(self, way: OnItsWay) -> Any:
        stream = self._torch.cuda.current_stream(self._device)
        stream.wait_event(way.copied)
        each_tensor(way.there, lambda tensor: tensor.record_stream(stream))
        self._held.append(way)
        while self._held and self._held[0].copied.query():
            self._ended(self._held.popleft())
        return way.there

    def _begun(self, batch: Any) -> OnItsWay:
        self._copies += 1
        timed = self._copies % _TIMED == 1
        with self._torch.cuda.stream(self._stream):
            begun = self._stream.record_event(self._torch.cuda.Event(enable_timing=True)) if timed else None
            there = each_tensor(batch, lambda tensor: self._pinned(tensor).to(self._device, non_blocking=True))
            copied = self._stream.record_event(self._torch.cuda.Event(enable_timing=timed))
        return OnItsWay(here=batch, there=there, copied=copied, begun=begun)

    def _pinned(self, tensor: Any) -> Any:
        return tensor if tensor.is_cuda or tensor.is_pinned() else tensor.pin_memory()

    def _ended(self, way: OnItsWay) -> None:
        if way.begun is not None:
            wall_s = way.begun.elapsed_time(way.copied) / 1e3
            self._clock.add("copy", Spent(wall_s=wall_s, cpu_s=0.0, samples=samples_of(way.here)))


def delivery_to(device: Any, clock: Clock) -> Delivery:
    """Return what takes batches to a device; None and the CPU: they are there.

    Raises:
        UsageError: There is no such device.
    """
    if device is None:
        return Here()
    import torch

    wanted = torch.device(device)
    if wanted.type == "cpu":
        return Here()
    if wanted.type != "cuda":
        raise UsageError(f"device is {device}; allowed: cuda and cpu. Copy batches to other devices yourself")
    if not torch.cuda.is_available():
        raise UsageError(f"device is {device}, and torch sees no such device; leave device= out, or give cpu")
    return ToDevice(wanted, clock)


def pinned_array(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an array of bytes in pinned memory, from which a device copies by itself."""
    import torch

    found: NDArray[np.uint8] = torch.empty(shape, dtype=torch.uint8, pin_memory=True).numpy()
    return found


def each_tensor(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return a batch with each tensor in it changed; in tuples, lists and dicts, as `default_collate` makes them."""
    if hasattr(batch, "record_stream"):
        return change(batch)
    if isinstance(batch, dict):
        return type(batch)({key: each_tensor(value, change) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(each_tensor(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(each_tensor(value, change) for value in batch)
    return batch


def bytes_of(batch: Any) -> int:
    """Return the bytes of all tensors of a batch."""
    sizes: list[int] = []
    each_tensor(batch, lambda tensor: sizes.append(tensor.numel() * tensor.element_size()))
    return sum(sizes)


def samples_of(batch: Any) -> int:
    """Return how many samples a batch has: the length of its first tensor; 1 where it has none."""
    found: list[int] = []
    each_tensor(batch, lambda tensor: found.append(len(tensor) if tensor.dim() else 1))
    return found[0] if found else 1
