"""The loader, a replacement of torch's `DataLoader`: batches in a reproducible order, made by threads, resumable.

    loader = Loader("photos/", batch_size=64, shuffle=True, transform=RandomResizedCrop(224), seed=1)
    for images, labels in loader: ...

The state is the seed, the epoch, and the number of samples that all ranks together have consumed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any
from weakref import WeakMethod, ref

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.data.batches.batch_context import ArrayPool, BatchContext, DatasetContext, unpinned_array
from paceline.data.batches.batches import Maker
from paceline.data.batches.faults import Faults, as_runtime_error, batch_name
from paceline.data.batches.replacements import BadBatchReplacer
from paceline.data.batches.sample_seeding import transformed
from paceline.data.loader.iterator import LoaderIterator
from paceline.data.loader.lengths import check_epoch, epoch_steps_left, token_budget
from paceline.data.loader.pacer import AutoPacer
from paceline.data.loader.prefetch import made_ahead
from paceline.data.loader.processes import Rest, made_by_processes
from paceline.data.loader.report import LoaderReport, report_of
from paceline.data.loader.selection import blocks_mixed
from paceline.data.loader.settings import bounds_of, chosen, first_pace, first_position, slice_of, within_memory
from paceline.data.loader.spec import collate_of, processes_for, spec_of
from paceline.data.loader.to_device import HostDelivery, bytes_of, delivery_to, pinned_array, samples_of
from paceline.data.loader.tuning import Pace
from paceline.data.order.mixed import MixedOrder
from paceline.data.order.order import EpochOrder
from paceline.data.order.position import Position, position_of
from paceline.data.order.ranks import (
    Share,
    begin_loop,
    ranks_on_host,
    share_of_host,
    tell_missing_ranks,
)
from paceline.data.order.slices import Slice
from paceline.data.reading.blocks import BlockStore, Buffers, steps_ahead
from paceline.data.reading.crops import Crop
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.reading.stages import Lap, Spent, StageClock

Numbers = NDArray[np.int64]
_TRAINED = 3  # batches that the training may hold at a time


class Loader:
    """Loads batches of a sharded dataset, or of any map-style `Dataset`."""

    def __init__(
        self,
        data: str | os.PathLike[str] | ShardedDataset | Any,
        batch_size: int = 1,
        shuffle: bool = False,
        transform: Crop | Callable[[Mapping[str, Any]], Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **settings: Any,
    ) -> None:
        """Create a loader; no sample is read yet.

        Args:
            data: A folder that `paceline data convert` wrote or its URL in a store, a `TokenDataset`, a
                `FileDataset`, a `torch.utils.data.Subset` of these, a `Mix`, or any `Dataset` with `__len__` and
                `__getitem__`.
            batch_size: The samples of a batch on one rank.
            shuffle: Whether samples are shuffled, differently in each epoch.
            transform: For shards and files: a crop of images (`RandomResizedCrop`, `CenterCrop`), which gives uint8
                batches of shape [samples, 3, size, size], or a function of a sample, which is a dict by column.
            collate_fn: Makes a batch from a list of samples; None for torch's `default_collate`. Not with a crop.
            settings: Fields of `Settings`.

        Raises:
            UsageError: The dataset or an argument cannot be used, or an epoch would have no batch.
            EnvironmentFault: A package for decoding images is not installed.
        """
        self._own = own = chosen(settings)
        self._data = ShardedDataset(data) if isinstance(data, str | os.PathLike) else data
        self.batch_size = batch_size
        self._spec = spec_of(self._data, transform, collate_fn, own)
        self._budget = token_budget(self._spec, own, batch_size)
        self._consumed = 0  # kept apart from `_at`, so that no position is created for each batch
        digest = self._spec.digest if self._budget is None else self._budget.digest
        self._at = first_position(own, len(self._data), digest, shuffle=shuffle, window=blocks_mixed(self._spec.data))
        # The engine may split these batches over ranks later, so only an explicit number of ranks counts here.
        check_epoch(self._budget, self._at, replace(self._slice, rank=0, world=own.world or 1))
        self._resumed, self._yielded = False, 0
        self._set: int | None = None  # the epoch of the next loop, from `set_epoch` within a loop
        self._shared_by(share_of_host())
        self._pacer = AutoPacer(self._bounds, first_pace(self._bounds), self._share.spare_cores, _weak(self._paced))
        self._clock = StageClock()
        self._faults = Faults(skip=own.on_error == "skip")
        self._delivery = delivery_to(own.device, self._clock)
        self._cache = self._spec.cache(own.decoded_cache, own.decoded_cache_bytes)
        self._forget()
        self._store: BlockStore | None = None
        self._maker: Maker | None = None
        self._loop: ref[LoaderIterator] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        spec = self._spec
        arguments = self._data, self.batch_size, self._at.shuffle, spec.transform, spec.collate
        return _sent, (arguments, asdict(self._own), self.state_dict())

    @property
    def dataset(self) -> Any:
        """The dataset, by the name that `DataLoader` uses."""
        return self._data

    @property
    def sampler(self) -> Loader:
        """The loader itself, because frameworks call `set_epoch` of a loader's sampler."""
        return self

    @property
    def batch_sampler(self) -> None:
        """None, as in a `DataLoader` without a batch sampler; frameworks read this attribute."""

    @property
    def threads(self) -> int:
        """The number of threads that make batches; 0 if processes or the training itself make them."""
        return 0 if self._processes else self._pacer.pace.threads

    @property
    def num_workers(self) -> int:
        """The number of worker processes, by the name that `DataLoader` uses."""
        return self._processes

    def __len__(self) -> int:
        """Return the number of steps in the whole current epoch, even if fewer are left after a state was loaded."""
        return epoch_steps_left(self._budget, replace(self._at, consumed=0), self._slice)

    def __iter__(self) -> LoaderIterator:
        """Return an iterator over the batches of the next epoch, or of the rest of the epoch of a loaded state.

        A running loop over the same loader ends. If an epoch has no batch, the first `next` raises a `UsageError` on
        all ranks.
        """
        if (before := self._open_loop()) is not None:
            before.replace("a second loop over the same Loader")
        loop = LoaderIterator(self._epoch_of_batches(), self._handed)
        self._loop = ref(loop)  # a weak reference: leaving the loop deletes and so ends it
        return loop

    def close_loop(self) -> None:
        """End the running loop, if there is one."""
        if (loop := self._open_loop()) is not None:
            loop.close()

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, or keep the position of a state of the same epoch that was just loaded.

        Within a loop, the epoch is that of the next loop, as with torch's `DistributedSampler`.
        """
        loop, left = self._open_loop(), epoch_steps_left(self._budget, self._now, self._slice)
        if loop is not None and loop.is_begun and left:
            self._set = epoch if epoch != self._at.epoch else None
        elif not (self._resumed and epoch == self._at.epoch):
            self._go_to(replace(self._at, epoch=epoch, consumed=0))
            self._resumed = False

    def state_dict(self) -> dict[str, int | bool | str]:
        """Return the state: all batches that were yielded count as consumed."""
        return self._now.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, which may come from another number of ranks or threads.

        Seed, shuffle, window and lanes are taken from the state. If the state is from after the last batch of an epoch,
        the next loop is empty, and the loop after that runs over the next epoch. A running loop ends.

        Args:
            state: A dict from `state_dict`.

        Raises:
            UsageError: The dict is no state, is damaged, or belongs to another dataset.
        """
        at = position_of(state, self._at.samples, self._at.dataset)
        epoch_steps_left(self._budget, at, self._slice)  # refuses what is not the end of a batch
        if (before := self._open_loop()) is not None:
            before.replace("load_state_dict")
        self._go_to(at)
        self._resumed, self._set = True, None

    def report(self) -> LoaderReport:
        """Return the measurements so far: the time of each stage, bad samples, waits, and the tuning."""
        cache = self._cache or self._spec.offer(self._clock.spent())
        return report_of(self._clock, self._faults, self._pacer, self._processes, cache)

    def figures(self) -> dict[str, Any]:
        """Return the values for the record of `paceline run`: the number of threads, and the time of each stage."""
        stages = {name: vars(spent) for name, spent in self._clock.spent().items()}
        return {"threads": self.threads, "stages": stages} if self.threads else {"stages": stages}

    def forget_report(self) -> None:
        """Discard the times of stages measured so far."""
        self._clock.forget()

    def close(self) -> None:
        """End a running loop, and release all memory. The loader can still be used."""
        self.close_loop()
        self._forget()
        if self._cache is not None:
            self._cache.close()

    # -- private -------------------------------------------------------------------------------------------

    def _open_loop(self) -> LoaderIterator | None:
        return self._loop() if self._loop is not None else None

    def _shared_by(self, share: Share) -> None:
        """Set this rank's share of the host, which can change when a loop begins and the number of ranks is known."""
        self._share = share
        self._memory = self._own.memory_bytes or share.memory_bytes
        self._bounds = bounds_of(self._own, share, alone=self._spec.is_plain)
        self.__dict__.pop("_processes", None)

    @property
    def _now(self) -> Position:
        return replace(self._at, consumed=self._consumed)

    def _go_to(self, at: Position) -> None:
        self._at, self._consumed = at, at.consumed

    @property
    def _slice(self) -> Slice:
        """This rank's slice of each step; read anew, as frameworks can set the rank after the loader was created."""
        return slice_of(self._own, self.batch_size)

    def _forget(self) -> None:
        """Replace the buffers and arrays that are kept for reuse by empty pools."""
        make = unpinned_array if isinstance(self._delivery, HostDelivery) else pinned_array
        self._buffers, self._arrays = Buffers(), ArrayPool(self._pacer.bounds.most.ahead + _TRAINED, make)

    def _epoch_of_batches(self) -> Generator[Any]:
        self._go_to(self._begun())
        self._resumed = False
        if self._share.ranks != ranks_on_host():
            self._shared_by(share_of_host())
            self._pacer.bind(self._bounds)
        name = f"{self._at.dataset}/{self._at.samples}/{self._at.epoch}"
        begun = begin_loop(name) if self._own.world is None else None
        self._open()
        try:
            with closing(self._batches(self._spec.order(self._at))) as made:
                for number, (consumed, batch) in enumerate(made):
                    self._consumed = consumed
                    self._yielded += 1
                    if not number:
                        self._weigh(batch[0])
                    yield batch.pop()  # keeps no reference to the batch
            self._go_to(self._at.next_epoch())
            if begun is not None:
                tell_missing_ranks(begun(), self._slice.world)
        finally:
            self._leave()

    def _begun(self) -> Position:
        """Return the position where a loop begins: the position of a loaded state, else the start of an epoch."""
        at = self._now if self._resumed or not self._consumed else self._at.next_epoch()  # the last loop was left early
        if self._yielded == 1 and len(self) > 1 and not self._resumed and not self._at.consumed:
            at = self._at  # next(iter(loader)) only inspected the first batch
        if self._set is not None:
            at, self._set = replace(self._at, epoch=self._set, consumed=0), None
        if not at.consumed:
            check_epoch(self._budget, at, self._slice)
        return at

    def _open(self) -> None:
        if self._processes and not self._spec.is_shared:
            return
        clock, faults, seed = self._clock, self._faults, self._at.seed
        if self._spec.is_sharded:
            self._store = BlockStore(self._spec.data, self._buffers, self._memory // 2, self._clock, self._pacer.read)
            self._paced(self._pacer.pace)
            context = BatchContext(
                dataset=self._spec.data, store=self._store, clock=clock, faults=faults, seed=seed, cache=self._cache
            )
            maker = self._spec.maker(context, self._arrays, alone=self._alone)
        else:
            own = DatasetContext(arrays=self._arrays, clock=clock, faults=faults, seed=seed)
            maker = self._spec.maker_of_own(own, alone=self._alone)
        self._maker = BadBatchReplacer(maker, self._faults, self._spec.replacements)

    @property
    def _alone(self) -> bool:
        """Whether the training's own thread makes batches."""
        return not self._bounds.most.threads

    def _weigh(self, batch: Any) -> None:
        """Limit the batches made ahead by the memory, after the first batch has shown their size."""
        self._pacer.bind(within_memory(self._bounds, bytes_of(batch), self._memory // 2, _TRAINED))

    def _leave(self) -> None:
        """Release files, threads and batches that are being copied."""
        self._delivery.end()
        self._faults.tell()
        if self._store is not None:
            self._store.close()
        self._store = self._maker = None

    def _paced(self, pace: Pace) -> None:
        """Set the number of reader threads; the loop itself sets the number of threads that make batches."""
        if self._store is not None:
            self._store.allow(pace.readers if pace.threads else 0)

    def _batches(self, order: EpochOrder | MixedOrder) -> Generator[tuple[int, list[Any]]]:
        """Yield for each step the samples consumed after it, and a list out of which the caller takes the batch."""
        plan = None if self._budget is None else self._budget.plan(self._at)
        steps = steps_ahead(order, self._at, self._slice, self._store, self._cache, plan)
        if self._processes:
            rest = Rest(
                seeds=(self._at.seed, self._at.epoch),
                skip=self._faults.skip,
                collate=collate_of(self._spec),
                change=self._spec.batch_transform,
                samples=self._spec.replacements,
            )
            samples, count = self._spec.samples(), self._processes
            for consumed, batch in made_by_processes(samples, steps, count, rest, self._clock, self._faults):
                yield consumed, [self._delivery.at_once(batch.pop())]
            return
        self._pacer.loop()
        stop = self._store.stop if self._store is not None else lambda: None
        with closing(made_ahead(steps, self._made, self._pacer, self._delivery, stop)) as made:
            for (consumed, _), batch in made:
                yield consumed, batch

    @cached_property
    def _processes(self) -> int:
        return processes_for(self._spec, self._own, self._share.cores)

    def _made(self, step: tuple[int, Numbers]) -> Any:
        """Make the batch of a step, in any thread."""
        assert self._maker is not None
        begun = time.perf_counter()
        try:
            return batch_of(
                self._maker, step[1], self._own.batch_transform, (self._at.seed, self._at.epoch), self._clock
            )
        finally:
            self._pacer.made(time.perf_counter() - begun)

    def _handed(self, cpu_s: float, batch: Any) -> None:
        """Count the CPU time of taking a batch that another thread or process has made."""
        if self.threads or self._processes:
            self._clock.add("hand-over", Spent(wall_s=cpu_s, cpu_s=cpu_s, samples=samples_of(batch)))


def _weak(method: Callable[[Pace], None]) -> Callable[[Pace], None]:
    """Return a function that calls a method as long as its object exists.

    Without a reference cycle, a Loader is freed as soon as the program drops it.
    """
    found = WeakMethod(method)

    def call(pace: Pace) -> None:
        if (bound := found()) is not None:
            bound(pace)

    return call


def batch_of(
    maker: Maker,
    ids: Numbers,
    change: Callable[[Any, Any], Any] | None,
    seeds: tuple[int, int],
    clock: StageClock,
) -> Any:
    """Make a batch, and apply the user's batch transform if there is one.

    Args:
        maker: Makes the batch.
        ids: The numbers of its samples.
        change: The transform; it gets the batch and a `torch.Generator`.
        seeds: The seed and the epoch.
        clock: Sums the time of the transform.

    Raises:
        RuntimeError: The user's code raised StopIteration.
    """
    try:
        batch = maker.make(ids, seeds[1])
        if change is None:
            return batch
        lap = Lap()
        batch = transformed(batch, change, seeds, int(ids[0]))
    except StopIteration as error:
        raise as_runtime_error(batch_name(int(ids[0])), error) from error
    lap.mark("batch transform", len(ids))
    clock.add("batch transform", lap.spent["batch transform"])
    return batch


def _sent(arguments: tuple[Any, ...], settings: Mapping[str, Any], state: Mapping[str, Any]) -> Loader:
    """Create a loader again in another process, at the same position (for pickle)."""
    loader = Loader(*arguments, **settings)
    loader.load_state_dict(state)
    return loader


def part_of(loader: Loader, rank: int, ranks: int) -> Loader:
    """Return a loader of one rank's part of each batch, at the position of the given loader.

    Args:
        loader: A loader whose `batch_size` is that of all ranks together.
        rank: The number of the part, from 0.
        ranks: The number of parts, which must divide the batch size.

    Raises:
        UsageError: The loader has a rank already, or parts could have different sizes.
    """
    settings = settings_of(loader)
    if settings["rank"] is not None or settings["world"] is not None:
        raise UsageError(
            f"the loader already has rank={settings['rank']} and world={settings['world']}, so its batches would be "
            "split twice; leave both out and give the batch_size of all ranks together"
        )
    if ranks > 1 and settings["max_tokens"] is not None:
        raise UsageError(
            f"max_tokens= makes batches of one rank, which cannot be split over {ranks} ranks; give batch_size="
        )
    if ranks > 1 and settings["on_error"] == "skip":
        raise UsageError(
            f'on_error="skip" would give {ranks} ranks parts of different sizes; leave it out, so that a '
            "damaged sample ends the run"
        )
    send, (arguments, _, state) = loader.__reduce__()
    data, batch, *rest = arguments
    own = {**settings, "rank": rank, "world": ranks}
    return send((data, batch // ranks, *rest), own, state)


def settings_of(loader: Loader) -> dict[str, Any]:
    """Return the settings of a loader as a dict by name."""
    _, (_, settings, _) = loader.__reduce__()
    return dict(settings)
