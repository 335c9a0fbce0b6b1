"""What may be read of the program's tensors so that nobody hears of it, and nothing waits?

Function modes, tensor subclasses, dispatch modes, transforms and profilers all listen to what is done to a tensor. To
look must not be an event in any of them.
"""

from __future__ import annotations

import ctypes
import struct
from collections import UserDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from paceline.inprocess.recorder.probe_state import gate

_MOST_ITEMS = 16  # of a collection that are looked at: a list of a million numbers holds no batch


class Reader:
    """Reads sizes and single numbers of tensors, unheard."""

    def __init__(self, torch: Any) -> None:
        self.tensor_type = torch.Tensor
        self._function_modes = torch._C._len_torch_function_stack
        self._dispatch_modes = torch._C._len_torch_dispatch_stack
        self._tracing = torch._C._get_tracing_state
        self._transforms = torch._C._functorch.peek_interpreter_stack
        self._profiled = torch.autograd._profiler_enabled
        self._unheard = torch._C.DisableTorchFunction

    def first(self, values: Iterable[Any]) -> Any:
        """Return the first tensor among values: itself, or in a sequence or mapping that is one; else None."""
        for value in islice(values, _MOST_ITEMS):
            if isinstance(value, self.tensor_type):
                return value
            for item in islice(_items(value), _MOST_ITEMS):
                if isinstance(item, self.tensor_type):
                    return item
        return None

    def size(self, batch: Any) -> Any:
        """Return what tells the number of samples in a batch (`part.samples_of` knows): its first tensor's shape."""
        likely = batch[0] if type(batch) in (list, tuple) and batch else batch
        if type(likely) is self.tensor_type and self._tracing() is None and not self._function_modes():
            return likely.shape
        return self.leading_dimension(self.first((batch,)) if not _items(batch) else self.first(_items(batch)))

    def leading_dimension(self, tensor: Any) -> float | None:
        """Return the batch size that a tensor speaks of, or None for a scalar or no tensor."""
        if tensor is None or self._tracing() is not None:
            return None
        if type(tensor) is self.tensor_type and not self._function_modes():
            return float(tensor.shape[0]) if tensor.dim() else None
        with self._unheard():
            return float(tensor.shape[0]) if tensor.dim() else None

    def audible(self) -> bool:
        """Say whether somebody would hear of an operator that is called now."""
        tracing = self._tracing() is not None or self._transforms() is not None
        return bool(tracing or self._dispatch_modes() or (self._profiled() and gate.window is None))

    def on_device(self, tensor: Any, take: Callable[[Any], Any]) -> Any:
        """Return what `take` makes of a plain tensor with one number on a GPU; None for others, or if heard."""
        if type(tensor) is not self.tensor_type or self.audible():
            return None
        with self._unheard():
            return take(tensor) if tensor.is_cuda and tensor.numel() == 1 else None

    def detached(self, tensor: Any) -> Any:
        """Return a plain tensor without its graph, or None if that would be heard."""
        if type(tensor) is not self.tensor_type or self.audible():
            return None
        with self._unheard():
            return tensor.detach()


def number_reader(torch: Any) -> Callable[[Any], float | None]:
    """Return a function that returns a CPU tensor's only number, None for others.

    It is read from memory: no operator is called that anybody could hear of, or that could wait.
    """
    plain, tracing, modes = torch.Tensor, torch._C._get_tracing_state, torch._C._len_torch_function_stack
    unheard = torch._C.DisableTorchFunction
    silent = plain.__torch_dispatch__  # of a subclass that hears of no operator and has memory of its own
    readers: dict[Any, Callable[[int], float]] = {
        torch.float32: lambda address: single(address).value,
        torch.float64: lambda address: ctypes.c_double.from_address(address).value,
        torch.float16: lambda address: float(struct.unpack("e", ctypes.string_at(address, 2))[0]),
        torch.bfloat16: lambda address: float(struct.unpack("<f", bytes(2) + ctypes.string_at(address, 2))[0]),
    }
    single = ctypes.c_float.from_address

    def number(tensor: Any) -> float | None:
        kind = type(tensor)
        if tracing() is not None or not isinstance(tensor, plain) or kind.__torch_dispatch__ is not silent:
            return None
        if modes() or kind is not plain:
            with unheard():
                return in_memory(tensor)
        return in_memory(tensor)

    def in_memory(tensor: Any) -> float | None:
        read = readers.get(tensor.dtype)
        if read is None or not tensor.is_cpu or tensor.numel() != 1:
            return None
        try:
            address = tensor.data_ptr()
        except RuntimeError:  # it has no memory: a transform's, or all zero without one
            return None
        return read(address) if address else None

    return number


def _items(value: Any) -> Iterable[Any]:
    """Return what a plain collection holds, without a call to anything that the program may have overridden."""
    if isinstance(value, dict):
        return dict.values(value)
    if isinstance(value, UserDict):
        return _items(value.data)
    return value if isinstance(value, (list, tuple)) else ()
