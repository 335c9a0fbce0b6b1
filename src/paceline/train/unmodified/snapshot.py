"""Side effects of a call of a model: changed attributes, buffers, containers and Python values.

A snapshot lists all values that a model can reach: attributes of its modules, containers, closures and globals of the
program's own functions and hooks, and objects of the program's own classes. After a call, the snapshot returns the
values that the call changed, and can restore all of them.
"""

from __future__ import annotations

import functools
import io
import pickle
import random
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from paceline.train.unmodified.later import Later
from paceline.train.unmodified.state import is_own_file
from paceline.train.unmodified.weights import shards

_MOST_VALUES = 200_000
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_NAMESPACES = ("types.SimpleNamespace", "argparse.Namespace")
_OF_TORCH = ("training", "_is_full_backward_hook", "_non_persistent_buffers_set", "_is_hf_initialized")

_OF_FSDP = ("_flat_weights", "_flat_weight_refs")  # lists of weights, which FSDP2 gathers and splits


@dataclass(frozen=True)
class Place:
    """An attribute, an item of a container, or a variable that holds a value.

    Attributes:
        name: How a message names it, such as ``Model.block.mean``.
        container: A dictionary, list, deque, cell, class, or the attributes of an object.
        key: The name or index of the value in its container.
        end: In a list, the index counted from its end, below 0.
    """

    name: str
    container: Any
    key: Any
    end: int = 0

    def get(self) -> Any:
        """Return the current value.

        Raises:
            LookupError: The key or the variable no longer exists.
        """
        return _get(self.container, self.key)

    def at_end(self) -> Place:
        """Return the place at the same distance from the end of the list, which can have grown; else this place."""
        if isinstance(self.container, list | deque):
            return Place(self.name, self.container, len(self.container) + self.end)
        return self

    def set(self, value: Any) -> None:
        """Assign a value to the place."""
        if isinstance(self.container, types.CellType):
            self.container.cell_contents = value
        elif isinstance(self.container, type):
            setattr(self.container, self.key, value)
        else:
            self.container[self.key] = value


class Snapshot:
    """The values that a model can reach, at the time of construction.

    Args:
        torch: The torch module.
        module: The model.
        given: The inputs of the call that are not tensors.
        ignored: Tensors and objects that are left out, with everything that only they can reach.
    """

    def __init__(self, torch: Any, module: Any, given: Sequence[Any] = (), ignored: Iterable[Any] = ()) -> None:
        self._torch, self._ignored = torch, {id(each): each for each in ignored}
        self.iterators: list[str] = []  # names of iterators, whose positions cannot be restored
        named = [(type(module).__name__, module), *((f"argument {place}", each) for place, each in enumerate(given))]
        self._roots = [(name, node) for name, node in named if _is_node(torch, node)]
        self._contents: list[tuple[Any, Any]] = []
        self._values = {place.name: _Value(torch, place) for place in self._walk(self._contents)}
        self._kept = {id(container) for container, _ in self._contents if container is not None}
        self._kept |= {id(place.container) for _, content in self._contents if _ is None for place, _ in content}

    def tensors(self) -> list[Any]:
        """Return the tensors among the values."""
        return [each.value for each in self._values.values() if isinstance(each.value, self._torch.Tensor)]

    def changed(self) -> dict[str, Place]:
        """Return the places, by name, whose value was added, replaced or changed since the snapshot."""
        found = {}
        for place in self._walk(None):
            known = self._values.get(place.name)
            if known is None or known.differs(place.get()):
                found[place.name] = place
        return found

    def lasts(self, place: Place) -> bool:
        """Return whether a place of an older container holds an object that was created after the snapshot."""
        known = self._values.get(place.name)
        return id(place.container) in self._kept and (known is None or place.get() is not known.value)

    def restore(self) -> None:
        """Restore all containers and values."""
        for container, content in self._contents:
            _put_back(container, content)
        for value in self._values.values():
            value.restore()

    def restore_values(self, names: Iterable[str]) -> None:
        """Restore only the values with these names, and delete those that were added."""
        wanted = set(names)
        places = [place for place in self._walk(None) if place.name in wanted]
        for place in reversed(places):  # the last item of a list first
            known = self._values.get(place.name)
            if known is not None:
                place.set(known.value)
                known.restore()
            elif isinstance(place.container, dict | list | deque):
                del place.container[place.key]

    def _walk(self, contents: list[tuple[Any, Any]] | None) -> Iterator[Place]:
        seen = set(self._ignored)
        waiting: deque[tuple[str, Any]] = deque(self._roots)
        count = 0
        while waiting and count < _MOST_VALUES:
            name, node = waiting.popleft()
            if id(node) in seen:
                continue
            seen.add(id(node))
            for place in _places(self._torch, name, node, contents):
                try:
                    value = place.get()
                except LookupError:
                    continue
                count += 1
                if _is_value(self._torch, value):
                    if id(value) not in self._ignored:
                        yield place
                elif _is_node(self._torch, value):
                    waiting.append((place.name, value))
                elif contents is not None and isinstance(value, Iterator) and not isinstance(value, io.IOBase):
                    self.iterators.append(place.name)


