"""Time the training thread's wait for batches, with hooks around ``iter(loader)`` and ``next(iterator)``.

``DataLoader.__iter__`` and ``_BaseDataLoaderIter.__next__`` stay ordinary methods with the same results. The iterator
keeps its type and its length.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns
from typing import Any
from weakref import ref

from paceline.inprocess import hooks
from paceline.inprocess.identity import IdentityMap
from paceline.inprocess.recorder.probe_state import FETCH, ITER, gate
from paceline.inprocess.recorder.source_instrumentation import NoSourceError, woven
from paceline.inprocess.recorder.tensors import Reader
from paceline.inprocess.wrappers import stand_in

Begun = tuple[int, int]  # loader number, CPU ns of the thread

_numbers: IdentityMap[int] = IdentityMap()  # loader -> number
_iterators: IdentityMap[int] = IdentityMap()  # iterator -> number of its loader
CPU_EVERY = 32  # CPU time is read for the first 32 fetches, then for one in 32: reading it is a system call
UNKNOWN_LOADER = 1 << 16  # number of an iterator that was not created with ``iter(loader)``
_IN_A_THREAD = 0  # used instead of a start time for an iteration in another thread
_OURS = "paceline.data.loader.loader"
_telling: dict[int, Any] = {}  # weak references to Paceline's own loaders, which report figures
described: list[dict[str, Any]] = []  # descriptions by loader number
in_threads: dict[int, int] = {}  # thread id -> number of its loader, for threads other than the training thread
epochs: list[tuple[int, int, int]] = []  # (time ns, loader number, base seed of its workers), not yet written


def patch(torch: Any) -> None:
    """Hook torch's DataLoader to time the wait for batches."""
    from torch.utils.data import dataloader

    patch_classes(torch, dataloader.DataLoader, dataloader._BaseDataLoaderIter)


def patch_classes(torch: Any, loader_class: Any, iterator_class: Any) -> None:
    """Hook a loader class and the base class of its iterators."""
    _patch_iter(loader_class)
    _patch_next(torch, iterator_class)


def number_of(loader: Any) -> int:
    """Return the loader's number. A new loader gets a number and a description."""
    number = _numbers.get(loader)
    if number is None:
        number = _numbers.set(loader, len(described))
        described.append(describe(loader))
        if type(loader).__module__ == _OURS:
            _telling[number] = ref(loader)
    return number


def told() -> list[dict[str, Any]]:
    """Return the descriptions of all loaders; those of Paceline's own loaders include the times of their stages."""
    for number, reference in list(_telling.items()):
        loader = reference()
        if loader is not None:
            described[number].update(loader.figures())
    return described


def describe(loader: Any) -> dict[str, Any]:
    """Return the description of a loader for the report, without calling user code except ``type``."""
    collate = getattr(loader, "collate_fn", None)
    return {
        "class": type(loader).__name__,
        "dataset": type(loader.dataset).__name__,
        "iterable": getattr(loader, "_dataset_kind", 0) == 1,  # _DatasetKind.Iterable
        "num_workers": loader.num_workers,
        "batch_size": loader.batch_size,
        "pin_memory": bool(getattr(loader, "pin_memory", False)),
        "persistent_workers": bool(getattr(loader, "persistent_workers", False)),
        "prefetch_factor": getattr(loader, "prefetch_factor", None),
        "drop_last": bool(getattr(loader, "drop_last", False)),
        "sampler": type(loader.sampler).__name__ if hasattr(loader, "sampler") else None,
        "collate_fn": getattr(collate, "__qualname__", type(collate).__name__),
        "start_method": getattr(getattr(loader, "multiprocessing_context", None), "_name", None),
        **({"threads": loader.threads} if getattr(loader, "threads", 0) else {}),  # Paceline's own loader
        "epochs": 0,
    }


def detail(iterator: Any, key: str, value: object) -> None:
    """Add an entry to the description of an iterator's loader. Unknown iterators are ignored."""
    number = _iterators.get(iterator)
    if number is not None:
        described[number][key] = value


def _patch_iter(loader_class: Any) -> None:
    def begin(args: Any, kwargs: Any) -> tuple[Any, int] | None:
        if get_ident() != gate.owner:
            return args[0], _IN_A_THREAD
        if gate.nested:
            return None
        if not gate.scribe_started:
            gate.start_scribe()
        begun = perf_counter_ns()
        gate.put((begun, ITER))
        return args[0], begun

    def end(begun: tuple[Any, int], iterator: Any, raised: BaseException | None) -> None:
        if begun[1] == _IN_A_THREAD:
            begun = begun[0], perf_counter_ns()
        else:
            gate.put((perf_counter_ns(), ITER + 1))
        if raised is None:
            _note_epoch(begun[0], iterator, begun[1])

    hooks.replace(loader_class, "__iter__", stand_in(loader_class.__iter__, "loader probe", begin, end))


def _note_epoch(loader: Any, iterator: Any, begun: int) -> None:
    number = number_of(loader)
    if hasattr(type(iterator), "_next_data"):  # not the generator of a subclass
        _iterators.set(iterator, number)
    described[number]["epochs"] += 1
    epochs.append((begun, number, getattr(iterator, "_base_seed", 0)))


def _patch_next(torch: Any, iterator_class: Any) -> None:
    original, end = iterator_class.__next__, _ending(torch)
    try:
        marked = woven(original, ("self",), _begin, end, torch.compiler.is_dynamo_compiling)
    except NoSourceError:
        marked = _wrapped(original, end)
    hooks.replace(iterator_class, "__next__", marked)


def _wrapped(original: Any, end: Any) -> Any:
    """Return `original` with hooks around it, for torch without source and for subclasses with their ``__next__``."""

    def outermost(args: Any, kwargs: Any) -> Begun | None:
        return None if gate.nested else _begin(args[0])

    def over(begun: Begun, batch: Any, raised: BaseException | None) -> None:
        end(begun, begun if raised is not None else batch)

    return stand_in(original, "loader probe", outermost, over)


def _begin(iterator: Any, entries: Any = _iterators.entries) -> Begun | None:
    """Record the request of a batch; return the loader number and the thread's CPU time (0 if it is not needed)."""
    if get_ident() != gate.owner:
        _begin_in_thread(entries.get(id(iterator)))
        return None
    try:
        entry = entries.get(id(iterator))
        gate.loader = number = entry[1] if entry is not None and entry[0]() is iterator else UNKNOWN_LOADER
        gate.fetches += 1
        gate.fed = gate.nested = True
        cpu = 0 if gate.fetches % CPU_EVERY and gate.fetches > CPU_EVERY else thread_time_ns()
        gate.put((perf_counter_ns(), FETCH))
        return number, cpu
    except Exception as error:
        gate.nested = False
        hooks.fault(error, "loader probe")
        return None


def _begin_in_thread(entry: Any) -> None:
    """Record the request of a batch in another thread than the training thread, such as one that fills a queue."""
    if entry is not None:
        in_threads[get_ident()] = entry[1]
        about = described[entry[1]]
        about["thread_fetches"] = about.get("thread_fetches", 0) + 1


def _ending(torch: Any) -> Callable[[Begun, Any], None]:
    size = Reader(torch).size

    def end(begun: Begun, batch: Any) -> None:
        gate.nested = False
        try:
            now = perf_counter_ns()
            if batch is begun:  # it raised, usually StopIteration
                gate.put((now, FETCH + 1, -1, None, None))
                return
            number, cpu = begun
            gate.put((now, FETCH + 1, number, size(batch), thread_time_ns() - cpu if cpu else None))
        except Exception as error:
            hooks.fault(error, "loader probe")

    return end
