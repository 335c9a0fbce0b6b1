"""The loader, in place of torch's `DataLoader`: batches in the order of the epoch, made by threads, resumed anywhere.

    loader = Loader("photos/", batch_size=64, shuffle=True, transform=RandomResizedCrop(224), seed=1)
    for images, labels in loader: ...

State is the seed, the epoch, and how many samples all ranks together have consumed: about a hundred bytes that say all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.data.batches.batch_context import ArrayPool, BatchContext, DatasetContext, unpinned_array
from paceline.data.batches.batches import Maker
from paceline.data.batches.faults import Faults
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
_TRAINED = 3  # batches that the training may hold at a time, whose memory is used again


class Loader:
    """Batches of a sharded data set, or of any map-style `Dataset`."""

    def __init__(
        self,
        data: str | os.PathLike[str] | ShardedDataset | Any,
        batch_size: int = 1,
        shuffle: bool = False,
        transform: Crop | Callable[[Mapping[str, Any]], Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **settings: Any,
    ) -> None:
        """Prepare a loader; nothing is read yet.

        Args:
            data: A folder that `paceline data convert` wrote, or its URL in a store, a `TokenDataset` of one, a
                `FileDataset`, a `torch.utils.data.Subset` of these, a `Mix`, or any `Dataset` with `__len__` and
                `__getitem__`.
            batch_size: Samples of a batch, of one rank.
            shuffle: Whether samples are mixed, anew in each epoch.
            transform: Of shards: what to take of each picture (`RandomResizedCrop`, `CenterCrop`), which makes batches
                of bytes, [samples, 3, size, size]; or what makes a sample of a dict of columns. A Dataset has its own.
            collate_fn: Makes a batch of a list of samples; None: as `DataLoader` does. Not with a crop.
            settings: Those of `Settings`.

        Raises:
            UsageError: There is no data set, it cannot be used in this way, or an epoch would have no batch.
            EnvironmentFault: A package that decodes is not there.
        """
        self._own = own = chosen(settings)
        self._data = ShardedDataset(data) if isinstance(data, str | os.PathLike) else data
        self.batch_size = batch_size
        self._spec = spec_of(self._data, transform, collate_fn, own)
        self._budget = token_budget(self._spec, own, batch_size)
        self._consumed = 0  # now; beside a position, for that is made anew only where somebody asks
        digest = self._spec.digest if self._budget is None else self._budget.digest
        self._at = first_position(own, len(self._data), digest, shuffle=shuffle, window=blocks_mixed(self._spec.data))
        # The engine gives a part of these batches to each rank, so the number of ranks counts only where it is given.
        check_epoch(self._budget, self._at, replace(self._slice, rank=0, world=own.world or 1))
        self._resumed, self._yielded = False, 0
        self._set: int | None = None  # epoch of the next loop, set within a loop
        self._shared_by(share_of_host())
        self._pacer = AutoPacer(self._bounds, first_pace(self._bounds), self._share.spare_cores, self._paced)
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
        """The data set, as `DataLoader` names it."""
        return self._data

    @property
    def sampler(self) -> Loader:
        """The loader itself: frameworks set the epoch of a loader's sampler."""
        return self

    @property
    def batch_sampler(self) -> None:
        """None, as of a `DataLoader` without one: frameworks that see a sampler ask for it."""

    @property
    def threads(self) -> int:
        """Threads that make batches now; 0: processes do, or the training itself."""
        return 0 if self._processes else self._pacer.pace.threads

    @property
    def num_workers(self) -> int:
        """Processes that make batches, as `DataLoader` names them."""
        return self._processes

    def __len__(self) -> int:
        """Return the steps of a whole epoch, also where a state was loaded and fewer are left.

        With `max_tokens=` and `shuffle=True`, epochs have about as many steps, but not the same number.
        """
        return epoch_steps_left(self._budget, replace(self._at, consumed=0), self._slice)

    def __iter__(self) -> LoaderIterator:
        """Give the batches of an epoch: of the one that a state was loaded of what is left, else of the next one.

        A loop that is in the middle ends here: there is one at a time. If an epoch has no batch, the first `next`
        raises a `UsageError` on all ranks.
        """
        if (before := self._open_loop()) is not None:
            before.replace("a second loop over the same Loader")
        loop = LoaderIterator(self._epoch_of_batches(), self._handed)
        self._loop = ref(loop)  # who breaks out of the loop lets go of it, and with that it ends
        return loop

    def close_loop(self) -> None:
        """End the loop that is in the middle, if there is one."""
        if (loop := self._open_loop()) is not None:
            loop.close()

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; what is left of it stays so, if its state was just loaded.

        Within a loop the epoch is that of the next loop, as with torch's `DistributedSampler`.
        """
        loop, left = self._open_loop(), epoch_steps_left(self._budget, self._now, self._slice)
        if loop is not None and loop.is_begun and left:
            self._set = epoch if epoch != self._at.epoch else None
        elif not (self._resumed and epoch == self._at.epoch):
            self._go_to(replace(self._at, epoch=epoch, consumed=0))
            self._resumed = False

    def state_dict(self) -> dict[str, int | bool | str]:
        """Return where it is: what has been yielded is consumed."""
        return self._now.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a loader was, of whatever number of ranks and threads.

        Seed, shuffle, window and lanes are those of the state. Of an epoch whose last batch was taken nothing is left:
        its loop is empty, and the next loop is the next epoch. A loop that is in the middle ends.

        Raises:
            UsageError: It is no state, it is damaged, or that of another data set.
        """
        at = position_of(state, self._at.samples, self._at.dataset)
        epoch_steps_left(self._budget, at, self._slice)  # refuses what is not the end of a batch
        if (before := self._open_loop()) is not None:
            before.replace("load_state_dict")
        self._go_to(at)
        self._resumed, self._set = True, None

    def report(self) -> LoaderReport:
        """Say what batches cost so far, stage by stage, which stage is slowest, and what was tuned."""
        cache = self._cache or self._spec.offer(self._clock.spent())
        return report_of(self._clock, self._faults, self._pacer, self._processes, cache)

    def figures(self) -> dict[str, Any]:
        """Return what `paceline run` writes into its record: threads, and what stages take of a sample."""
        stages = {name: vars(spent) for name, spent in self._clock.spent().items()}
        return {"threads": self.threads, "stages": stages} if self.threads else {"stages": stages}

    def forget_report(self) -> None:
        """Begin to count anew what stages take."""
        self._clock.forget()

    def close(self) -> None:
        """End a loop that is in the middle, and let go of all memory. Another loop begins anew."""
        self.close_loop()
        self._forget()
        if self._cache is not None:
            self._cache.close()

    # -- inside --------------------------------------------------------------------------------------------

    def _open_loop(self) -> LoaderIterator | None:
        return self._loop() if self._loop is not None else None

    def _shared_by(self, share: Share) -> None:
        """Take what of this host is this rank's; how many ranks there are may be known only when a loop begins."""
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
        """What of each step is this rank's; frameworks say which rank that is only after a loader was made."""
        return slice_of(self._own, self.batch_size)

    def _forget(self) -> None:
        """Let go of memory that is used again."""
        make = unpinned_array if isinstance(self._delivery, HostDelivery) else pinned_array
        self._buffers, self._arrays = Buffers(), ArrayPool(self._pacer.bounds.most.ahead + _TRAINED, make)

    def _epoch_of_batches(self) -> Generator[Any]:
        self._go_to(self._begun())
        self._resumed = False
        if self._share.ranks != ranks_on_host():
            self._shared_by(share_of_host())
            self._pacer.bind(self._bounds)
        begun = (
            begin_loop(f"{self._at.dataset}/{self._at.samples}/{self._at.epoch}") if self._own.world is None else None
        )
        self._open()
        try:
            with closing(self._batches(self._spec.order(self._at))) as made:
                for number, (consumed, batch) in enumerate(made):
                    self._consumed = consumed
                    self._yielded += 1
                    if not number:
                        self._weigh(batch[0])
                    yield batch.pop()  # nothing here keeps what the training has
            self._go_to(self._at.next_epoch())
            if begun is not None:
                tell_missing_ranks(begun(), self._slice.world)
        finally:
            self._leave()

    def _begun(self) -> Position:
        """Return where a loop begins: where a state was, else at the beginning of an epoch."""
        at = self._now if self._resumed or not self._consumed else self._at.next_epoch()  # the loop before was left
        if self._yielded == 1 and len(self) > 1 and not self._resumed and not self._at.consumed:
            at = self._at  # next(iter(loader)) was a look at the first batch, and uses up no epoch
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
        """See to it that no more is made ahead than memory is for, now that it is known what a batch takes."""
        self._pacer.bind(within_memory(self._bounds, bytes_of(batch), self._memory // 2, _TRAINED))

    def _leave(self) -> None:
        """Let go of files, threads and batches on their way."""
        self._delivery.end()
        self._faults.tell()
        if self._store is not None:
            self._store.close()
        self._store = self._maker = None

    def _paced(self, pace: Pace) -> None:
        """Set how many readers there are; the threads of the loop follow by themselves."""
        if self._store is not None:
            self._store.allow(pace.readers if pace.threads else 0)

    def _batches(self, order: EpochOrder | MixedOrder) -> Generator[tuple[int, list[Any]]]:
        """Yield what is consumed after each step, and its batch in a list, from which the last to have it takes it."""
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
        """Make a batch."""
        assert self._maker is not None  # it is open
        begun = time.perf_counter()
        try:
            batch = self._maker.make(step[1], self._at.epoch)
            return changed(batch, step[1], self._own.batch_transform, (self._at.seed, self._at.epoch), self._clock)
        finally:
            self._pacer.made(time.perf_counter() - begun)

    def _handed(self, cpu_s: float, batch: Any) -> None:
        """Count what taking a batch took, where another thread or process has made it."""
        if self.threads or self._processes:
            self._clock.add("hand-over", Spent(wall_s=cpu_s, cpu_s=cpu_s, samples=samples_of(batch)))


def changed(
    batch: Any, ids: Numbers, change: Callable[[Any, Any], Any] | None, seeds: tuple[int, int], clock: StageClock
) -> Any:
    """Return a batch after the user's own function of it."""
    if change is None:
        return batch
    lap = Lap()
    batch = transformed(batch, change, seeds, int(ids[0]))
    lap.mark("batch transform", len(ids))
    clock.add("batch transform", lap.spent["batch transform"])
    return batch


def _sent(arguments: tuple[Any, ...], settings: Mapping[str, Any], state: Mapping[str, Any]) -> Loader:
    """Return a loader that was sent to another process: it goes on where it was."""
    loader = Loader(*arguments, **settings)
    loader.load_state_dict(state)
    return loader


def part_of(loader: Loader, rank: int, ranks: int) -> Loader:
    """Return a loader of one rank's part of each batch; it goes on where the given one is.

    Args:
        loader: Its `batch_size` is that of all ranks together.
        rank: Which part, from 0.
        ranks: How many parts; they divide the batches.

    Raises:
        UsageError: It gives a part already, or ranks would have parts of different sizes.
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
    """Return the settings of a loader by their names."""
    _, (_, settings, _) = loader.__reduce__()
    return dict(settings)
