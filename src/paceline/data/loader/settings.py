"""The settings of a loader, their checks, and the limits of its threads, readers and ready batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from paceline.core.errors import UsageError, whole_number
from paceline.data.loader.tuning import Bounds, Pace
from paceline.data.order.order import LANES, WINDOW, shuffle_of
from paceline.data.order.position import Position
from paceline.data.order.ranks import Share, rank_and_world
from paceline.data.order.slices import Ends, Slice

_MOST_READERS, _MOST_READY = 32, 32
_OF = {"ends": ("even", "drop", "pad"), "on_error": ("raise", "skip"), "image_mode": (None, "L", "RGB", "RGBA")}
_OF_TORCH = {
    "num_workers": "threads= or processes=; without them, the number is tuned",
    "pin_memory": "device=, which copies from pinned memory",
    "drop_last": 'ends="drop"',
    "prefetch_factor": "prefetch=; without it, the number is tuned",
    "persistent_workers": "nothing, since its threads are kept",
    "sampler": "shuffle= and window=",
    "batch_sampler": "batch_size= and shuffle=",
    "generator": "seed=",
    "worker_init_fn": "seed=, which seeds each sample",
}
_LEAST = {
    "seed": 0,
    "max_tokens": 1,
    "window": 1,
    "lanes": 1,
    "threads": 0,
    "processes": 0,
    "readers": 0,
    "prefetch": 0,
    "memory_bytes": 1,
}
_BEGIN = Pace(threads=2, readers=4, ready=2)  # the default


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a loader. Settings from `threads` on do not change the samples or their order.

    For `threads`, `readers` and `prefetch`, None means that the number is tuned by measurement.
    """

    seed: int = 0  # the seed of the order and of crops, the same on all ranks
    window: int | None = None  # blocks whose samples are shuffled together; None: 32, of a `FileDataset` 8 groups
    # An incomplete last step: "even" splits it evenly (fewer samples than ranks are left out), "drop" leaves it out,
    # "pad" fills it from the start of the epoch.
    ends: Ends = "even"
    max_tokens: int | None = None  # of a batch of samples of similar length, with padding; replaces `batch_size`
    length: Any = None  # the lengths of samples: a column of whole numbers, an array, or a function of a sample
    columns: Sequence[str] | None = None  # the columns of shards or files that are read; None: all
    image_mode: Literal["L", "RGB", "RGBA"] | None = None  # the mode of 8-bit images; None: one without loss for all
    rank: int | None = None  # None: from torch.distributed or the launcher's variables
    world: int | None = None  # the number of ranks; None: as for `rank`
    lanes: int = LANES  # of the order; ranks read separate blocks if their number divides it
    batch_transform: Callable[[Any, Any], Any] | None = None  # gets a batch and its own torch.Generator
    threads: int | None = None  # that make batches; 0: none. Samples that draw random numbers get processes
    processes: int | None = None  # replace threads for samples of the user's code; None: only if needed
    readers: int | None = None  # threads that read blocks ahead
    prefetch: int | None = None  # batches that may wait, besides those being made
    memory_bytes: int | None = None  # for blocks and batches; None: 1/16 of the host's memory, at least 512 MiB
    decoded_cache: str | None = None  # the cache of decoded images: "ram" or a folder; None: no cache
    decoded_cache_bytes: int | None = None  # its limit; None: 40% of the free bytes
    device: Any = None  # the device of batches, for `torch.device`; None: host memory
    exact: bool = False  # decode bit for bit as PIL; CMYK images within two levels
    on_error: Literal["raise", "skip"] = "raise"  # for bad samples: end the loop, or replace them


