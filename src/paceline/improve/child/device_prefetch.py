"""loader.device_prefetch: the next batch is copied to the device while this one is computed with.

The copy runs on a stream of its own, from pinned memory. Before a batch is handed out, the stream that computes waits
for its copy, and the allocator is told that this stream uses it too; only then does the next copy begin. Batches come
in the order they did, and an error comes in its turn.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

from paceline.improve.child import held
from paceline.observe.probe.presence import has_gpu

_KEY = "loader.device_prefetch"


class Copies(Protocol):
    """Begins copies to a device, and hands them over."""

    def begin(self, batch: Any) -> Any:
        """Begin to copy a batch; returns what `hand_over` takes."""
        ...

    def hand_over(self, begun: Any) -> Any:
        """Return a batch whose copy was begun, for the computation that follows."""
        ...


class Ahead:
    """The batches of one epoch, one of them ahead."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._begun: list[tuple[Any, Exception | None]] = []  # the one ahead, or what making it raised

    def next(self, fetch: Callable[[], Any]) -> Any:
        """Return the next batch, and begin the one after it.

        Args:
            fetch: Makes a batch.

        Raises:
            Exception: What making this batch raised; StopIteration after the last.
        """
        if not self._begun:
            self._begin(fetch)
        begun, error = self._begun.pop()
        if error is not None:
            raise error
        batch = self._copies.hand_over(begun)
        self._begin(fetch)
        return batch

    def _begin(self, fetch: Callable[[], Any]) -> None:
        try:
            self._begun.append((self._copies.begin(fetch()), None))
        except Exception as error:
            self._begun.append((None, error))


class SideStream:
    """Copies on a CUDA stream beside the one that computes."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream(self._device)

    def begin(self, batch: Any) -> Any:
        """Begin to copy the tensors of a batch that are in host memory."""
        copied: list[Any] = []

        def move(tensor: Any) -> Any:
            if tensor.device.type != "cpu":
                return tensor
            copied.append(tensor.to(self._device, non_blocking=True))
            return copied[-1]

        with self._torch.cuda.stream(self._stream):
            return mapped(batch, self._torch.Tensor, move), copied

    def hand_over(self, begun: Any) -> Any:
        """Have the computing stream wait for the copy, and return the batch."""
        batch, copied = begun
        computing = self._torch.cuda.current_stream(self._device)
        computing.wait_stream(self._stream)
        for tensor in copied:
            tensor.record_stream(computing)
        if copied:
            held.took(_KEY, f"the next batch is copied to {self._device} while the model computes on the current batch")
        else:
            held.refused(_KEY, "batches contain no tensors in host memory")
        return batch


def mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return a batch with everything of one kind changed, in containers like its own."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, MutableMapping):
        found = copy.copy(value)
        found.update({key: mapped(one, kind, change) for key, one in value.items()})
        return found
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(one, kind, change) for one in value))
    if type(value) in (list, tuple):
        return type(value)(mapped(one, kind, change) for one in value)
    return value


def patch(torch: Any) -> None:
    """Have loaders copy ahead, once the program uses the device."""
    if not has_gpu(torch):
        held.refused(_KEY, "there is no CUDA device to copy batches to")
        return
    from torch.utils.data import dataloader

    def copies() -> Copies | None:
        return SideStream(torch) if torch.cuda.is_initialized() else None

    for iterator in (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter):
        patch_iterator(iterator, copies)


def patch_iterator(iterator: Any, copies: Callable[[], Copies | None]) -> None:
    """Have a class of loader iterators make each epoch's batches ahead.

    Args:
        iterator: One of torch's two.
        copies: Makes what copies; None where nothing is to be copied.
    """
    next_data, reset = iterator._next_data, iterator._reset

    @functools.wraps(next_data)
    def _next_data(self: Any) -> Any:
        if "_paceline_ahead" not in vars(self):
            found = copies()
            self._paceline_ahead = Ahead(found) if found is not None else None
        if self._paceline_ahead is None:
            return next_data(self)
        return self._paceline_ahead.next(functools.partial(next_data, self))

    @functools.wraps(reset)
    def _reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        vars(self).pop("_paceline_ahead", None)  # of an epoch that was broken off
        return reset(self, *args, **kwargs)

    iterator._next_data, iterator._reset = _next_data, _reset
