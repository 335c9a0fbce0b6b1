"""Finds out whether reading a sample changes a dataset.

A rank reads only its rows of a batch. A dataset that reads the next line of a file, counts its calls, mixes a sample
with the one before, or draws from its own generator would then give other samples than in one process. Two checks
notice this while the first two batches are read whole:

- `state_of` lists the values that a dataset can reach; `changes` compares the lists before and after a batch.
- `read_again` reads a sample again after other samples, because a dataset can also keep a state where `state_of` does
  not look, such as in an object of a library.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import types
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from paceline.data.batches.own_generators import own_generators, states_of
from paceline.train.tensor_bytes import bytes_of
from paceline.train.unmodified import draws
from paceline.train.unmodified.reading.datasets import variables_of, variables_of_class
from paceline.train.unmodified.snapshot import is_own
from paceline.train.unmodified.state import is_own_file

RANDOM_GENERATOR = "its random generator"  # the name of all generators of a dataset in its state
FIRST_BATCHES = 2  # that are read whole, and show whether reading changes the dataset

_PLAIN = (bool, int, float, complex, str, bytes)
_MOST_ENTRIES = 200_000  # of a list or a dict whose entries are compared
_MOST_ITEMS = 64  # of a list or a dict whose entries are searched; longer ones hold samples
_MOST_BYTES = 1 << 20  # of a tensor or an array; larger ones hold samples
_MOST_DEPTH = 6
_OTHERS, _SPREAD = 2, 6  # samples of the batch, and of the whole dataset, that are read before one is read again
_FEW = 2  # of them are read before the sample is read once more
_OF_FUNCTIONS = ("__defaults__", "__kwdefaults__")  # where a function can keep a state, besides its attributes

# What a state holds of a value: its kind, and what is compared. The entries of a list or a dict are compared by
# identity. A dict that gets new keys is a cache, and so is a list in which None is replaced.
_Kind = Literal["value", "none", "object", "list", "dict"]
State = Mapping[str, tuple[_Kind, Any]]


def state_of(torch: Any, dataset: Any) -> State:
    """Return what reading a sample can change in a dataset, by name.

    These are attributes, entries of lists and dictionaries, small tensors and arrays, positions in open files, and the
    states of generators; also in variables outside of the dataset that its methods use, directly or in functions of the
    program, and environment variables.

    Args:
        torch: The torch module.
        dataset: The dataset; those inside of it, as of a `Subset`, are included.
    """
    found = dict(_values(torch, type(dataset).__name__, dataset, 0, set()))
    found |= {f"the environment variable {name}": ("value", value) for name, value in os.environ.items()}
    return {**found, RANDOM_GENERATOR: ("value", repr(states_of(own_generators(dataset))))}


def changes(before: State, after: State, *, is_first: bool) -> list[str]:
    """Return the names of what has changed between two states of a dataset.

    Args:
        before: The state before a batch.
        after: The state after the batch.
        is_first: Whether the batch is the first one. What is set for the first time then does not count, such as an
            open file or a mean that is computed once.
    """
    # An entry that has left a dict is no change, as caches forget entries; a shorter list is one.
    kept = {name: held for name, held in before.items() if name in after or not name.endswith("]")}
    found = [name for name, held in kept.items() if _differs(held, after.get(name), is_first=is_first)]
    return found if is_first else [*found, *(name for name in after if _is_new_attribute(name, before))]


def _differs(before: tuple[_Kind, Any], after: tuple[_Kind, Any] | None, *, is_first: bool) -> bool:
    kind, held = before
    if kind == "value":
        return before != after
    if kind in ("list", "dict") and after is not None and after[0] == kind:
        now = after[1]
        is_longer = kind == "list" and len(now) != len(held)
        return is_longer or any(now.get(key, value) != value for key, value in held.items() if value != id(None))
    return not is_first and before != after


def _is_new_attribute(name: str, before: State) -> bool:
    if name in before or name.endswith("]"):
        return False
    return before.get(name.rpartition(".")[0], ("none", None))[0] == "object"


def _values(torch: Any, name: str, value: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, tuple[_Kind, Any]]]:
    if value is None or isinstance(value, _PLAIN):  # not in `seen`: equal numbers are often one object
        yield name, ("none" if value is None else "value", value)
        return
    if depth > _MOST_DEPTH or id(value) in seen:
        return
    seen.add(id(value))
    kind: Any = type(value)
    if isinstance(value, torch.Tensor) or (kind.__module__ == "numpy" and hasattr(value, "nbytes")):
        yield name, ("value", _digest(torch, value)) if value.nbytes <= _MOST_BYTES else ("object", id(value))
    elif isinstance(value, io.IOBase):
        yield f"the position in the file {name}", ("value", _position(value))
    elif isinstance(value, Iterator):  # its position is not visible: reading may move it
        yield f"the position of the iterator {name}", ("value", object())
    elif isinstance(value, list | tuple | dict | deque | set):
        yield name, _entries(value)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in list(items) if len(value) <= _MOST_ITEMS else ():
            if each is not None:
                yield from _values(torch, f"{name}[{key!r}]", each, depth + 1, seen)
    else:
        yield name, ("object", id(value))
        for key, each in _inside(torch, name, value):
            yield from _values(torch, key, each, depth + 1, seen)


def _entries(value: Any) -> tuple[_Kind, Any]:
    """Return what is compared of a container: the identity of each entry, or of a long container its own identity."""
    if len(value) > _MOST_ENTRIES:
        return "object", id(value)
    if isinstance(value, dict):
        return "dict", {key: id(each) for key, each in value.items()}
    return "list", {id(each): 0 for each in value} if isinstance(value, set) else dict(enumerate(map(id, value)))


def _inside(torch: Any, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of what a value refers to and what reading a sample can change.

    These are attributes and class attributes, the arguments of a partial, the defaults and attributes of a function,
    the function inside of a cache, and the variables that the code of the program uses.
    """
    kind: Any = type(value)
    used: Iterator[tuple[str, Any]] = iter(())
    if isinstance(value, functools.partial):
        yield from ((f"{name} ({key})", getattr(value, key)) for key in ("func", "args", "keywords"))
    elif isinstance(value, type):
        own = vars(value).items() if is_own(value) else ()
        yield from ((f"{name}.{key}", each) for key, each in list(own) if not key.startswith("__"))
    elif isinstance(value, types.MethodType):
        yield f"{name}.__self__", value.__self__
        yield f"{name}.__func__", value.__func__
    elif isinstance(value, types.FunctionType):
        if is_own_file(value.__code__.co_filename):
            yield from ((f"{name} ({key})", getattr(value, key)) for key in _OF_FUNCTIONS)
            yield from ((f"{name}.{key}", each) for key, each in list(vars(value).items()))
            used = variables_of(value)
    elif isinstance(value, functools._lru_cache_wrapper):
        yield name, value.__wrapped__
    elif isinstance(value, torch.utils.data.Dataset) or is_own(kind):
        yield from ((f"{name}.{key}", each) for key, each in list(getattr(value, "__dict__", {}).items()))
        slots = [vars(each).get("__slots__", ()) for each in kind.__mro__]
        keys = [key for given in slots for key in ((given,) if isinstance(given, str) else given)]
        yield from ((f"{name}.{key}", getattr(value, key)) for key in keys if hasattr(value, key))
        used = variables_of_class(kind)
    yield from ((f"the variable {key}", each) for key, each in used)


