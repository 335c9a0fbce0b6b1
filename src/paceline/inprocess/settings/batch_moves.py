"""Replace the program's moves of batch tensors to a device by copies that were made ahead.

The program's batches stay in host memory, as its loader made them. A copy replaces the result of ``tensor.to(device)``
or ``tensor.cuda()`` once, if this result would have the same content, that is, if the tensor was not changed since the
copy began. torch's version counter shows changes by torch's operations. A tensor whose memory is exposed in another way
(``numpy()``, ``data``, ``data_ptr()`` …) no longer gets a copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol
from weakref import ref

from paceline.inprocess import hooks
from paceline.inprocess.side_stream import can_copy

Path = tuple[Any, ...]  # keys and indices from a batch to one of its tensors
_GIVE_OUT = ("numpy", "data_ptr", "untyped_storage", "__dlpack__")  # methods that expose a tensor's memory


class AheadCopy(Protocol):
    """Copies of some tensors of one batch, started on a side stream."""

    def suits(self) -> bool:
        """Return whether the current stream is the stream for which the copies were made."""
        ...

    def arrive(self) -> list[Any]:
        """Return the tensors on the device, once. The current stream waits for the copies."""
        ...

    def wait(self) -> None:
        """Wait on the host until the device has read the tensors' memory."""
        ...


class Handed:
    """A batch of the program, with its moves to a device and the copies that were made ahead."""

    def __init__(self, batch: Any) -> None:
        self.moves: dict[Path, list[Any]] = {}  # devices in the order of the moves
        self.used = 0  # number of copies that replaced moves
        self._tensors = dict(tensors_in(batch))
        self._copies: dict[Path, tuple[AheadCopy, int]] = {}  # path -> copies, and the tensor's position in them
        self._arrived: dict[int, list[Any]] = {}
        self._versions: dict[Path, int] = {}
        self._forgotten = 0

    def prefetch(self, devices: Mapping[Path, Any], begin: Callable[[Any, list[Any]], AheadCopy]) -> bool:
        """Start to copy tensors; return whether any tensor can be copied ahead.

        Args:
            devices: The target device of each position in the batch.
            begin: Starts to copy some tensors to a device.
        """
        wanted: dict[Any, list[Path]] = {}
        for path, device in devices.items():
            tensor = self._tensors.get(path)
            if tensor is not None and can_copy(tensor) and not tensor.is_inference() and tensor.is_pinned():
                self._versions[path] = tensor._version
                wanted.setdefault(device, []).append(path)
        for device, paths in wanted.items():
            copies = begin(device, [self._tensors[path] for path in paths])
            self._copies |= {path: (copies, place) for place, path in enumerate(paths)}
        return bool(wanted)

    @property
    def unused(self) -> int:
        """The number of copies that the program has not used."""
        return len(self._copies) + self._forgotten

    def hand_out(self, moves: Moves) -> None:
        """Intercept the program's moves of the batch's tensors, and release this object's references to the tensors."""
        tensors, self._tensors = self._tensors, {}
        for path, tensor in tensors.items():
            moves.follow(tensor, self, path)

    def forget(self, path: Path) -> None:
        """Discard the copy of the tensor at a position, because the tensor may have changed."""
        self._forgotten += self._copies.pop(path, None) is not None

    def end(self) -> None:
        """Discard all remaining copies."""
        self._copies.clear()
        self._arrived.clear()

    def taken(self, path: Path, tensor: Any, device: Any, non_blocking: bool) -> Any | None:
        """Remove and return the copy that was made in advance of a tensor that the program moves.

        Return None if there is no copy, if the tensor was changed after the copy began, or if device, shape or strides
        differ.
        """
        copies, place = self._copies.get(path, (None, 0))
        if copies is None or tensor._version != self._versions[path] or not can_copy(tensor) or not copies.suits():
            return None
        if id(copies) not in self._arrived:
            self._arrived[id(copies)] = copies.arrive()
        copy = self._arrived[id(copies)][place]
        if copy.device != device or copy.shape != tensor.shape or copy.stride() != tensor.stride():
            return None
        del self._copies[path]
        self.used += 1
        self._arrived[id(copies)][place] = None
        if not non_blocking:
            copies.wait()  # the program may write to its tensor after this call
        return copy


