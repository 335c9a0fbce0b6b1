"""The samples of the comparison: a few of each rank for the split model, and all of them together for the whole model.

Tensors have samples in dimension 0, and with `cp` positions in dimension 1. A list of tensors has one tensor for each
sample, such as images of different sizes, or tensors that each have all samples, such as views of images. Outputs and
gradients of a rank are slices of those of the whole model; `slices` yields the possible slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.batch_samples import is_list_of_samples, like
from paceline.train.parallel import cp
from paceline.train.ranks.world import World


class NotJoinable(Exception):
    """The inputs of several ranks cannot be joined to one batch."""


def count(values: Any, known: Sequence[int] = ()) -> int:
    """Return the number of samples in inputs: the size of dimension 0 of the first tensor that is not a scalar.

    Args:
        values: The inputs.
        known: Likely numbers of samples, from the batch that was read. They tell a list with one tensor for each sample
            from a list of inputs with all samples.
    """
    if isinstance(values, list) and values and all(hasattr(value, "ndim") for value in values):
        rows = {int(value.shape[0]) if value.ndim else 0 for value in values}
        return rows.pop() if len(values) not in known and len(rows) == 1 and rows <= set(known) else len(values)
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, tuple | list):
        return next((found for value in values if (found := count(value, known))), 0)
    return int(values.shape[0]) if getattr(values, "ndim", 0) else 0


def cut(values: Any, samples: int, most: int) -> Any:
    """Return the first `most` samples of inputs that have `samples` samples."""
    if isinstance(values, Mapping):
        return {key: cut(value, samples, most) for key, value in values.items()}
    if isinstance(values, list) and _has_samples(values, samples):
        return values[:most]
    if isinstance(values, tuple | list):
        return like(values, [cut(value, samples, most) for value in values])
    return values[:most] if getattr(values, "ndim", 0) and values.shape[0] == samples else values


def whole(values: Any, samples: int, world: World, *, joined: bool) -> Any:
    """Return the inputs of the whole model, joined from those of the ranks; a collective of all ranks.

    Args:
        values: Inputs of this rank: tensors in tuples, lists and dicts.
        samples: Their number of samples.
        world: The ranks.
        joined: Whether the samples of all ranks form one batch; otherwise the whole model gets the samples of this
            rank.

    Raises:
        NotJoinable: The inputs do not fit together. All ranks raise it.
    """
    import torch

    every: list[Any] = [None] * world.layout.ranks
    torch.distributed.all_gather_object(every, (_place(world), _moved(values, "cpu"), samples))
    try:
        found = [_of_group(every, place, joined) for place, _, _ in every]
    except (RuntimeError, TypeError, ValueError, UsageError) as error:
        raise NotJoinable(str(error)) from error
    return _moved(found[torch.distributed.get_rank()], world.device)


def _place(world: World) -> tuple[Any, ...]:
    """Return this rank's position: on the pp and tp axes, among the parts of a batch, and on the cp axis."""
    return (world.position("pp"), world.position("tp")), world.sample_part, world.position("cp")


def _of_group(every: list[Any], own: Any, joined: bool) -> Any:
    of_part: dict[int, list[Any]] = {}
    for (copy, part, _), values, _ in every:  # rank order equals the order of positions
        if copy == own[0] and (joined or part == own[1]):
            of_part.setdefault(part, []).append(values)
    sequences = [_joined(of_part[part], 1, cp.length_of(of_part[part][0])) for part in sorted(of_part)]
    return _joined(sequences, 0, every[0][2])


def _joined(values: list[Any], dimension: int, size: int | None) -> Any:
    """Return several inputs concatenated along a dimension of this size."""
    return values[0] if len(values) == 1 else _join(values, dimension, size)