def _digest(torch: Any, value: Any) -> int:
    array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
    return zlib.crc32(repr(array.tolist()).encode())


def _position(file: io.IOBase) -> int | None:
    try:
        return None if file.closed else file.tell()
    except (OSError, ValueError):  # a pipe, or a text file that is being iterated over
        return None


def read_again(torch: Any, dataset: Any, index: Sequence[Any]) -> Literal["same", "other", "random"]:
    """Read the first sample of a batch twice more, after others; the global random numbers are replayed.

    Args:
        torch: The torch module.
        dataset: The dataset, which this changes if it has a state.
        index: The indices of the batch.

    Returns:
        "same" if the sample was the same; "other" if it depends on the samples before it; "random" if it is another
        sample at each reading.
    """
    before = draws.state(torch)

    def read(number: Any) -> list[Any] | None:
        draws.set_state(torch, before)
        try:
            return [_content(torch, leaf) for leaf in torch.utils._pytree.tree_leaves(dataset[number])]
        except Exception:  # such as a sample that no sampler draws, or one that was used up
            return None

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            expected, others = read(index[0]), _others(dataset, index)
            for few in (others, others[:_FEW]):  # after few samples, a state may be the same by chance
                for number in few:
                    read(number)
                if read(index[0]) != expected:
                    break
            else:
                return "same"
            return "other" if read(index[0]) == read(index[0]) else "random"
    finally:
        draws.set_state(torch, before)


def _others(dataset: Any, index: Sequence[Any]) -> list[Any]:
    """Return the numbers of some samples of the batch, and of some that are spread over the dataset."""
    found = list(index[1 : 1 + _OTHERS])
    if all(isinstance(number, int) for number in index) and hasattr(dataset, "__len__"):
        length = len(dataset)
        found += [(index[0] + step * length // (_SPREAD + 1)) % length for step in range(1, _SPREAD + 1)]
    return found


def _content(torch: Any, leaf: Any) -> Any:
    """Return what is compared of a part of a sample; None for what `default_collate` does not put into batches."""
    if isinstance(leaf, torch.Tensor):
        plain = leaf.layout is torch.strided and not leaf.is_quantized
        return leaf.shape, bytes_of(leaf).cpu().numpy().tobytes() if plain else None
    if hasattr(leaf, "tobytes"):
        return leaf.tobytes()
    return repr(leaf) if isinstance(leaf, _PLAIN) else None
