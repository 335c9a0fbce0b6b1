"""Detects side effects of reading a sample: samples that depend on the samples that were read before.

Examples are a dataset that reads the next line of a file, counts its calls, or mixes a sample with the previous one. A
rank reads only its rows of a batch, so it would get other samples than one process. Two checks detect this while the
first two batches are read whole:

- `reachable_state` lists the values that a dataset can reach, and `changed_names` compares two of these lists. The
  entries of long lists and dictionaries are compared by identity. New keys of a dictionary and replaced Nones in a
  list do not count, because a cache changes in this way.
- `reread` reads one sample again after other samples. It detects a state in an object of a library, such as a database.
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
from paceline.train.ranks.agreement import bytes_of
from paceline.train.unmodified import draws
from paceline.train.unmodified.reading.datasets import variables_of, variables_of_class
from paceline.train.unmodified.snapshot import is_own
from paceline.train.unmodified.state import is_own_file

RANDOM_GENERATOR = "its random generator"  # the name under which a state holds all generators of a dataset
CHECKED_BATCHES = 2  # the number of first batches of a loader that are checked

_PLAIN = (bool, int, float, complex, str, bytes)
_MOST_ENTRIES = 200_000  # entries of a longer container are not compared
_MOST_ITEMS = 64  # a longer container holds samples, and its entries are not searched
_MOST_BYTES = 1 << 20  # a larger tensor or array holds samples, and is not compared
_MOST_DEPTH = 6
_FROM_BATCH, _FROM_DATASET = 2, 6  # numbers of samples that `reread` reads between two readings of one sample
_SECOND_TIME = 2  # the number of samples that it reads before the last reading
_DEFAULTS = ("__defaults__", "__kwdefaults__")  # attributes with the default arguments of a function

# A state maps a name to the kind of a value and to what is compared of it: the value or a digest, the identity of an
# object, or the identities of the entries of a container.
_Kind = Literal["value", "none", "object", "list", "dict"]
State = Mapping[str, tuple[_Kind, Any]]


def reachable_state(torch: Any, dataset: Any) -> State:
    """Return the values that a dataset can reach and that reading a sample could change, by name.

    These are attributes, entries of lists and dictionaries, small tensors and arrays, positions in open files, states
    of random generators, and environment variables. Variables of the program that the methods of the dataset use are
    included.

    Args:
        torch: The torch module.
        dataset: The dataset. Datasets inside it, such as that of a `Subset`, are included.
    """
    found = dict(_values(torch, type(dataset).__name__, dataset, 0, set()))
    found |= {f"the environment variable {name}": ("value", value) for name, value in os.environ.items()}
    return {**found, RANDOM_GENERATOR: ("value", repr(states_of(own_generators(dataset))))}


def changed_names(before: State, after: State, *, is_first: bool) -> list[str]:
    """Return the names of the values that differ between two states of a dataset.

    Args:
        before: The state before a batch.
        after: The state after the batch.
        is_first: Whether the batch is the first one of the loader. Values that are set for the first time then do not
            count, such as a file that is opened or a mean that is computed once.
    """
    # Entries that were removed from a container do not count: a cache removes entries too.
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
    elif isinstance(value, Iterator):  # its position cannot be read, so it always counts as changed
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
    """Return the keys of a container with the identities of its entries. Entries of a short one are listed apart."""
    if len(value) > _MOST_ENTRIES:
        return "object", id(value)
    is_short = len(value) <= _MOST_ITEMS
    if isinstance(value, set):
        return "list", {id(each): 0 for each in value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    identities = {key: 0 if is_short else id(each) for key, each in items}
    return "dict" if isinstance(value, dict) else "list", identities


def _inside(torch: Any, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each object that a value references and that reading a sample could change.

    These are the attributes of objects and classes, the arguments of a `functools.partial`, the attributes and default
    arguments of a function, the function inside an `lru_cache`, and the variables that code of the program uses.
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
            yield from ((f"{name} ({key})", getattr(value, key)) for key in _DEFAULTS)
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


def reread(torch: Any, dataset: Any, index: Sequence[Any]) -> Literal["equal", "depends", "random"]:
    """Read the first sample of a batch three times, with other samples between, and compare the results.

    The random states of torch, NumPy and Python are the same for each reading, and are restored at the end. If the
    dataset has a state, this function changes the state.

    Args:
        torch: The torch module.
        dataset: The dataset.
        index: The indices of the batch.

    Returns:
        "equal" if all results are equal, "depends" if the sample depends on the samples that were read before, and
        "random" if two readings in a row differ too.
    """
    before = draws.state(torch)

    def read(number: Any) -> list[Any] | None:
        draws.set_state(torch, before)
        try:
            return [_content(torch, leaf) for leaf in torch.utils._pytree.tree_leaves(dataset[number])]
        except Exception:  # the sampler may exclude a sample that cannot be read
            return None

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            expected, others = read(index[0]), _samples_between(dataset, index)
            for between in (others, others[:_SECOND_TIME]):  # one result may be equal by chance
                for number in between:
                    read(number)
                if read(index[0]) != expected:
                    return "depends" if read(index[0]) == read(index[0]) else "random"
            return "equal"
    finally:
        draws.set_state(torch, before)


def _samples_between(dataset: Any, index: Sequence[Any]) -> list[Any]:
    """Return the indices of some samples of a batch, and of samples at equal distances in the dataset."""
    found = list(index[1 : 1 + _FROM_BATCH])
    if all(isinstance(number, int) for number in index) and hasattr(dataset, "__len__"):
        length = len(dataset)
        found += [(index[0] + step * length // (_FROM_DATASET + 1)) % length for step in range(1, _FROM_DATASET + 1)]
    return found


def _content(torch: Any, leaf: Any) -> Any:
    """Return the content of a leaf of a sample in a comparable form; None for types without one."""
    if isinstance(leaf, torch.Tensor):
        plain = leaf.layout is torch.strided and not leaf.is_quantized
        return leaf.shape, bytes_of(leaf).cpu().numpy().tobytes() if plain else None
    if hasattr(leaf, "tobytes"):
        return leaf.tobytes()
    return repr(leaf) if isinstance(leaf, _PLAIN) else None