def chosen(settings: Mapping[str, Any]) -> Settings:
    """Return the settings with the given values, and the defaults for the rest.

    Raises:
        UsageError: A name or a value is not allowed.
    """
    known = [one.name for one in fields(Settings)]
    wrong = [name for name in settings if name not in known]
    if wrong:
        here = "".join(f"; instead of {name}= it has {_OF_TORCH[name]}" for name in wrong if name in _OF_TORCH)
        raise UsageError(f"a loader has no setting {', '.join(wrong)}{here}; its settings are {', '.join(known)}")
    found = Settings(**settings)
    for name, least in _LEAST.items():
        if getattr(found, name) is not None or getattr(Settings, name) is not None:
            whole_number(name, getattr(found, name), least)
    for name, allowed in _OF.items():
        if getattr(found, name) not in allowed:
            raise UsageError(f"{name} is {getattr(found, name)!r}; allowed: {', '.join(map(repr, allowed))}")
    return found


def slice_of(own: Settings, batch_size: int) -> Slice:
    """Return this rank's slice of each step, from the settings, else from torch.distributed or the launcher.

    Raises:
        UsageError: The rank is not below the number of ranks, or the batch size is not 1 or more.
    """
    rank, world = rank_and_world()
    rank, world = rank if own.rank is None else own.rank, world if own.world is None else own.world
    if not 0 <= rank < world:
        raise UsageError(f"rank is {rank}, and world is {world}; ranks go from 0 to {world - 1}")
    return Slice(rank=rank, world=world, batch=whole_number("batch_size", batch_size, 1), ends=own.ends)


def first_position(own: Settings, samples: int, dataset: str, *, shuffle: bool, window: int | None = None) -> Position:
    """Return the position at the start of the first epoch.

    Args:
        own: The settings.
        samples: The number of samples in the dataset.
        dataset: A digest of the dataset.
        shuffle: Whether samples are shuffled.
        window: The default for blocks that are shuffled together; None for that of shards.
    """
    mixed = shuffle_of(own.seed, own.window or window or WINDOW, own.lanes)
    return Position(
        seed=own.seed,
        epoch=0,
        consumed=0,
        samples=samples,
        window=mixed.window,
        lanes=mixed.lanes,
        shuffle=shuffle,
        dataset=dataset,
    )


def bounds_of(own: Settings, share: Share, *, alone: bool) -> Bounds:
    """Return the limits of a loader's threads, readers and ready batches.

    Args:
        own: The settings.
        share: The resources of this rank.
        alone: Whether the default is no threads, because batches are cheap.
    """
    free = 0 if alone else share.cores
    most = Pace(
        threads=free if own.threads is None else own.threads,
        readers=_MOST_READERS if own.readers is None else own.readers,
        ready=_MOST_READY if own.prefetch is None else own.prefetch,
    )
    least = Pace(
        threads=min(1, free) if own.threads is None else own.threads,
        readers=1 if own.readers is None else own.readers,
        ready=1 if own.prefetch is None else own.prefetch,
    )
    return Bounds(least=least, most=most)


def first_pace(bounds: Bounds) -> Pace:
    """Return the initial numbers of threads, readers and ready batches."""
    return Pace(
        threads=between(bounds.least.threads, _BEGIN.threads, bounds.most.threads),
        readers=between(bounds.least.readers, _BEGIN.readers, bounds.most.readers),
        ready=between(bounds.least.ready, _BEGIN.ready, bounds.most.ready),
    )


def within_memory(bounds: Bounds, batch_bytes: int, memory_bytes: int, held: int) -> Bounds:
    """Return limits that keep the batches made ahead within memory. The lower limits do not change.

    Args:
        bounds: The limits without regard to memory.
        batch_bytes: The bytes of a batch.
        memory_bytes: The memory for all batches.
        held: How many batches the training can hold at a time.
    """
    batches = memory_bytes // max(1, batch_bytes) - held
    threads = between(bounds.least.threads, batches - 1, bounds.most.threads)
    ready = between(bounds.least.ready, batches - max(1, threads), bounds.most.ready)
    return Bounds(least=bounds.least, most=Pace(threads=threads, readers=bounds.most.readers, ready=ready))


def between(least: int, wanted: int, most: int) -> int:
    """Return a number limited to a range."""
    return max(least, min(wanted, most))
