"""Moves of batches to a device that the program makes, and copies made ahead that are handed over for just these moves.

The program keeps its batches: they stay in host memory, and are what its loader made. A copy is handed over in place of
the result of ``tensor.to(device)`` or ``tensor.cuda()``, once, if this result could have no other content: the tensor
was not changed since the copy began. torch counts changes by its own operations; a tensor whose memory is given out in
another way (``numpy()``, ``data``, ``data_ptr()`` …) gets no copy any more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol
from weakref import ref

from paceline.inprocess import hooks
from paceline.inprocess.side_stream import can_copy

Path = tuple[Any, ...]  # keys and indices from a batch to one of its tensors
_GIVE_OUT = ("numpy", "data_ptr", "untyped_storage", "__dlpack__")  # methods that give out a tensor's memory


class AheadCopy(Protocol):
    """Copies of some tensors of one batch, begun on a side stream."""

    def suits(self) -> bool:
        """Return whether the current stream is the one that the copies were made for."""
        ...

    def arrive(self) -> list[Any]:
        """Return the tensors on the device, once; the current stream waits for them."""
        ...

    def wait(self) -> None:
        """Wait on the host until the device has read its memory."""
        ...


class Handed:
    """A batch of the program: which of its tensors the program moved to a device, and which were copied ahead."""

    def __init__(self, batch: Any) -> None:
        self.moves: dict[Path, list[Any]] = {}  # devices, in the order of the moves
        self.used = 0  # copies that took the place of moves
        self._tensors = dict(tensors_in(batch))
        self._copies: dict[Path, tuple[AheadCopy, int]] = {}  # and its place among the copied tensors
        self._arrived: dict[int, list[Any]] = {}
        self._versions: dict[Path, int] = {}
        self._forgotten = 0

    def prefetch(self, devices: Mapping[Path, Any], begin: Callable[[Any, list[Any]], AheadCopy]) -> bool:
        """Begin to copy tensors; return whether there were any that can be copied ahead.

        Args:
            devices: Where each position is moved.
            begin: Begins to copy some tensors to a device.
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
        """How many copies the program has not asked for."""
        return len(self._copies) + self._forgotten

    def hand_out(self, moves: Moves) -> None:
        """Have the program's moves of these tensors come here; the tensors are the program's from now on."""
        tensors, self._tensors = self._tensors, {}
        for path, tensor in tensors.items():
            moves.follow(tensor, self, path)

    def forget(self, path: Path) -> None:
        """Give up the copy of a position, whose content may have changed."""
        self._forgotten += self._copies.pop(path, None) is not None

    def end(self) -> None:
        """Give up all copies that are left."""
        self._copies.clear()
        self._arrived.clear()

    def taken(self, path: Path, tensor: Any, device: Any, non_blocking: bool) -> Any | None:
        """Return the copy of a tensor that the program moves, or None if there is none that is the same."""
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
            copies.wait()  # the program may write to its tensor as soon as this returns
        return copy


class Moves:
    """Hears of the moves that the program makes of tensors of its batches."""

    def __init__(self, torch: Any, is_device: Callable[[Any], bool]) -> None:
        """Prepare hearing; `patch` begins it.

        Args:
            torch: The module.
            is_device: Whether moves to a device count.
        """
        self._torch = torch
        self._is_device = is_device
        self._followed: dict[int, tuple[Any, Handed, Path, int]] = {}  # id -> weak reference, where, storage

    def follow(self, tensor: Any, handed: Handed, path: Path) -> None:
        """Hear of the moves of a tensor, as long as it lives."""
        key, followed = id(tensor), self._followed
        storage = self._torch._C.TensorBase.untyped_storage(tensor).data_ptr() if can_copy(tensor) else 0
        followed[key] = ref(tensor, lambda _: followed.pop(key, None)), handed, path, storage

    def patch(self) -> None:
        """Change the methods of ``torch.Tensor`` that move a tensor, or give out its memory."""
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
        """Return whether a move has another result now than a tensor of its own on the device."""
        torch = self._torch
        return bool(
            torch.is_inference_mode_enabled()
            or torch._C._get_tracing_state() is not None
            or torch._C._len_torch_dispatch_stack()
            or torch._C._functorch.maybe_current_level() is not None
            or torch.compiler.is_compiling()
        )

    def _parsed_to(self, tensor: Any, args: Any, kwargs: Any) -> tuple[Any, bool] | None:
        """Return where ``tensor.to`` moves, and whether without waiting; None of a call that does anything else."""
        try:
            device, dtype, non_blocking, memory_format = self._torch._C._nn._parse_to(*args, **kwargs)
        except (RuntimeError, TypeError):
            return None  # another form of the call, or a mistake of which torch tells
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
    """Yield each tensor of a batch with its position; in mappings, lists and tuples."""
    if hasattr(batch, "data_ptr"):
        yield path, batch
    elif isinstance(batch, Mapping):
        for key in batch:
            yield from tensors_in(batch[key], (*path, key))
    elif isinstance(batch, list | tuple):
        for place, value in enumerate(batch):
            yield from tensors_in(value, (*path, place))