def _join(values: list[Any], dimension: int, size: int | None) -> Any:
    import torch

    first = values[0]
    if isinstance(first, torch.Tensor):
        if first.ndim > dimension and first.shape[dimension] == size:
            return torch.cat(values, dimension)
        if not all(value.shape == first.shape and bool((value == first).all()) for value in values):
            raise ValueError("inputs that do not contain samples differ between ranks")
        return first
    if isinstance(first, Mapping):
        return {key: _join([value[key] for value in values], dimension, size) for key in first}
    if isinstance(first, tuple | list) and not dimension and size and _has_samples(first, size):
        return like(first, [value for part in values for value in part])
    if isinstance(first, tuple | list):
        return like(first, [_join(list(part), dimension, size) for part in zip(*values, strict=True)])
    if any(value != first for value in values):
        raise ValueError(f"an input of {type(first).__name__} differs between ranks")
    return first


def _has_samples(values: Any, size: int) -> bool:
    """Return whether a list has one entry for each sample.

    Raises:
        ValueError: This is unknown, because each of `size` tensors has `size` rows.
    """
    if isinstance(values, list) and len(values) == size and all(getattr(value, "ndim", 0) for value in values):
        if all(value.shape[0] == size for value in values):
            raise ValueError(f"it is unknown whether each of {size} tensors with {size} rows is a sample")
        return True
    return is_list_of_samples(values, size)


def slices(shape: Any, value: Any, world: World, *, joined: bool) -> Iterator[Any]:
    """Yield the slices of a tensor of the whole model that can correspond to this rank's tensor.

    Args:
        shape: The shape of this rank's tensor.
        value: The tensor of the whole model.
        world: The ranks.
        joined: Whether the whole model ran on the samples of all ranks; otherwise on those of this rank.
    """
    if len(shape) != value.ndim:
        return
    layout = world.layout
    axes = {"cp": (layout.cp, world.position("cp")), "tp": (layout.tp, world.position("tp"))}
    if joined:
        axes["samples"] = (layout.samples, world.sample_part)
    split = [number for number, size in enumerate(shape) if size != value.shape[number]]
    for names in permutations([name for name, (size, _) in axes.items() if size > 1], len(split)):
        found = value
        for number, name in zip(split, names, strict=True):
            size, position = axes[name]
            if shape[number] * size != value.shape[number]:
                break
            found = found.narrow(number, position * shape[number], shape[number])
        else:
            yield found


def numbers(value: Any) -> Iterator[Any]:
    """Yield the floating-point and complex tensors in tuples, lists, dicts and output objects, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        local = value.to_local() if hasattr(value, "to_local") else value
        if local.is_complex():
            yield torch.view_as_real(local.resolve_conj())
        elif local.is_floating_point():
            yield local
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from numbers(value[key])
    elif isinstance(value, tuple | list):
        for part in value:
            yield from numbers(part)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        for _, part in sorted(vars(value).items()):
            if isinstance(part, torch.Tensor | tuple | list | dict):
                yield from numbers(part)


def floats(values: Any) -> list[Any]:
    """Return the floating-point tensors in inputs."""
    found: list[Any] = []

    def note(value: Any) -> Any:
        found.extend(value if isinstance(value, list) else [value])
        return value

    _each(values, note)
    return [value for value in found if hasattr(value, "is_floating_point") and value.is_floating_point()]


def _moved(values: Any, device: Any) -> Any:
    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(each) for each in value]
        return value.detach().to(device) if hasattr(value, "detach") else value

    return _each(values, moved)


def _each(values: Any, change: Callable[[Any], Any]) -> Any:
    """Return inputs with a function applied to each tensor, and to each list of one tensor per sample."""
    if isinstance(values, Mapping):
        return {key: _each(value, change) for key, value in values.items()}
    if isinstance(values, list) and values and all(hasattr(value, "ndim") for value in values):
        return change(values)
    if isinstance(values, tuple | list):
        return like(values, [_each(value, change) for value in values])
    return change(values) if hasattr(values, "ndim") else values