class Moves:
    """Intercepts the program's moves of batch tensors."""

    def __init__(self, torch: Any, is_device: Callable[[Any], bool]) -> None:
        """Store the arguments; `patch` installs the patches.

        Args:
            torch: The module.
            is_device: Whether moves to a device are recorded.
        """
        self._torch = torch
        self._is_device = is_device
        self._followed: dict[int, tuple[Any, Handed, Path, int]] = {}  # id -> weak reference, batch, position, storage

    def follow(self, tensor: Any, handed: Handed, path: Path) -> None:
        """Intercept the moves of a tensor as long as the tensor lives."""
        key, followed = id(tensor), self._followed
        storage = self._torch._C.TensorBase.untyped_storage(tensor).data_ptr() if can_copy(tensor) else 0
        followed[key] = ref(tensor, lambda _: followed.pop(key, None)), handed, path, storage

    def patch(self) -> None:
        """Patch the methods of ``torch.Tensor`` that move a tensor or expose its memory."""
        kind = self._torch.Tensor
        kind.to = self._moving(kind.to, self._parsed_to)
        kind.cuda = self._moving(kind.cuda, self._parsed_cuda)
        for name in _GIVE_OUT:
            hooks.install(kind, name, self._giving_out(getattr(kind, name)))
        data, giving_out = kind.data, self._giving_out
        kind.data = property(giving_out(data.__get__), giving_out(data.__set__), data.__delete__, data.__doc__)
        dlpack = self._torch.utils.dlpack
        dlpack.to_dlpack = self._torch.to_dlpack = self._giving_out(dlpack.to_dlpack)

    def _moving(self, original: Any, parsed: Callable[[Any, Any, Any], tuple[Any, bool] | None]) -> Any:
        heard, tell = self._torch.overrides.has_torch_function_unary, self._torch.overrides.handle_torch_function

        @functools.wraps(original)
        def moved(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._followed:
                return original(tensor, *args, **kwargs)
            if heard(tensor):
                return tell(moved, (tensor,), tensor, *args, **kwargs)
            reference, handed, path, _ = self._followed.get(id(tensor), (lambda: None, None, (), 0))
            if handed is None or reference() is not tensor or self._is_special():
                return original(tensor, *args, **kwargs)
            move = parsed(tensor, args, kwargs)
            copy = handed.taken(path, tensor, *move) if move is not None else None
            result = copy if copy is not None else original(tensor, *args, **kwargs)
            if move is not None and self._is_device(result.device):
                handed.moves.setdefault(path, []).append(result.device)
            return result

        return moved

    def _giving_out(self, original: Any) -> Any:
        @functools.wraps(original)
        def given_out(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            torch = self._torch
            if self._followed and type(tensor) is torch.Tensor and tensor.layout == torch.strided:
                self._forget(torch._C.TensorBase.untyped_storage(tensor).data_ptr())
            return original(tensor, *args, **kwargs)

        return given_out

    def _forget(self, storage: int) -> None:
        for _, handed, path, own in list(self._followed.values()):
            if own == storage:
                handed.forget(path)

    def _is_special(self) -> bool:
        """Return whether torch is in a mode (inference, tracing, compiling) in which moves must not be replaced."""
        torch = self._torch
        return bool(
            torch.is_inference_mode_enabled()
            or torch._C._get_tracing_state() is not None
            or torch._C._len_torch_dispatch_stack()
            or torch._C._functorch.maybe_current_level() is not None
            or torch.compiler.is_compiling()
        )

    def _parsed_to(self, tensor: Any, args: Any, kwargs: Any) -> tuple[Any, bool] | None:
        """Return the device and the non_blocking flag of a ``tensor.to`` call; None if the call does more than move."""
        try:
            device, dtype, non_blocking, memory_format = self._torch._C._nn._parse_to(*args, **kwargs)
        except (RuntimeError, TypeError):
            return None  # another form of the call, or an error that torch reports
        if device is None or dtype not in (None, tensor.dtype) or memory_format is not None:
            return None
        return self._numbered(device), non_blocking

    def _parsed_cuda(self, tensor: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, bool] | None:
        given = dict(zip(("device", "non_blocking"), args, strict=False)) | dict(kwargs)
        if given.keys() - {"device", "non_blocking"}:
            return None
        device = given.get("device")
        if device is None or isinstance(device, int):
            device = f"cuda:{device}" if device is not None else "cuda"
        return self._numbered(self._torch.device(device)), bool(given.get("non_blocking"))

    def _numbered(self, device: Any) -> Any:
        if device.type != "cuda" or device.index is not None or not self._torch.cuda.is_initialized():
            return device
        return self._torch.device("cuda", self._torch.cuda.current_device())


def tensors_in(batch: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield each tensor of a batch with its position, also inside mappings, lists and tuples."""
    if hasattr(batch, "data_ptr"):
        yield path, batch
    elif isinstance(batch, Mapping):
        for key in batch:
            yield from tensors_in(batch[key], (*path, key))
    elif isinstance(batch, list | tuple):
        for place, value in enumerate(batch):
            yield from tensors_in(value, (*path, place))
