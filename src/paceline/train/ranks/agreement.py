"""Agreement of ranks: maxima of numbers over process groups, checksums, and the bytes of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

_EVERY = 64
_BYTES = 65536  # read from each tensor; a larger tensor is sampled at a fixed stride


def largest(numbers: Sequence[int], groups: Iterable[Any]) -> list[int]:
    """Return the largest value of each number over the ranks of all given groups; a collective.

    Args:
        numbers: Numbers of this rank. All ranks pass equally many.
        groups: Process groups, reduced one after the other. The numbers stay on the CPU if the backend allows it,
            so that the call does not wait for a GPU.
    """
    import torch

    found = None
    for group in groups:
        if found is None:
            on_cpu = "cpu" in torch.distributed.get_backend_config(group)
            found = torch.tensor(list(numbers), device="cpu" if on_cpu else torch.cuda.current_device())
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX, group=group)
    return list(numbers) if found is None else [int(number) for number in found.tolist()]


def is_same(number: int, groups: Iterable[Any]) -> bool:
    """Return whether a number is the same on all ranks of some groups; a collective."""
    most, least = largest([number, -number], groups)
    return most == -least


def is_due(number: int) -> bool:
    """Return whether ranks compare something in this call: in calls 1, 2, 4, 8 and so on, and in every 64th."""
    return number & (number - 1) == 0 or number % _EVERY == 0


def digest(values: Any, found: int = 0) -> int:
    """Return the CRC-32 checksum of a batch: tensors, numbers and text in tuples, lists and dicts.

    Args:
        values: The batch. Large tensors are sampled; of tensors on a GPU only the shape and the type are used.
        found: The checksum to continue from.
    """
    import torch

    if isinstance(values, torch.Tensor):
        return crc32(_bytes(values), crc32(f"{tuple(values.shape)} {values.dtype}".encode(), found))
    if isinstance(values, Mapping):
        values = [part for pair in values.items() for part in pair]
    if isinstance(values, tuple | list):
        for value in values:
            found = digest(value, found)
        return found
    plain = isinstance(values, str | bytes | int | float | None)
    return crc32((repr(values) if plain else type(values).__name__).encode(), found)


def _bytes(tensor: Any) -> bytes:
    import torch

    if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.numel():
        return b""
    flat = tensor.detach().reshape(-1)
    step = -(-flat.numel() * flat.element_size() // _BYTES)
    return bytes(bytes_of(flat[::step]).numpy().tobytes())


def bytes_of(tensor: Any) -> Any:
    """Return the bytes of a tensor's elements, in their order, as a 1-D uint8 tensor on the same device.

    A contiguous tensor is not copied. torch calls a tensor of one element contiguous whatever its stride is, and then
    refuses to view it as bytes.

    Args:
        tensor: A strided tensor of any shape.
    """
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)