class _Value:
    """One value of a snapshot, with a copy if the value can be changed in place."""

    def __init__(self, torch: Any, place: Place) -> None:
        self._torch, self.value = torch, place.get()
        self._copy = copy_value(torch, self.value)

    def differs(self, now: Any) -> bool:
        """Return whether the current value is another object or has another content."""
        if isinstance(self.value, self._torch.Tensor):
            # The version counter is no help: operators that update statistics do not raise it.
            return now is not self.value or not _equal(self._torch, now, self._copy)
        if type(now) is not type(self.value):
            return True
        return values_differ(self._copy, copy_value(self._torch, now))

    def restore(self) -> None:
        """Restore the content of the value in place."""
        value = self.value
        if isinstance(value, self._torch.Tensor):
            if self._copy is not None and self.differs(value):
                with self._torch.no_grad():
                    value.data.copy_(self._copy)
        elif isinstance(value, self._torch.Generator):
            value.set_state(self._copy)
        elif isinstance(value, random.Random):
            value.setstate(self._copy)
        elif _is_of_numpy(value, "Generator"):
            value.bit_generator.state = pickle.loads(self._copy)
        elif _is_of_numpy(value, "RandomState"):
            value.set_state(pickle.loads(self._copy))
        elif _is_of_numpy(value, "ndarray"):
            value[...] = self._copy
        elif isinstance(value, set):
            value.clear()
            value.update(self._copy)


def copy_value(torch: Any, value: Any) -> Any:
    """Return a copy of a value that can change in place, the state of a generator, or the value itself."""
    if isinstance(value, torch.Tensor):
        return None if hasattr(value, "_local_tensor") else value.detach().clone()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if _is_of_numpy(value, "Generator", "RandomState"):
        state = value.get_state() if hasattr(value, "get_state") else value.bit_generator.state
        return pickle.dumps(state)  # bytes, because a state may contain arrays, which `!=` cannot compare
    if _is_of_numpy(value, "ndarray"):
        return value.copy()
    return set(value) if isinstance(value, set) else value


def values_differ(one: Any, other: Any, near: float = 0.0) -> bool:
    """Return whether two values other than tensors differ.

    Args:
        one: A Python value or a NumPy array.
        other: The value to compare.
        near: The allowed relative difference of floats.
    """
    if hasattr(one, "shape") or hasattr(other, "shape"):
        return getattr(one, "shape", None) != getattr(other, "shape", None) or not _arrays_equal(one, other, near)
    if isinstance(one, float) and isinstance(other, float) and abs(one - other) <= near * abs(one):
        return False
    both_nan = isinstance(one, float) and isinstance(other, float) and isnan(one) and isnan(other)
    return bool(one != other) and not both_nan


def _arrays_equal(one: Any, other: Any, near: float) -> bool:
    if near and getattr(one, "dtype", None) is not None and one.dtype.kind == "f":
        return bool((abs(one - other) <= near * abs(one)).all())
    return bool((one == other).all())


def _equal(torch: Any, one: Any, other: Any) -> bool:
    if other is None or one.shape != other.shape:
        return other is None
    one = one.detach()
    return bool(torch.equal(one, other)) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def _get(container: Any, key: Any) -> Any:
    if isinstance(container, types.CellType):
        try:
            return container.cell_contents
        except ValueError as error:
            raise LookupError(key) from error
    return vars(container)[key] if isinstance(container, type) else container[key]


def _put_back(container: Any, content: Any) -> None:
    if isinstance(container, dict):
        if len(container) != len(content) or any(container.get(key, content) is not content[key] for key in content):
            of_fsdp = {key: container[key] for key in _OF_FSDP if key in container}
            container.clear()
            container.update({**content, **of_fsdp})
    elif isinstance(container, list | deque):
        container.clear()
        container.extend(content)
    else:  # places in a cell, a class, or globals
        for place, value in content:
            if place.get() is not value:
                place.set(value)


