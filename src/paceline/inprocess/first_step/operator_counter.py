"""Operator counter: every operator of a step with its input shapes, and every allocation and release of memory.

Operators are counted where torch dispatches to a device. Forward, backward and optimizer therefore appear as the
operators that run, on any device including meta. The *distance* of an operator to an input is the number of bytes that
were touched since the input was last touched. An input at a distance above the cache size must be read from memory
again (Mattson et al. 1970, stack distances, here for whole tensors).
"""

from __future__ import annotations

import json
import math
import weakref
from typing import Any

from paceline.inprocess.first_step.nested import tensors_in

_UNTOUCHED = 1 << 62  # distance of a storage that was not touched since counting began


class Tally:
    """Counts operators between `enter` and `leave`.

    Attributes:
        part: Label of the current part of the step.
        failed: Whether an operator could not be counted; the program itself goes on.
    """

    def __init__(self) -> None:
        self.part = "passes"
        self.failed = False
        self._calls: dict[str, dict[str, Any]] = {}
        self._memory: list[int] = []
        self._numbers: dict[int, int] = {}  # storage number by address; both end when the storage is freed
        self._sizes: list[int] = []
        self._held: list[list[Any]] = []  # storages that existed before counting, and the part that used each first
        self._marks: list[list[int]] = []
        self._touched: dict[int, int] = {}
        self._clock = 0
        self._watches: list[Any] = []
        self._mode: Any = None

    def enter(self) -> None:
        """Start to count the operators that this thread runs."""
        self._mode = _mode_of()(self)
        self._mode.__enter__()

    def leave(self) -> None:
        """Stop counting operators."""
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
        self._mode = None
        self._watches.clear()

    def described(self) -> dict[str, Any]:
        """Return the counted operators, and the allocations and releases of memory.

        ``operators``: dicts of ``op``, ``args``, ``kwargs`` (a tensor is ``{"t": [shape, strides, dtype]}``, a value
        that JSON does not support ``{"s": its name}``), ``part``, ``backward`` (whether autograd ran the operator),
        ``count``, ``read_bytes`` and ``written_bytes`` of all calls, and ``reads``. ``reads`` maps a bit length to
        bytes: a read with key k has a distance below 2^k bytes; -1 means not touched before. ``sizes``: bytes of each
        storage. ``held``: the storages allocated before `enter`, as (number, part that used the storage first).
        ``memory``: in order, n + 1 for the allocation of storage n, -(n + 1) for its release. ``calls``: in order, the
        length of `memory` before the results of an operator, and its ``index``.
        """
        return {
            "operators": list(self._calls.values()),
            "sizes": self._sizes,
            "held": self._held,
            "memory": self._memory,
            "calls": self._marks,
        }

    def called(self, torch: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Count an operator that has run."""
        backward = torch._C._current_graph_task_id() != -1
        key = json.dumps([self.part, backward, name, _plain(torch, args), _plain(torch, kwargs)])
        known = self._calls.get(key)
        if known is None:
            _, _, _, plain_args, plain_kwargs = json.loads(key)
            known = {"op": name, "args": plain_args, "kwargs": plain_kwargs, "part": self.part, "backward": backward}
            known |= {"index": len(self._calls), "count": 0, "read_bytes": 0, "written_bytes": 0, "reads": {}}
            self._calls[key] = known
        known["count"] += 1
        known["read_bytes"] += _moved(torch, (args, kwargs))
        known["written_bytes"] += _moved(torch, result)
        self._marks.append([len(self._memory), known["index"]])
        for tensor in tensors_in(torch, (args, kwargs)):
            number = self._number(tensor, new=False)
            if number >= 0:
                at = self._touched.get(number, -_UNTOUCHED)
                bucket = str((self._clock - at).bit_length() if at >= 0 else -1)
                known["reads"][bucket] = known["reads"].get(bucket, 0) + _bytes(tensor)
                self._touch(number, tensor)
        for tensor in tensors_in(torch, result):
            number = self._number(tensor, new=True)
            if number >= 0:
                self._touch(number, tensor)

    def _touch(self, number: int, tensor: Any) -> None:
        self._clock += _bytes(tensor)
        self._touched[number] = self._clock

    def _number(self, tensor: Any, new: bool) -> int:
        """Return the number by which this object identifies a tensor's storage; -1 for a tensor without storage."""
        try:
            storage = tensor.untyped_storage()
        except RuntimeError:
            return -1
        key = storage._cdata
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._sizes)
            self._sizes.append(storage.nbytes())
            if new:
                self._memory.append(number + 1)
            else:
                self._held.append([number, self.part])
            self._watches.append(weakref.ref(storage, lambda _: self._gone(key)))
        return number

    def _gone(self, key: int) -> None:
        number = self._numbers.pop(key, None)
        if number is not None:
            self._memory.append(-(number + 1))


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _moved(torch: Any, value: Any) -> int:
    """Return the bytes of all tensors in a value.

    A tensor that is given twice counts once, and so do elements that an expanded dimension repeats.
    """
    found = 0
    for tensor in {id(tensor): tensor for tensor in tensors_in(torch, value)}.values():
        sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
        found += math.prod(sizes) * tensor.element_size()
    return found


def _mode_of() -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Tallied(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
        """Intercepts every operator below autograd."""

        def __init__(self, tally: Tally) -> None:
            super().__init__()
            self.tally = tally

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            result = func(*args, **kwargs)
            try:
                self.tally.called(torch, str(func), args, kwargs, result)
            except Exception:
                self.tally.failed = True
            return result

    return Tallied


def _plain(torch: Any, value: Any) -> Any:
    """Convert an argument of an operator to a JSON value."""
    if isinstance(value, torch.Tensor):
        return {"t": [list(value.shape), list(value.stride()), str(value.dtype).removeprefix("torch.")]}
    if isinstance(value, dict):
        return {key: _plain(torch, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(torch, each) for each in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return 1.0 if value != value or value in (float("inf"), float("-inf")) else float(f"{value:.3g}")
    return {"s": str(value)}
