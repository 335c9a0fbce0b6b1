"""Copies of batches to a GPU while it computes, from pinned memory, two batches before they are needed.

The training's stream waits for the copy of a batch when the training takes the batch. The loader keeps no reference to
a batch that was taken. It keeps the host memory of a batch only until its copy has ended.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, MutableMapping
from concurrent.futures import Future
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.data.reading.stages import Spent, StageClock
from paceline.inprocess.side_stream import Copier, Copy, SideStream, can_copy

_AHEAD = 2  # batches that are copied in advance
_TIMED = 8  # one copy in eight is timed


class Delivery(Protocol):
    """Delivers batches to the device that needs them."""

    def begin(self) -> None:
        """Prepare for a loop."""

    def soon(self, made: Iterable[Future[Any]]) -> None:
        """Announce the next batches in order; some can be unfinished."""

    def take(self, made: Future[Any]) -> Any:
        """Return a batch on the device."""

    def at_once(self, made: Any) -> Any:
        """Return a batch on the device, although it was not passed to `soon`."""

    def end(self) -> None:
        """Release the batches of a loop."""


class HostDelivery:
    """Returns batches unchanged, because they are needed on the host."""

    def begin(self) -> None:
        """Do nothing."""

    def soon(self, made: Iterable[Future[Any]]) -> None:
        """Do nothing."""

    def take(self, made: Future[Any]) -> Any:
        """Return the batch unchanged."""
        return made.result()

    def at_once(self, made: Any) -> Any:
        """Return the batch unchanged."""
        return made

    def end(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class OnItsWay:
    """A batch whose copy has started."""

    here: Any  # the batch in host memory
    copied: Copy  # the copy of the tensors that `can_copy` allows


class ToDevice:
    """Copies batches to a device while the device computes."""

    def __init__(self, device: Any, clock: StageClock, copier: Callable[[], tuple[Any, Copier]]) -> None:
        """Prepare copies; the device is not initialized before the first loop.

        Args:
            device: A `torch.device`.
            clock: Sums the time of copies.
            copier: Returns the device with its index and the object that starts copies to it. It is called once.
        """
        self._device = device
        self._clock = clock
        self._make_copier = copier
        self._copier: Copier | None = None
        self._on_way: dict[Future[Any], OnItsWay] = {}
        self._taken: deque[OnItsWay] = deque()  # batches that were taken but whose copy may still run
        self._copies = 0

    def begin(self) -> None:
        """Initialize the device before the first loop.

        Raises:
            UsageError: There is no such device.
        """
        if self._copier is None:
            self._device, self._copier = self._make_copier()

    def soon(self, made: Iterable[Future[Any]]) -> None:
        """Start the copies of the next two batches, if they are ready."""
        for one in islice(made, _AHEAD):
            if one not in self._on_way and one.done() and not one.cancelled() and one.exception() is None:
                self._on_way[one] = self._begun(one.result())

    def take(self, made: Future[Any]) -> Any:
        """Return a batch on the device; the current stream waits for the copy, the host does not."""
        return self._arrived(self._on_way.pop(made) if made in self._on_way else self._begun(made.result()))

    def at_once(self, made: Any) -> Any:
        """Start the copy of a batch that was not passed to `soon`, and return the batch on the device."""
        return self._arrived(self._begun(made))

    def end(self) -> None:
        """Release all batches, after waiting for running copies, because these read host memory."""
        for way in self._on_way.values():
            way.copied.arrive()
            self._taken.append(way)
        self._on_way.clear()
        while self._taken:
            try:
                self._taken[0].copied.wait()
            except RuntimeError:
                return  # the device has failed: keep the memory that it may still read
            self._ended(self._taken.popleft())

    def _begun(self, batch: Any) -> OnItsWay:
        self.begin()
        assert self._copier is not None
        self._copies += 1
        sources: list[Any] = []
        each_tensor(batch, lambda one: sources.append(one) if can_copy(one) else None)
        return OnItsWay(here=batch, copied=self._copier.begin(sources, timed=self._copies % _TIMED == 1))

    def _arrived(self, way: OnItsWay) -> Any:
        arrived = iter(way.copied.arrive())
        there = each_tensor(
            way.here,
            lambda one: next(arrived) if can_copy(one) else one.to(self._device),
            lambda one: one.to(self._device),
        )
        self._taken.append(way)
        while self._taken and self._taken[0].copied.has_ended():
            self._ended(self._taken.popleft())
        return there

    def _ended(self, way: OnItsWay) -> None:
        wall_s = way.copied.wall_s()
        if wall_s is not None:
            self._clock.add("copy", Spent(wall_s=wall_s, cpu_s=0.0, samples=samples_of(way.here)))


def delivery_to(device: Any, clock: StageClock) -> Delivery:
    """Return an object that delivers batches to a device; for None and the CPU, one that returns batches unchanged.

    The device is not initialized, so that the program can still fork before its first loop.

    Raises:
        UsageError: The device is neither CUDA nor the CPU, or torch has no GPU support.
    """
    if device is None:
        return HostDelivery()
    import torch

    wanted = torch.device(device)
    if wanted.type == "cpu":
        return HostDelivery()
    if wanted.type != "cuda":
        raise UsageError(f"device is {device}; allowed: cuda and cpu. Copy batches to other devices yourself")
    missing = UsageError(f"device is {device}, and torch sees no such device; leave device= out, or give cpu")
    if not (torch.version.cuda or torch.version.hip):
        raise missing

    def copier() -> tuple[Any, Copier]:
        if not torch.cuda.is_available() or (wanted.index or 0) >= torch.cuda.device_count():
            raise missing
        index = torch.cuda.current_device() if wanted.index is None else wanted.index
        return torch.device("cuda", index), SideStream(torch.device("cuda", index))

    return ToDevice(wanted, clock, copier)


def pinned_array(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an uninitialized uint8 array in pinned memory, from which copies are asynchronous."""
    import torch

    found: NDArray[np.uint8] = torch.empty(shape, dtype=torch.uint8, pin_memory=True).numpy()
    return found


