"""[loader]: another number of workers, other hand-over, threads instead of processes, samples kept in memory.

The loader stays the program's: its class, its sampler, its order. What would change the samples is left out and told:
a stream that workers would each read whole, a dataset that fetches many samples at a time and would not be cached.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from paceline.improve.child import held

_OF_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")
_OF_LOADER = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Change every loader that the program makes from now on."""
    from torch.utils.data import DataLoader

    wanted = {key: settings[key] for key in _OF_LOADER if key in settings}
    if wanted.get("pin_memory") and not torch.cuda.is_available():
        held.refused("loader.pin_memory", "there is no device to pin memory for")
        del wanted["pin_memory"]
    if "threads" in settings:
        from paceline.improve.child import threads

        wanted["num_workers"] = 0
        threads.patch(torch, settings["threads"])
    if settings.get("cache"):
        from paceline.improve.child import cache

        cache.patch(torch)
    if settings.get("persistent_workers"):
        _keep_random_stream(torch)
    _patch_init(torch, DataLoader, wanted)


def _patch_init(torch: Any, loader_class: Any, wanted: Mapping[str, Any]) -> None:
    original = loader_class.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
            if torch.utils.data.get_worker_info() is None:
                change(torch, bound.arguments, wanted)
            args, kwargs = bound.args[1:], bound.kwargs
        except TypeError:
            pass  # the program's own mistake: torch says what is wrong with it
        original(self, *args, **kwargs)

    loader_class.__init__ = __init__


def change(torch: Any, arguments: dict[str, Any], wanted: Mapping[str, Any]) -> None:
    """Change the arguments of one loader, in place; tell what took hold."""
    before = int(arguments.get("num_workers") or 0)
    workers = wanted.get("num_workers", before)
    streams = isinstance(arguments.get("dataset"), torch.utils.data.IterableDataset)
    if streams and workers != before:
        held.refused("loader.num_workers", "the dataset is a stream, which every worker might read whole")
        return
    arguments["num_workers"] = workers
    held.took("loader.num_workers", f"{workers} workers instead of {before}")
    for key in ("prefetch_factor", "persistent_workers", "pin_memory"):
        if key in wanted and (workers or key == "pin_memory"):
            held.took(f"loader.{key}", f"{key}={wanted[key]} instead of {arguments.get(key)}")
            arguments[key] = wanted[key]
    if not workers:
        for key in _OF_WORKERS:
            arguments.pop(key, None)


def _keep_random_stream(torch: Any) -> None:
    """Have workers that are kept draw, in each epoch, the number that new ones would: shuffling stays what it was."""
    from torch.utils.data import dataloader

    iterator = dataloader._MultiProcessingDataLoaderIter
    original = iterator._reset

    @functools.wraps(original)
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> Any:
        if not first_iter:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return original(self, loader, first_iter)

    iterator._reset = _reset
