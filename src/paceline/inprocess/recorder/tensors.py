"""Read sizes and numbers of the program's tensors without side effects and without waiting.

Function modes, tensor subclasses, dispatch modes, transforms and profilers observe operations on tensors. The reads
here must not be visible to any of them.
"""

from __future__ import annotations

import ctypes
import struct
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from paceline.inprocess.recorder.probe_state import gate

_MOST_ITEMS = 16  # checked items per collection: a list of a million numbers is not a batch


class Reader:
    """Reads sizes and single numbers of tensors, invisibly to the program."""

    def __init__(self, torch: Any) -> None:
        self.tensor_type = torch.Tensor
        self._function_modes = torch._C._len_torch_function_stack
        self._dispatch_modes = torch._C._len_torch_dispatch_stack
        self._tracing = torch._C._get_tracing_state
        self._transforms = torch._C._functorch.peek_interpreter_stack
        self._profiled = torch.autograd._profiler_enabled
        self._unheard = torch._C.DisableTorchFunction
        self._record_operators = torch._C._autograd._enable_record_function  # in this thread

    def first(self, values: Iterable[Any]) -> Any:
        """Return the first tensor in the values, or in a sequence or mapping among them; None without a tensor."""
        for value in islice(values, _MOST_ITEMS):
            if isinstance(value, self.tensor_type):
                return value
            for item in islice(_items(value), _MOST_ITEMS):
                if isinstance(item, self.tensor_type):
                    return item
        return None

    def size(self, batch: Any) -> Any:
        """Return the shape of a batch's first tensor, or its batch size; `parts.samples_of` converts it to a number."""
        likely = batch[0] if type(batch) in (list, tuple) and batch else batch
        if type(likely) is self.tensor_type and self._tracing() is None and not self._function_modes():
            return likely.shape
        return self.leading_dimension(self.first((batch,)) if not _items(batch) else self.first(_items(batch)))

    def leading_dimension(self, tensor: Any) -> float | None:
        """Return the first dimension of a tensor, or None for a scalar or no tensor."""
        if tensor is None or self._tracing() is not None:
            return None
        if type(tensor) is self.tensor_type and not self._function_modes():
            return float(tensor.shape[0]) if tensor.dim() else None
        with self._unheard():
            return float(tensor.shape[0]) if tensor.dim() else None

    def audible(self) -> bool:
        """Return whether an operator called now would be visible to a mode, a transform or the program's profiler."""
        tracing = self._tracing() is not None or self._transforms() is not None
        return bool(tracing or self._dispatch_modes() or (self._profiled() and gate.window is None))

    def on_device(self, tensor: Any, take: Callable[[Any], Any]) -> Any:
        """Return `take(tensor)` for a plain GPU tensor with one number if the call is not visible, else None."""
        if type(tensor) is not self.tensor_type or self.audible():
            return None
        with self._unheard(), self._unprofiled():
            return take(tensor) if tensor.is_cuda and tensor.numel() == 1 else None

    def detached(self, tensor: Any) -> Any:
        """Return a plain tensor without its graph, or None if the call would be visible."""
        if type(tensor) is not self.tensor_type or self.audible():
            return None
        with self._unheard(), self._unprofiled():
            return tensor.detach()

    @contextmanager
    def _unprofiled(self) -> Iterator[None]:
        """Hide operators from the profiler window, which would count them as operators of the program."""
        if not self._profiled():
            yield
            return
        self._record_operators(False)
        try:
            yield
        finally:
            self._record_operators(True)


def number_reader(torch: Any) -> Callable[[Any], float | None]:
    """Return a function that returns a CPU tensor's only number, or None for other tensors.

    The number is read from memory: no operator is called that would be visible or could wait.
    """
    plain, tracing, modes = torch.Tensor, torch._C._get_tracing_state, torch._C._len_torch_function_stack
    unheard = torch._C.DisableTorchFunction
    silent = plain.__torch_dispatch__  # of subclasses that do not intercept operators and have their own memory
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
        except RuntimeError:  # a tensor of a transform, or a zero tensor without memory
            return None
        return read(address) if address else None

    return number


def _items(value: Any) -> Iterable[Any]:
    """Return the items of a plain collection, without calling methods that the program may have overridden."""
    if isinstance(value, dict):
        return dict.values(value)
    if isinstance(value, UserDict):
        return _items(value.data)
    return value if isinstance(value, (list, tuple)) else ()
