"""Replay of random numbers: a call with a part of the rows gets the numbers that the same rows got in the whole batch.

torch tags its operators that draw random numbers. During a call with all rows, their results are recorded. A call with
a part of the rows gets the recorded numbers of these rows. A random tensor with the same shape in both calls is reused
unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


class CannotReplay(Exception):
    """The random numbers for a part of the rows cannot be taken from those for the whole batch."""


@dataclass
class Drawn:
    """The random numbers that a call has drawn.

    Attributes:
        draws: The name of each random operator, and copies of the tensors that it returned.
        by_rows: Whether any draw has one or more numbers for each row.
        for_all: Whether any draw is shared by all rows.
        own_generator: Whether any draw for rows uses a generator of the program.
        low_precision: Whether the call computes in a 16-bit format.
    """

    draws: list[tuple[str, list[Any]]] = field(default_factory=list)
    by_rows: bool = False
    for_all: bool = False
    own_generator: bool = False
    low_precision: bool = False


def recording(torch: Any, drawn: Drawn, rows: int) -> Any:
    """Return a context that records the draws of a call with all rows.

    Args:
        torch: The torch module.
        drawn: Receives the draws.
        rows: The number of rows in the whole batch.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recording(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            result = func(*args, **kwargs)
            found = _tensors(torch, result)
            drawn.low_precision |= any(each.is_floating_point() and each.element_size() < 4 for each in found)
            if torch.Tag.nondeterministic_seeded in func.tags:
                drawn.draws.append((str(func), [each.detach().clone() for each in found]))
                has_rows = any(size and size % rows == 0 for each in found for size in each.shape)
                drawn.by_rows |= has_rows
                drawn.for_all |= not has_rows
                drawn.own_generator |= has_rows and kwargs.get("generator") is not None
            return result

    return Recording()


def replaying(torch: Any, drawn: Drawn, rows: int, part: tuple[int, int], *, row_major: bool = True) -> Any:
    """Return a context in which a call with a part of the rows gets its part of the recorded draws.

    Args:
        torch: The torch module.
        drawn: The draws of the call with all rows.
        rows: The number of rows in the whole batch.
        part: The rows of the part as a half-open range: the first row and the end.
        row_major: Whether rows are the slower index in a dimension that merges rows with another dimension.

    In the context, a part that draws with other operators or in other shapes raises `CannotReplay`.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    left = iter(list(drawn.draws))

    class Replaying(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if torch.Tag.nondeterministic_seeded not in func.tags:
                return result
            name, recorded = next(left, ("nothing", []))
            if name != str(func):
                raise CannotReplay(f"a part of the batch draws with {func}, and the whole batch with {name}")
            for old, new in zip(recorded, _tensors(torch, result), strict=True):
                new.copy_(_part_of(old, new.shape, rows, part, row_major))
            if "native_dropout" in name:  # its output depends on its input
                result[0].copy_(args[0] * result[1] / (1 - args[1]))
            return result

    return Replaying()


def constant(torch: Any, drawn: Drawn) -> Any:
    """Return a context in which random draws give constants.

    It is for models whose draws for a part of the batch's rows cannot be replayed. In the context, integer draws raise
    `CannotReplay`. `drawn` notes whether there were draws and 16-bit results.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Constant(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            found = _tensors(torch, result)
            drawn.low_precision |= any(each.is_floating_point() and each.element_size() < 4 for each in found)
            if torch.Tag.nondeterministic_seeded in func.tags:
                drawn.by_rows = True
                _fill(str(func), found, args)
            return result

    return Constant()


def _fill(name: str, found: Sequence[Any], args: Sequence[Any]) -> None:
    if "native_dropout" in name:
        found[0].copy_(args[0])
        found[1].fill_(True)
        return
    for each in found:
        if not each.is_floating_point():
            raise CannotReplay(f"whole numbers drawn by {name} cannot be replaced by a constant")
        each.fill_(float(args[1]) if "bernoulli" in name and len(args) > 1 and not hasattr(args[1], "shape") else 0.5)


def _tensors(torch: Any, result: Any) -> list[Any]:
    several = result if isinstance(result, tuple | list) else (result,)
    return [each for each in several if isinstance(each, torch.Tensor)]


def _part_of(old: Any, shape: Any, rows: int, part: tuple[int, int], row_major: bool) -> Any:
    """Return the numbers for a part of the rows from a draw for all rows, in the given shape.

    Raises:
        CannotReplay: The shapes differ in another way than by the number of rows in one dimension.
    """
    if old.shape == shape:
        return old
    low, high = part
    others = [place for place, (one, two) in enumerate(zip(old.shape, shape, strict=False)) if one != two]
    if len(others) != 1 or old.dim() != len(shape):
        raise CannotReplay(f"a part of the batch draws {tuple(shape)}, and the whole batch {tuple(old.shape)}")
    (dim,) = others
    times, rest = divmod(old.shape[dim], rows)
    if rest or shape[dim] != times * (high - low):
        raise CannotReplay(f"a part of the batch draws {tuple(shape)}, and the whole batch {tuple(old.shape)}")
    folded = old.unflatten(dim, (rows, times) if row_major else (times, rows))
    return folded.narrow(dim if row_major else dim + 1, low, high - low).flatten(dim, dim + 1)
