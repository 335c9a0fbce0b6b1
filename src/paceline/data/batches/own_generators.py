"""Random generators that are attributes of a dataset, such as `np.random.default_rng(0)` created in its `__init__`.

Each worker process gets a copy of these generators with the state from before the loop, so each worker and each epoch
would draw the same numbers. The generators are therefore seeded for each sample, like the global generators.
"""

from __future__ import annotations

import functools
import random
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_DEEPEST, _MOST = 5, 10_000  # the depth of attributes and the number of objects that are searched
_MOST_ITEMS = 64  # of a list or a dict that is searched; longer ones hold samples


def own_generators(dataset: Any) -> list[Any]:
    """Return the generators of NumPy, torch and Python that a dataset or its functions reference.

    The global generators are not included, and neither is `random.SystemRandom`, which has no seed.

    Args:
        dataset: The dataset. Attributes are searched recursively, so datasets and transforms inside are included.
    """
    kinds = _kinds()
    seen: set[int] = set()
    found: list[Any] = []
    level = [dataset, *_of_module(dataset)]
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for one in level:
            if id(one) in seen or len(seen) > _MOST:
                continue
            seen.add(id(one))
            if isinstance(one, kinds):
                found.append(one)
            else:
                below += _inside(one)
        level = below
    shared = {id(np.random.mtrand._rand), id(getattr(random, "_inst", None))}  # the global ones
    return [one for one in found if id(one) not in shared and not isinstance(one, random.SystemRandom)]


def _kinds() -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    of_torch = (torch.Generator,) if torch is not None else ()
    return (np.random.Generator, np.random.RandomState, random.Random, *of_torch)


def seed_own(generators: Iterable[Any], key: int) -> None:
    """Seed generators in place, each with another seed.

    Args:
        generators: The generators, from `own_generators`.
        key: An integer of 64 bits; the seeds are derived from it.
    """
    for number, one in enumerate(generators):
        own = (key + number * 0x9E3779B97F4A7C15) % (1 << 64)
        if isinstance(one, np.random.Generator):
            one.bit_generator.state = type(one.bit_generator)(own).state
        elif isinstance(one, np.random.RandomState):
            one.seed(own & 0xFFFFFFFF)
        elif isinstance(one, random.Random):
            one.seed(own)
        else:
            one.manual_seed(own & 0x7FFFFFFFFFFFFFFF)


def states_of(generators: Iterable[Any]) -> list[Any]:
    """Return the state of each generator."""
    return [_state(one) for one in generators]


def restore(generators: Iterable[Any], states: Iterable[Any]) -> None:
    """Set generators to states from `states_of`."""
    for one, state in zip(generators, states, strict=True):
        if isinstance(one, np.random.Generator):
            one.bit_generator.state = state
        elif isinstance(one, np.random.RandomState):
            one.set_state(state)
        elif isinstance(one, random.Random):
            one.setstate(state)
        else:
            one.set_state(state)


def _state(one: Any) -> Any:
    if isinstance(one, np.random.Generator):
        return one.bit_generator.state
    if isinstance(one, random.Random):
        return one.getstate()
    return one.get_state()


def _inside(one: Any) -> Iterator[Any]:
    """Yield the objects that an object references: attributes, items; a function's closure, defaults and globals."""
    if isinstance(one, Mapping):
        if type(one) is dict and len(one) <= _MOST_ITEMS:
            yield from one.values()
    elif isinstance(one, list | tuple | set):
        if len(one) <= _MOST_ITEMS:
            yield from one
    elif isinstance(one, functools.partial):
        yield from (one.func, *one.args, *one.keywords.values())
    elif isinstance(one, types.MethodType):
        yield from (one.__self__, one.__func__)
    elif isinstance(one, types.FunctionType):
        yield from (cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell))
        yield from one.__defaults__ or ()
        if _is_users(one.__module__):  # a library may use global generators for other things, such as temporary names
            named = (one.__globals__.get(name) for name in one.__code__.co_names)
            yield from (value for value in named if isinstance(value, _kinds()))
    elif not isinstance(one, type | types.ModuleType | str | bytes | int | float | np.ndarray) and one is not None:
        yield from getattr(one, "__dict__", {}).values()


@cache
def _is_users(module: str) -> bool:
    """Return whether a module is the user's own, neither from the standard library nor installed."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module == "__main__"  # in a notebook
    places = {Path(place) for name, place in sysconfig.get_paths().items() if name in ("stdlib", "purelib", "platlib")}
    return not any(Path(file).is_relative_to(place) for place in places) and "site-packages" not in file


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not ...
    except ValueError:  # the variable has no value yet
        return False


def _of_module(dataset: Any) -> Iterator[Any]:
    """Yield the methods of a dataset's class; their globals can contain generators."""
    for kind in type(dataset).__mro__:
        yield from (value for value in vars(kind).values() if isinstance(value, types.FunctionType))
