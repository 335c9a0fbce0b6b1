"""What does a step do? Every operator with the shapes it meets, and every piece of memory that is taken and given back.

Seen where torch dispatches to a device, so that forward, backward and optimizer come as the kernels they end in, on any
device, meta too. An operator's *distance* to what it reads is how many bytes were touched since: what lies further back
than a cache is large has to come from memory again (Mattson et al. 1970, stack distances, here over whole tensors).
"""

from __future__ import annotations

import json
import weakref
from typing import Any

from paceline.inprocess.first_step.nested import tensors_in

_UNTOUCHED = 1 << 62  # distance of what was not touched since counting began


class Tally:
    """Counts from `enter` to `leave`; `part` says what is counted now."""

    def __init__(self) -> None:
        self.part = "passes"
        self._calls: dict[str, dict[str, Any]] = {}
        self._memory: list[int] = []
        self._numbers: dict[int, int] = {}  # of a storage, by its address; both go with it
        self._sizes: list[int] = []
        self._held: list[list[Any]] = []  # pieces that were there before, and the part that met them first
        self._marks: list[list[int]] = []
        self._touched: dict[int, int] = {}
        self._clock = 0
        self._watches: list[Any] = []
        self._mode: Any = None

    def enter(self) -> None:
        """Begin to count, in this thread."""
        self._mode = _mode_of()(self)
        self._mode.__enter__()

    def leave(self) -> None:
        """Count no more."""
        self._mode.__exit__(None, None, None)
        self._watches.clear()

    def described(self) -> dict[str, Any]:
        """Return what was counted.

        ``operators``: dicts of ``op``, ``args``, ``kwargs`` (a tensor is ``{"t": [shape, strides, dtype]}``, what JSON
        does not know ``{"s": its name}``), ``part``, ``count`` and ``reads`` (bytes by the power of two that their
        distance does not reach; -1: not touched before). ``sizes``: bytes of each piece of memory. ``held``: those that
        were there before: number, part that met it first. ``memory``: in order, n + 1 where piece n is taken, -(n + 1)
        where it is given back. ``calls``: in order, how long `memory` was when an operator had run, its ``index``.
        """
        return {
            "operators": list(self._calls.values()),
            "sizes": self._sizes,
            "held": self._held,
            "memory": self._memory,
            "calls": self._marks,
        }

    def called(self, torch: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Take note of an operator that has run."""
        key = json.dumps([self.part, name, _plain(torch, args), _plain(torch, kwargs)])
        known = self._calls.get(key)
        if known is None:
            _, _, plain_args, plain_kwargs = json.loads(key)
            known = {"op": name, "args": plain_args, "kwargs": plain_kwargs, "part": self.part}
            known |= {"index": len(self._calls), "count": 0, "reads": {}}
            self._calls[key] = known
        known["count"] += 1
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
        """Return the number of a tensor's memory; -1 for what has none of its own."""
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


def _mode_of() -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Tallied(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
        """Sees every operator behind autograd."""

        def __init__(self, tally: Tally) -> None:
            super().__init__()
            self.tally = tally

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            result = func(*args, **kwargs)
            self.tally.called(torch, str(func), args, kwargs, result)
            return result

    return Tallied


def _plain(torch: Any, value: Any) -> Any:
    """Return arguments as JSON has them."""
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