def _places(torch: Any, name: str, node: Any, contents: list[tuple[Any, Any]] | None) -> list[Place]:
    """Return the places in one object; append its content to `contents`, if that is a list, for `restore`."""
    if isinstance(node, dict):
        return _of_dict(name, node, contents, lambda key: f"{name}[{key!r}]")
    if isinstance(node, list | deque | tuple):
        if contents is not None and not isinstance(node, tuple):
            contents.append((node, list(node)))
        return [Place(f"{name}[{key}]", node, key, key - len(node)) for key in range(len(node))]
    if isinstance(node, torch.nn.Module):
        return [*_of_module(torch, name, node, contents), *_of_class(type(node), contents)]
    return _of_callable(name, node, contents)


def _of_callable(name: str, node: Any, contents: list[tuple[Any, Any]] | None) -> list[Place]:
    """Return the places in a function, a class, or another object."""
    if isinstance(node, functools.partial):
        inner = {"func": node.func, "args": node.args, "keywords": node.keywords}
        return [Place(name, inner, key) for key in inner]
    if isinstance(node, types.MethodType):
        inner = {"self": node.__self__, "function": node.__func__}
        return [Place(name if key == "function" else f"{name}.self", inner, key) for key in inner]
    if isinstance(node, types.FunctionType):
        return _of_function(name, node, contents)
    if isinstance(node, type):
        return _of_class(node, contents)
    return [*_of_dict(name, vars(node), contents, lambda key: f"{name}.{key}"), *_of_class(type(node), contents)]


def _of_dict(name: str, node: Any, contents: list[tuple[Any, Any]] | None, label: Any) -> list[Place]:
    if contents is not None:
        contents.append((node, dict(node)))
    return [Place(label(key), node, key) for key in list(node)]


def _of_module(torch: Any, name: str, module: Any, contents: list[tuple[Any, Any]] | None) -> list[Place]:
    if isinstance(module, torch.jit.ScriptModule):
        return [Place(f"{name}.{key}", {key: value}, key) for key, value in module.named_buffers()]
    found = []
    for place in _of_dict(name, vars(module), contents, lambda key: f"{name}.{key}"):
        if place.key == "_parameters" and shards.is_part(module):
            continue  # FSDP2 swaps gathered and sharded weights here
        if place.key in ("_parameters", "_buffers", "_modules") and isinstance(place.get(), dict):
            found += _of_dict(name, place.get(), contents, lambda key: f"{name}.{key}")
        elif place.key not in (*_OF_TORCH, *_OF_FSDP):
            found.append(place)
    return found


def _of_class(kind: type, contents: list[tuple[Any, Any]] | None) -> list[Place]:
    found: list[Place] = []
    for owner in kind.__mro__:
        if is_own(owner):
            keys = [key for key in vars(owner) if not key.startswith("__")]
            found += [Place(f"{owner.__name__}.{key}", owner, key) for key in keys]
    return _noted(found, contents)


def _of_function(name: str, function: Any, contents: list[tuple[Any, Any]] | None) -> list[Place]:
    if not is_own_file(function.__code__.co_filename):
        return []
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    places = [Place(key, cell, key) for key, cell in cells]
    known = function.__globals__
    places += [Place(key, known, key) for key in _names(function.__code__) if key in known]
    return _noted(places, contents)


def _noted(places: list[Place], contents: list[tuple[Any, Any]] | None) -> list[Place]:
    if contents is not None:
        for place in places:
            try:
                contents.append((None, [(place, place.get())]))
            except LookupError:
                continue
    return places


def _names(code: Any) -> list[str]:
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return [*code.co_names, *(name for each in inner for name in _names(each))]


def _is_value(torch: Any, value: Any) -> bool:
    if type(value) is Later:
        return False
    kinds = (*_PLAIN, torch.Tensor, torch.Generator, random.Random, set)
    return isinstance(value, kinds) or _is_of_numpy(value, "Generator", "RandomState", "ndarray", "generic")


def _is_of_numpy(value: Any, *kinds: str) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    return any(isinstance(value, getattr(numpy, kind, None) or getattr(numpy.random, kind)) for kind in kinds)


def _is_node(torch: Any, value: Any) -> bool:
    if isinstance(value, torch.nn.Module | dict | list | tuple | deque | functools.partial | types.MethodType):
        return True
    if isinstance(value, types.FunctionType):
        return is_own_file(value.__code__.co_filename)
    if isinstance(value, type):
        return is_own(value)
    if isinstance(value, torch.utils.data.Dataset | torch.utils.data.DataLoader | torch.optim.Optimizer):
        return False
    kind: Any = type(value)
    return hasattr(value, "__dict__") and (is_own(kind) or f"{kind.__module__}.{kind.__name__}" in _NAMESPACES)


def is_own(kind: type) -> bool:
    """Return whether a class is defined in the program's own source files.

    The result is not cached: a cache would keep the class, and through its methods all variables of the program, alive
    until Python has ended, so that files of the program would stay unwritten.
    """
    if kind.__module__ == "__main__":
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and is_own_file(file)
