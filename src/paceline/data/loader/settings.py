"""The settings of a loader: they are checked, and give the limits of its pace."""

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
    "max_tokens": 1,
    "window": 1,
    "lanes": 1,
    "threads": 0,
    "processes": 0,
    "readers": 0,
    "prefetch": 0,
    "memory_bytes": 1,
}
_BEGIN = Pace(threads=2, readers=4, ready=2)  # where nothing is said


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a loader works. Those from `threads` on change neither which samples come nor in which order.

    Of threads, readers and prefetch, None means: as many as pay, by measurement.
    """

    seed: int = 0  # of the order and of crops, the same on all ranks
    window: int | None = None  # blocks whose samples are mixed with each other; None: 32, of a FileDataset fewer
    # Of a last step that is not full: dealt out evenly (fewer samples than ranks are left out), "drop" left out, "pad"
    # filled from the beginning.
    ends: Ends = "even"
    max_tokens: int | None = None  # of a batch of samples of similar length, padding included; in place of batch_size
    length: Any = None  # of samples, in tokens: a column of whole numbers, one number each, or a function of a sample
    columns: Sequence[str] | None = None  # of shards, that samples and batches have; None: all
    image_mode: Literal["L", "RGB", "RGBA"] | None = None  # that 8-bit images get; None: what holds all without loss
    rank: int | None = None  # of this process; None: as torch.distributed, or the launcher's environment says
    world: int | None = None  # number of ranks; None: the same
    lanes: int = LANES  # parts of the order that take turns; a rank reads its own blocks if the ranks divide them
    batch_transform: Callable[[Any, Any], Any] | None = None  # of a batch and a torch.Generator that is its own
    threads: int | None = None  # that make batches; 0: none. Samples that draw random numbers get processes instead
    processes: int | None = None  # in their place, where code of the user's makes samples; None: where it needs them
    readers: int | None = None  # that read blocks ahead
    prefetch: int | None = None  # batches that may wait, beside those in the making
    memory_bytes: int | None = None  # of blocks and batches; None: a sixteenth of the memory, 512 MiB at least
    decoded_cache: str | None = None  # "ram" or a folder: where pictures are kept that were decoded; None: nowhere
    decoded_cache_bytes: int | None = None  # of that, at most; None: 40% of what is free
    device: Any = None  # where batches go, as `torch.device` takes it; None: they stay in the host's memory
    exact: bool = False  # decode as PIL does, to the bit; of four colours, to a level
    on_error: Literal["raise", "skip"] = "raise"  # what becomes of bad samples


def chosen(settings: Mapping[str, Any]) -> Settings:
    """Return settings by their names.

    Raises:
        UsageError: There is no such setting, or it cannot be that.
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
    """Return what of each step is this rank's: as was said, else as torch.distributed or the launcher says now.

    Raises:
        UsageError: There is no such rank, or the batch size is no number of samples.
    """
    rank, world = rank_and_world()
    rank, world = rank if own.rank is None else own.rank, world if own.world is None else own.world
    if not 0 <= rank < world:
        raise UsageError(f"rank is {rank}, and world is {world}; ranks go from 0 to {world - 1}")
    return Slice(rank=rank, world=world, batch=whole_number("batch_size", batch_size, 1), ends=own.ends)


def first_position(own: Settings, samples: int, dataset: str, *, shuffle: bool, window: int | None = None) -> Position:
    """Return the beginning of the first epoch.

    Args:
        own: What was said.
        samples: Of the data set.
        dataset: Its digest.
        shuffle: Whether samples are mixed.
        window: Blocks that are mixed with each other where nothing is said; None: as many as suit shards.
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
    """Return between what the pace of a loader may be.

    Args:
        own: What was said.
        share: What this rank may use.
        alone: Whether no thread is better than one where nothing is said.
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
    """Return the pace to begin with."""
    return Pace(
        threads=between(bounds.least.threads, _BEGIN.threads, bounds.most.threads),
        readers=between(bounds.least.readers, _BEGIN.readers, bounds.most.readers),
        ready=between(bounds.least.ready, _BEGIN.ready, bounds.most.ready),
    )


def within_memory(bounds: Bounds, batch_bytes: int, memory_bytes: int, held: int) -> Bounds:
    """Return bounds by which no more batches are made ahead than memory is for; what the user has set stays.

    Args:
        bounds: Without regard to memory.
        batch_bytes: Of one batch.
        memory_bytes: For all of them.
        held: Batches that the training may hold.
    """
    batches = memory_bytes // max(1, batch_bytes) - held
    threads = between(bounds.least.threads, batches - 1, bounds.most.threads)
    ready = between(bounds.least.ready, batches - max(1, threads), bounds.most.ready)
    return Bounds(least=bounds.least, most=Pace(threads=threads, readers=bounds.most.readers, ready=ready))


def between(least: int, wanted: int, most: int) -> int:
    """Return what is nearest to a number and within bounds."""
    return max(least, min(wanted, most))