def each_tensor(batch: Any, change: Callable[[Any], Any], movable: Callable[[Any], Any] = lambda one: one) -> Any:
    """Return a batch with each tensor replaced, also inside tuples, lists, dicts and dataclasses.

    Args:
        batch: The batch, from a collate function.
        change: Returns the replacement of a tensor.
        movable: Returns the replacement of another object with a method `to`, such as a `PackedSequence`.
    """
    if hasattr(batch, "record_stream"):
        return change(batch)
    if isinstance(batch, MutableMapping):
        changed = copy.copy(batch)
        changed.update({key: each_tensor(value, change, movable) for key, value in batch.items()})
        return changed
    if callable(getattr(type(batch), "to", None)):
        return movable(batch)
    if isinstance(batch, list | tuple):
        values = (each_tensor(value, change, movable) for value in batch)
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if is_dataclass(batch) and not isinstance(batch, type):
        return _each_field(batch, lambda value: each_tensor(value, change, movable))
    return batch


def _each_field(one: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a dataclass object, frozen or not, with each field replaced."""
    changed = copy.copy(one)
    for field in fields(one):
        object.__setattr__(changed, field.name, change(getattr(one, field.name)))
    return changed


def bytes_of(batch: Any) -> int:
    """Return the number of bytes of all tensors in a batch."""
    sizes: list[int] = []
    each_tensor(batch, lambda tensor: sizes.append(tensor.numel() * tensor.element_size()))
    return sum(sizes)


def samples_of(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor, or 1 without tensors."""
    found: list[int] = []
    each_tensor(batch, lambda tensor: found.append(len(tensor) if tensor.dim() else 1))
    return found[0] if found else 1
