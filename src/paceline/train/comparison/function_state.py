"""Restores what a user's loss changes when it is called, such as a counter of its calls.

A comparison calls the loss more often than training does. After that, a loss that counts its calls, or keeps a mean of
earlier outputs, would compute something else.
"""

from __future__ import annotations

import random
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from paceline.data.batches import own_generators
from paceline.train.unmodified.snapshot import is_own
from paceline.train.unmodified.state import is_own_file

Restore = Callable[[], bool]  # restores a value, and returns whether it had changed

_MOST_DEPTH = 6
_MOST_ENTRIES = 64  # the entries of a longer container are not searched
_MOST_BYTES = 64 << 20  # a larger tensor or array is data, and is not copied


@contextmanager
def kept(functions: Sequence[Any], models: Sequence[Any]) -> Iterator[list[bool]]:
    """Restore the state that functions can reach when the context ends.

    These are attributes of objects, buffers and gradients of modules, containers, small tensors, random generators,
    and the variables that functions of the program use.

    Args:
        functions: The loss and the weight of a run; None is allowed.
        models: Models that are restored elsewhere.

    Yields:
        A list. After the context, it has for each value whether the value had changed.
    """
    seen = {id(part) for model in models for part in model.modules()}
    seen |= {id(value) for model in models for value in (*model.parameters(), *model.buffers())}
    restores = [restore for each in functions for restore in _restores(each, seen, 0)]
    changed: list[bool] = []
    try:
        yield changed
    finally:
        changed += [restore() for restore in restores]


def _restores(value: Any, seen: set[int], depth: int) -> Iterator[Restore]:
    """Yield functions that restore the present state of a value and of the values inside it."""
    if value is None or isinstance(value, bool | int | float | str | bytes | type) or id(value) in seen:
        return
    seen.add(id(value))
    restore = _restore_of(value)
    if restore is not None:
        yield restore
    for each in _inside(value) if depth < _MOST_DEPTH else ():
        yield from _restores(each, seen, depth + 1)


def _restore_of(value: Any) -> Restore | None:
    """Return a function that restores a value, but not the values inside it; None for what has no state."""
    import torch

    found: Restore | None = None
    if isinstance(value, torch.Tensor):
        found = _of_tensor(value)
    elif isinstance(value, np.ndarray):
        found = partial(_put_array, value, value.copy()) if value.nbytes <= _MOST_BYTES else None
    elif isinstance(value, torch.Generator | random.Random) or hasattr(value, "bit_generator"):
        found = partial(_put_generator, value, own_generators.states_of([value]))
    elif isinstance(value, list | set | deque) or type(value) is dict:
        found = partial(_put_container, value, value.copy())
    elif isinstance(value, types.FunctionType):
        found = _of_function(value) if is_own_file(value.__code__.co_filename) else None
    elif _is_searched(value):
        found = partial(_put_variables, vars(value), dict(vars(value)))
    return found


def _inside(value: Any) -> Iterator[Any]:
    """Yield the values inside a container, an object or a function."""
    if isinstance(value, dict | list | set | deque | tuple):
        yield from list(value.values() if isinstance(value, dict) else value) if len(value) <= _MOST_ENTRIES else ()
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, types.FunctionType):
        if is_own_file(value.__code__.co_filename):
            cells, used = _variables(value)
            yield from (*(held for _, held in cells), *used.values(), *vars(value).values())
            yield from (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    elif _is_searched(value):
        yield from list(vars(value).values())
        ancestors: list[Any] = list(type(value).__mro__)
        methods = [each for kind in ancestors if is_own(kind) for each in vars(kind).values()]
        yield from (each for each in methods if isinstance(each, types.FunctionType))


def _is_searched(value: Any) -> bool:
    import torch

    kind: Any = type(value)
    return hasattr(value, "__dict__") and (isinstance(value, torch.nn.Module) or is_own(kind))


def _of_tensor(value: Any) -> Restore | None:
    """Return what restores the values of a tensor and, of a parameter, its gradient."""
    import torch

    if value.nbytes > _MOST_BYTES or value.layout is not torch.strided or value.is_inference():
        return None
    before, gradient = value.detach().clone(), value.grad if value.is_leaf else None
    gradient = None if gradient is None else gradient.detach().clone()

    def restore() -> bool:
        if value.is_leaf:
            value.grad = gradient
        if torch.equal(value.detach(), before):
            return False
        with torch.no_grad():
            value.copy_(before)
        return True

    return restore


def _of_function(value: types.FunctionType) -> Restore:
    """Return what restores the variables that a function of the program uses."""
    (cells, used), attributes = _variables(value), dict(vars(value))

    def restore() -> bool:
        changed = [cell.cell_contents is not before for cell, before in cells]
        changed += [value.__globals__.get(name) is not before for name, before in used.items()]
        for cell, before in cells:
            cell.cell_contents = before
        value.__globals__.update(used)
        return _put_variables(vars(value), attributes) or any(changed)

    return restore


def _variables(function: types.FunctionType) -> tuple[list[tuple[Any, Any]], dict[str, Any]]:
    """Return the closure variables that a function uses, each with its value, and its global variables by name."""
    cells = [(cell, cell.cell_contents) for cell in function.__closure__ or () if own_generators.is_filled(cell)]
    names = [name for name in function.__code__.co_names if name in function.__globals__]
    return cells, {name: function.__globals__[name] for name in names}


def _put_generator(value: Any, states: list[Any]) -> bool:
    changed = repr(own_generators.states_of([value])) != repr(states)
    own_generators.restore([value], states)
    return changed


def _put_array(value: Any, before: Any) -> bool:
    changed = bool(value.tobytes() != before.tobytes())
    if changed:
        value[...] = before
    return changed


def _put_container(value: Any, before: Any) -> bool:
    changed = _identities(value) != _identities(before)
    if changed:
        value.clear()
        (value.extend if isinstance(value, list | deque) else value.update)(before)
    return changed


def _put_variables(variables: dict[str, Any], before: dict[str, Any]) -> bool:
    changed = _identities(variables) != _identities(before)
    if changed:
        variables.clear()
        variables.update(before)
    return changed


def _identities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: id(each) for key, each in value.items()}
    identities = [id(each) for each in value]
    return set(identities) if isinstance(value, set) else identities
