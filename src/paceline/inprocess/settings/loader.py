"""[loader]: change the number of workers and the prefetching, use threads instead of processes, or cache samples.

The loader keeps its class, its sampler and its order. A change that would change the samples is not applied, and the
reason is recorded. Examples: a stream that several workers would each read completely, or a cache for a dataset that
loads several samples per call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.settings import confirmation, dataset_changes, evaluation_loaders, loader_draws, pin_memory
from paceline.inprocess.settings.streams import Watched

_OF_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")
_WHEN = ("num_workers", "persistent_workers")
_OF_LOADER = ("batch_size", "num_workers", "prefetch_factor", "persistent_workers", "pin_memory")


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Change every loader that the program creates from now on."""
    from torch.utils.data import DataLoader

    wanted = {key: settings[key] for key in _OF_LOADER if key in settings}
    if wanted.get("pin_memory"):
        del wanted["pin_memory"]  # not an argument: pinning is decided at the start of each iteration
        pin_memory.patch(torch)
    if "threads" in settings:
        from paceline.inprocess.settings import threads

        wanted["num_workers"] = 0
        threads.patch(torch, settings["threads"])
    if settings.get("cache"):
        from paceline.inprocess.settings import cache

        cache.patch(torch)
    loader_draws.patch(torch)
    dataset_changes.patch(torch)
    evaluation_loaders.patch(torch, settings.get("evaluation_workers"))
    if settings.get("device_prefetch"):
        from paceline.inprocess.settings import device_prefetch

        device_prefetch.patch(torch)
    _patch_init(torch, DataLoader, wanted, int(settings.get("threads") or 0))


def _patch_init(torch: Any, loader_class: Any, wanted: Mapping[str, Any], threads: int) -> None:
    original = loader_class.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        asked = keeps = False
        before = now = None
        given_before: dict[str, Any] = {}
        try:
            bound = signature.bind(self, *args, **kwargs)
            if torch.utils.data.get_worker_info() is None:
                given = bool(bound.arguments.get("persistent_workers"))
                asked = loader_draws.asked_at_first(bound.arguments.get("dataset"), given)
                before = dataset_changes.reads(_workers(bound.arguments), asked)
                given_before = dict(bound.arguments)
                change(torch, bound.arguments, wanted)
                keeps = bool(bound.arguments.get("persistent_workers"))
                now = dataset_changes.reads(_workers(bound.arguments), keeps, threads)
            args, kwargs = bound.args[1:], bound.kwargs
        except TypeError:
            pass  # the program's own error, which torch reports
        original(self, *args, **kwargs)
        loader_draws.follow(self, asked=asked, keeps=keeps)
        if before is not None and now is not None:
            evaluation_loaders.follow(self, given_before)
            dataset_changes.follow(self, before, now, _key(wanted, threads))

    hooks.install(loader_class, "__init__", __init__)


def _workers(arguments: Mapping[str, Any]) -> int:
    return int(arguments.get("num_workers") or 0)


def _key(wanted: Mapping[str, Any], threads: int) -> str:
    """Return the key of the setting that alters the time at which a loader reads its dataset."""
    return "loader.threads" if threads else f"loader.{next(k for k in _WHEN if k in wanted or k == _WHEN[-1])}"


def change(torch: Any, arguments: dict[str, Any], wanted: Mapping[str, Any]) -> None:
    """Change the arguments of one loader in place, and record the applied settings."""
    before = _workers(arguments)
    workers = wanted.get("num_workers", before)
    streams = isinstance(arguments.get("dataset"), torch.utils.data.IterableDataset)
    if streams and workers != before:
        if (before, workers) != (0, 1):
            confirmation.refused(
                "loader.num_workers", "the dataset is an IterableDataset, and each worker might read all of it"
            )
            return
        arguments["worker_init_fn"] = Watched(arguments.get("worker_init_fn"))
    if "batch_size" in wanted:
        _resize(torch, arguments, wanted["batch_size"])
    arguments["num_workers"] = workers
    confirmation.took("loader.num_workers", f"{workers} workers instead of {before}")
    for key in ("prefetch_factor", "persistent_workers", "pin_memory"):
        if key in wanted and (workers or key == "pin_memory"):
            confirmation.took(f"loader.{key}", f"{key}={wanted[key]} instead of {arguments.get(key)}")
            arguments[key] = wanted[key]
    if not workers:
        for key in _OF_WORKERS:
            arguments.pop(key, None)


def _resize(torch: Any, arguments: dict[str, Any], size: int) -> None:
    """Change the batch size of a training loader: one that shuffles, or has a sampler that is not sequential."""
    sampler = arguments.get("sampler")
    in_order = isinstance(sampler, torch.utils.data.SequentialSampler) or getattr(sampler, "shuffle", None) is False
    if arguments.get("batch_sampler") is not None or not (arguments.get("shuffle") or (sampler and not in_order)):
        confirmation.refused(
            "loader.batch_size", "no loader shuffles, so it is unknown which loader supplies the training data"
        )
        return
    confirmation.took("loader.batch_size", f"batches of {size} instead of {arguments.get('batch_size', 1)}")
    arguments["batch_size"] = size
